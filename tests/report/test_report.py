"""The report: complete, self-contained, and honest about what its numbers rest on."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from tests.paper_setting import Plan

import nbafl
from nbafl.folders import answers, runs
from nbafl.privacy.adversary import name_of
from nbafl.report.html import render
from nbafl.report.numbers import epsilon
from nbafl.report.pages import environment


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    numbers = np.random.default_rng(0)
    clients = [(numbers.random((12, 4)).astype(np.float32), numbers.integers(2, size=12)) for _ in range(3)]
    plan = Plan(clients=3, samples=12, rounds=3, model="softmax", target="<script>alert(1)</script>")
    federation = nbafl.Federation.from_arrays(clients=clients, test=clients[0], outputs=2)
    return nbafl.simulate(plan, federation, out=tmp_path_factory.mktemp("report") / "run")


def test_every_picture_statement_and_field_is_there(run):
    page = render(run)
    for title in (
        "Loss by round",
        "Accuracy by round",
        "Spread between clients",
        "Uploads that were clipped",
    ):
        assert title in page
    assert page.count("<svg") == 5
    for sentence in run.privacy["sentences"][:3]:
        assert sentence.split(":")[0] in page
    for field in type(run.plan).model_fields:
        assert f'<th scope="row">{field}</th>' in page
    for adversary in ("broadcast", "targeted", "eavesdropper", "curious-server"):
        assert f'<th scope="row">{adversary}</th>' in page


def test_every_picture_is_told_in_words(run):
    page = render(run)
    told = re.findall(r'<svg role="img" aria-label="([^"]*)"', page)
    assert len(told) == 5
    first, last = run.metrics[0]["train_loss"], run.metrics[-1]["train_loss"]
    assert f"training records: {first:.3g} in round 1, {last:.3g} in round 3" in told[0]


def test_both_ways_of_aggregation_stand_side_by_side(run):
    """A plain run on own data: what its noise is worth, and why the other way needs one number more."""
    prices = run.plan.summary()["aggregation"]
    section = render(run).split("under both ways of aggregation")[1].split("</details>")[0]
    assert "This run was plain" in section
    for name, entry in prices["plain"]["guarantee"].items():
        assert (
            f'<th scope="row">{name_of(name)}</th><td class="n">{epsilon(entry["epsilon"])}</td>' in section
        )
    refused = prices["secure"].get("refused")
    assert (refused is None) == ('<td class="n">–</td>' not in section)


def test_a_claim_that_is_not_kept_is_not_shown_as_if_it_were(run, tmp_path):
    kept = render(run)
    assert "Not kept" not in kept
    numbers = np.random.default_rng(0)
    clients = [(numbers.random((12, 4)).astype(np.float32), numbers.integers(2, size=12)) for _ in range(3)]
    federation = nbafl.Federation.from_arrays(clients=clients, test=clients[0], outputs=2)
    for field, said in (
        ({"calibration": "paper"}, "Not kept: this noise is worth epsilon"),
        ({"noise": False}, '<td class="n">∞</td>'),
    ):
        plan = Plan(clients=3, samples=12, rounds=1, model="softmax", **field)
        page = render(nbafl.simulate(plan, federation, out=tmp_path / next(iter(field))))
        assert said in page


def test_nothing_is_loaded_from_a_network(run):
    page = render(run)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert "@import" not in page
    assert "<script" not in page


def test_an_epsilon_never_stands_alone(run):
    page = render(run)
    card = page[page.index("epsilon claimed") :][:400]
    for word in ("delta", "eavesdropper", "record", "if 2C/m holds"):
        assert word in card


def test_the_table_of_adversaries_is_the_runs_and_not_the_plans(tmp_path):
    """Client unit, K < N, one client never online: the statement counted the draw as known, the table beside it did not."""
    numbers = np.random.default_rng(0)
    clients = [(numbers.random((12, 4)).astype(np.float32), numbers.integers(2, size=12)) for _ in range(10)]
    plan = Plan(
        clients=10, samples=12, per_round=3, rounds=6, sensitivity="client", clip=1.0, epsilon=2.0, delta=1e-5,
        adversary="broadcast", model="softmax",
    )  # fmt: skip
    federation = nbafl.Federation.from_arrays(clients=clients, test=clients[0], outputs=2)
    run = nbafl.simulate(plan, federation, out=tmp_path / "run")
    there = list(range(9))
    for number in range(1, 7):
        answered = sorted((number + each) % 9 for each in range(3))
        answers.add(run.path / answers.FILE, {
            "number": number, "online": there, "still_online": there, "drawn": answered, "answered": answered,
            "sigma_downlink": plan.noise_scales().sigma_downlink,
        })  # fmt: skip
    runs.write_privacy(run, run.privacy["model_digest"], run.privacy["model_parameters"])
    told = run.privacy["guarantee"]
    assert told["broadcast"]["epsilon"] > 1.3 * plan.guarantees()["broadcast"]
    table = render(run).split("What each adversary could learn")[1].split("</details>")[0]
    for name, entry in told.items():
        assert f'<th scope="row">{name_of(name)}</th><td class="n">{epsilon(entry["epsilon"])}</td>' in table
    assert run.summary()["privacy"]["guarantee"] == told
    assert not run.summary()["privacy"]["delivers_claim"]


def test_a_federations_report_is_named_after_its_home(tmp_path, run):
    home = tmp_path / "hospitals"
    (home / "handout").mkdir(parents=True)
    shutil.copytree(run.path, home / "run")
    shutil.copy(run.path / "plan.toml", home)
    text = render(nbafl.Run.load(home / "run"))
    assert "<h2>Run hospitals</h2>" in text
    assert "<title>nbafl run hospitals</title>" in text


def test_what_refuted_a_claim_is_said_in_words():
    page = environment().get_template("audit_part.html")
    audit = {"verdict": "refuted", "refuted_by": ["claim", "attack: targeted"]}
    text = page.render(audit=audit, unit="one record", audit_pictures=[])
    assert "Refuted by: an attack that proves more than the claimed epsilon, attack: targeted." in text
