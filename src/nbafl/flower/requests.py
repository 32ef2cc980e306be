"""What a client may ask of the server, request by request (all POST, over TLS).

/v1/challenge  key -> 32 fresh bytes       /v1/sign-on   key length, key, signature -> token
/v1/next       -> the open question, as soon as there is one; 204 after a while without one
/v1/answer     the answer to it            /v1/facts     what the server says of its federation
/v1/beat, /v1/sign-off

A request says how long it is, carries the token (but for the first two), and is refused from its headers alone
wherever that is possible: 401 unknown, 404 no such thing, 409 not wanted (any more), 410 another process signed on,
411 and 413 length, 429 one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nbafl.flower import frames
from nbafl.flower.postbox import SILENCE, Desk, Question

if TYPE_CHECKING:
    from nbafl.flower.hub import Hub

LONGEST_WAIT = SILENCE / 2
"""Seconds a request for the next question stays open."""
SMALL = 4096
"""Bytes of any request that is not an answer."""
DEADLINE = 10.0
"""Seconds until such a request must be here."""
WAITING = 2
"""Requests for the next question that one client may have open."""

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class _Rejected(Exception):
    """The request ends here, with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _HungUp(Exception):
    """The client is not there any more."""


async def answer(hub: Hub, scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Answer one HTTP request; whatever is not in the table does not exist."""
    if scope["type"] != "http":
        return
    request = _Request(hub, scope, receive, send)
    known = {
        "/v1/challenge": request.challenge,
        "/v1/sign-on": request.sign_on,
        "/v1/sign-off": request.sign_off,
        "/v1/beat": request.beat,
        "/v1/next": request.next,
        "/v1/answer": request.answer,
        "/v1/facts": request.facts,
    }
    try:
        if scope["method"] != "POST" or scope["path"] not in known:
            raise _Rejected(404)
        await known[scope["path"]]()
    except _Rejected as error:
        hub.refused[str(error.status)] += 1
        await request.reply(error.status)
    except _HungUp:
        return


class _Request:
    """One request; the methods without an underscore are what it may be."""

    def __init__(self, hub: Hub, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.hub, self.postbox, self.scope = hub, hub.postbox, scope
        self._receive, self._send = receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])

    async def challenge(self) -> None:
        found = self.postbox.challenge(await self._small())
        if found is None:
            raise _Rejected(401)
        await self.reply(200, found)

    async def sign_on(self) -> None:
        body = await self._small()
        length = struct.unpack_from(">H", body)[0] if len(body) > 2 else 0
        key, signature = body[2 : 2 + length], body[2 + length :]
        visitor = self.headers.get(b"nbafl-visitor") == b"1"
        token = await asyncio.get_running_loop().run_in_executor(
            None, self.postbox.sign_on, key, signature, visitor
        )
        if token is None:
            raise _Rejected(401)
        await self.reply(200, token.encode())

    async def sign_off(self) -> None:
        self.postbox.sign_off(self._client())
        await self.reply(204)

    async def facts(self) -> None:
        desk = self._client()
        if self.hub.facts is None:
            raise _Rejected(503)
        said = {"client": self.hub.nodes[desk.node], **asdict(self.hub.facts())}
        await self.reply(200, json.dumps(said).encode())

    async def beat(self) -> None:
        self._client()
        await self.reply(204)

    async def next(self) -> None:
        """The open question; the connection stays open until there is one."""
        desk = self._client()
        if desk.waiting >= WAITING:
            raise _Rejected(429)
        await self._small()
        token = desk.token
        desk.waiting += 1
        try:
            question = await self._question(desk, token)
        except _HungUp:
            desk.waiting -= 1
            self.postbox.left(desk, token)
            raise
        desk.waiting -= 1
        if desk.token != token:
            raise _Rejected(410 if desk.replaced == token else 401)
        desk.heard = time.monotonic()
        if question is None:
            await self.reply(204)
        else:
            await self.reply(200, frames.encode(question.message), question.name)

    async def answer(self) -> None:
        desk, length = self._client(), self._length()
        name = self.headers.get(b"nbafl-question", b"").decode("ascii", "replace")
        if length > self.hub.largest:
            self.postbox.answer(desk, name, b"")  # nobody waits for it any longer
            raise _Rejected(413)
        if not self.postbox.wants(desk, name):
            raise _Rejected(409)
        if desk.uploading:
            raise _Rejected(429)
        token, desk.uploading = desk.token, True
        try:
            block = await self._body(length, lambda: desk.token == token and self.postbox.wants(desk, name))
        finally:
            if desk.token == token:
                desk.uploading = False
        if not self.postbox.answer(desk, name, block):
            raise _Rejected(409)
        await self.reply(204)

    async def reply(self, status: int, body: bytes = b"", question: str | None = None) -> None:
        headers = [(b"content-length", str(len(body)).encode())]
        if question is not None:
            headers.append((b"nbafl-question", question.encode()))
        if status >= 400:
            headers.append((b"connection", b"close"))
        self.hub.bytes["sent"] += len(body)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    # --- inside ------------------------------------------------------------------------------------------

    def _client(self) -> Desk:
        token = self.headers.get(b"authorization", b"").removeprefix(b"Bearer ").decode("ascii", "replace")
        desk = self.postbox.session(token) if token else None
        if desk is None:
            raise _Rejected(410 if token and self.postbox.was_replaced(token) else 401)
        self.hub.doorkeeper.recognise(self.scope.get("client"), desk.node)
        return desk

    async def _question(self, desk: Desk, token: str) -> Question | None:
        loop = asyncio.get_running_loop()
        deadline, gone = loop.time() + LONGEST_WAIT, loop.create_task(self._hung_up())
        try:
            while desk.token == token:
                desk.arrived.clear()
                question = self.postbox.next_question(desk)
                if question is not None or loop.time() >= deadline:
                    return question
                arrived = loop.create_task(desk.arrived.wait())
                await asyncio.wait(
                    {gone, arrived}, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED
                )
                arrived.cancel()
                if gone.done():
                    raise _HungUp
            return None
        finally:
            gone.cancel()

    async def _hung_up(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while (await self._receive())["type"] != "http.disconnect":
                continue

    def _length(self) -> int:
        length = self.headers.get(b"content-length", b"")
        if not length.isdigit() or len(length) > 15:
            raise _Rejected(411)
        return int(length)

    async def _small(self) -> bytes:
        length = self._length()
        if length > SMALL:
            raise _Rejected(413)
        try:
            return await asyncio.wait_for(self._body(length, lambda: True), DEADLINE)
        except TimeoutError:
            raise _Rejected(408) from None

    async def _body(self, length: int, wanted: Callable[[], bool]) -> bytes:
        body = bytearray()
        while len(body) < length:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise _HungUp
            body += event.get("body", b"")
            if not wanted():
                raise _Rejected(409)
        self.hub.bytes["received"] += len(body)
        return bytes(body)
