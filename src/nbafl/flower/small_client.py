"""A party whose model is softmax or linear regression, trained without torch: a third of the memory of `client.Client`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nbafl.flower.inspection import Own
from nbafl.flower.party import Party
from nbafl.flower.release import Broadcast, Releaser
from nbafl.flower.secure_member import SecureMember
from nbafl.flower.wire import Layout
from nbafl.plan import Plan
from nbafl.protocol.linear_regression import LinearRegression


def suits(plan: Plan) -> bool:
    """Whether a plan's clients can be small: single records clipped, one step, model and loss built in."""
    own = plan.loss is not None or plan.person is not None
    return plan.rule.small_clients and plan.model == "softmax" and not own


class SmallClient(Party):
    """One party with softmax or linear regression under the `gradient` rule."""

    def __init__(
        self,
        releaser: Releaser,
        model: LinearRegression,
        x: np.ndarray,
        y: np.ndarray,
        task: str = "classification",
        on_answer: Callable[[int], None] | None = None,
        own: Own | None = None,
        secure: SecureMember | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        layout = Layout.of(model.parameters())
        super().__init__(releaser, layout, model.shape, len(y), task, on_answer, own, secure, classes)
        self.model, self.x, self.y = model, np.array(x), np.array(y)

    def _train(self, asked: Broadcast) -> np.ndarray:
        return self.model.gradient_step(self.x, self.y, asked.start.astype(np.float64), self.training)

    def _answers(self, point: np.ndarray, x: np.ndarray) -> np.ndarray:
        return self.model.answers(point, x)
