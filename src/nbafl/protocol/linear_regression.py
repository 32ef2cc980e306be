"""Softmax and linear regression under the `gradient` rule, with numpy alone.

A client with such a model needs no torch, which fills more memory than everything else it does. The step is that of
`gradient.gradient_step`, its gradients written out: with z = W x + b and the slope dz of a record's loss at z (softmax(z)
less the unit vector of y; sigmoid(z) - y for two classes with one output; 2 (z - y) for numbers), a record's gradient is
dz (x, 1)^T, of norm |dz| |(x, 1)|.
tests/protocol/test_linear_regression.py holds both against each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nbafl.protocol.clipping import HAIR, clip_factor
from nbafl.protocol.training import Training
from nbafl.tasks import BINARY, LOSSES, REGRESSION

ROWS = 4096
"""Records of one pass: what is computed on the way stays small beside the data."""


@dataclass(frozen=True)
class LinearRegression:
    """What `simulation.models.softmax` builds, as two arrays: W (outputs, inputs) and b (outputs,), in this order."""

    shape: tuple[int, ...]
    """Of a record."""
    outputs: int

    def parameters(self) -> dict[str, np.ndarray]:
        """The model where training starts, at zero; names as torch has them."""
        inputs = math.prod(self.shape)
        return {
            "1.weight": np.zeros((self.outputs, inputs), np.float32),
            "1.bias": np.zeros(self.outputs, np.float32),
        }

    def answers(self, point: np.ndarray, x: np.ndarray) -> np.ndarray:
        """z = W x + b of every record."""
        weight, bias = np.split(point, [point.size - self.outputs])
        return x.reshape(len(x), -1) @ weight.reshape(self.outputs, -1).T + bias

    def gradient_step(
        self, x: np.ndarray, y: np.ndarray, start: np.ndarray, training: Training
    ) -> np.ndarray:
        """What a client uploads before its noise: w - eta mean over its records of clip(grad, G); all in float64."""
        total = np.zeros_like(start)
        for first in range(0, len(x), ROWS):
            rows = slice(first, first + ROWS)
            inputs = x[rows].reshape(-1, start.size // self.outputs - 1).astype(np.float64)
            with np.errstate(all="ignore"):  # what is not a finite number counts as zero
                total += self._clipped_sum(inputs, y[rows], start, training)
        return start - training.lr * total / len(x)

    def _clipped_sum(self, x: np.ndarray, y: np.ndarray, point: np.ndarray, training: Training) -> np.ndarray:
        """sum_r clip(grad_r, G) of a few records; one whose gradient is not a finite number adds zero."""
        slopes = _slopes(self.answers(point, x), y, str(training.loss))
        norm = np.linalg.norm(slopes, axis=1) * np.sqrt(np.einsum("ri,ri->r", x, x) + 1)
        finite = np.isfinite(norm)
        factor = np.where(finite, clip_factor(norm, training.record_clip * (1 - HAIR)), 0.0)
        if training.class_weights is not None:  # after the clip: the bound grows with the largest weight
            factor = factor * np.asarray(training.class_weights)[y]
        scaled = np.where(finite[:, None], slopes * factor[:, None], 0.0)
        weight = scaled.T @ np.where(finite[:, None], x, 0.0)
        return np.concatenate([weight.ravel(), scaled.sum(0)])


def _slopes(z: np.ndarray, y: np.ndarray, loss: str) -> np.ndarray:
    """dz of every record: d(-log softmax(z)_y)/dz, that of a single output's sigmoid, or d(z - y)^2/dz."""
    if loss == LOSSES[REGRESSION]:
        return 2 * (z - y.reshape(z.shape))
    if loss == LOSSES[BINARY]:
        return 1 / (1 + np.exp(-z)) - y.reshape(z.shape)
    shares = np.exp(z - z.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    return shares
