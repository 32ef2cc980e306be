"""Who takes part in a round: K of N clients without replacement (the paper's K-random scheduling)."""

from __future__ import annotations

import numpy as np

from nbafl.errors import UsageError
from nbafl.protocol.randomness import numpy_generator


def draw(seed: int, round: int, clients: int, per_round: int) -> np.ndarray:
    """Sorted numbers of the round's participants; every set of K is equally likely.

    Time and memory follow K, not N: numpy draws a small K from a large N with Floyd's algorithm.
    """
    if not 1 <= per_round <= clients:
        raise UsageError("per_round", per_round, f"between 1 and the number of clients, {clients}")
    if per_round == clients:
        return np.arange(clients)
    chosen = numpy_generator(seed, round, "draw").choice(clients, per_round, replace=False, shuffle=False)
    return np.sort(chosen)
