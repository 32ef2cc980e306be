"""The looks at noise: their errors are what they say, and noise that is not what was planned shows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nbafl.audit import looks
from nbafl.audit.noise_sample import SERVER, NoiseSample
from nbafl.privacy.noise import SecureGaussian

TRIALS, ROUNDS, CLIENTS, NUMBERS = 2, 6, 5, 16


def sample(noise: np.ndarray) -> NoiseSample:
    """(trials, rounds, clients, numbers) as rows; the last client is the server."""
    trial, round, client = np.indices(noise.shape[:3]).reshape(3, -1)
    client = np.where(client == noise.shape[2] - 1, SERVER, client)
    share = np.where(client == SERVER, 0.0, 1.0 + client)
    return NoiseSample(noise.reshape(-1, noise.shape[-1]), trial, round, client, share)


def drawn(seed: int, numbers: int = NUMBERS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(TRIALS, ROUNDS, CLIENTS, numbers))


def test_a_look_refutes_sound_noise_as_rarely_as_it_says() -> None:
    """Every look at error 0.1, 400 times: the exact ones are near it, Bonferroni only makes some rarer."""
    count, error = 400, 0.1
    found = [looks.at_noise(sample(drawn(seed)), "n", 6 * error) for seed in range(count)]
    rates = {each[0].name: np.mean([look.refuted for look in each]) for each in zip(*found, strict=True)}
    spread = (error * (1 - error) / count) ** 0.5
    assert all(rate < error + 4 * spread for rate in rates.values()), rates
    assert all(rates[f"n: {name}"] > error - 5 * spread for name in ("sum", "shape")), rates
    assert all(look.error == pytest.approx(error) for look in found[0])


def refuting(noise: np.ndarray) -> set[str]:
    return {
        look.name.removeprefix("n: ") for look in looks.at_noise(sample(noise), "n", 1e-6) if look.refuted
    }


def shared_between_rounds(noise: np.ndarray) -> None:
    noise[:, 1:] = 0.6 * noise[:, :-1] + 0.8 * noise[:, 1:]


def shared_between_clients(noise: np.ndarray) -> None:
    noise[:, :, 1::2] = 0.6 * noise[:, :, :-1:2] + 0.8 * noise[:, :, 1::2]


def one_client_quiet(noise: np.ndarray) -> None:
    noise[:, :, 3] *= 0.5


def one_coordinate_silent(noise: np.ndarray) -> None:
    noise[..., 7] = 0.0


def opposite_clients(noise: np.ndarray) -> None:
    noise[:, :, 0] = -(2 * noise[:, :, 1] + 3 * noise[:, :, 2] + 4 * noise[:, :, 3]) / 29**0.5


def coins(noise: np.ndarray) -> None:
    noise[:] = np.sign(noise)


def one_row_again_in_another_trial(noise: np.ndarray) -> None:
    noise[1, 4, 2] = -noise[0, 1, 0]


@pytest.mark.parametrize(
    ("broken", "shows"),
    [
        (shared_between_rounds, "rounds"),
        (shared_between_clients, "clients"),
        (one_client_quiet, "size"),
        (one_coordinate_silent, "size"),
        (opposite_clients, "sum"),
        (coins, "shape"),
        (one_row_again_in_another_trial, "twice"),
    ],
)
def test_noise_that_is_not_what_was_planned_shows(broken: Callable[[np.ndarray], None], shows: str) -> None:
    noise = drawn(1, numbers=64)
    assert refuting(noise) == set()
    broken(noise)
    assert shows in refuting(noise)


def test_a_deployments_noise_passes_every_look() -> None:
    """The operating system's noise has no seed, so the error of all looks together is 1e-7."""
    spread = 2.0**30
    shape = (2, 8, 6, 64)
    noise = SecureGaussian().integers(spread, int(np.prod(shape))).reshape(shape) / spread
    assert not any(look.refuted for look in looks.at_noise(sample(noise), "n", 1e-7))


def test_what_is_not_a_number_is_refuted() -> None:
    assert looks.Look("a", "b", 1.0, float("nan"), 0.0).refuted
    assert looks.Look("a", "b", 1.0, float("inf"), 0.0).to_dict()["proof"] is None
