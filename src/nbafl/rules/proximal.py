"""`proximal`: convex, Lipschitz record losses with a proximal term, solved to a tolerance or approached in S steps."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from nbafl.errors import UsageError
from nbafl.privacy import sensitivity
from nbafl.privacy.solving import Solve
from nbafl.rules.base import Reach, Rule
from nbafl.tasks import BINARY, CLASSIFICATION, LOSSES

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nbafl.plan import Plan
    from nbafl.privacy.sensitivity import Sensitivity
    from nbafl.protocol.training import Training


CONVEX_MODELS = ("softmax",)
"""Models whose loss is known to be convex, by name."""


class Proximal(Rule):
    """Softmax, logistic or linear regression on records of bounded norm, the weights clipped."""

    name = "proximal"
    title = "Proximal"
    short = "convex loss, softmax model"
    uses = frozenset({"clip", "tolerance"})
    needs = MappingProxyType({"feature_norm": 1.5})  # small enough for the usual step sizes
    models = CONVEX_MODELS
    full_batches = True
    float64 = True
    engine = "nbafl.simulation.engines.solve:SolveEngine"
    pair = "nbafl.audit.pairs:SurePair"
    problems = MappingProxyType(
        {"replace": "softmax regression, one record of an unexpected class moved to the other side"}
    )

    def check(self, plan: Plan) -> None:
        super().check(plan)
        if plan.loss is not None:
            raise UsageError(
                "loss", plan.loss, "unset under sensitivity proximal (its losses are convex by proof)"
            )
        if (
            plan.tolerance is not None and plan.tolerance > 0 and plan.mu > 0
        ):  # other values are refused elsewhere
            Solve(*self._constants(plan), plan.mu, plan.tolerance).check()

    def sensitivity(self, plan: Plan) -> Sensitivity:
        lipschitz, smoothness = self._constants(plan)
        steps = None if plan.tolerance is not None else plan.local_steps
        return sensitivity.proximal(
            plan.clip,
            plan.client_sizes,
            lipschitz=lipschitz,
            mu=plan.mu,
            tolerance=plan.tolerance,
            steps=steps,
            lr=plan.lr if steps else None,
            smoothness=smoothness if steps else None,
        )

    def _constants(self, plan: Plan) -> tuple[float, float]:
        """G and rho of one record's loss, its class's weight included."""
        assert plan.feature_norm is not None  # `needs` it
        # Numbers are learned with Huber's loss, whose G = R is within softmax's √2·R; rho is checked where steps are made.
        loss = LOSSES[BINARY if plan.task == BINARY else CLASSIFICATION]
        lipschitz, smoothness = sensitivity.constants_of(loss, plan.feature_norm)
        return plan.largest_weight * lipschitz, plan.largest_weight * smoothness

    def reach(self, training: Training | Plan) -> Reach:
        return Reach(False, training.clip)

    def upload(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        start: Tensor,
        training: Training,
        order: Tensor | None,  # noqa: ARG002
    ) -> Tensor:
        from nbafl.protocol.proximal import proximal_upload

        return proximal_upload(model, x, y, start, training)


RULE = Proximal()
