"""Any nn.Module that vmap can run: all clients of a chunk step side by side, each with weights of its own.

This is the path for a GPU, where a client alone fills nothing. vmap keeps the clients apart: what the model computes for one
is a function of its own weights and records.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from nbafl.errors import UsageError
from nbafl.protocol import Training, batches, flatten, record_losses, unflatten
from nbafl.protocol.aggregation import clip_factor, length
from nbafl.protocol.independence import (
    Kinds,
    draws_numbers,
    fresh,
    ready_to_train,
    told,
    trial_records,
    trial_targets,
)
from nbafl.protocol.losses import weighted
from nbafl.protocol.memory import chunk_bytes
from nbafl.protocol.randomness import layer_draws
from nbafl.simulation.device_data.records import Records, Rows
from nbafl.simulation.engines.base import Aggregate, clips_weights
from nbafl.simulation.engines.convolutions import WeightBatched
from nbafl.simulation.engines.graphed import Recorded

CHUNK_BYTES = 2**29


class VmapEngine:
    """The general path; the others are faster where the model allows."""

    name, lanes = "vmap", False

    def __init__(self, records: Records, model: nn.Module, training: Training, seed: int) -> None:
        self.records, self.training, self.seed = records, training, seed
        self._kinds = Kinds.of(records.x, records.y)
        self.model = ready_to_train(model, records.data.shape, kinds=self._kinds)
        self._try()
        self._draws = draws_numbers(self.model, records.data.shape, self._kinds)
        self._recordings: dict[object, Recorded] = {}

    def _try(self) -> None:
        """The gradient of one made-up client, before anything is written."""
        x = trial_records(self.model, self.records.data.shape, 2, self._kinds)[None]
        y = trial_targets(2, self.records.data.outputs, self._kinds, x.device)[None]
        weights = flatten(self.model)[None]
        try:
            with layer_draws(0, 0, "trial", x.device):
                self._gradient(weights, x, y, torch.ones_like(y, dtype=weights.dtype))
        except Exception as error:  # torch has no rule for what this model does
            allowed = f"one that vmap can run (engine clients runs any); it failed: {told(error)}"
            raise UsageError("model", type(self.model).__name__, allowed) from error

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        shares = torch.as_tensor(weights, dtype=broadcast.dtype, device=broadcast.device)
        total, lengths = torch.zeros_like(broadcast), []
        alone = layer_draws(self.seed, round, f"layers {clients[0]}", broadcast.device)
        with alone if self._draws else nullcontext():
            for part in np.array_split(np.arange(len(clients)), self._chunks(broadcast, clients)):
                index, share = self._batches(clients[part], round, broadcast.dtype)
                summed, far = self._recorded(index)(broadcast, index, share, shares[part])
                total += summed
                lengths.append(far.clone())
        far, bound = torch.cat(lengths), self.training.clip
        return Aggregate(total, (far > bound).sum(), far.clamp(max=bound).mean())

    def _batches(self, clients: np.ndarray, round: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Numbers of the records of every step and client, and their shares: (S, K, rows), S = 1 for full batches."""
        rows, order = self.records.rows(clients), self._order(clients, round)
        steps = (
            [rows]
            if order is None
            else [Rows(*_pick(rows, order[:, step])) for step in range(self.training.steps)]
        )
        return torch.stack([each.index for each in steps]), torch.stack(
            [each.shares(dtype) for each in steps]
        )

    def _recorded(self, index: Tensor) -> Callable[..., tuple[Tensor, ...]]:
        """What trains clients of this many records: on a GPU the kernels are recorded and replayed."""
        if not index.is_cuda or self._draws:
            return self._chunk
        key = (tuple(index.shape), torch.backends.cuda.matmul.allow_tf32)
        return self._recordings.setdefault(key, Recorded(self._chunk))

    def _chunk(
        self, broadcast: Tensor, index: Tensor, share: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """sum_i p_i clip(w_i) of some clients after their S proximal steps side by side, and how long w_i were."""
        training = self.training
        own = broadcast.expand(index.shape[1], -1).clone()
        for step in range(training.steps):
            now = min(step, len(index) - 1)
            gradient = self._gradient(own, self.records.x[index[now]], self.records.y[index[now]], share[now])
            if training.mu:  # w <- w - eta (gradient + mu (w - w_broadcast))
                own.lerp_(broadcast.expand_as(own), training.lr * training.mu)
            own.add_(gradient, alpha=-training.lr)
        around = not clips_weights(training)
        if around:
            own.sub_(broadcast)
        far = length(own)[:, 0]
        factor = clip_factor(far, training.clip).to(own.dtype)
        summed = (weights * factor) @ own
        return summed + weights.sum() * broadcast if around else summed, far

    def _gradient(self, weights: Tensor, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """dF_i/dw of every client, (clients, d).

        The copy is for this step alone: what a model keeps of a step is a tensor of that step's vmap, dead after it.
        """
        own = weights.detach().requires_grad_()
        with torch.enable_grad():
            objective = partial(self._objective, _unpacked(fresh(self.model)))
            each = vmap(objective, randomness="different")(own, x, y, share)
            return torch.autograd.grad(each.sum(), own)[0]

    def _objective(self, model: nn.Module, weights: Tensor, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """F_i of one client: its records' losses, each with its share."""
        with WeightBatched():
            output = functional_call(model, unflatten(weights, model), (x,))
        shares = weighted(share, y, self.training.class_weights)
        return (record_losses(output, y, self.training.loss) * shares).sum()

    def _chunks(self, broadcast: Tensor, clients: np.ndarray) -> int:
        """How many pieces the round is cut into: weights, gradients and activations of a piece fit a chunk."""
        largest = int(self.records.sizes[clients].max())
        rows = min(largest, self.training.batch or largest)
        entries = 6 * broadcast.numel() + 512 * rows * self.records.x[0].numel()
        each = entries * broadcast.element_size()
        return min(len(clients), -(-len(clients) * each // chunk_bytes(broadcast.device, CHUNK_BYTES)))

    def _order(self, clients: np.ndarray, round: int) -> Tensor | None:
        """Minibatches of the given clients; None where the full batch is everyone's."""
        training, sizes = self.training, self.records.sizes[clients]
        if training.batch is None or training.batch >= sizes.max():
            return None
        who = torch.as_tensor(clients, device=self.records.device)
        return batches(self.seed, round, who, torch.as_tensor(sizes), training.steps, training.batch)


def _unpacked(model: nn.Module) -> nn.Module:
    """Recurrent layers would look for the address of their weights, which weights inside vmap do not have."""
    for layer in model.modules():
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters = lambda: None  # type: ignore[method-assign]
    return model


def _pick(rows: Rows, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The records of one minibatch per client, and how many each has; missing ones come last."""
    return rows.index.gather(1, chosen.clamp(min=0)), (chosen >= 0).sum(1)
