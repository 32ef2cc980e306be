"""Answering only the newest question: while a slider moves, work never piles up behind it.

At most one question is being worked on; what was asked meanwhile waits, and only the last of it. Nobody works for a
page that was closed; should its browser come back, the last question is put again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from nicegui import Client, background_tasks

Question = TypeVar("Question")
Reply = TypeVar("Reply")


class Latest(Generic[Question, Reply]):
    """Runs `work` for the newest question of a page and hands question and reply to `deliver`."""

    def __init__(
        self,
        client: Client | None,
        work: Callable[[Question], Awaitable[Reply]],
        deliver: Callable[[Question, Reply], None],
        pause: float = 0.0,
    ) -> None:
        self._work = work
        self._deliver = deliver
        self._pause = pause
        self._waiting: list[Question] = []
        self._newest: list[Question] = []
        self._busy = False
        self._away = False
        self._client = client
        if client is not None:
            client.on_disconnect(self._disconnected)
            client.on_connect(self.come_back)
            client.on_delete(
                self.leave
            )  # a browser that asked for the page but never connected cannot disconnect

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for the answer that is being made."""
        return not self._away and not self._waiting

    def ask(self, question: Question) -> None:
        """Put a question; it replaces one that is still waiting."""
        self._waiting = self._newest = [question]
        if not self._busy and not self._away:
            self._busy = True
            background_tasks.create(self._go_on(), name="studio: answer the newest question")

    def leave(self) -> None:
        """The page was closed, its connection broke, or it was given up."""
        self._away = True

    def _disconnected(self) -> None:
        """A connection broke; a browser that came back before this was noticed is there by another one."""
        if self._client is None or not self._client.has_socket_connection:
            self.leave()

    def come_back(self) -> None:
        """The page is there (again)."""
        was_away, self._away = self._away, False
        if was_away and self._newest:
            self.ask(self._newest[0])

    async def _go_on(self) -> None:
        try:
            while self._waiting and not self._away:
                if self._pause:
                    await self._settle()
                question, self._waiting = self._waiting[0], []
                reply = await self._work(question)
                if not self._away:
                    self._deliver(question, reply)
        except asyncio.CancelledError:  # the studio ends
            self._waiting = []
            raise
        finally:
            self._busy = False
            if self._waiting and not self._away:
                self.ask(self._waiting[0])  # after an error what was asked meanwhile is still owed

    async def _settle(self) -> None:
        """Wait until nothing new has been asked for a while."""
        seen: list[Question] = []
        while seen is not self._waiting:
            seen = self._waiting
            await asyncio.sleep(self._pause)
