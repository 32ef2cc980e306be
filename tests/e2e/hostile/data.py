"""Small data made on the spot: of a client that holds less than it said, and of one among very many."""

from __future__ import annotations

import numpy as np


def few() -> tuple[np.ndarray, np.ndarray]:
    """Forty blank digits."""
    return np.zeros((40, 1, 28, 28), dtype=np.float32), np.arange(40) % 10


def fifty() -> tuple[np.ndarray, np.ndarray]:
    """Fifty noisy digits: a hundred clients on one machine need not each unpack all of MNIST."""
    generator = np.random.default_rng()
    classes = np.arange(50) % 10
    x = generator.uniform(0, 0.2, (50, 1, 28, 28)).astype(np.float32)
    x[np.arange(50), 0, 2 * classes, :] = 1.0
    return x, classes
