"""nbafl: federated learning with noise before aggregation, and a privacy statement that is true.

    import nbafl
    plan = nbafl.Plan(epsilon=3)
    run = nbafl.simulate(plan)
    print(run.report())

Names are loaded when first used, so that `import nbafl` and `nbafl --help` stay quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbafl import lazy

__version__ = "0.2.0"
__all__ = ["Callback", "Federation", "Plan", "Run", "SweepTable", "join", "serve", "simulate", "sweep"]

_HOMES = {
    "Plan": "nbafl.plan",
    "Federation": "nbafl.data.federation",
    "Run": "nbafl.run",
    "simulate": "nbafl.run",
    "sweep": "nbafl.sweeps.whole",
    "SweepTable": "nbafl.sweeps.table",
    "Callback": "nbafl.tracking.callback",
    "serve": "nbafl.flower.serving",
    "join": "nbafl.flower.joining",
}

if TYPE_CHECKING:
    from nbafl.data.federation import Federation
    from nbafl.flower.joining import join
    from nbafl.flower.serving import serve
    from nbafl.plan import Plan
    from nbafl.run import Run, simulate
    from nbafl.sweeps.table import SweepTable
    from nbafl.sweeps.whole import sweep
    from nbafl.tracking.callback import Callback

__getattr__ = lazy.names(__name__, _HOMES)
