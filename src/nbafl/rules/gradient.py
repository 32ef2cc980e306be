"""`gradient`: one local step on the mean of per-record gradients, each clipped to norm G. For any model."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from nbafl.errors import UsageError
from nbafl.privacy import sensitivity
from nbafl.rules.base import Reach, Rule

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from nbafl.plan import Plan
    from nbafl.privacy.sensitivity import Sensitivity
    from nbafl.protocol.training import Training


class Gradient(Rule):
    """One step, every record's gradient clipped."""

    name = "gradient"
    title = "Gradient"
    short = "one step, records clipped, any model"
    local_steps = 1
    uses = frozenset({"record_clip"})
    full_batches = True
    float64 = True
    persons = True
    fits = True
    small_clients = True
    engine = "nbafl.simulation.engines.one_step:OneStepEngine"
    pair = "nbafl.audit.pairs:crafted_gradient"
    problems = MappingProxyType({"replace": "one record with a crafted gradient turned around"})
    beacon = True
    no_convergence_bound = (
        "clients take one step on clipped gradients, and the bound is for proximal solutions"
    )

    def check(self, plan: Plan) -> None:
        super().check(plan)
        if plan.local_steps != 1:
            allowed = (
                f"1 under sensitivity {self.name} (several steps without noise between them have no bound for any model; "
                "for softmax and linear regression they have: --sensitivity proximal --mu 0 --local-steps S)"
            )
            raise UsageError("local_steps", plan.local_steps, allowed)

    def sensitivity(self, plan: Plan) -> Sensitivity:
        found = sensitivity.gradient(plan.record_clip, plan.client_sizes, plan.lr, plan.largest_weight)
        return found if plan.person is None else sensitivity.of_persons(found)

    def reach(self, training: Training | Plan) -> Reach:
        return Reach(True, training.lr * training.record_clip * training.largest_weight)

    def upload(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        start: Tensor,
        training: Training,
        order: Tensor | None,  # noqa: ARG002
    ) -> Tensor:
        from nbafl.protocol.gradient import gradient_step

        return gradient_step(model, x, y, start, training)

    def upload_persons(
        self, model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training, persons: np.ndarray
    ) -> Tensor:
        from nbafl.protocol.persons import person_step

        return person_step(model, x, y, start, training, persons)


RULE = Gradient()
