"""Other people's tools see our runs: a callback is told of each round, and two trackers are ready made.

A tracker is one module here with a class that follows `Callback`; it is imported only where somebody asks for it by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

from nbafl.errors import UsageError
from nbafl.tracking.callback import Callback
from nbafl.tracking.listeners import Listeners

__all__ = ["TRACKERS", "Callback", "Listeners", "find"]

TRACKERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "tensorboard": ("nbafl.tracking.tensorboard", "TensorBoard", ("tensorboard",)),
    "mlflow": ("nbafl.tracking.mlflow", "MLflow", ("mlflow", "sqlalchemy", "alembic")),
}
"""Each tracker by its name: its module, its class, and what its extra (of the same name) brings."""


def find(asked: Iterable[str | Callback]) -> tuple[Callback, ...]:
    """The callbacks somebody asked for, trackers by name; what is not there is refused before anything is written."""
    return tuple(_tracker(each) if isinstance(each, str) else each for each in asked)


def _tracker(name: str) -> Callback:
    if name not in TRACKERS:
        raise UsageError("track", name, "one of " + ", ".join(TRACKERS))
    module, made, needed = TRACKERS[name]
    if any(find_spec(package) is None for package in needed):
        raise UsageError("track", name, f"a tracker that is installed: pip install 'nbafl[{name}]'")
    tracker: Callback = getattr(import_module(module), made)()
    return tracker
