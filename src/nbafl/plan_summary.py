"""A plan's answers as plain numbers: what `nbafl plan --json` prints and tables, reports and the studio show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nbafl import aggregation
from nbafl.privacy import accounting
from nbafl.privacy.release import Noise, Release

if TYPE_CHECKING:
    from nbafl.plan import Plan

UNASKED = "not asked for: pass --bounds"


def summary(plan: Plan) -> dict[str, Any]:
    """The whole answer, with places for the bounds that only `--bounds` fills."""
    release, noise, secure = plan.release(), plan.noise_scales(), plan.secure_sums()
    sensitivity = release.sensitivity
    unconditional = plan.release_of(plan.rule.unconditional(plan))
    return {
        "sensitivity": {"uplink": float(sensitivity.uplink.max()), "downlink": release.downlink},
        "noise": _noise(noise, release),
        "claimed": {
            "epsilon": plan.epsilon if plan.noise else None,
            "delta": plan.delta,
            "adversary": plan.adversary,
            "unit": sensitivity.unit,
            "adjacency": plan.adjacency,
        },
        "paper_requirement": _finite(accounting.paper_requirement(release, noise, plan.delta)),
        "guarantee": _with_delta(plan, plan.epsilons(release, noise, secure)),
        "conditional": sensitivity.conditional,
        "unconditional": _with_delta(plan, plan.epsilons(unconditional, noise, secure)),
        "aggregation": aggregation.side_by_side(plan),
        "assumptions": plan.assumptions(),
        "warnings": plan.warnings(),
        "bound": {
            "printed": None,
            "repaired": None,
            "reason": dict.fromkeys(("printed", "repaired"), UNASKED),
        },
        "best": {"printed": None, "repaired": None, "empirical": None},
    }


def paper_rule(plan: Plan) -> dict[str, Any]:
    """What the paper's printed rule would have given at this plan's epsilon: its noise and its real worth."""
    release, noise = plan.release(), plan.calibrated("paper")
    return {
        "noise": _noise(noise, release),
        "guarantee": _with_delta(plan, plan.epsilons(release, noise, None)),
    }


def scalar_or_tuple(values: np.ndarray) -> float | tuple[float, ...]:
    """One number where all clients have the same, else one for each."""
    first = float(values[0])
    return first if bool(np.all(values == values[0])) else tuple(float(value) for value in values)


def _noise(noise: Noise, release: Release) -> dict[str, Any]:
    """The three noise scales; sigma_uplink is a list only where clients differ."""
    uplink = scalar_or_tuple(noise.sigma_uplink)
    return {
        "sigma_uplink": list(uplink) if isinstance(uplink, tuple) else uplink,
        "sigma_downlink": noise.sigma_downlink,
        "sigma_aggregate": noise.aggregate(release),
    }


def _with_delta(plan: Plan, epsilons: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
    return {name: {"epsilon": value, "delta": plan.delta} for name, value in _finite(epsilons).items()}


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON knows no infinity."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
