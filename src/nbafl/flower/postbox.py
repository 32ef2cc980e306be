"""What the server holds for its clients: who is signed on, one question each, and at most one answer to it.

No network here: `hub` calls it from its event loop, `exchange` from the thread that makes the rounds. Everything a
client can make the server keep is bounded: one sign-on challenge, one session, one answer of a limited size to the
question that is open. A question that is withdrawn takes its answer along.

A client proves itself once per session: it signs a fresh challenge together with the server's certificate, so the
signature is worth nothing at another server or at another time, and nobody's clock matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message

SILENCE = 20.0
"""Seconds after which a client that does not speak counts as gone; it speaks every `BEAT` seconds."""
BEAT = 5.0
CHALLENGE = 60.0
"""Seconds a sign-on challenge is good for."""


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """A connection's key as the client names itself by."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def sign_on_text(certificate_hash: bytes, challenge: bytes, key: bytes) -> bytes:
    """What a client signs: this server's certificate, a challenge nobody has seen before, its own key."""
    return b"nbafl sign-on 1\x00" + certificate_hash + challenge + key


@dataclass
class Question:
    """One open question to one client, and its answer once it is there."""

    message: Message
    name: str = field(default_factory=lambda: secrets.token_hex(16))
    delivered: bool = False
    answer: bytes | None = None


@dataclass
class Desk:
    """One registered client, as the server sees it."""

    key: ec.EllipticCurvePublicKey
    node: int
    challenge: bytes = b""
    challenged: float = 0.0
    token: str = ""
    replaced: str = ""
    """The token of the session before, if another sign-on ended it."""
    heard: float = 0.0
    since: float = math.inf
    """When it last came: signed on, or spoke again after it had been away."""
    seen: float = field(default_factory=time.monotonic)
    """When it was last here, or when the server started; long ago for one that signed off."""
    waiting: int = 0
    """Requests for the next question that are open now."""
    uploading: bool = False
    question: Question | None = None
    revoked: bool = False
    visitor: bool = False
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something new for the client; belongs to the hub's event loop."""

    def online(self) -> bool:
        """Signed on, and heard of lately."""
        silent = time.monotonic() - self.heard
        return (
            bool(self.token) and not (self.revoked or self.visitor) and (self.waiting > 0 or silent < SILENCE)
        )


class Postbox:
    """The desks of all registered clients. Node ids are 1, 2, … in the plan's order."""

    def __init__(self, keys: Sequence[ec.EllipticCurvePublicKey], certificate_hash: bytes) -> None:
        self.certificate_hashes = [certificate_hash]
        """The server's certificates that open connections may have seen, the newest first."""
        self.desks = {number: Desk(key, number) for number, key in enumerate(keys, 1)}
        self.changed = threading.Condition()
        """Notified when an answer came, or somebody came or went."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._by_key = {public_bytes(desk.key): desk for desk in self.desks.values()}
        self._by_token: dict[str, Desk] = {}

    # --- for the rounds ----------------------------------------------------------------------------------

    def online(self) -> set[int]:
        """Node ids of clients that are signed on and alive."""
        with self.changed:
            return {node for node, desk in self.desks.items() if desk.online()}

    def steady(self, since: float) -> set[int]:
        """Node ids of clients that have been there all the time since a moment of the monotonic clock."""
        with self.changed:
            return {node for node, desk in self.desks.items() if desk.online() and desk.since <= since}

    def returning(self, within: float) -> set[int]:
        """Node ids of clients that went without a word less than `within` seconds ago: they may come back."""
        since = time.monotonic() - within
        with self.changed:
            return {
                node
                for node, desk in self.desks.items()
                if desk.seen > since and not (desk.revoked or desk.online())
            }

    def goodbye(self, node: int, message: Message) -> None:
        """The last word for a client, unless it lies on its desk already."""
        if self.desks[node].question is None:
            self.ask(node, message)

    def ask(self, node: int, message: Message) -> Question:
        """Put a question on a client's desk, in the place of any that lies there."""
        question = Question(message)
        with self.changed:
            desk = self.desks[node]
            desk.question = question
            self._wake(desk)
        return question

    def withdraw(self, node: int, question: Question) -> None:
        """Forget a question and whatever answers it."""
        with self.changed:
            desk = self.desks[node]
            if desk.question is question:
                desk.question = None

    def revoke(self, node: int) -> None:
        """This client takes no further part; its session ends."""
        with self.changed:
            desk = self.desks[node]
            desk.revoked, desk.question = True, None
            self._end_session(desk)

    def held_bytes(self) -> int:
        """Bytes of answers kept now."""
        with self.changed:
            answers = [desk.question.answer for desk in self.desks.values() if desk.question]
        return sum(len(answer) for answer in answers if answer)

    # --- for the clients ---------------------------------------------------------------------------------

    def challenge(self, key: bytes) -> bytes | None:
        """Something fresh to sign, for a registered key."""
        with self.changed:
            desk = self._by_key.get(key)
            if desk is None or desk.revoked:
                return None
            desk.challenge, desk.challenged = secrets.token_bytes(32), time.monotonic()
            return desk.challenge

    def sign_on(self, key: bytes, signature: bytes, visitor: bool = False) -> str | None:
        """A new session for whoever signed the challenge; an earlier session of the same key ends.

        A visitor looks and does not take part: it does not count as connected.
        """
        with self.changed:
            desk = self._by_key.get(key)
            if desk is None or desk.revoked or not desk.challenge:
                return None
            challenge, desk.challenge = desk.challenge, b""
            fresh = time.monotonic() - desk.challenged < CHALLENGE
        if not fresh or not self._signed(desk, challenge, key, signature):
            return None
        with self.changed:
            desk.replaced = desk.token
            self._end_session(desk)
            desk.token, desk.heard = secrets.token_hex(32), time.monotonic()
            desk.seen = desk.since = desk.heard
            desk.visitor = visitor
            if desk.question is not None:
                desk.question.delivered = False
            self._by_token[desk.token] = desk
            self.changed.notify_all()
            return desk.token

    def sign_off(self, desk: Desk) -> None:
        with self.changed:
            self._end_session(desk)
            desk.question, desk.seen = None, -math.inf
            self.changed.notify_all()

    def session(self, token: str) -> Desk | None:
        """The client that speaks under this token."""
        with self.changed:
            desk = self._by_token.get(token)
            if desk is None or not hmac.compare_digest(desk.token, token):
                return None
            now = time.monotonic()
            if not desk.online():
                desk.since = now
            desk.heard = desk.seen = now
            return desk

    def was_replaced(self, token: str) -> bool:
        """Whether this session ended because somebody else signed on with the same key."""
        return any(desk.replaced == token for desk in self.desks.values())

    def next_question(self, desk: Desk) -> Question | None:
        """The open question that has no answer yet; asked again, it is given again."""
        with self.changed:
            question = desk.question
            if question is None or question.answer is not None:
                return None
            question.delivered = True
            return question

    def wants(self, desk: Desk, name: str) -> bool:
        """Whether an answer to this question would be taken now."""
        question = desk.question
        return question is not None and question.name == name and question.answer is None

    def answer(self, desk: Desk, name: str, block: bytes) -> bool:
        """Keep the answer to the open question; anything else is not kept."""
        with self.changed:
            if not self.wants(desk, name):
                return False
            assert desk.question is not None
            desk.question.answer = block
            self.changed.notify_all()
            return True

    def left(self, desk: Desk, token: str) -> None:
        """A connection broke while the client waited for a question: it is gone, unless it signed on anew."""
        with self.changed:
            if desk.token == token and desk.waiting == 0:
                desk.seen = time.monotonic()
                desk.heard = desk.seen - SILENCE
                self.changed.notify_all()

    # --- inside ------------------------------------------------------------------------------------------

    def _wake(self, desk: Desk) -> None:
        if self.loop is not None:
            self.loop.call_soon_threadsafe(desk.arrived.set)

    def _end_session(self, desk: Desk) -> None:
        self._by_token.pop(desk.token, None)
        desk.token, desk.uploading = "", False
        self._wake(desk)

    def _signed(self, desk: Desk, challenge: bytes, key: bytes, signature: bytes) -> bool:
        for certificate in self.certificate_hashes:
            text = sign_on_text(certificate, challenge, key)
            with contextlib.suppress(InvalidSignature):
                desk.key.verify(signature, text, ec.ECDSA(hashes.SHA384()))
                return True
        return False
