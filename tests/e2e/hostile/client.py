"""A registered client that sends what it should not."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import httpx
from flwr.app import Message

from nbafl.flower.node import Connection


class HostileClient(Connection):
    """Signed on like an honest one; every request can be made by hand."""

    asked: Message
    """The last question, as it came."""

    def raw(self, path: str, body: bytes | Iterator[bytes] = b"", **headers: str) -> httpx.Response:
        """Post anything anywhere under this client's token."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named.setdefault("authorization", f"Bearer {self._token}")
        return self._client.post(path, content=body, headers=named)

    def question(self) -> str:
        """The name of the next question, which stays unanswered."""
        while (found := self.receive()) is None:
            continue
        name, self.asked = found
        return name

    def post(self, question: str, block: bytes) -> int:
        """Answer a question with any bytes; the status that came back."""
        return self.raw("/v1/answer", block, nbafl_question=question).status_code

    def flood(self, question: str, size: int, times: int) -> list[int]:
        """The same question answered over and over with `size` bytes; the statuses that came back."""
        return [self.post(question, struct.pack(">I", number) * (size // 4)) for number in range(times)]
