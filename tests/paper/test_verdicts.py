"""Verdicts on made-up runs that obey a known law: loss = curve(T) + curvature sigma_A^2 + a little chance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nbafl.paper.evidence import Test
from nbafl.paper.fig08 import Expressions
from nbafl.paper.pictures import Panel, Picture, Series, draw
from nbafl.paper.reproduce import FIGURES, runs_of
from nbafl.paper.runs import Runs
from nbafl.paper.settings import CALIBRATIONS, Settings
from nbafl.paper.trainings import Trial
from nbafl.paper.verdicts import judge, verdicts

TRAINED = tuple(number for number in FIGURES if number != 8)
Law = Callable[[Trial, int], float]


def filled(law: Law, seeds: int = 5) -> Runs:
    """The runs of all figures with results that follow the law."""
    runs = runs_of(TRAINED, Settings(), seeds)
    for trial in runs.trials:
        rounds = [t for t in range(1, trial.job.rounds + 1) if trial.job.evaluated(t)]
        rng = np.random.default_rng(int(trial.key, 16))
        losses = [law(trial, t) + 0.002 * rng.normal() for t in rounds]
        good = [1 / (1 + loss) for loss in losses]
        runs.results[trial.key] = {
            "round": rounds,
            "train_loss": losses,
            "train_accuracy": good,
            "test_accuracy": good,
        }
    return runs


def found(runs: Runs, folder: Path) -> dict[tuple[int, str, str], str]:
    entries = verdicts(runs, Expressions(runs.settings, folder), tuple(n for n in TRAINED if n != 9))
    assert all(set(entry) == {"figure", "claim", "calibration", "verdict", "evidence"} for entry in entries)
    return {
        (entry["figure"], entry["claim"].split()[0], entry["calibration"]): entry["verdict"]
        for entry in entries
    }


def noise_law(trial: Trial, t: int) -> float:
    """Roughly what is measured: 8500 sigma_A^2 on a curve that falls like 1/t, better with more clients."""
    drawn = trial.job.per_round or trial.clients
    variance = trial.job.sigma_downlink**2 + float(np.mean(trial.job.sigma_uplink)) ** 2 / drawn
    return 0.2 + 8 / (t + 3) + 8500 * variance - 0.0005 * trial.clients


@pytest.fixture(scope="module")
def lawful() -> Runs:
    return filled(noise_law)


def test_the_measured_law_gives_the_papers_claims_and_their_artefacts(lawful: Runs, tmp_path: Path) -> None:
    seen = found(lawful, tmp_path)
    for calibration in CALIBRATIONS:
        for figure in (2, 3, 4, 5):
            assert seen[figure, "privacy-convergence", calibration] == "holds"
        for figure in (6, 7):
            assert seen[figure, "more", calibration] == "holds"
    assert seen[10, "an", "paper"] == "holds"
    assert (seen[10, "K-random", "paper"], seen[10, "K-random", "exact"]) == ("artefact", "fails")
    assert (seen[11, "an", "paper"], seen[11, "an", "exact"]) == ("artefact", "fails")


def test_data_that_do_not_depend_on_the_noise_support_nothing(tmp_path: Path) -> None:
    seen = found(filled(lambda _, t: 0.2 + 8 / (t + 3)), tmp_path)
    assert set(seen.values()) == {"fails"}


def test_evidence_names_the_adversary_and_what_is_granted(lawful: Runs, tmp_path: Path) -> None:
    entries = verdicts(lawful, Expressions(lawful.settings, tmp_path), (10, 11))
    drawn = next(e for e in entries if e["claim"].startswith("K-random") and e["calibration"] == "paper")
    privacy = drawn["evidence"]["privacy"]
    assert privacy["adversary"] == "eavesdropper"
    assert privacy["delta"] == 0.01
    assert "2C/m" in privacy["assumption"]
    assert privacy["real_epsilon"] > 5 * privacy["claimed_epsilon"]
    honest = next(e for e in entries if e["claim"].startswith("K-random") and e["calibration"] == "exact")
    assert honest["evidence"]["privacy"]["real_epsilon"] == pytest.approx(60, rel=1e-6)


def test_one_seed_decides_nothing_that_rests_on_training(tmp_path: Path) -> None:
    """Curves that show the claim are no failure where one seed has no p-value."""
    runs = filled(noise_law, seeds=1)
    for entry in verdicts(runs, Expressions(runs.settings, tmp_path), (2, 10, 11)):
        assert entry["verdict"] == "undecided"
        assert entry["evidence"]["sentence"].endswith("; 1 seed cannot decide")


@pytest.mark.parametrize(
    ("seeds", "shown", "refuted", "undecided"),
    [(1, False, True, True), (2, True, False, True), (2, False, False, False), (2, True, True, False),
     (5, True, False, False), (None, True, False, False)],
)  # fmt: skip
def test_few_seeds_leave_open_only_what_the_means_show(
    seeds: int | None, shown: bool, refuted: bool, undecided: bool
) -> None:
    test = Test(False, refuted, {}, shown, seeds)
    assert judge("exact", {"exact": test}, False) == ("undecided" if undecided else "fails")
    assert not Test(True, False, {}, shown, seeds).undecided


@pytest.mark.parametrize(("seeds", "bands"), [(1, 0), (2, 1)])
def test_a_band_needs_two_seeds(seeds: int, bands: int) -> None:
    values = np.arange(3.0 * seeds).reshape(seeds, 3)
    panel = Panel((Series("line", (1.0, 2.0, 3.0), values, 0),), "x", "y")
    (axes,) = draw(Picture(2, "paper", "title", (panel,))).axes
    assert len(axes.collections) == bands


@pytest.mark.parametrize(
    ("paper", "exact_refuted", "too_little", "verdict"),
    [
        (True, True, True, "artefact"),
        (True, True, False, "holds"),
        (True, False, True, "holds"),
        (False, True, True, "fails"),
    ],
)
def test_an_artefact_needs_all_three_signs(
    paper: bool, exact_refuted: bool, too_little: bool, verdict: str
) -> None:
    tests = {"paper": Test(paper, not paper, {}), "exact": Test(not exact_refuted, exact_refuted, {})}
    assert judge("paper", tests, too_little) == verdict
    assert judge("exact", tests, too_little) == ("fails" if exact_refuted else "holds")
