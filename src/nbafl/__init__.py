"""nbafl: federated learning with noise before aggregation, and a privacy statement that is true.

    import nbafl
    plan = nbafl.Plan(epsilon=50, rounds=25)
    run = nbafl.simulate(plan, nbafl.Federation.mnist(clients=50, samples=100))
    print(run.report())

Names are loaded when first used, so that `import nbafl` and `nbafl --help` stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Federation", "Plan", "Run", "simulate"]

_HOMES = {
    "Plan": "nbafl.plan",
    "Federation": "nbafl.data.federation",
    "Run": "nbafl.run",
    "simulate": "nbafl.run",
}

if TYPE_CHECKING:
    from nbafl.data.federation import Federation
    from nbafl.plan import Plan
    from nbafl.run import Run, simulate


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nbafl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
