"""One run as plain numbers: what a Plan comes down to once its noise is known. JSON in and out."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nbafl.errors import UsageError
from nbafl.protocol import ServerSteps, Training

WEIGHTS = ("records", "uniform")


@dataclass(frozen=True)
class Job:
    """T rounds of K clients with noise sigma_i at each client and sigma_D at the server."""

    training: Training
    rounds: int = 25
    per_round: int | None = None
    """K; None: every client takes part in every round."""
    sigma_uplink: float | tuple[float, ...] = 0.0
    """One number for all clients, or one per client."""
    sigma_downlink: float = 0.0
    weights: str = "records"
    """p_i in proportion to |D_i| (`records`) or equal (`uniform`), over the participants of the round."""
    server_momentum: float = 0.0
    server_optimiser: str = "sgd"
    server_lr: float | None = None
    server_average: int = 1
    seed: int = 0
    eval_every: int = 1
    """Evaluate after every so many rounds; the last round is always evaluated."""
    grid: tuple[float, float, int] | None = None
    """Secure aggregation's (step, spread of each client's noise, bits of a word): rounds are sums of integers then."""

    rounds_before: int = 0
    """Rounds of the runs this one goes on with: draws and noise of round t are those of round t + rounds_before."""

    def __post_init__(self) -> None:
        if isinstance(self.sigma_uplink, (list, np.ndarray)):
            object.__setattr__(self, "sigma_uplink", tuple(float(sigma) for sigma in self.sigma_uplink))
        if self.rounds < 1:
            raise UsageError("rounds", self.rounds, "at least 1")
        if self.per_round is not None and self.per_round < 1:
            raise UsageError("per_round", self.per_round, "at least 1")
        if self.eval_every < 1:
            raise UsageError("eval_every", self.eval_every, "at least 1")
        if self.weights not in WEIGHTS:
            raise UsageError("weights", self.weights, "one of " + ", ".join(WEIGHTS))
        _ = self.server  # refuses what it cannot do
        for sigma in np.atleast_1d(self.sigma_uplink):
            _scale("sigma_uplink", float(sigma))
        _scale("sigma_downlink", self.sigma_downlink)

    @property
    def server(self) -> ServerSteps:
        """What the server does with a round's noisy average."""
        return ServerSteps(
            self.server_optimiser, self.server_momentum, self.server_lr, self.server_average, self.rounds
        )

    def evaluated(self, round: int) -> bool:
        """Whether the model broadcast after this round (1..T) is evaluated."""
        return round % self.eval_every == 0 or round == self.rounds

    def uplink_of(self, clients: np.ndarray) -> np.ndarray:
        """sigma_i of the given clients."""
        if isinstance(self.sigma_uplink, tuple):
            return np.asarray(self.sigma_uplink)[clients]
        return np.broadcast_to(np.float64(self.sigma_uplink), clients.shape)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Job:
        return cls(**{**fields, "training": Training(**fields["training"])})


def _scale(field: str, sigma: float) -> None:
    if not (math.isfinite(sigma) and sigma >= 0):
        raise UsageError(field, sigma, "zero or a positive number")
