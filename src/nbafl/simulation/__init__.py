"""Many clients on one machine; needs only torch and numpy."""

from nbafl.simulation.batch import simulate_batch
from nbafl.simulation.job import Job
from nbafl.simulation.models import build
from nbafl.simulation.scoring.metrics import RoundMetrics
from nbafl.simulation.simulator import Simulator

__all__ = ["Job", "RoundMetrics", "Simulator", "build", "simulate_batch"]
