"""Million normal numbers a second, one thread: the deployment's secure grid noise beside generators without a grid.

.venv/bin/python benchmarks/secure_noise.py
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from randomgen import AESCounter

from nbafl.privacy.noise import SecureGaussian

COUNT = 1_000_000
PARAMETERS = 203_530  # the paper's network


def rate(draw: Callable[[], object], count: int, repeats: int = 7) -> float:
    """Median of several timings, in millions a second."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        draw()
        seconds.append(time.perf_counter() - started)
    return count / statistics.median(seconds) / 1e6


def main() -> None:
    torch.set_num_threads(1)
    plain = np.random.default_rng()
    secure = np.random.Generator(AESCounter(key=secrets.randbits(128)))
    gaussian, vector = SecureGaussian(), np.zeros(PARAMETERS)
    rows = {
        "torch.randn, float32": rate(lambda: torch.randn(COUNT), COUNT),
        "numpy PCG64, float64": rate(lambda: plain.standard_normal(COUNT), COUNT),
        "AESCounter, float64 (secure key, no grid)": rate(lambda: secure.standard_normal(COUNT), COUNT),
        "SecureGaussian.integers (secure key, grid)": rate(
            lambda: gaussian.integers(2.0**30 * 1.4, COUNT), COUNT
        ),
    }
    for name, value in rows.items():
        print(f"{name:45} {value:8.1f} million a second")
    upload = PARAMETERS / rate(lambda: gaussian.add(vector, 0.03, 0.2), PARAMETERS) / 1e3
    print(f"{'noise of one upload of the paper-sized network':45} {upload:8.1f} ms")


if __name__ == "__main__":
    main()
