"""What every rule has: limits, sensitivity, upload, reach, engines, audit pair, and words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from nbafl.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nbafl.plan import Plan
    from nbafl.privacy.sensitivity import Sensitivity
    from nbafl.protocol.training import Training


LOCAL_STEPS = "local steps"
"""The engines of S local steps, then a clip of the weights or of the update: dual, plain and vmap."""


@dataclass(frozen=True)
class Reach:
    """Where an upload can lie before its noise: within `radius` of the broadcast, or of zero."""

    around_broadcast: bool
    radius: float

    def centre(self, start: np.ndarray) -> np.ndarray:
        return start if self.around_broadcast else np.zeros_like(start)

    def rounding(self, start: np.ndarray) -> float:
        """How far float64 may be off in a coordinate of vector − centre, for any start a server may send."""
        return float(np.spacing(np.abs(start).max() + self.radius)) if self.around_broadcast else 0.0

    def bound(self, vector: np.ndarray, start: np.ndarray) -> np.ndarray:
        """vector − centre, clipped (Algorithm 1 line 8) in float64 to a hair inside the radius: rounding stays in."""
        from nbafl.protocol.clipping import clip_factor

        offset = vector.astype(np.float64) - self.centre(start)
        with np.errstate(divide="ignore"):  # zero stays zero
            return offset * clip_factor(np.asarray(np.linalg.norm(offset)), self.radius * (1 - 2.0**-40))


class Rule:
    """What clients do in a round, and what one record or client can change of it."""

    name: ClassVar[str]
    title: ClassVar[str]
    short: ClassVar[str]
    """What is special about it, in a few words."""
    unit: ClassVar[str] = "record"
    adjacencies: ClassVar[tuple[str, ...]] = ("replace",)
    weighting: ClassVar[Literal["records", "uniform"]] = "records"
    """p_i by records (eq. 1), or equal for all clients."""
    condition: ClassVar[str] = ""
    """What is claimed without proof, as "if … holds"; empty where the sensitivity is a theorem."""
    local_steps: ClassVar[int] = 5
    """How many local steps a client takes unless a plan says otherwise."""
    uses: ClassVar[frozenset[str]] = frozenset()
    """Fields of a plan that matter under this rule and not under every other."""
    needs: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Fields that must be set under this rule, each with a value that works."""
    models: ClassVar[tuple[str, ...]] = ()
    """The models it is proved for, by name; none: any model."""
    full_batches: ClassVar[bool] = False
    """Whether local steps must use all records."""
    fits: ClassVar[bool] = False
    """Whether settings that are left out follow from public numbers: one step a round, on clipped gradients."""
    persons: ClassVar[bool] = False
    """Whether it can protect all rows of a person (`upload_persons`)."""
    float64: ClassVar[bool] = False
    """Whether a deployment must compute in double precision: bounds as small as float32's rounding of the weights."""
    small_clients: ClassVar[bool] = False
    """Whether softmax and linear regression under it can train without torch (`flower.small_client`)."""
    any_training: ClassVar[bool] = False
    """Whether it holds around training code that nbafl does not control."""
    engine: ClassVar[str] = "nbafl.simulation.engines.each:EachEngine"
    """Its own engine as module:class, or LOCAL_STEPS. The one given here calls `upload` client by client."""
    pair: ClassVar[str]
    """The worst neighbouring data, for an audit, as module:function of (training, scene, upload, adjacency)."""
    problems: ClassVar[Mapping[str, str]]
    """What that is in a few words, for each adjacency."""
    beacon: ClassVar[bool] = False
    """Whether a client's other records can show an attacker that it took part."""
    no_convergence_bound: ClassVar[str] = ""
    """Why the repaired convergence bound does not cover it; empty where it may."""
    warning: ClassVar[str] = ""
    """What a careful reader should know before relying on it."""

    @property
    def conditional(self) -> bool:
        """Whether its sensitivity rests on something that is not proved."""
        return bool(self.condition)

    @property
    def if_it_holds(self) -> str:
        """What to say after an epsilon of this rule: nothing, or its condition."""
        return f" if {self.condition} holds" if self.condition else ""

    @property
    def label(self) -> str:
        """One line of a list of rules."""
        return f"{self.title}: {self.short}"

    def check(self, plan: Plan) -> None:
        """Refuse a plan that breaks a premise, in one sentence that names the field."""
        where = f"under sensitivity {self.name}"
        if plan.adjacency not in self.adjacencies:
            raise UsageError("adjacency", plan.adjacency, f"{' or '.join(self.adjacencies)} {where}")
        if plan.person is not None and not self.persons:
            raise UsageError("person", plan.person, f"unset {where} (it does not protect persons)")
        if self.models and plan.model not in self.models:
            raise UsageError("model", plan.model, f"{' or '.join(self.models)} {where}")
        for field in self.needs:
            if getattr(plan, field) is None:
                raise UsageError(field, None, f"given {where}")
        if self.full_batches and plan.batch is not None:
            raise UsageError("batch", plan.batch, f"unset {where} (the bound is for full batches)")

    def sensitivity(self, plan: Plan) -> Sensitivity:
        """How far one record (or client) can move one upload."""
        raise NotImplementedError

    def unconditional(self, plan: Plan) -> Sensitivity:
        """The same without its condition."""
        return self.sensitivity(plan)

    def reach(self, training: Training | Plan) -> Reach:
        """What is clipped, and so where an upload lies before its noise."""
        raise NotImplementedError

    def upload(
        self, model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training, order: Tensor | None
    ) -> Tensor:
        """What a client makes of its data and the broadcast `start`, before its noise."""
        raise NotImplementedError

    def upload_persons(
        self, model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training, persons: np.ndarray
    ) -> Tensor:
        """The same where a person has several rows, one after another; `persons` says how many each has."""
        raise NotImplementedError
