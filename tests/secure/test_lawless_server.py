"""A lawless server with k accomplices learns full sums of at least M uploads and nothing else, whatever it does.

`lawless` holds the attack; a long run of it (100,000 servers) is a script outside CI. Each bug planted here must be
found by the same attack within a few hundred servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import lawless
import pytest

from nbafl.privacy.ledger import Declined
from nbafl.secure import masks, terms
from nbafl.secure.client import Client
from nbafl.secure.messages import AgreeRequest, Signed, TrainRequest, UnmaskRequest
from nbafl.secure.state import Secrets, State
from nbafl.secure.terms import Terms


def test_random_lawless_servers_learn_full_sums_only() -> None:
    sums = 0
    for seed in range(150):
        opened, leaks = lawless.attack(seed)
        assert not leaks, f"server {seed} learned {leaks}"
        sums += opened
    assert sums > 30  # an attack that opens nothing would prove nothing


class SecondTrain(Client):
    """Answers a second list of the same round: nothing is erased, and the old c is forgotten."""

    def train(self, request: TrainRequest, encode: Any) -> bytes:
        state, secrets = self._load()
        if state.commitment and state.commitment != request.commitment(state.run):
            fresh = State(steps=state.steps, run=state.run, round=state.round, prepared=state.prepared)
            self._save(fresh, secrets)
        return super().train(request, encode)

    def _after_upload(self, request: TrainRequest, headers: dict[int, Signed], secrets: Secrets) -> Secrets:
        kept = super()._after_upload(request, headers, secrets)
        return replace(
            kept, mask=secrets.mask, seed=secrets.seed, chain=secrets.chain, chain_round=secrets.chain_round
        )


class CountsDuplicates(Client):
    """Counts signatures, not signers."""

    def _check_certificate(self, request: UnmaskRequest, state: State) -> None:
        enough = len(request.certificate) >= self.terms.threshold
        padded = request.certificate + tuple((name, b"") for name in self.terms.numbers)
        with patch("nbafl.secure.client.verify") if enough else nullcontext():
            super()._check_certificate(replace(request, certificate=padded) if enough else request, state)


class NoCertificate(Client):
    """Reveals to whoever asks."""

    def _check_certificate(self, request: UnmaskRequest, state: State) -> None:
        pass


class TwoSets(Client):
    """Forgets which set it signed and opened, and keeps its shares."""

    def agree(self, request: AgreeRequest) -> bytes:
        state, secrets = self._load()
        self._save(replace(state, agreed=b"", members=b""), secrets)
        return super().agree(request)

    def unmask(self, request: UnmaskRequest) -> bytes:
        state, secrets = self._load()
        self._save(replace(state, opened=b"", reveal=b""), secrets)
        revealed = super().unmask(request)
        after, emptied = self._load()
        shares = {"mask_shares": secrets.mask_shares, "seed_shares": secrets.seed_shares}
        self._save(after, replace(emptied, **shares))
        return revealed


class SignsAnySet(Client):
    """Signs for others, and below M."""

    def _check_set(self, round: int, commitment: bytes, _: bytes, state: State) -> None:
        if round != state.round or not state.commitment or state.commitment != commitment:
            raise Declined("no upload under this c.")


@contextmanager
def keys_without_numbers() -> Iterator[None]:
    def no_numbers(_: int, key_a: bytes, __: int, key_b: bytes) -> tuple[bytes, ...]:
        return tuple(sorted((key_a, key_b)))

    with patch.object(masks, "pair_context", no_numbers):
        yield


@contextmanager
def threshold_of_those_present() -> Iterator[None]:
    """t from the M who take part instead of the roster's N."""
    with patch.object(
        Terms, "threshold", property(lambda self: terms.threshold(self.fewest, self.accomplices))
    ):
        yield


@contextmanager
def fewer_than_the_threshold() -> Iterator[None]:
    """M below t is let through."""
    with patch.object(terms, "check_counts"):
        yield


@pytest.mark.parametrize(
    ("kind", "planted", "size"),
    [
        pytest.param(SecondTrain, nullcontext, (4, 0, 3), id="a second train"),
        pytest.param(CountsDuplicates, nullcontext, (5, 0, 3), id="duplicate signatures counted"),
        pytest.param(NoCertificate, nullcontext, (5, 0, 3), id="reveal without certificate"),
        pytest.param(TwoSets, nullcontext, (4, 0, 3), id="two sets signed and opened"),
        pytest.param(SignsAnySet, nullcontext, None, id="any set signed"),
        pytest.param(Client, keys_without_numbers, (3, 1, 3), id="no numbers in the HKDF"),
        pytest.param(Client, threshold_of_those_present, None, id="t from those present"),
        pytest.param(Client, fewer_than_the_threshold, (5, 0, 2), id="M < t"),
    ],
)
def test_planted_bugs_are_found(
    kind: type[Client], planted: Callable[[], Any], size: tuple[int, int, int] | None
) -> None:
    with planted():
        found = any(lawless.attack(seed, kind, size)[1] for seed in range(600))
    assert found, "no server found the bug"
