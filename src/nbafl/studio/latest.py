"""Answering only the newest question: while a slider moves, work never piles up behind it.

At most one question is being worked on; what was asked meanwhile waits, and only the last of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from nicegui import background_tasks

Question = TypeVar("Question")
Reply = TypeVar("Reply")


class Latest(Generic[Question, Reply]):
    """Runs `work` for the newest question and hands question and reply to `deliver`."""

    def __init__(
        self,
        work: Callable[[Question], Awaitable[Reply]],
        deliver: Callable[[Question, Reply], None],
        pause: float = 0.0,
    ) -> None:
        self._work = work
        self._deliver = deliver
        self._pause = pause
        self._waiting: list[Question] = []
        self._busy = False

    def ask(self, question: Question) -> None:
        """Put a question; it replaces one that is still waiting."""
        self._waiting = [question]
        if not self._busy:
            self._busy = True
            background_tasks.create(self._go_on(), name="studio: answer the newest question")

    async def _go_on(self) -> None:
        try:
            while self._waiting:
                if self._pause:
                    await self._settle()
                question = self._waiting.pop()
                self._deliver(question, await self._work(question))
        finally:
            self._busy = False

    async def _settle(self) -> None:
        """Wait until nothing new has been asked for a while."""
        newest = None
        while newest is not self._waiting[-1]:
            newest = self._waiting[-1]
            await asyncio.sleep(self._pause)
