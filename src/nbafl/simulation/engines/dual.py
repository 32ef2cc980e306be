"""The dual form: local training without any client's weight matrix.

With the first layer of client i written as W_i = W + X_i' A_i, its pre-activations are Z_i = X_i W + G_i A_i with the
Gram matrix G_i = X_i X_i' (the bias is one more feature that is always 1), and a gradient step with the proximal term
is A_i <- (1 - eta mu) A_i - eta dZ_i on the batch's rows. Then |W_i|^2 = |W|^2 + <A_i, X_i W> + <A_i, Z_i>, and the
weighted, clipped average over clients is one product of the stacked X' with the stacked, scaled A. A round is two
large products and S - 1 small ones; the layers after the first are small and stay explicit.

The norm needs one more product with G than the steps do. It is skipped when a bound shows that clipping cannot bind:
|W_S| <= |W_{S-1}| + eta |X_i| |dZ|, with |W_{S-1}| exact from the product at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from nbafl.protocol import Training, batches, clip_factor
from nbafl.simulation.cores import Cores
from nbafl.simulation.device_data.teams import Members, Roster, team_lanes
from nbafl.simulation.engines.backward import Scratch, Tail
from nbafl.simulation.engines.base import Aggregate, Part, Start, clips_weights, combine
from nbafl.simulation.engines.network import Network
from nbafl.simulation.scoring.evaluators import Ahead

CERTAIN = 1 - 1e-5
"""A bound must stay below this part of C before clipping is ruled out, to be safe from rounding."""


@dataclass(frozen=True)
class Trained:
    """A team after its local steps."""

    coefficients: Tensor
    """A, (B, m, units)."""
    later: Tensor
    """Later layers, (B, parameters)."""
    bound: Tensor | None
    """An upper bound on the length that is clipped, (B,), where one was asked for."""


class DualEngine:
    """Trains networks whose clients have few records."""

    name, lanes = "dual", True

    def __init__(
        self,
        network: Network,
        roster: Roster,
        cores: Cores,
        training: Training,
        seed: int,
        exact_norms: bool,
    ) -> None:
        self.network, self.roster, self.cores = network, roster, cores
        self.training, self.seed, self.exact_norms = training, seed, exact_norms
        self._weights_clipped = clips_weights(training)
        self.ahead = Ahead()
        overshoot = training.lr * training.mu > 1  # then the proximal term can take a client further out
        waits = (
            roster.records.device.type != "cpu"
        )  # a decision made here would make the host wait for the GPU
        self._certify = not (exact_norms or overshoot or waits)

    @torch.no_grad()
    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        start = Start.of(broadcast, self.network, self.roster.features)
        shares = torch.as_tensor(weights, dtype=broadcast.dtype, device=broadcast.device)
        return self.train(start, self.roster.teams(clients), shares, self._order(clients, round))

    def train(
        self, start: Start, teams: Sequence[Members], shares: Tensor, order: Tensor | None
    ) -> Aggregate:
        """The round once its data are at hand; `order` holds the minibatches, (K, steps, batch), or None."""

        def work(numbers: range) -> Part:
            scratch = Scratch(start.table)
            parts = (self._team(teams[n], n, start, shares, order, scratch) for n in numbers)
            return reduce(Part.absorb, parts)

        total = self.cores.sum(work, team_lanes(teams), Part.absorb)
        return combine(total, start, self.network, self.roster.features, self._weights_clipped, len(shares))

    def _order(self, clients: np.ndarray, round: int) -> Tensor | None:
        """Minibatches of all participants; None where the full batch is everyone's."""
        training, records = self.training, self.roster.records
        sizes = records.sizes[clients]
        if training.batch is None or training.batch >= sizes.max():
            return None
        who = torch.as_tensor(clients, device=records.device)
        return batches(self.seed, round, who, torch.as_tensor(sizes), training.steps, training.batch)

    def _team(
        self, team: Members, number: int, start: Start, shares: Tensor, order: Tensor | None, scratch: Scratch
    ) -> Part:
        z0 = self.ahead.take(start.vector, number)
        if z0 is None:
            z0 = team.features.times(start.table)
        later = scratch("later", len(z0), len(start.later)).copy_(start.later)
        if order is None:
            trained = self._full_steps(team, z0, later, start, scratch)
        else:
            trained = self._batch_steps(team, z0, later, start, order[team.place], scratch)
        length = self._length(team, trained, z0, start, scratch)
        factor, clipped, norm = shares[team.place], torch.zeros_like(team.place[0]), None
        if length is not None:
            factor = factor * clip_factor(length, self.training.clip)
            clipped = (length > self.training.clip).sum()
            norm = length.clamp(max=self.training.clip).sum()
        update = team.features.transposed_times(trained.coefficients.mul_(factor[:, None, None]))
        return Part(update, factor @ (trained.later - start.later), factor.sum(), clipped, norm)

    def _full_steps(
        self, team: Members, z0: Tensor, later: Tensor, start: Start, scratch: Scratch
    ) -> Trained:
        """S full-batch steps; the product with G of step s gives the pre-activations of step s + 1."""
        training, tail = self.training, Tail(self.network, later, z0.shape[1], scratch)
        a, z = scratch("a", *z0.shape), scratch("z", *z0.shape)
        inner = (
            z0.new_zeros(()) if self._certify else None
        )  # what A adds to the squared length, before the last step
        for step in range(training.steps):
            if step == 0:
                z.copy_(z0)
            else:
                torch.baddbmm(z0, team.gram, a, out=z)
                if step == training.steps - 1 and self._certify:
                    inner = self._inner(a, z0, z)
            dz = tail.gradient(z, team.target, team.share, training)
            if step == 0:
                torch.mul(dz, -training.lr, out=a)
            else:
                self._shrink(a).add_(dz, alpha=-training.lr)
            self._step_later(tail, start)
        if inner is None:
            return Trained(a, later, None)
        return Trained(a, later, self._bound(inner, self._stretch(team, dz), later, start))

    def _batch_steps(
        self, team: Members, z0: Tensor, later: Tensor, start: Start, order: Tensor, scratch: Scratch
    ) -> Trained:
        """S minibatch steps: each touches its own rows of A only. `order` is (B, steps, batch)."""
        training, (clients, rows, units) = self.training, z0.shape
        tail = Tail(self.network, later, order.shape[2], scratch)
        flat, target, share = _minibatches(order, team.target, z0.dtype)
        a = scratch("a", *z0.shape).zero_()
        z = scratch("z", flat.shape[1], units)
        some = scratch("gram", flat.shape[1], rows)
        travelled = z0.new_zeros(clients)
        for step in range(training.steps):
            torch.index_select(z0.view(-1, units), 0, flat[step], out=z)
            batch = z.view(clients, -1, units)
            if step > 0:
                torch.index_select(team.gram.view(-1, rows), 0, flat[step], out=some)
                torch.baddbmm(batch, some.view(clients, -1, rows), a, out=batch)
            dz = tail.gradient(batch, target[step], share[step], training)
            rows_of_a = self._shrink(a).view(-1, units)
            rows_of_a.index_add_(0, flat[step], dz.reshape(-1, units), alpha=-training.lr)
            self._step_later(tail, start)
            if self._certify:
                travelled += self._stretch(team, dz)
        bound = self._bound(z0.new_zeros(()), travelled, later, start) if self._certify else None
        return Trained(a, later, bound)

    def _stretch(self, team: Members, dz: Tensor) -> Tensor:
        """How far a step can take the first layer at most: eta |X_i| |dZ|."""
        return self.training.lr * team.reach * torch.linalg.vector_norm(dz.flatten(1), dim=1)

    def _shrink(self, a: Tensor) -> Tensor:
        """(1 - eta mu) A, the proximal term's part of a step."""
        return a.mul_(1 - self.training.lr * self.training.mu) if self.training.mu else a

    def _step_later(self, tail: Tail, start: Start) -> None:
        """w <- w - eta (gradient + mu (w - w_broadcast)) for the later layers."""
        if self.training.mu:
            tail.later.lerp_(start.later, self.training.lr * self.training.mu)
        tail.later.add_(tail.slope, alpha=-self.training.lr)

    def _inner(self, a: Tensor, z0: Tensor, z: Tensor) -> Tensor:
        """What A adds to |W|^2 where the weights are clipped, or |X'A|^2 itself; z are the pre-activations with A."""
        own, start = _dot(a, z), _dot(a, z0)
        return own + start if self._weights_clipped else own - start

    def _first_square(self, inner: Tensor, start: Start) -> Tensor:
        return (inner + start.square if self._weights_clipped else inner).clamp(min=0)

    def _later_square(self, later: Tensor, start: Start) -> Tensor:
        moved = later if self._weights_clipped else later - start.later
        return moved.square().sum(1)

    def _bound(self, inner: Tensor, travelled: Tensor, later: Tensor, start: Start) -> Tensor:
        """The length before the last stretch plus the stretch; the proximal term never takes a client further out."""
        before = self._first_square(inner, start).sqrt()
        if self._weights_clipped:
            before = torch.maximum(before, start.square.sqrt())
        return torch.hypot(before + travelled, self._later_square(later, start).sqrt())

    def _length(
        self, team: Members, trained: Trained, z0: Tensor, start: Start, scratch: Scratch
    ) -> Tensor | None:
        """Exact length of what is clipped, (B,); None when nobody's can exceed C and nobody asked."""
        if trained.bound is not None and bool((trained.bound <= CERTAIN * self.training.clip).all()):
            return None
        z = torch.baddbmm(z0, team.gram, trained.coefficients, out=scratch("final", *z0.shape))
        z.add_(z0, alpha=1 if self._weights_clipped else -1)
        inner = _dot(trained.coefficients, z)  # as `_inner`, in one pass less
        return (self._first_square(inner, start) + self._later_square(trained.later, start)).sqrt()


def _minibatches(order: Tensor, target: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Of every step: rows among all rows of the team, targets and shares (B, 1, batch); empty places get share 0."""
    order = order.transpose(0, 1)  # (steps, clients, batch)
    real, chosen = order >= 0, order.clamp(min=0)
    share = real.to(dtype) / real.sum(2, keepdim=True).to(dtype)
    first = torch.arange(len(target), device=order.device)[:, None] * target.shape[2]
    picked = target[:, 0].expand(len(order), -1, -1).gather(2, chosen)
    return (chosen + first).flatten(1), picked[:, :, None], share[:, :, None]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """<A_i, B_i> of each client."""
    return torch.linalg.vecdot(a.flatten(1), b.flatten(1))
