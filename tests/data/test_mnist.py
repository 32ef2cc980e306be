"""The embedded digits: what they hold, and that no damaged file goes unnoticed."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from nbafl.data import mnist
from nbafl.errors import DataError


def test_the_digits_are_all_there() -> None:
    train, test = mnist.train(), mnist.test()
    assert train.images.shape == (60_000, 28, 28)
    assert test.images.shape == (10_000, 28, 28)
    # Published counts of each digit in the training and test parts.
    assert np.bincount(train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_pixels_are_floats_between_0_and_1() -> None:
    chosen = np.array([3, 1, 4])
    pixels = mnist.test().pixels(chosen)
    assert pixels.shape == (3, 1, 28, 28)
    assert pixels.dtype == np.float32
    expected = mnist.test().images[chosen].astype(np.float64)[:, None] / 255
    np.testing.assert_allclose(pixels, expected, rtol=1e-7)
    assert pixels.min() == 0
    assert pixels.max() <= 1
    assert mnist.test().classes(chosen).dtype == np.int64


def test_the_files_are_read_once() -> None:
    assert mnist.train() is mnist.train()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for path in mnist.FOLDER.glob("t10k*.gz"):
        shutil.copy(path, tmp_path)
    return tmp_path


def _flip_a_pixel(path: Path) -> None:
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[5000] ^= 1
    path.write_bytes(gzip.compress(bytes(content), compresslevel=1))


def _flip_a_packed_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def _cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _not_gzip(path: Path) -> None:
    path.write_bytes(b"<html>not found</html>")


def _another_file(path: Path) -> None:
    shutil.copy(path.parent / "t10k-labels-idx1-ubyte.gz", path)


@pytest.mark.parametrize(
    "damage", [_flip_a_pixel, _flip_a_packed_byte, _cut_off, _empty, _not_gzip, _another_file, Path.unlink]
)
def test_a_damaged_file_is_named(copy: Path, damage) -> None:  # type: ignore[no-untyped-def]
    damage(copy / "t10k-images-idx3-ubyte.gz")
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz .*install nbafl again\.$"):
        mnist.load(copy, "t10k")


def test_an_undamaged_copy_loads(copy: Path) -> None:
    loaded = mnist.load(copy, "t10k")
    assert (loaded.images == mnist.test().images).all()
