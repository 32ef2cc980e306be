"""Small models of every kind that people train, for tests, the sensitivity search and the GPU check.

Each takes records of 24 numbers in [0, 8), which it may read as pixels, columns, a sequence or tokens, and answers with
three numbers. Needs only torch; LoRA is written out as peft does it (peft's own is in tests/simulation/test_adapters.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SHAPE, CLASSES, TOKENS = (24,), 3, 8


def _sequence(x: Tensor) -> Tensor:
    return x.unflatten(1, (6, 4)) / 8


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(_sequence(x))[0].mean(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = _sequence(x)
        return self.head(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))


class Transformer(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, 8), nn.Parameter(0.1 * torch.randn(24, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x.long()) + self.place).mean(1))


class Tokens(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.head = table, nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x.long())
        return self.head(torch.tanh(rows.mean(1) if rows.ndim == 3 else rows))


class Tied(nn.Module):
    """The table of tokens is also the last layer but one, and one layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(TOKENS, 6), nn.Linear(6, TOKENS, bias=False)
        self.out.weight = self.table.weight
        self.twice, self.head = nn.Linear(6, 6), nn.Linear(TOKENS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.table(x.long()).mean(1)
        inner = torch.tanh(self.twice(torch.tanh(self.twice(inner))))
        return self.head(self.out(inner))


class LowRank(nn.Module):
    """A frozen layer and a trained product of two thin ones beside it (LoRA)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.base.requires_grad_(False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


class Branching(nn.Module):
    """Which layer a record takes depends on the record: vmap cannot go there."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(*SHAPE, CLASSES), nn.Linear(*SHAPE, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([(self.high if float(row.mean()) > 4 else self.low)(row[None] / 8) for row in x])


def _image(channels: int = 1) -> list[nn.Module]:
    return [nn.Unflatten(1, (channels, 24 // channels // 4, 4))]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(*SHAPE, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def _cnn() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 2, stride=2)]
    return nn.Sequential(*_image(), *layers, nn.Flatten(), nn.Linear(24, CLASSES))


def _depthwise() -> nn.Module:
    layers = [
        nn.Conv2d(2, 8, 1),
        nn.Tanh(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.Conv2d(8, 4, 1, groups=2),
    ]
    return nn.Sequential(*_image(2), *layers, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, CLASSES))


def _signal() -> nn.Module:
    layers = [nn.Conv1d(2, 6, 3, padding=2, dilation=2), nn.InstanceNorm1d(6, affine=True), nn.SiLU()]
    return nn.Sequential(nn.Unflatten(1, (2, 12)), *layers, nn.Flatten(), nn.Linear(72, CLASSES))


def _normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(*SHAPE, 8), nn.LayerNorm(8), nn.GELU(), nn.RMSNorm(8), nn.Linear(8, CLASSES)
    )


def _frozen() -> nn.Module:
    model = _cnn()
    for layer in list(model)[:-1]:
        layer.requires_grad_(False)
    return model


def _low_rank() -> nn.Module:
    return nn.Sequential(LowRank(*SHAPE, 8), nn.ReLU(), LowRank(8, CLASSES))


def _dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(*SHAPE, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, CLASSES))


ZOO: dict[str, Callable[[], nn.Module]] = {
    "MLP": _mlp,
    "CNN with GroupNorm": _cnn,
    "depthwise CNN": _depthwise,
    "Conv1d with InstanceNorm": _signal,
    "LayerNorm and RMSNorm": _normed,
    "RNN": lambda: Recurrent(nn.RNN(4, 5, batch_first=True), 5),
    "LSTM": lambda: Recurrent(nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True), 10),
    "GRU": lambda: Recurrent(nn.GRU(4, 5, batch_first=True), 5),
    "MultiheadAttention": Attention,
    "Transformer encoder": Transformer,
    "Embedding": lambda: Tokens(nn.Embedding(TOKENS, 6, padding_idx=0)),
    "EmbeddingBag": lambda: Tokens(nn.EmbeddingBag(TOKENS, 6, mode="sum")),
    "tied weights": Tied,
    "frozen backbone": _frozen,
    "LoRA": _low_rank,
    "dropout": _dropout,
    "control flow": Branching,
}


def records(count: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Made-up records and classes."""
    random = torch.Generator().manual_seed(seed)
    x = 8 * torch.rand(count, *SHAPE, generator=random, dtype=torch.float64)
    return x.clamp(max=7.9).to(dtype), torch.randint(CLASSES, (count,), generator=random)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of one record, as autograd sees it without any of nbafl."""
    return functional.cross_entropy(model(x[None]), y[None])
