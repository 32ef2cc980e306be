"""One round of Algorithm 1 as small pure functions; simulation and deployment both call these."""

from nbafl.protocol.aggregation import (
    add_noise,
    aggregate,
    clip,
    clip_factor,
    normalise,
    server_step,
    summed_sigma,
)
from nbafl.protocol.local import client_batches, descend, record_losses, train_locally
from nbafl.protocol.randomness import batches, generator, numpy_generator, stream_key
from nbafl.protocol.rules import upload
from nbafl.protocol.schedule import draw
from nbafl.protocol.training import RULES, Training
from nbafl.protocol.vector import flatten, load, unflatten

__all__ = [
    "RULES",
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
    "load",
    "normalise",
    "numpy_generator",
    "record_losses",
    "server_step",
    "stream_key",
    "summed_sigma",
    "train_locally",
    "unflatten",
    "upload",
]
