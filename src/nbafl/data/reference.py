"""Pen strokes drawn by a formula: images that resemble handwriting and belong to nobody.

Noise on a linear model hurts most where features share a large common part and a few strong directions: they fill
the norm that privacy pays for and say little about the class. What is common can be learned from any images of the
same kind, so it is learned from these: random curves, centred and scaled to a box as handwriting is scaled when it is
scanned. No record of any client enters, so removing it from the features costs no privacy.
"""

from __future__ import annotations

import numpy as np

_HARMONICS, _SMOOTHNESS = 4, 1.2  # waves in a curve, and how fast they get weaker
_SPAN = (0.3, 1.0)  # how much of a closed curve is drawn
_POINTS = 80  # points along a curve
_BOX = 20 / 28  # longer side of the drawing, as a part of the image
_PEN = (0.9 / 28, 1.7 / 28)  # radius of the pen, likewise
_SEED = 20_190_401


def strokes(count: int, height: int, width: int) -> np.ndarray:
    """`count` images (count, height, width) in [0, 1]; always the same ones."""
    rng = np.random.default_rng(_SEED)
    side = min(height, width)
    radius = rng.uniform(*_PEN, size=count) * side
    points = _placed(_curves(count, rng), _BOX * side - 2 * radius, np.array([height - 1, width - 1]) / 2)
    images = np.empty((count, height, width), dtype=np.float32)
    for start in range(0, count, 200):  # a chunk that stays in the cache
        part = slice(start, start + 200)
        images[part] = _ink(points[:, part], radius[part], height, width)
    return images


def _curves(count: int, rng: np.random.Generator) -> np.ndarray:
    """Points (P, count, 2) along part of a closed curve: a few waves in each coordinate, the quicker the weaker."""
    order = np.arange(1, _HARMONICS + 1)
    waves = rng.normal(size=(2, count, 2, _HARMONICS)) / order**_SMOOTHNESS
    span = rng.uniform(*_SPAN, size=(count, 1))
    points = np.empty((_POINTS, count, 2))
    for place, t in enumerate(np.linspace(0, 2 * np.pi, _POINTS)):
        angle = (t * span * order)[:, None]
        points[place] = (waves[0] * np.cos(angle) + waves[1] * np.sin(angle)).sum(axis=2)
    return points


def _placed(points: np.ndarray, side: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Scaled so that the longer side is as given, and moved so that the ink's centre of mass is the image's centre."""
    extent = (points.max(axis=0) - points.min(axis=0)).max(axis=1)
    scaled = points * (side / np.maximum(extent, 1e-6))[:, None]
    length = np.linalg.norm(
        np.diff(scaled, axis=0), axis=2
    )  # ink lies along the curve, however fast it is drawn
    middle = (scaled[1:] + scaled[:-1]) / 2
    mass = (middle * length[:, :, None]).sum(axis=0) / length.sum(axis=0)[:, None]
    return scaled - mass + centre


def _ink(points: np.ndarray, radius: np.ndarray, height: int, width: int) -> np.ndarray:
    """Darkness of each pixel: 1 within the pen's radius of a point, falling to 0 over the width of a pixel."""
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    nearest = np.full((points.shape[1], height, width), np.inf, dtype=np.float32)
    for point in points.astype(np.float32):
        down = (rows - point[:, :1]) ** 2
        across = (columns - point[:, 1:]) ** 2
        np.minimum(nearest, down[:, :, None] + across[:, None, :], out=nearest)
    return np.clip(radius[:, None, None] + 0.5 - np.sqrt(nearest), 0, 1)
