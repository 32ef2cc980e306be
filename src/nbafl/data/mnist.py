"""The 70,000 handwritten digits that travel with the package, so that the main job needs no download.

The four files are kept gzipped, as published. Each is unpacked in memory, checked against the md5 of the
published file and kept for the life of the process; pixels become float32 in [0, 1] only for the records that
are asked for.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from nbafl.errors import DataError

FOLDER = Path(__file__).parent / "mnist_files"
SHAPE = (1, 28, 28)
CLASSES = 10

# md5 of the unpacked files, as published.
_CHECKSUMS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_IMAGE_HEADER, _LABEL_HEADER = 16, 8  # bytes before the data in the idx format


@dataclass(frozen=True)
class Digits:
    """Images as read-only bytes (M, 28, 28) with their labels (M,)."""

    images: np.ndarray
    labels: np.ndarray

    def pixels(self, records: np.ndarray | None = None) -> np.ndarray:
        """The chosen images (all by default) as float32 in [0, 1], shape (M, 1, 28, 28)."""
        chosen = self.images if records is None else self.images[records]
        return np.divide(chosen, 255, dtype=np.float32).reshape(-1, *SHAPE)

    def classes(self, records: np.ndarray | None = None) -> np.ndarray:
        """The chosen labels (all by default) as int64."""
        return (self.labels if records is None else self.labels[records]).astype(np.int64)


def train() -> Digits:
    """The 60,000 training digits."""
    return load(FOLDER, "train")


def test() -> Digits:
    """The 10,000 test digits."""
    return load(FOLDER, "t10k")


@cache
def load(folder: Path, part: str) -> Digits:
    """One half of MNIST (`train` or `t10k`) from the gzipped idx files in `folder`."""
    images = _unpack(folder / f"{part}-images-idx3-ubyte.gz")
    labels = _unpack(folder / f"{part}-labels-idx1-ubyte.gz")
    return Digits(
        np.frombuffer(images, np.uint8, offset=_IMAGE_HEADER).reshape(-1, 28, 28),
        np.frombuffer(labels, np.uint8, offset=_LABEL_HEADER),
    )


def _unpack(path: Path) -> bytes:
    """The file's unpacked bytes, if they are the published ones."""
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"The MNIST file {path} is missing; install nbafl again.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"The MNIST file {path} cannot be unpacked ({error}); install nbafl again.") from None
    expected = _CHECKSUMS[path.stem]
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(
            f"The MNIST file {path} is damaged (md5 {found}, not {expected}); install nbafl again."
        )
    return content
