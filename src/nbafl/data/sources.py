"""Images and IDX files as arrays: a folder per client with a folder per class in it, or the files MNIST comes in."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nbafl.errors import DataError, UsageError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_IDX_KINDS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> np.ndarray:
    """One IDX file, gzipped or not: a magic number, the lengths of its dimensions, then the values."""
    path = Path(path)
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except FileNotFoundError:
        raise DataError(f"The file {path} does not exist.") from None
    except (OSError, EOFError) as error:
        raise DataError(f"The file {path} cannot be read ({error}).") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_KINDS:
        raise DataError(f"The file {path} is not an IDX file: its first bytes are {content[:4].hex()!r}.")
    head = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:head]) if len(content) >= head else ()
    kind = np.dtype(_IDX_KINDS[content[2]])
    if len(content) - head != math.prod(shape) * kind.itemsize:
        raise DataError(
            f"The IDX file {path} is damaged: its shape {shape} does not fit its {len(content):,} bytes."
        )
    return np.frombuffer(content, kind, offset=head).reshape(shape).astype(kind.newbyteorder("="))


def idx_pair(images: str | Path, labels: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (records, 1, height, width) in [0, 1] where they are bytes, and their classes."""
    x, y = read_idx(images), read_idx(labels)
    if x.dtype == np.uint8:
        x = x.astype(np.float32) / 255
    return (x[:, None] if x.ndim == 3 else x), y.astype(np.int64)


def image_classes(folders: Sequence[Path]) -> tuple[str, ...]:
    """The names of all class folders, sorted."""
    return tuple(sorted({path.name for folder in folders for path in folder.iterdir() if path.is_dir()}))


def read_images(
    folder: Path, classes: Sequence[str], size: tuple[int, int] | None
) -> tuple[np.ndarray, np.ndarray]:
    """All images of one client, (records, channels, height, width) in [0, 1]; every file that does not fit is counted."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise DataError("Reading images needs pillow: pip install 'nbafl[tables]'.") from None
    x, y, problems = [], [], []
    for number, name in enumerate(classes):
        for path in sorted((folder / name).glob("*")) if (folder / name).is_dir() else []:
            if path.suffix.lower() not in IMAGES:
                continue
            try:
                with Image.open(path) as file:
                    image = file.convert("L" if file.mode in ("1", "L", "I;16") else "RGB")
                scaled = image if size is None else image.resize((size[1], size[0]))
                pixels = np.asarray(scaled, dtype=np.float32) / 255
            except (OSError, UnidentifiedImageError, ValueError) as error:
                problems.append(f"{path} cannot be read as an image ({error})")
                continue
            x.append(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
            y.append(number)
    shapes = sorted({image.shape for image in x})
    if len(shapes) > 1:
        problems.append(
            f"its images have {len(shapes)} different shapes, such as {shapes[0]} and {shapes[-1]}; give size="
        )
    if not x:
        problems.append("it needs a folder for each class with images in it (CLIENT/CLASS/*.png)")
    if problems:
        counted = f"{len(problems)} problems: " if len(problems) > 1 else ""
        raise DataError(f"{folder}: {counted}{'; '.join(problems[:10])}.")
    return np.stack(x), np.array(y, dtype=np.int64)


def client_folders(folder: str | Path) -> list[Path]:
    """One folder per client."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"The data folder {folder} does not exist or is not a folder.")
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    if not found:
        raise DataError(
            f"The data folder {folder} holds no folders; it needs one per client, with one per class in it."
        )
    return found


def check_size(size: Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    if len(size) != 2 or min(size) < 1:
        raise UsageError("size", tuple(size), "a pair (height, width) of at least 1")
    return int(size[0]), int(size[1])
