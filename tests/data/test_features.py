"""Fixed features: no statistic of the data in them, bounded norms, and a disk cache that can only save time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from nbafl import Federation
from nbafl.data import features, image_features, mnist, reference
from nbafl.errors import UsageError


def digits(count: int) -> np.ndarray:
    return mnist.train().pixels(np.arange(count))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own, and data sets of 20 images worth keeping."""
    monkeypatch.setenv("NBAFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(image_features, "_WORTH_KEEPING", 20)
    return tmp_path / "cache"


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.f16"))


def test_records_have_norm_4() -> None:
    found = features.compute("scattering", digits(30))
    assert found.shape == (30, features.DIRECTIONS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 4, rtol=1e-6)


@pytest.mark.parametrize("directions", [0, 256, features.DIRECTIONS])
def test_a_records_features_do_not_depend_on_other_records(directions: int) -> None:
    """The property that makes features free of privacy cost: each is a fixed function of its own record."""
    images = digits(30)
    together = features.compute("scattering", images, directions=directions)
    for chosen in ([7], [29, 3, 11]):
        alone = features.compute("scattering", images[chosen], directions=directions)
        np.testing.assert_allclose(alone, together[chosen], atol=1e-5)


def test_without_pen_strokes_features_are_compressed_coefficients() -> None:
    """Against numpy, from the definition."""
    images = digits(3)
    maps, row = image_features.coefficients(images[:, 0])
    expected = np.log1p(np.maximum(maps[row].astype(np.float64), 0) / 0.01).reshape(3, -1)
    expected *= 4 / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(features.compute("scattering", images, directions=0), expected, atol=1e-5)


def test_strong_directions_are_held_back() -> None:
    """Records of a kind end up without a mean, in their own directions, of variance v to the power 1 - whitening."""
    rng = np.random.default_rng(0)
    strength = np.r_[10.0, 5.0, 3.0, np.full(37, 1.0)]
    records = torch.from_numpy((rng.normal(size=(800, 40)) * strength + 7).astype(np.float32))
    variances = torch.linalg.eigvalsh((records - records.mean(dim=0)).T.cov().double()).flip(0)
    found = image_features.Common(records, directions=3).directions_of(records)
    torch.testing.assert_close(found.mean(dim=0), torch.zeros(3), atol=1e-4, rtol=0)
    covariance = found.T.cov().double()
    expected = variances[:3] * (variances[:3] / variances[0]) ** -image_features.WHITENING
    torch.testing.assert_close(covariance, torch.diag(expected), rtol=1e-3, atol=1e-2)


def test_more_directions_than_strokes_are_refused() -> None:
    with pytest.raises(UsageError, match="directions must be"):
        image_features.Common(torch.randn(10, 5), directions=10)


def test_images_of_a_few_pixels_have_fewer_directions() -> None:
    small = digits(4)[:, :, 10:18, 10:18]
    found = features.compute("scattering", small)
    assert found.shape == (4, 81 * 2 * 2 * 3 // 5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 4, rtol=1e-6)


def test_several_image_planes_have_norm_4_together() -> None:
    images = digits(4)
    coloured = np.concatenate([images, images[::-1], images], axis=1)
    found = features.compute("scattering", coloured)
    each = features.DIRECTIONS // 3
    assert found.shape == (4, 3 * each)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 4, rtol=1e-6)
    grey = features.compute("scattering", coloured.mean(axis=1, keepdims=True), directions=each)
    np.testing.assert_allclose(found[:, :each] * np.sqrt(3), grey, atol=1e-5)


@pytest.mark.parametrize(
    ("height", "width", "sides"),
    [(30, 17, (32, 16)), (5, 9, (8, 8)), (200, 100, (64, 32)), (28, 28, (28, 28))],
)
def test_images_of_any_size_are_brought_to_one_the_transform_takes(
    height: int, width: int, sides: tuple[int, int]
) -> None:
    images = np.random.default_rng(0).random((3, 1, height, width)).astype(np.float32)
    assert image_features.sized(images).shape == (3, 1, *sides)
    assert features.compute("scattering", images, directions=16).shape == (3, 16)
    np.testing.assert_allclose(
        image_features.sized(images[1:2])[0], image_features.sized(images)[1], atol=1e-6
    )


def test_the_leading_directions_are_those_of_the_full_decomposition() -> None:
    generator = torch.Generator().manual_seed(3)
    records = torch.randn(400, 150, generator=generator) * torch.logspace(0, -3, 150)
    centred = records - records.mean(0)
    strength, axes = image_features._leading(centred, 20)
    full = torch.linalg.svd(centred.double(), full_matrices=False)
    torch.testing.assert_close(strength.double(), full.S[:20] ** 2, rtol=1e-2, atol=0)
    assert (axes.double().T @ full.Vh[:20].T).abs().diag()[:10].min() > 0.99
    torch.testing.assert_close(axes.T @ axes, torch.eye(20), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", features.NAMES)
@pytest.mark.parametrize("bound", [1.001, 1.2, 2**0.5, 5.0])
def test_no_record_passes_the_feature_norm(name: str, bound: float) -> None:
    images = digits(40)
    plain = features.compute(name, images).reshape(40, -1).astype(np.float64)
    found = features.compute(name, images, bound)
    assert found.shape == (images.shape if name == "raw" else (40, features.DIRECTIONS))
    flat = found.reshape(40, -1).astype(np.float64)
    assert np.sqrt((flat**2).sum(axis=1) + 1).max() <= bound
    small = np.sqrt((plain**2).sum(axis=1) + 1) < bound - 1e-3
    np.testing.assert_array_equal(flat[small], plain[small])
    cosine = (flat * plain).sum(axis=1) / np.linalg.norm(flat, axis=1) / np.linalg.norm(plain, axis=1)
    np.testing.assert_allclose(cosine, 1, rtol=1e-6)


def test_an_empty_record_stays_as_it_is() -> None:
    assert (features.clip_records(np.zeros((2, 3), np.float32), 1.5) == 0).all()
    assert features.clip_records(np.zeros((0, 3), np.float32), 1.5).shape == (0, 3), (
        "no records are no reason to stop"
    )


@pytest.mark.parametrize("bound", [1.0, 0.0, -2.0, float("inf"), float("nan")])
def test_a_feature_norm_must_leave_room_for_the_bias(bound: float) -> None:
    with pytest.raises(UsageError, match="feature_norm must be above 1"):
        features.compute("raw", digits(1), bound)


def test_unusable_requests_are_refused() -> None:
    with pytest.raises(UsageError, match="features must be raw or scattering, got 'wavelets'"):
        features.compute("wavelets", digits(1))
    with pytest.raises(UsageError, match=r"raw for records of shape \(3,\): it needs images"):
        features.compute("scattering", np.ones((2, 3), np.float32))


def test_the_cache_is_used_and_changes_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = features.compute("scattering", digits(30), directions=0)
    assert len(kept(cache)) == 1
    stamp = kept(cache)[0].stat().st_ino
    np.testing.assert_array_equal(features.compute("scattering", digits(30), directions=0), first)
    assert kept(cache)[0].stat().st_ino == stamp  # a recomputed file would be a new one
    monkeypatch.setattr(image_features, "_WORTH_KEEPING", 10_000)
    np.testing.assert_array_equal(features.compute("scattering", digits(30), directions=0), first)


def test_one_file_serves_every_order_of_the_records(cache: Path) -> None:
    order = np.random.default_rng(0).permutation(30)
    first = features.compute("scattering", digits(30), directions=0)
    np.testing.assert_array_equal(
        features.compute("scattering", digits(30)[order], directions=0), first[order]
    )
    assert len(kept(cache)) == 1
    changed = digits(30)
    changed[4, 0, 10, 10] += 0.001
    features.compute("scattering", changed, directions=0)
    assert len(kept(cache)) == 2


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1000] ^= 0x40
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [_flip, _cut, _empty])
def test_a_damaged_cache_is_recomputed(cache: Path, damage) -> None:  # type: ignore[no-untyped-def]
    first = features.compute("scattering", digits(30), directions=0)
    good = kept(cache)[0].read_bytes()
    damage(kept(cache)[0])
    np.testing.assert_array_equal(features.compute("scattering", digits(30), directions=0), first)
    assert kept(cache)[0].read_bytes() == good


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NBAFL_CACHE", str(tmp_path / "file"))
    assert features.compute("scattering", digits(30), directions=0).shape == (30, 3969)


def test_the_cache_stays_small_and_tidy(cache: Path) -> None:
    for count in range(20, 30):
        image_features.coefficients(digits(count)[:, 0])
    assert len(kept(cache)) == 6
    assert len(list(cache.iterdir())) == 6  # no temporary files left


def test_a_federation_with_features() -> None:
    federation = Federation.mnist(clients=4, samples=20, local_test=0.2)
    small = Federation.from_arrays(
        [federation.client(i) for i in range(4)], test=(digits(25), mnist.train().classes(np.arange(25)))
    )
    found = small.with_features("scattering", feature_norm=1.3)
    assert found.shape == (features.DIRECTIONS,)
    assert found.test is not None
    assert found.test[0].shape == (25, features.DIRECTIONS)
    assert (found.y == small.y).all()
    assert (found.records() == small.records()).all()
    np.testing.assert_array_equal(found.x, features.compute("scattering", small.x, 1.3))
    assert small.with_features("raw").x is small.x
    assert federation.with_features("raw", 2.0).local_test is federation.local_test


def test_features_are_easier_to_learn_from_than_pixels() -> None:
    """Least squares on few digits: what is left of the error says whether the features do their job."""
    images, labels = digits(2500), mnist.train().classes(np.arange(2500))

    def error(x: np.ndarray) -> float:
        x = x.reshape(2500, -1).astype(np.float64)
        train, test = x[:2000], x[2000:]
        gram = train @ train.T + 0.01 * np.trace(train @ train.T) / 2000 * np.eye(2000)
        scores = test @ train.T @ np.linalg.solve(gram, np.eye(10)[labels[:2000]])
        return float((scores.argmax(axis=1) != labels[2000:]).mean())

    assert error(images) > 0.12
    assert error(features.compute("scattering", images, directions=0)) < 0.05
    assert error(features.compute("scattering", images)) < 0.05


def test_pen_strokes_are_pictures_of_their_own() -> None:
    images = reference.strokes(300, 28, 20)
    assert images.shape == (300, 28, 20)
    assert images.min() >= 0
    assert images.max() <= 1
    assert (images == reference.strokes(300, 28, 20)).all()
    ink = images.sum(axis=(1, 2))
    assert ink.min() > 5
    rows = (images.sum(axis=2) * np.arange(28)).sum(axis=1) / ink
    assert abs(rows.mean() - 13.5) < 0.5
    assert len({image.tobytes() for image in images}) == 300


def test_shapes_are_pictures_of_their_own() -> None:
    images = reference.shapes(200, 28, 20)
    assert images.shape == (200, 28, 20)
    assert images.min() >= 0
    assert images.max() <= 1
    assert (images == reference.shapes(200, 28, 20)).all()
    symmetric = np.isclose(images, images[:, :, ::-1]).all(axis=(1, 2)).mean()
    assert 0.35 < symmetric < 0.65
    assert len({image.tobytes() for image in images}) == 200


def test_features_made_apart_are_the_same_and_leave_no_torch_behind() -> None:
    """A small client has them made by another process, which ends."""
    code = (
        "import sys, numpy as np; from nbafl.data import features, mnist;"
        "x = mnist.test().pixels(np.arange(7));"
        "made = features.compute_apart('scattering', x, directions=0);"
        "print('torch' in sys.modules, made.tobytes().hex())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, values = found.stdout.split()
    expected = features.compute("scattering", mnist.test().pixels(np.arange(7)), directions=0)
    assert loaded == "False"
    np.testing.assert_allclose(
        np.frombuffer(bytes.fromhex(values), np.float32).reshape(expected.shape), expected, atol=1e-5
    )
