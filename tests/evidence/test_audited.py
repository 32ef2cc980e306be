"""Evidence with an audit in it: of either form, about this claim, and proving no more than was accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.evidence.files import FOLDER, finished_run, resigned, write

import nbafl
from nbafl.audit.secure import audit_secure
from nbafl.cli import run_command
from nbafl.evidence import verify
from nbafl.evidence.sealed import open_file
from nbafl.folders import audits


@pytest.fixture(scope="module")
def secure(tmp_path_factory) -> Path:
    """A simulated run with secure aggregation, its own audit, and the evidence of both."""
    fields = {
        "aggregation": "secure",
        "adversary": "curious-server:1",
        "epsilon": 4.0,
        "delta": 1e-3,
        "lr": 0.5,
    }
    folder = finished_run(tmp_path_factory.mktemp(FOLDER), **fields)
    plan = nbafl.Run.load(folder / "run").plan
    # Noise of the operating system has no seed: at this confidence a sound plan is refuted once in a million times.
    audits.write(folder / "run", plan, audit_secure(plan, 1000, 1 - 5e-6).to_dict())
    assert write(folder) == 0
    return folder


def test_a_secure_run_with_its_own_audit_gets_evidence(secure, capsys):
    """It was refused: "is not as this format has it (KeyError: 'attacks')"."""
    file = secure / "run" / "evidence.html"
    assert open_file(file).content["audit"]["verdict"] == "consistent"
    assert run_command(["evidence", "--verify", str(file)]) == 0
    assert "while at most 1 client works with the server" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda audit: audit["looks"][0].update(proof=99.0), "audit.looks"),
        (lambda audit: audit["looks"][-1].update(proof=None), "audit.looks"),
        (lambda audit: audit["proved_epsilon"].update(gaussian=4.1), "audit"),
        (lambda audit: audit.update(verdict="refuted", refuted_by=["server"]), "audit"),
        (lambda audit: audit.update(refuted_by=["server"]), "audit"),
        (lambda audit: audit.update(verdict="consistent: it protects persons"), "audit.verdict"),
        (lambda audit: audit.update(trials="very many"), "audit.trials"),
        (lambda audit: audit.pop("looks"), "audit"),
        (lambda audit: audit.update(claimed_epsilon=3.0), "audit.claimed_epsilon"),
    ],
)
def test_a_secure_audit_that_speaks_against_the_claim_is_named(secure, tmp_path, change, place):
    file = resigned(secure, tmp_path, lambda content: change(content["audit"]))
    assert place in [each.place for each in verify(file).findings]
