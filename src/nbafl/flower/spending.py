"""What a federation has spent so far, from its rounds as they were: what its statement would say if it ended here.

Where the guarantee rests on a secret draw this is told from how many answered and not from who they were: numbers that are
watched while rounds are made must not show who was drawn. The final statement may then be a little lower.
"""

from __future__ import annotations

import dataclasses

from nbafl.evaluation import Evaluation
from nbafl.plan import Plan
from nbafl.privacy import adversary, subsampling
from nbafl.privacy.dropouts import AnsweredRound, RoundsMade


class Spending:
    """epsilon against the plan's adversary; entering a round costs the same however many came before it."""

    def __init__(self, plan: Plan, evaluation: Evaluation | None = None) -> None:
        """`evaluation`: the scores that clients release besides; those of a round count as soon as it is entered."""
        self.plan, self.evaluation, self.rounds = plan, evaluation, 0
        parts = plan.release(), plan.noise_scales(), adversary.parse(plan.adversary)
        self._made, self._secret_draw = RoundsMade(*parts), subsampling.amplifies(*parts)

    def add(self, happened: AnsweredRound) -> None:
        """Enter one more round."""
        self.rounds += 1
        if self.plan.secure_sums() is not None:
            return  # a sum of M or more costs what it costs, whoever stayed away
        if self._secret_draw:
            happened = dataclasses.replace(happened, answered=happened.answers)
        self._made.add(happened)

    def epsilon(self) -> float:
        """epsilon at the plan's delta of the rounds entered, their scores, and the runs that this one continues."""
        if self.plan.secure_sums() is not None:
            return self.plan.epsilon_after(self.rounds, self.evaluation)
        if self.evaluation is not None:
            self._made.release, _ = self.evaluation.beside(self.plan, self.rounds)
        return self._made.epsilon(self.plan.delta)
