"""The workload's model for the peers that use torch."""

from __future__ import annotations

from itertools import pairwise

from task import Task
from torch import nn


def network(given: Task) -> nn.Sequential:
    """Takes flat records."""
    layers: list[nn.Module] = []
    if given.cnn is not None:
        layers += [nn.Unflatten(1, (1, 28, 28))]
        for inputs, outputs in pairwise((1, *given.cnn.channels)):
            layers += [nn.Conv2d(inputs, outputs, 5, padding=given.cnn.padding), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten()]
    for inputs, outputs in pairwise(given.widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
