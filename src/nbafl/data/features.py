"""What a model sees of a record: the record as it is, or features of an image; and the bound on its norm.

Torch is loaded for images only (image_features.py).
"""

from __future__ import annotations

import math
import subprocess
import sys
from io import BytesIO

import numpy as np

from nbafl.data.reference import DIRECTIONS
from nbafl.errors import UsageError

NAMES = ("raw", "scattering")
_APART = """
import io, sys, numpy
from nbafl.data.features import compute
given = numpy.load(io.BytesIO(sys.stdin.buffer.read()))
numpy.save(sys.stdout.buffer, compute(sys.argv[1], given, directions=int(sys.argv[2])))
"""


def compute(
    name: str,
    x: np.ndarray,
    feature_norm: float | None = None,
    *,
    directions: int = DIRECTIONS,
) -> np.ndarray:
    """Features of the records x: as they are (`raw`), or (M, directions) for `scattering`.

    With `feature_norm` R, every record is scaled down, if need be, so that ‖(x, 1)‖ ≤ R: the 1 is the bias's input.
    """
    if name not in NAMES:
        raise UsageError("features", name, "raw or scattering")
    if feature_norm is not None and not 1 < feature_norm < np.inf:
        raise UsageError("feature_norm", feature_norm, "above 1, since it bounds the norm of (x, 1)")
    features = x if name == "raw" else _of_images(x, directions)
    return features if feature_norm is None else clip_records(features, feature_norm)


def clip_records(x: np.ndarray, feature_norm: float) -> np.ndarray:
    """x with ‖(x, 1)‖ ≤ feature_norm in every record, that is ‖x‖ ≤ sqrt(R² − 1); smaller records stay as they are."""
    flat = x.reshape(len(x), math.prod(x.shape[1:]))  # also of no records
    norm = np.sqrt(np.einsum("ij,ij->i", flat, flat, dtype=np.float64))
    bound = np.sqrt(feature_norm**2 - 1) * (
        1 - 1e-6
    )  # float32 rounding must not carry a record over the bound
    scale = np.minimum(1.0, bound / np.maximum(norm, 1e-30)).astype(np.float32)
    return (flat * scale[:, None]).reshape(x.shape)


def _of_images(x: np.ndarray, directions: int) -> np.ndarray:
    from nbafl.data.image_features import scattering_features

    return scattering_features(x, directions=directions)


def compute_apart(
    name: str, x: np.ndarray, feature_norm: float | None = None, *, directions: int = DIRECTIONS
) -> np.ndarray:
    """`compute` for a process that wants to stay small: what loads torch is done by another one that ends."""
    if name == "raw" or "torch" in sys.modules:
        return compute(name, x, feature_norm, directions=directions)
    given = BytesIO()
    np.save(given, x)
    made = subprocess.run(
        [sys.executable, "-c", _APART, name, str(directions)],
        input=given.getvalue(),
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:  # whatever went wrong there is tried, and said, here
        return compute(name, x, feature_norm, directions=directions)
    return compute("raw", np.load(BytesIO(made.stdout)), feature_norm)
