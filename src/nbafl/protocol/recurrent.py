"""LSTM, GRU and RNN layers written out in linear products, for vmap (which has no rule for torch's own kernels).

The equations are those of torch's documentation of nn.LSTM, nn.GRU and nn.RNN. The products with the inputs are made for
all time steps at once; those with the hidden state, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

FUNCTIONS = ("lstm", "gru", "rnn_tanh", "rnn_relu")

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def run(
    kind: str,
    linear: Linear,
    input: Tensor,
    state: Any,
    weights: list[Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    training: bool,
    both_ways: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """What torch.lstm, torch.gru, torch.rnn_tanh and torch.rnn_relu answer to padded sequences."""
    signal = input.transpose(0, 1) if batch_first else input
    states = list(state) if kind == "lstm" else [state]
    ways, each = 2 if both_ways else 1, len(weights) // (layers * (2 if both_ways else 1))
    last: list[list[Tensor]] = [[] for _ in states]
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            number = layer * ways + way
            own = _Weights(weights[number * each : (number + 1) * each], biased)
            begin = [part[number] for part in states]
            output, end = _layer(kind, linear, signal, begin, own, backward=way == 1)
            outputs.append(output)
            for kept, part in zip(last, end, strict=True):
                kept.append(part)
        signal = torch.cat(outputs, -1) if both_ways else outputs[0]
        if dropout and layer + 1 < layers:
            signal = functional.dropout(signal, dropout, training)
    answer = signal.transpose(0, 1) if batch_first else signal
    return answer, *(torch.stack(part) for part in last)


class _Weights:
    """Weights and biases of one layer in one direction, in torch's order."""

    def __init__(self, flat: list[Tensor], biased: bool) -> None:
        self.input, self.hidden = flat[:2]
        self.input_bias = flat[2] if biased else None
        self.hidden_bias = flat[3] if biased else None
        self.projection = flat[-1] if len(flat) in (3, 5) else None


def _layer(
    kind: str, linear: Linear, signal: Tensor, state: list[Tensor], own: _Weights, backward: bool
) -> tuple[Tensor, list[Tensor]]:
    """All time steps of (T, N, I): the outputs (T, N, H) and the last state."""
    ahead = linear(signal, own.input, own.input_bias)
    order = range(len(ahead) - 1, -1, -1) if backward else range(len(ahead))
    outputs: dict[int, Tensor] = {}
    for time in order:
        state = _CELLS[kind](ahead[time], linear(state[0], own.hidden, own.hidden_bias), state)
        if own.projection is not None:
            state = [linear(state[0], own.projection, None), *state[1:]]
        outputs[time] = state[0]
    return torch.stack([outputs[time] for time in range(len(ahead))]), state


def _lstm(ahead: Tensor, inner: Tensor, state: list[Tensor]) -> list[Tensor]:
    i, f, g, o = (ahead + inner).chunk(4, -1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(cell), cell]


def _gru(ahead: Tensor, inner: Tensor, state: list[Tensor]) -> list[Tensor]:
    (r, z, n), (inner_r, inner_z, inner_n) = ahead.chunk(3, -1), inner.chunk(3, -1)
    z = torch.sigmoid(z + inner_z)
    n = torch.tanh(n + torch.sigmoid(r + inner_r) * inner_n)
    return [(1 - z) * n + z * state[0]]


def _elman(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, list[Tensor]], list[Tensor]]:
    return lambda ahead, inner, _: [activation(ahead + inner)]


_CELLS: dict[str, Callable[[Tensor, Tensor, list[Tensor]], list[Tensor]]] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": _elman(torch.tanh),
    "rnn_relu": _elman(torch.relu),
}
