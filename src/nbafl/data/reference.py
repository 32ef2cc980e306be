"""Images drawn by a formula, that belong to nobody: pen strokes, and filled shapes.

Noise on a linear model hurts most where features share a large common part and a few strong directions: they fill
the norm that privacy pays for and say little about the class. What is common can be learned from any images, so it is
learned from these: random curves, centred and scaled to a box as handwriting is scaled when it is scanned, and
overlapping polygons and ellipses with shades and stripes, half of them symmetric, as objects are. No record of any
client enters, so removing it from the features costs no privacy.
"""

from __future__ import annotations

import numpy as np

DIRECTIONS = 768
"""Directions of these images that features keep, over all planes of an image."""
_HARMONICS, _SMOOTHNESS = 4, 1.2  # waves in a curve, and how fast they get weaker
_SPAN = (0.3, 1.0)  # how much of a closed curve is drawn
_POINTS = 80  # points along a curve
_BOX = 20 / 28  # longer side of the drawing, as a part of the image
_PEN = (0.9 / 28, 1.7 / 28)  # radius of the pen, likewise
_SEED = 20_190_401
_SHAPES = (1, 5)  # shapes in a drawing
_SIDES = (3, 7)  # sides of a polygon
_ELLIPSES = 0.25  # how often a shape is an ellipse
_SYMMETRIC = 0.5  # how often a drawing is its own mirror image
_SHARPNESS = 0.9  # steepness of an edge, for each pixel of an image's height


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


def shapes(count: int, height: int, width: int) -> np.ndarray:
    """`count` images (count, height, width) in [0, 1] of filled shapes; always the same ones."""
    rng = np.random.default_rng(_SEED + 1)
    down, across = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    images = np.empty((count, height, width), dtype=np.float32)
    for number in range(count):
        image = np.zeros((height, width))
        for _ in range(rng.integers(_SHAPES[0], _SHAPES[1] + 1)):
            inside = _shape(rng, across, down)
            image = image * (1 - inside) + inside * _shade(rng, across, down)
        images[number] = np.maximum(image, image[:, ::-1]) if rng.random() < _SYMMETRIC else image
    return images


def _shape(rng: np.random.Generator, across: np.ndarray, down: np.ndarray) -> np.ndarray:
    """1 inside a random convex polygon or ellipse, 0 outside, with an edge of about a pixel."""
    sides = rng.integers(_SIDES[0], _SIDES[1] + 1)
    centre = rng.uniform(-0.5, 0.5, 2)
    angles = np.sort(rng.uniform(0, 2 * np.pi, sides))
    reach = rng.uniform(0.15, 0.95, sides) * rng.uniform(0.4, 1)
    x, y = across - centre[0], down - centre[1]
    if rng.random() < _ELLIPSES:
        return _expit(6 * (1 - (x / reach[0]) ** 2 - (y / reach[1]) ** 2))
    steep = _SHARPNESS * len(down)
    inside = np.ones_like(x)
    for angle, distance in zip(angles, reach, strict=True):
        inside *= _expit(steep * (distance - x * np.cos(angle) - y * np.sin(angle)))
    return inside


def _shade(rng: np.random.Generator, across: np.ndarray, down: np.ndarray) -> np.ndarray:
    """A grey level, falling off to one side, with stripes."""
    level, waves, angle = rng.uniform(0.1, 1), rng.uniform(2, 12), rng.uniform(0, np.pi)
    along = across * np.cos(angle) + down * np.sin(angle)
    stripes = 1 + rng.uniform(0, 0.6) * np.sin(waves * along + rng.uniform(0, 2 * np.pi))
    slope = 1 + rng.uniform(-0.5, 0.5) * across + rng.uniform(-0.5, 0.5) * down
    return np.clip(level * stripes * slope, 0, 1)


def _expit(value: np.ndarray) -> np.ndarray:
    """1/(1 + e^-x); this room needs numpy alone."""
    return 1 / (1 + np.exp(-np.clip(value, -30, 30)))


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
