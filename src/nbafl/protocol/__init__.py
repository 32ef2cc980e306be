"""One round of Algorithm 1 as small pure functions; simulation and deployment both call these.

Names are loaded when first used: a small client takes clip and step from here without loading torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbafl import lazy

if TYPE_CHECKING:
    from nbafl.protocol.aggregation import (
        add_noise,
        aggregate,
        clip,
        integer_sum,
        normalise,
        summed_sigma,
    )
    from nbafl.protocol.clipping import clip_factor
    from nbafl.protocol.local import client_batches, descend
    from nbafl.protocol.losses import likeliest, probabilities, record_losses
    from nbafl.protocol.randomness import batches, generator, numpy_generator, stream_key
    from nbafl.protocol.schedule import draw
    from nbafl.protocol.server import ServerSteps
    from nbafl.protocol.training import Training
    from nbafl.protocol.vector import flatten, load, unflatten

__all__ = [
    "ServerSteps",
    "Training",
    "add_noise",
    "aggregate",
    "batches",
    "client_batches",
    "clip",
    "clip_factor",
    "descend",
    "draw",
    "flatten",
    "generator",
    "integer_sum",
    "likeliest",
    "load",
    "normalise",
    "numpy_generator",
    "probabilities",
    "record_losses",
    "stream_key",
    "summed_sigma",
    "unflatten",
]

_HOMES = {
    "aggregation": (
        "add_noise",
        "aggregate",
        "clip",
        "integer_sum",
        "normalise",
        "summed_sigma",
    ),
    "clipping": ("clip_factor",),
    "local": ("client_batches", "descend"),
    "losses": ("likeliest", "probabilities", "record_losses"),
    "randomness": ("batches", "generator", "numpy_generator", "stream_key"),
    "schedule": ("draw",),
    "server": ("ServerSteps",),
    "training": ("Training",),
    "vector": ("flatten", "load", "unflatten"),
}

__getattr__ = lazy.names(
    __name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}
)
