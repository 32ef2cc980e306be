"""Where computations go: processes beside the web process, so that no page waits for another's question.

A process can be ended, which a thread cannot: a question that nobody waits for any more is given up, and so is one that
takes too long. A process that was ended is replaced by the next question.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from nbafl.errors import NbaflError, Refused

Result = TypeVar("Result")
GRACE = 0.5
"""Seconds a question is worked on though a newer one waits: starting another process takes longer than that."""
TICK = 0.05


class Declined(Refused):
    """What a function refused, and the field of the plan that it is about."""

    def __init__(self, sentence: str, field: str = "") -> None:
        super().__init__(sentence)
        self.field = field


class Background:
    """Runs functions in at most `processes` processes of its own, each started when it is first needed."""

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes
        self._turn = asyncio.Semaphore(processes)
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._closed = False

    async def make(
        self,
        function: Callable[..., Result],
        *arguments: object,
        wanted: Callable[[], bool] = lambda: True,
        limit: float | None = None,
    ) -> Result | None:
        """What the function returns; None if nobody wants it any more. `limit`: seconds it may take.

        A refusal of the function (an NbaflError) comes back as one.
        """
        async with self._turn:
            if not wanted():
                return None
            worker = self._idle.pop() if self._idle else _Worker()
            self._busy.add(worker)
            if not self._idle and len(self._busy) < self._processes:
                self.warm_up()  # another page's question finds it ready
            try:
                outcome = await worker.work(function, arguments, wanted, limit)
            finally:
                self._busy.discard(worker)
                if worker.free:
                    self._idle.append(worker)
                else:
                    worker.end()
                    if not self._closed:
                        self.warm_up()
        if isinstance(outcome, _Refusal):
            raise Declined(outcome.sentence, outcome.field)
        if isinstance(outcome, _Mistake):
            raise RuntimeError(outcome.traceback)
        return outcome

    def warm_up(self) -> None:
        """Start a process before the first question comes."""
        self._idle.append(_Worker())

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        self._closed = True
        for worker in (*self._idle, *self._busy):
            worker.end()
        self._idle.clear()


class _Worker:
    """One process, and the line to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["nbafl.studio.answer"])  # so that a new process is there at once
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self.free = True
        """Whether it waits for a question."""
        self._up = False

    async def work(
        self,
        function: Callable[..., Any],
        arguments: tuple[object, ...],
        wanted: Callable[[], bool],
        limit: float | None,
    ) -> Any:
        """The function's outcome; None when it was given up because nobody wants it."""
        self.free = False
        try:
            if not self._up:  # starting a process is not the question's time
                await self._hear(lambda: True, None)
                self._line.recv()
                self._up = True
            self._line.send((function, arguments))
            if not await self._hear(wanted, limit):
                return None
            outcome = self._line.recv()
        except (EOFError, OSError):
            raise Declined(
                "The process that computes this was ended by the system; move a slider to try again."
            ) from None
        self.free = True
        return outcome

    async def _hear(self, wanted: Callable[[], bool], limit: float | None) -> bool:
        """Wait until the process says something; False when nobody wants to know any more."""
        said, loop, started = asyncio.Event(), asyncio.get_running_loop(), time.monotonic()
        loop.add_reader(self._line.fileno(), said.set)
        try:
            while not said.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(said.wait(), TICK)
                spent = time.monotonic() - started
                if limit is not None and spent > limit:
                    raise Declined(f"This takes longer than {limit:g} s, which is as long as the page waits.")
                if spent > GRACE and not said.is_set() and not wanted():
                    return False
        finally:
            loop.remove_reader(self._line.fileno())
        return True

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._line.close()


class _Refusal:
    """An NbaflError on its way between processes; the errors themselves do not travel well."""

    def __init__(self, sentence: str, field: str) -> None:
        self.sentence, self.field = sentence, field


class _Mistake:
    """An error of ours, for the terminal."""

    def __init__(self, traceback: str) -> None:
        self.traceback = traceback


def _serve(line: Connection) -> None:
    """Answer questions until nobody is there to ask."""
    _stay_in_the_background()
    line.send("ready")
    while True:
        try:
            function, arguments = line.recv()
            line.send(_tried(function, *arguments))
        except (EOFError, OSError):
            return


def _tried(function: Callable[..., Result], *arguments: object) -> Result | _Refusal | _Mistake:
    try:
        return function(*arguments)
    except NbaflError as error:
        return _Refusal(str(error), getattr(error, "field", ""))
    except Exception:
        return _Mistake(traceback.format_exc())


def _stay_in_the_background() -> None:
    """Interrupts are the studio's business, and sliders come first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
