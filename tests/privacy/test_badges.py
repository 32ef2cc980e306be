"""Kept is not strong: two badges, computed once."""

from __future__ import annotations

import pytest
from tests.paper_setting import Plan

from nbafl.privacy import badges
from nbafl.studio import cards
from nbafl.studio.answer import answer


@pytest.mark.parametrize(
    ("guess", "word"),
    [(0.5, "strong"), (0.6, "strong"), (0.6001, "weak"), (0.9, "weak"), (0.9001, "no useful limit"),
     (1.0, "no useful limit"), (None, "no useful limit"), (float("nan"), "no useful limit")],
)  # fmt: skip
def test_strength_follows_from_the_best_guess(guess, word):
    assert badges.strength(guess).word == word


def test_a_claim_is_kept_or_not_whatever_it_is_worth():
    assert badges.kept(True, False).word == "kept"
    assert badges.kept(True, True).word == "kept conditionally"
    assert badges.kept(False, True).word == "not kept"


@pytest.mark.parametrize(("epsilon", "word"), [(0.5, "strong"), (4.0, "weak"), (50.0, "no useful limit")])
def test_the_studio_shows_both(epsilon, word):
    found = answer(Plan(sensitivity="gradient", epsilon=epsilon, delta=1e-5, rounds=5, calibration="exact"))
    head = cards.headline(found)
    assert "kept</span>" in head
    assert f"{word}</span>" in head
    assert ("Nothing to warn of" in cards.notices(found)) == (word != "no useful limit")


def test_the_report_uses_the_same_words():
    from nbafl.report.front import five_lines

    for epsilon, word in ((0.5, "Strong"), (4.0, "Weak"), (50.0, "No useful limit")):
        plan = Plan(sensitivity="gradient", epsilon=epsilon, delta=1e-5, rounds=5, calibration="exact")
        lines = dict(five_lines(plan, None, plan.statement("0" * 64, 10).to_dict()))
        assert lines["How strongly"].startswith(f"{word} (ε = ")


def test_the_best_guess_of_sums_is_that_of_sums():
    plan = Plan(
        clients=10, samples=100, sensitivity="gradient", epsilon=4, delta=1e-5, rounds=5, aggregation="secure",
        dimension=100, adversary="broadcast",
    )  # fmt: skip
    assert plan.statement("0" * 64, 100).to_dict()["best_guess"] == pytest.approx(answer(plan).guess)


@pytest.mark.parametrize(("calibration", "made"), [("paper", False), ("separate", False), ("exact", True)])
def test_only_exact_noise_is_made_for_the_named_adversary(calibration, made):
    from nbafl.studio import bars

    found = bars.draw(answer(Plan(calibration=calibration, epsilon=50, delta=0.01)))
    assert ("noise made for this one" in found) == made
    assert ("the claim is about this one" in found) != made


def test_a_client_is_not_called_a_record():
    from nbafl.studio import meaning

    found = answer(Plan(sensitivity="client", epsilon=4, delta=1e-5))
    assert "record" not in meaning.heading(found)
    assert meaning.heading(answer(Plan(epsilon=50, delta=0.01))) == "What it means for one record"
