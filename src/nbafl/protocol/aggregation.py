"""Clipping, noise and averaging: what happens to weight vectors between a client and the next broadcast."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from nbafl.protocol.clipping import clip_factor


def clip(vector: Tensor, bound: float) -> Tensor:
    """w / max(1, |w|/C), over the last dimension; a zero vector stays zero."""
    return vector * clip_factor(length(vector), bound).to(vector.dtype)


def length(vector: Tensor) -> Tensor:
    """|w| over the last dimension, which stays; added up in float64, for 200,000 weights in float32 lose digits."""
    return torch.linalg.vector_norm(vector, dim=-1, keepdim=True, dtype=torch.float64)


def add_noise(vector: Tensor, sigma: float | Tensor, generator: torch.Generator) -> Tensor:
    """vector + N(0, sigma^2 I). `sigma` may have one entry per row (a tensor of shape (clients, 1))."""
    if not isinstance(sigma, Tensor) and sigma == 0:
        return vector
    noise = torch.randn(vector.shape, generator=generator, dtype=vector.dtype, device=vector.device)
    return vector + sigma * noise if isinstance(sigma, Tensor) else torch.add(vector, noise, alpha=sigma)


def integer_sum(
    mean: Tensor,
    centre: Tensor,
    weights: np.ndarray,
    grid: tuple[float, float, int],
    generator: torch.Generator,
) -> Tensor:
    """The mean of a secure sum: integers modulo 2^b on the grid, with the noise of all clients as one draw of D(s sqrt n).

    `weights` are p_i (sum 1) and q_i = p_i / max p what clients multiply by. One draw instead of n is lemma B of
    docs/math.md; at spreads of 2^10 and more a rounded Gaussian is a discrete one to 1e-5 of every probability. The
    sum is rounded once where a federation rounds n uploads: a difference of sqrt(n/12) steps beside s sqrt(n) of noise.
    """
    step, spread, bits = grid
    total = 1.0 / float(np.max(weights))  # sum of q_i
    noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64, device=mean.device)
    scaled = (mean.double() - centre.double()).mul_(total / step)
    integers = torch.round(scaled).add_(torch.round(noise.mul_(spread * math.sqrt(len(weights))))).long()
    wrapped = (integers << (64 - bits)) >> (64 - bits)
    return (wrapped.double().mul_(step / total) + centre.double()).to(mean.dtype)


def normalise(weights: np.ndarray) -> np.ndarray:
    """p_i over those who answered: sums to 1."""
    weights = np.asarray(weights, dtype=np.float64)
    total = weights.sum()
    if not (math.isfinite(total) and total > 0 and (weights >= 0).all()):
        raise ValueError("aggregation weights must be non-negative and not all zero")
    return weights / total


def aggregate(uploads: Tensor, weights: np.ndarray | Tensor) -> Tensor:
    """sum_i p_i w_i (eq. 1 of the paper), one row of uploads per client, p renormalised over the rows."""
    shares = torch.as_tensor(normalise(np.asarray(weights)), dtype=uploads.dtype, device=uploads.device)
    return shares @ uploads


def summed_sigma(weights: np.ndarray, sigma_uplink: np.ndarray | float, sigma_downlink: float) -> float:
    """Standard deviation of sum_i p_i n_i + n_D: the exact law of all of a round's noise, drawn at once."""
    uplink = float(np.sum(np.square(np.asarray(weights) * np.asarray(sigma_uplink))))
    return math.sqrt(uplink + sigma_downlink**2)
