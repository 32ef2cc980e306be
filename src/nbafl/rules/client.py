"""`client`: a whole client is protected. Clients train as they like, and upload an update clipped to norm C."""

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


class Client(Rule):
    """Any training, the update clipped."""

    name = "client"
    title = "Client"
    short = "protects a whole client, any training"
    unit = "client"
    adjacencies = ("replace", "drop")
    weighting = "uniform"
    uses = frozenset({"clip", "adjacency"})
    any_training = True
    engine = LOCAL_STEPS
    pair = "nbafl.audit.pairs:whole_client"
    problems = MappingProxyType(
        {"replace": "a whole client, turned around", "drop": "a whole client, there or not"}
    )

    def sensitivity(self, plan: Plan) -> Sensitivity:
        return sensitivity.client(plan.clip, plan.clients, plan.adjacency)

    def reach(self, training: Training | Plan) -> Reach:
        return Reach(True, training.clip)

    def upload(
        self, model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training, order: Tensor | None
    ) -> Tensor:
        from nbafl.protocol import clip, descend

        return start + clip(descend(model, x, y, start, training, order) - start, training.clip)


RULE = Client()
