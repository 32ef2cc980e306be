"""Noise that was really added, divided by the standard deviation it should have: one row for each (trial, round, client).

If the mechanism is sound all numbers in it are independent standard Gaussians. That is the whole of what the accountant
needs of the noise, and everything a look at it tests (`looks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

SERVER = -1
"""In place of a client's number: the server's own noise."""


@dataclass(frozen=True)
class NoiseSample:
    """Rows of noise; rows without noise by design (sigma 0) are not in it."""

    rows: np.ndarray
    """(places, numbers of noise)"""
    trial: np.ndarray
    round: np.ndarray
    client: np.ndarray
    share: np.ndarray
    """p_i·sigma_i: what a row weighs in the average; 0 for the server."""

    @classmethod
    def of_round(
        cls,
        trial: int,
        round: int,
        noise: Tensor,
        sigmas: np.ndarray,
        weights: np.ndarray,
        clients: np.ndarray | None = None,
    ) -> NoiseSample:
        """The noise of all uploads of a round, one row each."""
        clients = np.arange(len(sigmas)) if clients is None else clients
        real = sigmas > 0
        rows = noise.double().numpy()[real] / sigmas[real, None]
        return cls(
            rows,
            np.full(len(rows), trial),
            np.full(len(rows), round),
            clients[real],
            (weights * sigmas)[real],
        )

    @classmethod
    def of_server(cls, trial: int, round: int, noise: Tensor, sigma: float) -> NoiseSample:
        rows = noise.double().numpy()[None] / sigma
        return cls(rows, np.array([trial]), np.array([round]), np.array([SERVER]), np.zeros(1))

    @classmethod
    def join(cls, parts: list[NoiseSample]) -> NoiseSample:
        """Many parts as one; all must have equally many numbers a row."""
        if not parts:
            none = np.zeros(0, dtype=np.int64)
            return cls(np.zeros((0, 0)), none, none, none, np.zeros(0))
        names = ("rows", "trial", "round", "client", "share")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.rows)

    def grid(self) -> np.ndarray:
        """Row number of every (trial, round, client), −1 where there is none; the server counts as a client."""
        places = [np.unique(labels, return_inverse=True) for labels in (self.trial, self.round, self.client)]
        found = np.full([len(values) for values, _ in places], -1)
        found[tuple(inverse for _, inverse in places)] = np.arange(len(self))
        return found
