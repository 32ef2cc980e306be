"""Extracts of ledgers under secure aggregation: rows are priced by what a sum of masked uploads tells."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.paper_setting import Plan

from nbafl.evidence import extracts
from nbafl.flower.keys import make_client_key, read_signing_key
from nbafl.flower.secure_member import SecureReleaser
from nbafl.privacy.ledger import Ledger, Limits, Price, Request

PLAN = Plan(
    clients=5, samples=300, rounds=4, sensitivity="gradient", lr=0.5, record_clip=1.0, epsilon=3.0, delta=1e-6,
    adversary="curious-server:1", aggregation="secure", features="raw", dimension=7850, model="softmax",
)  # fmt: skip


def ledger_of(folder: Path, **cheaper: object) -> Ledger:
    """A ledger with the four rounds of the plan, charged as the client charges them, or cheaper."""
    made = Ledger(folder / "ledger.sqlite", anchors=folder / "anchors")
    made.set_limits(Limits(1e9, 1e-6))
    price: Price = dataclasses.replace(SecureReleaser(PLAN, made).price(0), **cheaper)
    for number in range(1, PLAN.rounds + 1):
        made.record(Request(PLAN.digest(), number, f"w{number}"), b"masked", price)
    return made


def problems(ledger: Ledger, folder: Path) -> list[str]:
    make_client_key("north", folder)
    extract = extracts.make(ledger, PLAN, "north", read_signing_key(folder / "north"), None)
    return list(extracts.problems(extract, PLAN, 1, {1, 2, 3, 4}, 7850))


def cheaply(price: Price, share: float) -> dict[str, object]:
    """Charges that are that share of the honest ones."""
    cut = {
        account: dataclasses.replace(
            each, upload=share * each.upload, after=lambda answers, whole=each.after: share * whole(answers)
        )
        for account, each in price.charges.items()
    }
    return {"charges": cut}


def test_a_client_that_charges_what_its_program_charges_passes(tmp_path):
    assert problems(ledger_of(tmp_path), tmp_path) == []


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_client_that_signs_a_cheaper_chain_is_found_out(tmp_path, share):
    """Under secure aggregation nothing was compared: rows of price 0 passed."""
    honest = SecureReleaser(PLAN, Ledger(tmp_path / "other.sqlite", anchors=tmp_path / "more")).price(0)
    found = problems(ledger_of(tmp_path, **cheaply(honest, share)), tmp_path)
    assert "its 4 releases were charged less than the plan's accounting asks" in found
    assert any(each.startswith("row 2 charges an upload") for each in found)


def test_finite_precision_is_charged(tmp_path):
    (first, *_) = problems(ledger_of(tmp_path, rounding=0.0), tmp_path)
    assert "to epsilon for finite precision" in first
