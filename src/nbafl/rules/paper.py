"""`paper`: Algorithm 1 as printed. Clients train, clip their weights to norm C, and upload them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from nbafl.privacy import sensitivity
from nbafl.rules.base import LOCAL_STEPS, Reach, Rule

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nbafl.plan import Plan
    from nbafl.privacy.sensitivity import Sensitivity
    from nbafl.protocol.training import Training


class Paper(Rule):
    """S local steps, the weights clipped; 2C/m is granted, not proved."""

    name = "paper"
    title = "Paper"
    short = "2C/m, holds only conditionally"
    condition = "2C/m"
    uses = frozenset({"clip"})
    engine = LOCAL_STEPS
    pair = "nbafl.audit.pairs:mean_estimation"
    problems = MappingProxyType({"replace": "mean estimation, one record of norm C turned around"})
    beacon = True
    warning = (
        "The sensitivity 2C/m is conditional: it does not hold for general models. The unconditional values rest on "
        "clipping alone (2C); choose sensitivity {proved} for a guarantee that holds."
    )

    def sensitivity(self, plan: Plan) -> Sensitivity:
        return sensitivity.paper(plan.clip, plan.client_sizes)

    def unconditional(self, plan: Plan) -> Sensitivity:
        return sensitivity.unconditional(plan.clip, plan.client_sizes)

    def reach(self, training: Training | Plan) -> Reach:
        return Reach(False, training.clip)

    def upload(
        self, model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training, order: Tensor | None
    ) -> Tensor:
        from nbafl.protocol import clip, descend

        return clip(descend(model, x, y, start, training, order), training.clip)


RULE = Paper()
