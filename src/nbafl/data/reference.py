"""Pen strokes drawn by a formula: images that resemble handwriting and belong to nobody.

Noise on a linear model hurts most where features share a large common part and a few strong directions: they fill
the norm that privacy pays for and say little about the class. What is common can be learned from any images of the
same kind, so it is learned from these: random curves, centred and scaled to a box as handwriting is scaled when it is
scanned. No record of any client enters, so removing it from the features costs no privacy.
"""

from __future__ import annotations

import numpy as np

_STROKES = (1.0, 0.7, 0.35)  # chance of a first, second and third stroke
_POINTS = 48  # points along a stroke
_CURL, _LOOPS = 1.6, 0.3  # how far a stroke bends; how often it returns to its start
_BOX = 20 / 28  # longer side of the drawing, as a part of the image
_PEN = (0.8 / 28, 1.8 / 28)  # radius of the pen, likewise
_SEED = 20_190_401


def strokes(count: int, height: int, width: int) -> np.ndarray:
    """`count` images (count, height, width) in [0, 1]; always the same ones."""
    rng = np.random.default_rng(_SEED)
    points = _placed(_curves(count, rng), min(height, width), np.array([height - 1, width - 1]) / 2)
    radius = rng.uniform(*_PEN, size=count) * min(height, width)
    images = np.empty((count, height, width), dtype=np.float32)
    for start in range(0, count, 200):  # a chunk that stays in the cache
        part = slice(start, start + 200)
        images[part] = _ink(points[:, part], radius[part], height, width)
    return images


def _curves(count: int, rng: np.random.Generator) -> np.ndarray:
    """Points (P, count, 2) along one to three cubic curves; each later one starts on the one before. NaN: not drawn."""
    t = np.linspace(0, 1, _POINTS)[:, None, None]
    drawn: list[np.ndarray] = []
    for chance in _STROKES:
        begin, first, second, end = rng.uniform(size=(4, count, 2))
        if drawn:
            begin = drawn[-1][rng.integers(_POINTS, size=count), np.arange(count)]
        end = np.where(rng.uniform(size=(count, 1)) < _LOOPS, begin, end)
        middle = (begin + end) / 2
        first, second = middle + _CURL * (first - middle), middle + _CURL * (second - middle)
        curve = (1 - t) ** 3 * begin + 3 * (1 - t) ** 2 * t * first + 3 * (1 - t) * t**2 * second + t**3 * end
        curve[:, rng.uniform(size=count) >= chance] = (
            np.nan
        )  # NaN carries over to a stroke that would start on it
        drawn.append(curve)
    return np.concatenate(drawn)


def _placed(points: np.ndarray, side: int, centre: np.ndarray) -> np.ndarray:
    """Scaled so that the longer side fills the box, and moved so that the centre of mass is the image's centre."""
    extent = np.nanmax(points, axis=0) - np.nanmin(points, axis=0)
    scaled = points * (_BOX * side / np.maximum(extent.max(axis=1), 0.3))[:, None]
    return scaled - np.nanmean(scaled, axis=0) + centre


def _ink(points: np.ndarray, radius: np.ndarray, height: int, width: int) -> np.ndarray:
    """Darkness of each pixel: 1 within the pen's radius of a point, falling off smoothly over about a pixel."""
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    nearest = np.full((points.shape[1], height, width), np.inf, dtype=np.float32)
    for point in points.astype(np.float32):
        down = (rows - point[:, :1]) ** 2
        across = (columns - point[:, 1:]) ** 2
        np.fmin(nearest, down[:, :, None] + across[:, None, :], out=nearest)
    return 1 / (1 + np.exp(3 * (np.sqrt(nearest) - radius[:, None, None])))
