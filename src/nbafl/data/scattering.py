"""A fixed scattering transform: features of an image that no data was needed to find, so they cost no privacy.

An image is filtered with Morlet wavelets at J = 2 scales and L = 8 angles, the modulus is taken, and what is left is
averaged with a Gaussian and sampled every 4 pixels; the moduli are filtered once more for the second order. One 28×28
image becomes 1 + 16 + 64 = 81 maps of 7×7. The definition is that of Bruna and Mallat (2013) with the constants
that kymatio's ScatteringTorch2D uses, and agrees with it to 1e-4.

The filters are written down in the frequency domain, where they are Gaussians; convolutions are FFTs, subsampling by 2
is done by folding the spectrum before the inverse FFT, and the last averaging is one matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nbafl.errors import UsageError

SCALES, ANGLES = 2, 8
CHANNELS = 1 + SCALES * ANGLES + ANGLES * ANGLES
STEP = 2**SCALES
"""Pixels between two neighbouring values of a map."""
SMALLEST, LARGEST = 2 * STEP, 64
"""Pixels of a side that the transform takes."""
_CPU_CHUNK, _GPU_CHUNK = 8, 1024  # images at a time: what fits the cache of a core; what fills a GPU
_SPREAD, _FREQUENCY, _SLANT = (
    0.8,
    3 * math.pi / 4,
    4 / ANGLES,
)  # sigma and xi at the finest scale, width over length


def side(pixels: float) -> int:
    """The nearest length of a side that the transform takes."""
    return min(LARGEST, max(SMALLEST, STEP * round(pixels / STEP)))


class Scattering:
    """The transform for images of one size, on one device."""

    def __init__(self, height: int, width: int, device: str = "cpu") -> None:
        for side in (height, width):
            if side % STEP or not SMALLEST <= side <= LARGEST:
                allowed = f"images with sides between {SMALLEST} and {LARGEST} that are multiples of {STEP}"
                raise UsageError("scattering", f"{height}x{width}", allowed)
        self.height, self.width, self.device = height, width, torch.device(device)
        rows, columns = (
            height + 2 * STEP,
            width + 2 * STEP,
        )  # one output step of mirrored pixels on every side
        fine, coarse = (
            np.stack([_morlet(rows, columns, scale, angle) for angle in range(ANGLES)])
            for scale in range(SCALES)
        )
        self._fine = self._tensor(fine)
        # Interleaved twice to multiply real and imaginary parts alike; a fold by 2 averages 4 aliases.
        self._coarse = _aliases(self._tensor(coarse)).repeat_interleave(2, dim=-1) / 4
        self._average = [
            self._tensor(np.kron(_lowpass(rows, level), _lowpass(columns, level)).T)
            for level in range(SCALES)
        ]

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(self.device)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Scattering coefficients (B, 81, height/4, width/4) of images (B, height, width)."""
        padded = functional.pad(images[:, None], (STEP, STEP, STEP, STEP), mode="reflect")
        spectrum = torch.fft.fft2(padded)
        fine = _modulus(torch.fft.ifft2(spectrum * self._fine))
        coarse = self._coarse_modulus(spectrum)[:, 0]
        second = self._coarse_modulus(torch.fft.fft2(fine)).flatten(1, 2)
        maps = [self._pool(padded, 0), self._pool(fine, 0), self._pool(coarse, 1), self._pool(second, 1)]
        return torch.cat(maps, dim=1).unflatten(2, (self.height // STEP, self.width // STEP))

    def _coarse_modulus(self, spectrum: Tensor) -> Tensor:
        """|(U * psi_coarse)| at every second pixel, for each of the 8 angles: (B, C, r, c) to (B, C, 8, r/2, c/2)."""
        blocks = torch.view_as_real(_aliases(spectrum)).flatten(-2).unsqueeze(2)
        folded = blocks[..., 0, :] * self._coarse[:, 0]
        for alias in range(1, 4):
            folded.addcmul_(blocks[..., alias, :], self._coarse[:, alias])
        half = (spectrum.shape[-2] // 2, spectrum.shape[-1] // 2)
        return _modulus(torch.fft.ifft2(torch.view_as_complex(folded.unflatten(-1, (*half, 2)))))

    def _pool(self, maps: Tensor, level: int) -> Tensor:
        """The Gaussian average of each map at every output position, (B, C, positions)."""
        return maps.flatten(-2) @ self._average[level]


def _modulus(values: Tensor) -> Tensor:
    """|z|, in a form that runs several times faster than torch.abs on complex numbers."""
    parts = torch.view_as_real(values)
    parts = parts * parts
    return (parts[..., 0] + parts[..., 1]).sqrt_()


def _aliases(spectrum: Tensor) -> Tensor:
    """The four quarters of a spectrum that fall on one another when every second pixel is kept, (..., 4, r·c/4)."""
    rows, columns = spectrum.shape[-2] // 2, spectrum.shape[-1] // 2
    quarters = spectrum.unflatten(-2, (2, rows)).unflatten(-1, (2, columns)).transpose(-3, -2)
    return quarters.reshape(*spectrum.shape[:-2], 4, rows * columns)


def _frequencies(length: int) -> np.ndarray:
    return 2 * math.pi * np.fft.fftfreq(length)


def _morlet(rows: int, columns: int, scale: int, angle: int) -> np.ndarray:
    """Spectrum of the Morlet wavelet: a Gaussian around xi less the multiple of one around 0 that makes it 0 at 0."""
    sigma, xi = _SPREAD * 2**scale, _FREQUENCY / 2**scale
    theta = (ANGLES // 2 - 1 - angle) * math.pi / ANGLES
    wave = _gaussian(rows, columns, sigma, theta, xi)
    envelope = _gaussian(rows, columns, sigma, theta, 0.0)
    return wave - wave[0, 0] / envelope[0, 0] * envelope


def _gaussian(rows: int, columns: int, sigma: float, theta: float, xi: float) -> np.ndarray:
    """Spectrum of exp(i xi·u) times a Gaussian of width sigma along theta and sigma/slant across it.

    Sampling in space repeats the spectrum every 2 pi; three repeats on each side are all that float32 can see.
    """
    total = np.zeros((rows, columns))
    repeats = 2 * math.pi * np.arange(-3, 4)
    for down in repeats:
        for right in repeats:
            row, column = _frequencies(rows)[:, None] + down, _frequencies(columns)[None, :] + right
            along = math.cos(theta) * row + math.sin(theta) * column - xi
            across = math.cos(theta) * column - math.sin(theta) * row
            total += np.exp(-0.5 * sigma**2 * (along**2 + (across / _SLANT) ** 2))
    return total


def _lowpass(length: int, level: int) -> np.ndarray:
    """The averaging along one axis as a matrix: map at resolution 2^-level in, one value per output position out.

    A Gaussian of width 0.8·2^(J−1) pixels; at level 1 its spectrum is cut to the frequencies the map has.
    """
    sigma = _SPREAD * 2 ** (SCALES - 1)
    repeats = 2 * math.pi * np.arange(-3, 4)
    spectrum = np.exp(-0.5 * sigma**2 * np.add.outer(repeats, _frequencies(length)) ** 2).sum(axis=0)
    if level:
        spectrum = np.concatenate([spectrum[: length // 4], spectrum[-(length // 4) :]])
    kernel = np.fft.ifft(spectrum).real
    positions = (STEP >> level) * np.arange(1, length // STEP - 1)  # the outermost two are padding
    return kernel[(positions[:, None] - np.arange(len(kernel))) % len(kernel)]


def transform(images: np.ndarray, out: np.ndarray, device: str = "cpu") -> None:
    """Fill `out` (M, 81, h/4, w/4) with the coefficients of `images` (M, h, w), chunk by chunk."""
    scattering = Scattering(images.shape[1], images.shape[2], device)

    def work(part: slice) -> None:
        batch = torch.from_numpy(np.ascontiguousarray(images[part], dtype=np.float32))
        out[part] = scattering(batch.to(scattering.device)).cpu().numpy()

    if scattering.device.type == "cpu":
        on_all_cores(work, len(images), _CPU_CHUNK)
        return
    for start in range(0, len(images), _GPU_CHUNK):
        work(slice(start, start + _GPU_CHUNK))


def on_all_cores(work: Callable[[slice], None], count: int, chunk: int) -> None:
    """`work` on each chunk of range(count), one chunk per core at a time.

    A chunk then stays in the cache of its core; threads inside an operation would share it and wait for one another.
    """
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            parts = (slice(start, start + chunk) for start in range(0, count, chunk))
            for _ in pool.map(work, parts):
                pass
    finally:
        torch.set_num_threads(cores)
