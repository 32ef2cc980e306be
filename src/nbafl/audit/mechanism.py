"""The code under attack: what a round does to a client's data, to uploads and to their average.

By default it is the protocol's own. A test puts a broken part in its place, and the audit has to find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nbafl import protocol, rules


@dataclass(frozen=True)
class Mechanism:
    """The steps of a round. The defaults are looked up when a mechanism is made."""

    upload: Callable[..., Tensor] = field(default_factory=lambda: rules.upload)
    """(model, x, y, broadcast, training): what a client uploads before its noise, clipped by its rule."""
    add_noise: Callable[..., Tensor] = field(default_factory=lambda: protocol.add_noise)
    """(vector, sigma, generator); the server's noise goes through it too."""
    aggregate: Callable[..., Tensor] = field(default_factory=lambda: protocol.aggregate)
    """(uploads, weights): the average."""
    generator: Callable[..., torch.Generator] = field(default_factory=lambda: protocol.generator)
    """(seed, round, stream): whose noise is drawn from what; a client's stream is its number."""
