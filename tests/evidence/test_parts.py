"""An operator who forges what everything else is computed from, computes the rest again and signs it, is found out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evidence.files import FOLDER, finished_run, resigned
from tests.paper_setting import Plan

from nbafl.evidence import gather, rounds, verify
from nbafl.evidence.content import Remade
from nbafl.evidence.questions import answers
from nbafl.folders.runs import RunFolder
from nbafl.privacy.dropouts import AnsweredRound, top_up_variance

WHOLE = {"answered": [0, 1, 2], "extra_variance": 0.0, "everyone_online": True}
AUDIT = {
    "verdict": "consistent", "refuted_by": [], "confidence": 0.99, "trials": 100, "attacks": {},
    "proved_epsilon": {"gaussian": 0.1, "distribution_free": None},
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return finished_run(tmp_path_factory.mktemp(FOLDER))


def forged(made: Path, place: Path, change: Callable[[dict], object]) -> Path:
    """Changed, and everything that follows from it made again, so that all numbers fit."""

    def all_of_it(content: dict[str, Any]) -> None:
        change(content)
        again = Remade.of(content)
        content["statement"] = json.loads(json.dumps(again.statement))
        content["summary"] = again.summary
        content["questions"] = answers(again.facts, again.statement)

    return resigned(made, place, all_of_it)


def in_rounds(*entries: dict[str, Any]) -> Callable[[dict], object]:
    """The same run as one of a federation, with these rounds."""

    def change(content: dict[str, Any]) -> None:
        content["facts"]["where"] = "federation"
        content["rounds"] = list(entries)

    return change


def places(path: Path) -> set[str]:
    return {finding.place for finding in verify(path).findings}


def test_whole_rounds_of_a_federation_are_verified_and_its_page_calls_it_none_of_a_simulation(made, tmp_path):
    file = forged(made, tmp_path, in_rounds(WHOLE, WHOLE, WHOLE))
    assert places(file) == set()
    assert "3 clients of a simulation" not in file.read_text()
    assert "3 clients of a simulation" in (made / "run" / "evidence.html").read_text()


@pytest.mark.parametrize(
    ("entries", "place"),
    [
        ((), "rounds"),  # it said epsilon 0
        ((WHOLE,), "rounds"),
        ((WHOLE, WHOLE, {**WHOLE, "extra_variance": 1e6}), "rounds[3]"),
        ((WHOLE, WHOLE, {**WHOLE, "answered": [0, 1], "extra_variance": 1e6, "everyone_online": False}), "rounds[3]"),
        ((WHOLE, WHOLE, {**WHOLE, "answered": [0, 1]}), "rounds[3]"),
        ((WHOLE, WHOLE, {**WHOLE, "answered": [0, 1, -1]}), "rounds[3]"),
        ((WHOLE, WHOLE, {**WHOLE, "answered": [0, 1, 1]}), "rounds[3]"),
        ((WHOLE, WHOLE, {**WHOLE, "certified": "epsilon 0.01"}), "rounds[3]"),
    ],
)  # fmt: skip
def test_rounds_that_cannot_have_been_are_found_out(made, tmp_path, entries, place):
    assert place in places(forged(made, tmp_path, in_rounds(*entries)))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda c: c.update(certificate={"epsilon": 0.01}), "content"),
        (lambda c: c["model"].update({"certified epsilon": 0.01}), "model"),
        (lambda c: c["model"].update(name="softmax (epsilon 0.01)"), "model.name"),
        (lambda c: c["model"].update(test={"epsilon": 0.01}), "model.test"),
        (lambda c: c["model"].update(test={"accuracy": "epsilon 0.01"}), "model.accuracy"),
        (lambda c: c["model"].update(parameters="few"), "model.parameters"),
        (lambda c: c["model"].update(rounds=1), "model.rounds"),
        (lambda c: c["files"].update({"epsilon is at most 0.01": "0" * 64}), "files"),
        (lambda c: c["files"].update({"metrics.jsonl": "epsilon is at most 0.01"}), "files.metrics.jsonl"),
        (lambda c: c.update(schema="epsilon = 0.01"), "schema"),
        (lambda c: c["facts"].update(epsilon=0.01), "facts"),
        (lambda c: hides_what_was_read(c), "facts.read_from_data"),
        (lambda c: c["facts"].update(where="federation"), "rounds"),
        (lambda c: c["facts"].update(where="Federation"), "facts.where"),  # its seed was no hazard any more
        (lambda c: c["model"].update(parameters=0), "model.parameters"),
        (lambda c: c.update(rounds=[WHOLE] * 3), "rounds"),
        (lambda c: c["participants"]["clients"][0].update(name="the authority"), "participants.clients[0].name"),
        (lambda c: c["participants"].update(epsilon=0.01), "participants.epsilon"),
        (lambda c: c["plan"].pop("lr"), "plan.lr"),
        (lambda c: c.update(audit={**about(c), **AUDIT, "confidence": 5}), "audit.confidence"),
        (lambda c: c.update(audit={**about(c), **AUDIT, "trials": 0}), "audit.trials"),
    ],
)  # fmt: skip
def test_what_has_no_place_in_a_file_is_found_out(made, tmp_path, change, place):
    assert place in places(forged(made, tmp_path, change))


def hides_what_was_read(content: dict[str, Any]) -> None:
    """Of a table whose schema was read from its records."""
    content["schema"] = "public = false\n"
    content["files"]["schema.toml"] = hashlib.sha256(content["schema"].encode()).hexdigest()
    content["facts"]["read_from_data"] = []


def about(content: dict[str, Any]) -> dict[str, Any]:
    plan = content["plan"]
    return {"adversary": plan["adversary"], "claimed_epsilon": plan["epsilon"], "delta": plan["delta"]}


def test_an_honest_audit_has_its_place(made, tmp_path):
    assert places(forged(made, tmp_path, lambda c: c.update(audit={**about(c), **AUDIT}))) == set()


def test_every_honest_round_may_have_been():
    """As a server makes them: any clients drawn, any of them silent, its top-up for those who are missing."""
    chance, facts = np.random.default_rng(5), None
    for _ in range(60):
        clients = int(chance.integers(1, 9))
        sizes = tuple(int(each) for each in chance.integers(1, 2000, clients))
        fields: dict[str, Any] = {
            "clients": clients,
            "sizes": sizes,
            "epsilon": 2.0,
            "delta": 1e-6,
            "rounds": 5,
        }
        drawing, rule = int(chance.integers(1, clients + 1)), str(chance.choice(["gradient", "client"]))
        plan = Plan(**fields, per_round=drawing, sensitivity=rule)
        weights, noise, happened = plan.client_weights, plan.noise_scales(), []
        for _ in range(plan.rounds):
            drawn = np.sort(chance.choice(clients, plan.drawn, replace=False))
            there = chance.random(plan.drawn) < 0.7
            there[0] = True
            more = top_up_variance(weights[drawn], noise.sigma_uplink[drawn], noise.sigma_downlink, there)
            all_of_it = math.sqrt(noise.sigma_downlink**2 + more)  # what is written down
            extra = max(0.0, all_of_it**2 - noise.sigma_downlink**2)
            happened.append(AnsweredRound(drawn[there], extra, bool(there.all())))
        told = json.loads(json.dumps(rounds.shown(plan, happened)))
        assert list(rounds.problems(told, plan, facts)) == []


def test_a_federation_that_lost_its_answers_is_charged_the_worst(made):
    """Deleting answers.jsonl gave the plan's epsilon back."""
    run = RunFolder.load(made / "run")
    kept = (run.path / "facts.json").read_text()
    (run.path / "facts.json").write_text(kept.replace('"simulation"', '"federation"'))
    try:
        with pytest.raises(Exception, match=r"privacy.json of .run. says epsilon .*computed again it is"):
            gather(RunFolder.load(made / "run"))
    finally:
        (run.path / "facts.json").write_text(kept)
