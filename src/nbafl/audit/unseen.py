"""The attack through broadcasts that the attacker never sees.

Someone who taps only a client's uploads, L of them, and no broadcast, seems to face L releases of sensitivity Delta_U.
But where training follows the broadcast, an upload of round t contains the broadcast before it, and that contains
p_i times every earlier upload of the same client: the two worlds drift apart by p_i·Delta_U a round, unseen. The
paper's uplink requirement, and `separate` calibration, leave this out; a joint cost does not.
"""

from __future__ import annotations

import numpy as np
import torch

from nbafl.audit.game import Attack, Game, Setting, Tally, View
from nbafl.audit.pairs import Pair

NAME = "unseen-broadcasts"


class UnseenGame(Game):
    """The target's last L uploads, and nothing else, with every round's difference pointing the same way."""

    def sign(self, number: int) -> int:  # noqa: ARG002
        return 1

    def score(self, attack: Attack, tally: Tally, view: View) -> None:
        """Weigh the upload by the row of the optimal linear test; the information is the test's own."""
        first = self.setting.rounds - attack.uploads
        if view.number < first:
            return
        weights, information = optimal_test(self.pair, self.setting, attack.uploads)
        drift = 1 + self.setting.weight * view.number
        residual = view.uploads[0] @ self.pair.direction - drift * self.pair.middle
        tally.ratio += residual * float(weights[view.number - first])
        tally.information = torch.full_like(tally.ratio, information)


def optimal_test(pair: Pair, setting: Setting, uploads: int) -> tuple[np.ndarray, float]:
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
