"""Evaluation without a public test set, for numbers: real processes, errors clipped, everything on the ledger."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from federation_processes import Federation, Nursery, is_listening, wait_for

from nbafl.cli import run_command
from nbafl.evidence.sealed import open_file
from nbafl.flower.keys import make_client_key

pytestmark = pytest.mark.e2e


def test_clients_sum_up_clipped_errors_where_numbers_are_learnt(tmp_path: Path, nursery: Nursery) -> None:
    generator, data = np.random.default_rng(3), tmp_path / "data"
    data.mkdir()
    for name, rows in (("a", 120), ("b", 120), ("a-held", 300), ("b-held", 300)):
        x = generator.uniform(0, 1, (rows, 2))
        lines = [f"{one:.4f},{two:.4f},{one - two:.4f}" for one, two in x]
        folder = data if "held" not in name else tmp_path
        (folder / f"{name}.csv").write_text("one,two,outcome\n" + "\n".join(lines) + "\n")
    schema = ["data", "schema", str(data), "--target", "outcome", "--task", "regression"]
    assert run_command(schema) == 0
    plan = ("--dataset", data, "--target", "outcome", "--rounds", 4, "--samples", 100, "--model", "softmax")
    plan += (
        "--sensitivity",
        "gradient",
        "--features",
        "raw",
        "--lr",
        0.5,
        "--record-clip",
        1.0,
        "--epsilon",
        30,
    )
    agreed = ("--evaluate-every", 2, "--reserve", 0.2, "--evaluate-bound", 4)
    assert run_command(["serve", "--prepare", "--home", str(tmp_path / "no"), "--clients", "2", *map(str, plan),
                        "--evaluate-every", "2"]) == 2  # fmt: skip
    federation = Federation(tmp_path, 2, *plan, *agreed)
    server = nursery.start("serve", *federation.serve())
    clients = [
        nursery.start(
            f"join-{name}",
            *federation.join(number, "--held-out", tmp_path / f"{name}-held.csv", data=data / f"{name}.csv"),
        )
        for number, name in enumerate("ab")
    ]
    assert [each.finish() for each in (server, *clients)] == [0, 0, 0], server.output
    measured = [line["test_loss"] for line in federation.metrics]
    assert [value is not None for value in measured] == [False, True, False, True]
    assert all(0 <= float(value) <= 4 for value in measured if value is not None)  # type: ignore[arg-type]
    assert [federation.ledger(client).spent().releases for client in range(2)] == [4 + 2, 4 + 2]
    whole = json.loads((federation.home / "run" / "privacy.json").read_text())
    stated = whole["evaluation"]
    assert whole["delivers_claim"]
    assert whole["epsilon"] == pytest.approx(30, rel=1e-6), "training and scores together are worth the claim"
    assert (stated["counts"], stated["error_bound"], stated["unit"]) == (2, 4.0, "record")
    assert whole["guarantee"]["curious_server"]["epsilon"] == stated["epsilon_with_training"]
    assert stated["sentence"] in whole["sentences"]
    assert "with 2 noisy scores on held-out records" in clients[0].output
    assert stated["epsilon_with_training"] > stated["epsilon_counts_alone"] > 0
    _check_evidence(federation, stated["epsilon_with_training"])


def _check_evidence(federation: Federation, epsilon: float) -> None:
    """The extract of a client's ledger and the signed file have the scores in; without them the file is refused."""
    folder, agreed = federation.folder, federation.home / "handout" / "plan.toml"
    (folder / "alone.toml").write_bytes(agreed.read_bytes())
    make_client_key("operator", folder)
    seal = [
        "evidence",
        str(federation.home),
        "--key",
        str(folder / "operator"),
        "--ledger",
        str(folder / "extract"),
    ]
    for plan, code in ((folder / "alone.toml", 1), (agreed, 0)):
        words = ["--plan", plan, "--key", federation.key(0), "--out", folder / "extract"]
        assert run_command(["ledger", "extract", str(folder / "state-0"), *map(str, words)]) == 0
        assert run_command(seal) == code
    content = open_file(federation.home / "run" / "evidence.html").content
    assert content["ledgers"][0]["spent"]["releases"] == 4 + 2
    assert content["ledgers"][0]["spent"]["epsilon_uploads"] == pytest.approx(epsilon, rel=1e-3)
    assert content["statement"]["guarantee"]["curious_server"]["epsilon"] == epsilon


def test_scores_are_a_secure_sum_where_the_training_is(tmp_path: Path, nursery: Nursery) -> None:
    """Four clients, one of them without held-out records; the server opens sums of at least three."""
    generator, data = np.random.default_rng(5), tmp_path / "data"
    data.mkdir()
    for name, rows in (*((each, 60) for each in "abcd"), *((f"{each}-held", 400) for each in "abc")):
        x = generator.uniform(0, 1, (rows, 2))
        lines = [f"{one:.4f},{two:.4f},{'yes' if one > two else 'no'}" for one, two in x]
        folder = data if "held" not in name else tmp_path
        (folder / f"{name}.csv").write_text("one,two,outcome\n" + "\n".join(lines) + "\n")
    assert run_command(["data", "schema", str(data), "--target", "outcome", "--task", "classification"]) == 0
    plan = ("--dataset", data, "--target", "outcome", "--rounds", 3, "--samples", 60, "--model", "softmax")
    plan += ("--sensitivity", "gradient", "--features", "raw", "--lr", 1, "--record-clip", 1, "--epsilon", 30)
    plan += (
        "--delta",
        1e-4,
        "--aggregation",
        "secure",
        "--adversary",
        "curious-server:1",
        "--min-answers",
        3,
    )
    agreed = ("--calibration", "exact", "--dimension", 6, "--evaluate-every", 2, "--evaluate-noise", 4)
    federation = Federation(tmp_path, 4, *plan, *agreed)
    server = nursery.start("serve", *federation.serve())
    wait_for(lambda: is_listening(federation.port) or server.code is not None, "the server")
    clients = []
    for number, name in enumerate("abcd"):
        held = ("--held-out", tmp_path / f"{name}-held.csv") if name != "d" else ()
        command = federation.join(number, *held, data=data / f"{name}.csv")
        clients.append(nursery.start(f"join-{name}", *command))
    assert [each.finish() for each in (server, *clients)] == [0] * 5, server.output
    measured = [line["test_accuracy"] for line in federation.metrics]
    assert [value is not None for value in measured] == [False, True, True]
    assert all(0 <= float(value) <= 1 for value in measured if value is not None)  # type: ignore[arg-type]
    assert [federation.ledger(client).spent().releases for client in range(4)] == [3 + 2] * 4
    stated = json.loads((federation.home / "run" / "privacy.json").read_text())["evaluation"]
    assert stated["counts"] == 2
    assert "sums of at least 3" in stated["sentence"]
