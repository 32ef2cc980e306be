"""The weights a run starts from: those of a file, checked before anything is trained."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from nbafl.errors import DataError, Refused
from nbafl.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor, nn

OF_A_RUN = "plan"
"""What the metadata of a run's model names: the plan that it was trained under."""


def start_from(plan: Plan, model: nn.Module) -> nn.Module:
    """Give the model the weights of the plan's `init`, or leave it as it is where the plan names none."""
    if plan.init is None:
        return model
    try:
        with open(plan.init, "rb") as file:
            content = file.read()
        found = hashlib.sha256(content).hexdigest()
        weights = load(content)
        with safe_open(plan.init, framework="pt") as opened:
            trained_under = (opened.metadata() or {}).get(OF_A_RUN)
    except OSError as error:
        raise DataError(f"init file {plan.init!r} cannot be read: {error.strerror}.") from None
    except (SafetensorError, ValueError) as error:
        raise DataError(f"init file {plan.init!r} is not a safetensors file: {error}.") from None
    if found != plan.init_sha256:
        raise Refused(
            f"init file {plan.init!r} is not the one that was planned with: its sha256 is {found[:16]}…, not "
            f"{str(plan.init_sha256)[:16]}…."
        )
    if trained_under is not None and not plan.continues:
        raise Refused(
            f"init file {plan.init!r} was trained by nbafl (plan {trained_under[:16]}), so its weights are not public as "
            "far as nbafl can tell: continue that run (--continues RUN), or, if its data were public, save the weights "
            "anew without nbafl's metadata."
        )
    _check(plan.init, weights, model)
    model.load_state_dict(
        weights, strict=False
    )  # names were checked: only further names of a tied weight may be missing
    return model


def _check(path: str, weights: dict[str, Tensor], model: nn.Module) -> None:
    """Every weight of the model, of its shape and precision, finite; and nothing else."""
    own = model.state_dict()
    given = {own[name].data_ptr() for name in weights if name in own}
    missing = [name for name, value in own.items() if name not in weights and value.data_ptr() not in given]
    for problem, names in (("lacks", missing), ("has", [name for name in weights if name not in own])):
        if names:
            meant = "which the model has" if problem == "lacks" else "which the model does not have"
            raise DataError(f"init file {path!r} {problem} {names[0]!r}, {meant} ({len(names)} such names).")
    for name, value in weights.items():
        if (value.shape, value.dtype) != (own[name].shape, own[name].dtype):
            raise DataError(
                f"init file {path!r} has {name!r} as {_told(value)}; the model has it as {_told(own[name])}."
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise DataError(f"init file {path!r} has numbers in {name!r} that are not finite.")


def _told(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
