"""From attack scores to a proof: the smallest epsilon that the outcomes are compatible with.

An attacker sees one of two neighbouring worlds and gives it a score, high for the second world. If a mechanism is
(epsilon, delta)-DP, then for every threshold TPR ≤ e^epsilon·FPR + delta, and likewise for the two kinds of being
right. So counts of right and wrong guesses bound epsilon from below.

`distribution_free` uses nothing but the counts (Clopper and Pearson). It cannot prove more than about ln(trials/4).
`gaussian` assumes that the trade-off between the two errors is that of two Gaussians a distance mu apart, as it is for
every mechanism here, and bounds mu from below: by the counts, and, where the scores pass a test of being Gaussian, by
their mean and spread, which has no ceiling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

MOMENTS = 0.01
"""Part of the error that the bound by mean and spread uses: it is sharp enough, and counts need theirs."""
_PILOT = 0.1
_CANDIDATES = 200
_NOT_GAUSSIAN = 1e-6  # p-value of the Kolmogorov–Smirnov test below which scores do not count as Gaussian


@dataclass(frozen=True)
class Outcomes:
    """Scores of the attacks in each world, standardised by the attacker's own model of them.

    A score is expected to be N(−mu/2, 1) in world 0 and N(+mu/2, 1) in world 1, with mu = sqrt(information), where the
    information may differ from trial to trial (it depends on how often the target was drawn). Shape (trials,).
    """

    scores: tuple[np.ndarray, np.ndarray]
    information: tuple[np.ndarray, np.ndarray]

    @classmethod
    def join(cls, parts: list[Outcomes]) -> Outcomes:
        """Many chunks of trials as one."""
        columns = [
            tuple(np.concatenate([getattr(part, name)[world] for part in parts]) for world in (0, 1))
            for name in ("scores", "information")
        ]
        (scores0, scores1), (information0, information1) = columns
        return cls((scores0, scores1), (information0, information1))

    @property
    def ratios(self) -> tuple[np.ndarray, np.ndarray]:
        """Log-likelihood ratios of the two worlds, by which the attacker ranks its trials."""
        null, other = (s * np.sqrt(i) for s, i in zip(self.scores, self.information, strict=True))
        return null, other


def distribution_free(outcomes: Outcomes, delta: float, confidence: float) -> float:
    """Lower bound on epsilon at delta that holds with the given confidence for any mechanism whatever.

    A tenth of the trials chooses threshold and direction, the others count: both error rates hold at once with the stated
    confidence.
    """
    pilot, rest = zip(*(_split(ratios) for ratios in outcomes.ratios), strict=True)
    thresholds = np.quantile(np.concatenate(pilot), np.linspace(0, 1, _CANDIDATES + 2)[1:-1])
    size = len(rest[0])
    expected = size / max(1, len(pilot[0]))
    best, found = 0.0, None
    for flipped in (False, True):
        wrong, right = _counts(pilot, thresholds, flipped)
        # As if the pilot's rates held in the larger rest.
        values = _epsilon(wrong * expected, right * expected, size, size, delta, confidence)
        place = int(np.argmax(values))
        if values[place] > best:
            best, found = float(values[place]), (thresholds[place : place + 1], flipped)
    if found is None:
        return 0.0
    wrong, right = _counts(rest, *found)
    return float(_epsilon(wrong, right, len(rest[0]), len(rest[1]), delta, confidence)[0])


def ceiling(trials: int, delta: float, confidence: float) -> float:
    """The most that `distribution_free` can prove with so many trials in each world."""
    size = trials - round(_PILOT * trials)
    return float(_epsilon(np.zeros(1), np.full(1, size), size, size, delta, confidence)[0])


def gaussian_mu(outcomes: Outcomes, confidence: float) -> float:
    """Lower bound on the factor by which mu exceeds what the attacker expected, under the Gaussian trade-off curve.

    1 means that the mechanism leaks what its noise scales say; above 1, more. The product with sqrt(information) is mu.
    """
    error = 1 - confidence
    by_counts = _factor_by_counts(outcomes, 1 - error * (1 - MOMENTS))
    by_moments = _factor_by_moments(outcomes, error * MOMENTS) if looks_gaussian(outcomes) else 0.0
    return max(by_counts, by_moments)


def looks_gaussian(outcomes: Outcomes) -> bool:
    """Whether the residuals of the scores pass the Kolmogorov–Smirnov test for a Gaussian of their own spread."""
    slope, spread, residuals = _fit(outcomes)
    if not (math.isfinite(slope) and spread > 0):
        return False
    return bool(stats.kstest(residuals / spread, "norm").pvalue > _NOT_GAUSSIAN)


def _split(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cut = round(_PILOT * len(scores))
    return scores[:cut], scores[cut:]


def _counts(
    parts: tuple[np.ndarray, ...], thresholds: np.ndarray, flipped: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(false positives, true positives) of the guess "world 1 above a threshold"; flipped: "world 0 below it"."""
    below_null, below_other = (np.searchsorted(np.sort(part), thresholds, side="left") for part in parts)
    if flipped:
        return below_other, below_null
    return len(parts[0]) - below_null, len(parts[1]) - below_other


def _epsilon(
    wrong: np.ndarray, right: np.ndarray, nulls: int, others: int, delta: float, confidence: float
) -> np.ndarray:
    """ln((TPR − delta)/FPR) at the unfavourable ends of both Clopper–Pearson intervals; 0 if that proves nothing."""
    error = (1 - confidence) / 2
    highest, lowest = _highest_rate(wrong, nulls, error), _lowest_rate(right, others, error)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(lowest - delta > highest, np.log((lowest - delta) / highest), 0.0)


def _highest_rate(count: np.ndarray, trials: int, error: float) -> np.ndarray:
    """Upper end of Clopper and Pearson's interval."""
    rate = special.betaincinv(count + 1.0, np.maximum(trials - count, 1e-9), 1 - error)
    return np.where(count < trials, rate, 1.0)


def _lowest_rate(count: np.ndarray, trials: int, error: float) -> np.ndarray:
    """Lower end of the same."""
    rate = special.betaincinv(np.maximum(count, 1e-9), trials - count + 1.0, error)
    return np.where(count > 0, rate, 0.0)


def _factor_by_counts(outcomes: Outcomes, confidence: float) -> float:
    """mu ≥ z(TNR) + z(TPR) at the middle threshold, at the unfavourable ends of both intervals.

    Where the information differs between trials only those with the most common amount are counted.
    """
    chosen, information = _most_common(outcomes)
    wrong, right = _counts(chosen, np.zeros(1), flipped=False)
    error = (1 - confidence) / 2
    negatives, positives = len(chosen[0]), len(chosen[1])
    if information <= 0 or wrong[0] == negatives or right[0] == 0:
        return 0.0
    false_positive = _highest_rate(wrong, negatives, error)[0]
    true_positive = _lowest_rate(right, positives, error)[0]
    mu = stats.norm.isf(false_positive) - stats.norm.isf(true_positive)
    return float(max(0.0, mu) / math.sqrt(information))


def _most_common(outcomes: Outcomes) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    values, counts = np.unique(np.concatenate(outcomes.information), return_counts=True)
    value = float(values[np.argmax(counts)])
    null, other = (s[i == value] for s, i in zip(outcomes.scores, outcomes.information, strict=True))
    return (null, other), value


def _fit(outcomes: Outcomes) -> tuple[float, float, np.ndarray]:
    """Least squares of the scores on ∓mu/2: (slope, spread of the residuals, residuals)."""
    information = np.concatenate(outcomes.information)
    seen = information > 0  # a target that was never drawn leaves nothing to score
    sign = np.repeat([-1.0, 1.0], [len(part) for part in outcomes.information])
    centre = (sign * np.sqrt(information) / 2)[seen]
    scores = np.concatenate(outcomes.scores).astype(np.float64)[seen]
    if len(scores) < 2:
        return math.nan, 0.0, scores
    slope = float(centre @ scores) / float(centre @ centre)
    residuals = scores - slope * centre
    return slope, float(np.sqrt(residuals @ residuals / (len(scores) - 1))), residuals


def _factor_by_moments(outcomes: Outcomes, error: float) -> float:
    """Lower end of slope/spread: Student's t for the slope and chi-squared for the spread, half the error each."""
    slope, spread, residuals = _fit(outcomes)
    freedom = len(residuals) - 1
    weight = sum(float(i.sum()) for i in outcomes.information) / 4
    lowest_slope = slope - stats.t.isf(error / 2, freedom) * spread / math.sqrt(weight)
    largest_spread = spread * math.sqrt(freedom / stats.chi2.isf(1 - error / 2, freedom))
    return max(0.0, lowest_slope / largest_spread)
