"""The attack through broadcasts that the attacker never sees.

Someone who taps only a client's uploads, L of them, and no broadcast, seems to face L releases of sensitivity Delta_U.
But where training follows the broadcast, an upload of round t contains the broadcast before it, and that contains
p_i times every earlier upload of the same client: the two worlds drift apart by p_i·Delta_U a round, unseen. The
paper's uplink requirement, and `separate` calibration, leave this out; a joint cost does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from nbafl.audit.pairs import Pair
from nbafl.audit.views import GameSetting, Round, Tally

NAME = "unseen-broadcasts"


@dataclass(frozen=True)
class LastUploads:
    """The target's last L uploads, and nothing else, in a game whose difference points the same way in every round."""

    uploads: int
    name: str = NAME
    gaussian: bool = True

    def score(self, tally: Tally, seen: Round) -> None:
        """Weigh the upload by the row of the optimal linear test; the information is the test's own."""
        first = seen.setting.rounds - self.uploads
        if seen.number < first:
            return
        weights, information = optimal_test(seen.pair, seen.setting, self.uploads)
        drift = 1 + seen.setting.weight * seen.number
        residual = seen.uploads[0] @ seen.pair.direction - drift * seen.pair.middle
        tally.ratio += residual * float(weights[seen.number - first])
        tally.information = torch.full_like(tally.ratio, information)

    def information(self, setting: GameSetting, pair: Pair, taken_part: np.ndarray) -> np.ndarray:
        return np.full(len(taken_part), optimal_test(pair, setting, self.uploads)[1])


def optimal_test(pair: Pair, setting: GameSetting, uploads: int) -> tuple[np.ndarray, float]:
    """(Σ⁻¹s, sᵀΣ⁻¹s) for the last uploads of the target: shifts s and covariance Σ when uploads follow the broadcast.

    After t rounds the broadcast has drifted by t·p·Delta and has variance t·sigma_A²; an upload's own noise stays in
    every later one with weight p.
    """
    before = np.arange(setting.rounds - uploads, setting.rounds)
    shift = pair.shift * (1 + setting.weight * before)
    earlier = np.minimum.outer(before, before)
    covariance = earlier * setting.variance + setting.weight * setting.sigma**2
    np.fill_diagonal(covariance, before * setting.variance + setting.sigma**2)
    weights = np.linalg.solve(covariance, shift)
    return weights, float(shift @ weights)
