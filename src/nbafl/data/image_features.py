"""Features of images that are fixed before any private record is seen, so that they cost no privacy.

`scattering` turns an image into scattering coefficients (scattering.py), compresses them, keeps the directions in which
images drawn by a formula differ (strokes and shapes, reference.py), the strong ones held back, and scales each record to
norm 4. No step uses a statistic of the clients' data. Softmax regression on these features learns under much more noise
than a network on pixels: what records have in common fills no norm that privacy pays for, and 768 numbers a record are
left of 3969. Images of any size are brought to sides of 8 to 64 pixels, multiples of 4; the planes of a colour image
(its mean and two differences) share the directions.

Coefficients of large data sets are kept on disk (NBAFL_CACHE, or ~/.cache/nbafl) as float16: half the space of float32,
and a relative rounding of 0.0005 that is far below the noise of any private run. They are rounded whether or not they
come from the disk, so a run does not depend on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from nbafl.data import reference, scattering
from nbafl.data.reference import DIRECTIONS
from nbafl.errors import UsageError

WHITENING = 0.6
"""0 keeps the strength of each direction, 1 makes all equally strong."""
NORM = 4.0
"""Norm of every record: so large that the bias, whose input is 1, takes a 17th of a gradient's square."""
_FAINT = 0.01  # coefficients below this count as none
_STROKES, _SHAPES = 1500, 2000  # reference images of each kind
_VERSION = b"scattering 1"  # part of the cache's key: change it with the transform
_WORTH_KEEPING = 8192  # fewer images are computed faster than a disk fills up
_FILES_KEPT = 6
_ITERATIONS = 2  # of the search for directions
_RESIZED = 4096  # images resized at a time
_CHUNK = 64  # records normalised at a time, on one core


def scattering_features(x: np.ndarray, *, directions: int = DIRECTIONS) -> np.ndarray:
    """Scattering features (M, directions) of images (M, planes, h, w), each record of norm 4.

    `directions` = 0 leaves out the reference images: all coefficients, compressed and scaled, as they are. Images of a
    few pixels have fewer directions.
    """
    if x.ndim != 4:
        raise UsageError("features", "scattering", f"raw for records of shape {x.shape[1:]}: it needs images")
    x = sized(opponent(x))
    count, planes, height, width = x.shape
    kept, row = coefficients(x.reshape(-1, height, width))
    each, most = directions // planes, kept[0].size
    each = each if each < most else most * 3 // 5  # images so small that they have no more: the strong ones
    row = row.reshape(count, planes)
    common = _reference(height, width, each) if directions else None
    features = np.empty((count, planes * (each or most)), dtype=np.float32)

    def work(part: slice) -> None:
        values = _compressed(kept[row[part].ravel()])
        if common is not None:
            values = common.directions_of(values)
        length = torch.linalg.vector_norm(values, dim=1, keepdim=True).clamp_min_(1e-12)
        values = values * (NORM / math.sqrt(planes)) / length
        features[part] = values.reshape(-1, features.shape[1]).numpy()

    scattering.on_all_cores(work, count, _CHUNK)
    return features


def opponent(x: np.ndarray) -> np.ndarray:
    """Three colours as their mean and two differences, each around the middle grey; other images as they are."""
    if x.shape[1] != 3:
        return x
    red, green, blue = x[:, 0], x[:, 1], x[:, 2]
    mixed = ((red + green + blue) / 3, (red - green + 1) / 2, ((red + green) / 2 - blue + 1) / 2)
    return np.stack(mixed, axis=1)


def sized(x: np.ndarray) -> np.ndarray:
    """Images of any size with sides that the transform takes: 8 to 64 pixels, multiples of 4, the shape nearly kept."""
    height, width = x.shape[2:]
    shrink = min(1.0, scattering.LARGEST / max(height, width))
    sides = tuple(scattering.side(shrink * side) for side in (height, width))
    if sides == (height, width):
        return x
    parts = [
        functional.interpolate(torch.from_numpy(part), sides, mode="bilinear", antialias=True).numpy()
        for part in np.array_split(np.ascontiguousarray(x, dtype=np.float32), -(-len(x) // _RESIZED))
    ]
    return np.concatenate(parts)


def _compressed(maps: np.ndarray) -> torch.Tensor:
    """log(1 + s/0.01) of coefficients (B, 81, h, w): how strong a wave is matters in proportion; (B, 81·h·w)."""
    return torch.from_numpy(maps).float().flatten(1).clamp_min_(0).div_(_FAINT).log1p_()


class Common:
    """What records of a kind have in common: their mean, and the directions in which they vary, strongest first."""

    def __init__(self, records: torch.Tensor, directions: int) -> None:
        self.mean = records.mean(dim=0)
        strength, axes = _leading(records - self.mean, directions)
        if len(strength) < directions or strength[-1] <= 1e-9 * strength[0]:
            raise UsageError("directions", directions, "below the number of independent reference images")
        # A direction of variance v is scaled by v^(-0.3): to v^(-0.5) all would be equally strong, noise included.
        self.axes = axes * (strength / strength[0]).pow(-WHITENING / 2)

    def directions_of(self, records: torch.Tensor) -> torch.Tensor:
        """The records less the mean, by their parts along each direction, the strong ones held back."""
        return (records - self.mean) @ self.axes


def _leading(centred: torch.Tensor, directions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Variances and axes of the strongest directions, by subspace iteration (Halko, Martinsson and Tropp, 2011).

    A full decomposition of 3,500 images takes ten times as long, and the weakest of the kept directions need not be exact.
    """
    width = min(directions + directions // 8 + 8, *centred.shape)
    start = torch.randn(centred.shape[0], width, generator=torch.Generator().manual_seed(0))
    basis = torch.linalg.qr(centred.T @ start).Q
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
    projected = centred @ basis
    strength, turned = torch.linalg.eigh((projected.T @ projected).double())
    kept = turned.flip(1)[:, :directions].float()
    return strength.flip(0)[:directions].float(), basis @ kept


@cache
def _reference(height: int, width: int, directions: int) -> Common:
    """What images drawn by a formula have in common, for images of this size."""
    drawn = [reference.strokes(_STROKES, height, width), reference.shapes(_SHAPES, height, width)]
    kept, row = coefficients(np.concatenate(drawn))
    return Common(_compressed(kept[row]), directions)


def coefficients(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scattering coefficients of (M, h, w) images as float16, in an order of their own, and each image's row there.

    The order depends on the images alone, so that one file on disk serves every way of dealing them to clients.
    """
    images = np.ascontiguousarray(images, dtype=np.float32)
    order = _order(images)
    row = np.empty(len(images), dtype=np.int64)
    row[order] = np.arange(len(images))
    path = _folder() / f"scattering-{_key(images, order)}.f16" if len(images) >= _WORTH_KEEPING else None
    _, height, width = images.shape
    shape = (len(images), scattering.CHANNELS, height // scattering.STEP, width // scattering.STEP)
    kept = None if path is None else _load(path, shape)
    if kept is None:
        kept = np.empty(shape, dtype=np.float16)
        scattering.transform(images[order], kept, "cuda" if torch.cuda.is_available() else "cpu")
        if path is not None:
            _save(path, kept)
    return kept, row


def _order(images: np.ndarray) -> np.ndarray:
    """The images sorted by a 64-bit fingerprint of their bytes."""
    bits = images.reshape(len(images), -1).view(np.uint32)
    weights = np.random.default_rng(0).integers(2**63, size=bits.shape[1], dtype=np.uint64) * np.uint64(
        2
    ) + np.uint64(1)
    prints = [bits[i : i + _CHUNK].astype(np.uint64) @ weights for i in range(0, len(bits), _CHUNK)]
    return np.argsort(np.concatenate(prints), kind="stable")


def _key(images: np.ndarray, order: np.ndarray) -> str:
    digest = hashlib.blake2b(_VERSION + str(images.shape).encode(), digest_size=16)
    for start in range(0, len(order), _CHUNK):
        digest.update(images[order[start : start + _CHUNK]])
    return digest.hexdigest()


def _folder() -> Path:
    return Path(os.environ.get("NBAFL_CACHE") or Path.home() / ".cache" / "nbafl")


def _load(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """The kept coefficients, or None where there are none or the file's own checksum does not match."""
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
        data, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:].tobytes()
        kept = data.view(np.float16).reshape(shape)
    except (OSError, ValueError):
        return None
    if _checksum(kept) != checksum:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the files used last are kept longest
    return kept


def _save(path: Path, kept: np.ndarray) -> None:
    """Write to a temporary file and rename. A cache that cannot be written costs time later, not this run."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".scattering-", delete=False) as file:
            temporary = Path(file.name)
            file.write(kept.data)
            file.write(_checksum(kept))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        newest_first = sorted(
            path.parent.glob("scattering-*.f16"), key=lambda f: f.stat().st_mtime, reverse=True
        )
        for old in newest_first[_FILES_KEPT:]:
            old.unlink(missing_ok=True)
    except OSError:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


_CHECKSUM_BYTES = 16


def _checksum(data: np.ndarray) -> bytes:
    return hashlib.blake2b(data.data, digest_size=_CHECKSUM_BYTES).digest()
