"""Runs: the loop that makes rounds, its checkpoint, and `simulate`, which trains a plan on this machine.

The folder a run leaves is described in `nbafl.folders.runs`. Names are loaded when first used, so that reading a run
folder does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbafl import lazy

if TYPE_CHECKING:
    from nbafl.folders.runs import folder_of, fresh_folder, locked
    from nbafl.run.loop import OnRound, Trainer, train
    from nbafl.run.plan_data import federation_of, seen_by_the_model
    from nbafl.run.result import Run
    from nbafl.run.simulation import simulate

__all__ = [
    "OnRound",
    "Run",
    "Trainer",
    "federation_of",
    "folder_of",
    "fresh_folder",
    "locked",
    "seen_by_the_model",
    "simulate",
    "train",
]

_HOMES = {
    "nbafl.folders.runs": ("folder_of", "fresh_folder", "locked"),
    "nbafl.run.loop": ("OnRound", "Trainer", "train"),
    "nbafl.run.plan_data": ("federation_of", "seen_by_the_model"),
    "nbafl.run.result": ("Run",),
    "nbafl.run.simulation": ("simulate",),
}

__getattr__ = lazy.names(__name__, {name: home for home, names in _HOMES.items() for name in names})
