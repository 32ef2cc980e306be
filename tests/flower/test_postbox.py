"""Who has been there all the time, as the postbox knows it."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from nbafl.flower import postbox
from nbafl.flower.postbox import Postbox, public_bytes, sign_on_text

CERTIFICATE = b"c" * 32


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr(postbox.time, "monotonic", lambda: moment[0])
    return moment


def signed_on(box: Postbox, key: ec.EllipticCurvePrivateKey) -> str:
    public = public_bytes(key.public_key())
    challenge = box.challenge(public)
    assert challenge is not None
    text = sign_on_text(CERTIFICATE, challenge, public)
    token = box.sign_on(public, key.sign(text, ec.ECDSA(hashes.SHA384())))
    assert token is not None
    return token


def test_a_client_is_steady_from_its_last_return_on(now: list[float]) -> None:
    keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(2)]
    box = Postbox([key.public_key() for key in keys], CERTIFICATE)
    first, second = (signed_on(box, key) for key in keys)
    started = now[0] = 1001.0
    assert box.steady(started) == {1, 2}
    for _ in range(3):  # both speak often enough
        now[0] += postbox.BEAT
        box.session(first)
        box.session(second)
    assert box.steady(started) == {1, 2}
    now[0] += postbox.SILENCE + 1
    assert box.steady(started) == set()
    box.session(first)  # back after a silence: online, and not all the time
    assert box.online() == {1}
    assert box.steady(started) == set()
    assert box.steady(now[0]) == {1}
    signed_on(box, keys[1])
    assert box.online() == {1, 2}
    assert box.steady(now[0] - 1) == set()
    assert box.steady(now[0]) == {1, 2}


def test_a_connection_that_broke_is_an_absence(now: list[float]) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    box = Postbox([key.public_key()], CERTIFICATE)
    token = signed_on(box, key)
    started = now[0] = 1002.0
    desk = box.session(token)
    assert desk is not None
    box.left(desk, token)
    now[0] += 0.1
    box.session(token)
    assert box.online() == {1}
    assert box.steady(started) == set()
