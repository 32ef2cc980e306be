"""Any nn.Module: per-client gradients through torch.func, vectorised over clients in chunks that fit memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from nbafl.errors import UsageError
from nbafl.protocol import Training, batches, clip, record_losses, stream_key, unflatten
from nbafl.protocol.aggregation import length
from nbafl.simulation.engine import Aggregate
from nbafl.simulation.records import Records, Rows

CHUNK_BYTES = 512 * 2**20


def in_training(model: nn.Module, records: Records) -> nn.Module:
    """A copy of the model as it trains (with dropout); refused if a step is not a function of one client's records alone."""
    model = copy.deepcopy(model).train()
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False):
            allowed = "free of layers that keep running statistics (use GroupNorm or LayerNorm instead)"
            raise UsageError("model", f"{type(layer).__name__} at {name!r}", allowed)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if before:
        with torch.no_grad(), _seeded(0, records.device):
            model(records.x[:2])
        for name, buffer in model.named_buffers():
            if not torch.equal(buffer, before[name]):
                raise UsageError("model", f"buffer {name!r}", "free of buffers that change in training")
    return model


class VmapEngine:
    """The general path; the others are faster where the model allows."""

    name = "vmap"

    def __init__(self, records: Records, model: nn.Module, training: Training, seed: int) -> None:
        self.records, self.training, self.seed = records, training, seed
        self.model = in_training(model, records)
        self._gradients = vmap(grad(self._objective), randomness="different")

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        shares = torch.as_tensor(weights, dtype=broadcast.dtype, device=broadcast.device)
        total = torch.zeros_like(broadcast)
        lengths = []
        with _seeded(stream_key(self.seed, round, "layers"), broadcast.device):
            for part in np.array_split(np.arange(len(clients)), self._chunks(broadcast, clients)):
                upload, far = self._clip(self._train(broadcast, clients[part], round), broadcast)
                total += shares[part] @ upload
                lengths.append(far)
        far, bound = torch.cat(lengths), self.training.clip
        return Aggregate(total, (far > bound).sum(), far.clamp(max=bound).mean())

    def _train(self, broadcast: Tensor, clients: np.ndarray, round: int) -> Tensor:
        """S proximal steps of every client at once: one row of weights per client."""
        rows, training = self.records.rows(clients), self.training
        order = self._order(clients, round)
        weights = broadcast.expand(len(clients), -1).clone()
        for step in range(training.steps):
            if step == 0 or order is not None:
                batch = rows if order is None else Rows(*_pick(rows, order[:, step]))
                share = batch.shares(broadcast.dtype)
                x, y = self.records.x[batch.index], self.records.y[batch.index]
            gradient = self._gradients(weights, x, y, share)
            weights = weights - training.lr * (gradient + training.mu * (weights - broadcast))
        return weights

    def _objective(self, weights: Tensor, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """F_i of one client: its records' losses, each with its share."""
        output = functional_call(self.model, unflatten(weights, self.model), (x,))
        return (record_losses(output, y, self.training.loss) * share).sum()

    def _clip(self, weights: Tensor, broadcast: Tensor) -> tuple[Tensor, Tensor]:
        """Clip the weights (`paper`) or the updates (`client`); also how long they were."""
        centre = broadcast if self.training.rule == "client" else torch.zeros_like(broadcast)
        return centre + clip(weights - centre, self.training.clip), length(weights - centre)[:, 0]

    def _chunks(self, broadcast: Tensor, clients: np.ndarray) -> int:
        """How many pieces the round is cut into: weights, gradients and activations of a piece fit CHUNK_BYTES."""
        largest = int(self.records.sizes[clients].max())
        rows = min(largest, self.training.batch or largest)
        entries = 6 * broadcast.numel() + 32 * rows * self.records.x[0].numel()
        each = entries * broadcast.element_size()
        return min(len(clients), -(-len(clients) * each // CHUNK_BYTES))

    def _order(self, clients: np.ndarray, round: int) -> Tensor | None:
        """Minibatches of the given clients; None where the full batch is everyone's."""
        training, sizes = self.training, self.records.sizes[clients]
        if training.batch is None or training.batch >= sizes.max():
            return None
        who = torch.as_tensor(clients, device=self.records.device)
        return batches(self.seed, round, who, torch.as_tensor(sizes), training.steps, training.batch)


def _pick(rows: Rows, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The records of one minibatch per client, and how many each has; missing ones come last."""
    return rows.index.gather(1, chosen.clamp(min=0)), (chosen >= 0).sum(1)


_GLOBAL = threading.Lock()


@contextmanager
def _seeded(key: int, device: torch.device) -> Iterator[None]:
    """Layers such as dropout draw from torch's global generator: seed it, alone, and leave it as it was."""
    with _GLOBAL, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(key)
        yield
