"""Images by class, IDX files: read as they are, flaws told."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nbafl import Federation
from nbafl.data.sources import read_idx
from nbafl.errors import DataError


def write_idx(path: Path, values: np.ndarray, kind: int) -> Path:
    content = struct.pack(f">HBB{values.ndim}I", 0, kind, values.ndim, *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["plain", "packed.gz"])
@pytest.mark.parametrize(("dtype", "kind"), [(">u1", 8), (">i2", 11), (">i4", 12), (">f4", 13), (">f8", 14)])
def test_idx_files_are_read_back(tmp_path, name, dtype, kind):
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    found = read_idx(write_idx(tmp_path / name, values, kind))
    assert (found == values).all()
    assert found.dtype == np.dtype(dtype).newbyteorder("=")


def test_idx_pairs_become_clients_and_damage_is_told(tmp_path):
    images = write_idx(tmp_path / "x", np.full((4, 2, 2), 255, dtype=">u1"), 8)
    labels = write_idx(tmp_path / "y", np.array([0, 1, 0, 1], dtype=">u1"), 8)
    federation = Federation.from_idx([(images, labels)] * 2)
    assert federation.shape == (1, 2, 2)
    assert federation.x.max() == 1.0
    assert federation.outputs == 2
    images.write_bytes(images.read_bytes()[:-1])
    with pytest.raises(DataError, match="is damaged: its shape"):
        read_idx(images)
    labels.write_bytes(b"age,sex")
    with pytest.raises(DataError, match="is not an IDX file"):
        read_idx(labels)


def paint(path: Path, grey: int, size: tuple[int, int] = (4, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, grey).save(path)


def test_a_folder_of_images_by_class_becomes_a_federation(tmp_path):
    for client in ("north", "south"):
        for number, label in enumerate(("cat", "dog")):
            for shot in range(3):
                paint(tmp_path / client / label / f"{shot}.png", 50 + 100 * number)
    federation = Federation.from_images(tmp_path)
    assert tuple(federation.names) == ("north", "south")
    assert federation.classes == ("cat", "dog")
    assert federation.shape == (1, 3, 4)
    assert federation.client(0)[1].tolist() == [0, 0, 0, 1, 1, 1]
    assert federation.x[0, 0, 0, 0] == pytest.approx(50 / 255)
    assert federation.remarks == ("No guarantee covers the classes cat, dog, which are names of folders.",)
    assert federation.read_from_data == ("the classes cat, dog, which are names of folders",)
    public = Federation.from_images(tmp_path, classes=["dog", "cat", "cow"])
    assert (public.outputs, public.remarks, public.read_from_data) == (3, (), ())
    paint(tmp_path / "north" / "cat" / "big.png", 9, (9, 9))
    (tmp_path / "north" / "dog" / "broken.png").write_text("no image")
    with pytest.raises(DataError, match=r"2 problems: .*broken\.png cannot be read.*different shapes"):
        Federation.from_images(tmp_path)
    (tmp_path / "north" / "dog" / "broken.png").unlink()
    assert Federation.from_images(tmp_path, size=(8, 8)).shape == (1, 8, 8)
    with pytest.raises(
        DataError, match=r"cat: it needs a folder for each class with images in it \(CLIENT/CLASS"
    ):
        Federation.from_images(tmp_path / "north")


def test_one_client_is_one_client() -> None:
    x, y = np.zeros((4, 3), dtype=np.float32), np.array([0, 1, 0, 1])
    alone, two = (Federation.from_arrays([(x, y)] * count) for count in (1, 2))
    assert alone.described() == "1 client with 4 records, 3 features, 2 classes, no test records"
    assert (
        two.described() == "2 clients with 4 records each (8 in all), 3 features, 2 classes, no test records"
    )
    persons = Federation.from_arrays([(x, y)] * 2, groups=[[0, 0, 1, 1], [0, 1, 2, 2]])
    assert persons.described().startswith("2 clients with 4 records each (8 in all) of 5 persons, 3 features")
