"""The scattering transform against kymatio's, stored and live, and its refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nbafl.data import mnist, scattering
from nbafl.data.scattering import Scattering
from nbafl.errors import UsageError

# kymatio 0.3.0's ScatteringTorch2D(J=2): the first two test digits, and one random 16×12 image of seed 5.
REFERENCE = np.load(Path(__file__).parent / "kymatio_reference.npz")


def digits(count: int) -> np.ndarray:
    return mnist.test().pixels(np.arange(count))[:, 0]


def test_it_is_kymatios_transform() -> None:
    found = Scattering(28, 28)(torch.from_numpy(digits(2))).numpy()
    assert found.shape == (2, 81, 7, 7)
    assert np.abs(found - REFERENCE["digits"]).max() < 1e-4


def test_it_is_kymatios_transform_for_other_shapes() -> None:
    image = np.random.default_rng(5).random((1, 16, 12), dtype=np.float32)
    found = Scattering(16, 12)(torch.from_numpy(image)).numpy()
    assert found.shape == (1, 81, 4, 3)
    assert np.abs(found - REFERENCE["random"]).max() < 1e-4


def test_it_is_the_installed_kymatios_transform() -> None:
    frontend = pytest.importorskip("kymatio.scattering2d.frontend.torch_frontend")
    images = np.concatenate([digits(20), np.random.default_rng(0).random((4, 28, 28), dtype=np.float32)])
    theirs = frontend.ScatteringTorch2D(J=2, shape=(28, 28))(torch.from_numpy(images)).numpy()
    assert np.abs(Scattering(28, 28)(torch.from_numpy(images)).numpy() - theirs).max() < 1e-4


def test_a_flat_image_has_nothing_but_its_mean() -> None:
    """The wavelets have mean 0, so every order but the first vanishes; the averages have sum 1."""
    maps = Scattering(28, 28)(torch.full((1, 28, 28), 0.5))
    torch.testing.assert_close(maps[:, 0], torch.full((1, 7, 7), 0.5), rtol=0, atol=1e-5)
    assert maps[:, 1:].abs().max() < 1e-5


def test_chunks_and_threads_change_nothing() -> None:
    images = digits(37)  # not a multiple of the chunk
    out = np.empty((37, 81, 7, 7), dtype=np.float32)
    threads = torch.get_num_threads()
    scattering.transform(images, out)
    assert torch.get_num_threads() == threads
    np.testing.assert_allclose(out, Scattering(28, 28)(torch.from_numpy(images)).numpy(), atol=1e-6)


@pytest.mark.parametrize("shape", [(27, 28), (28, 4), (68, 28)])
def test_sizes_it_cannot_take_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="scattering must be images with sides between 8 and 64"):
        Scattering(*shape)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same() -> None:
    images = torch.from_numpy(digits(20))
    on_gpu = Scattering(28, 28, "cuda")(images.cuda()).cpu()
    torch.testing.assert_close(on_gpu, Scattering(28, 28)(images), rtol=0, atol=1e-5)
