"""Where long computations go: one process beside the web process, so that a slider never waits for them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from nbafl.errors import NbaflError, Refused

Result = TypeVar("Result")


class Workshop:
    """Runs functions one after another in a process that is started with the first of them."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._turn = asyncio.Lock()

    async def make(
        self, function: Callable[..., Result], *arguments: object, wanted: Callable[[], bool] = lambda: True
    ) -> Result | None:
        """What the function returns; None if nobody wants it any more when its turn comes.

        A refusal of the function (an NbaflError) comes back as one.
        """
        async with self._turn:
            if not wanted():
                return None
            outcome = await self._run(function, *arguments)
        if isinstance(outcome, _Refusal):
            raise Refused(outcome.sentence)
        return outcome

    async def _run(self, function: Callable[..., Result], *arguments: object) -> Result | _Refusal:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_stay_in_the_background)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _tried, function, *arguments)
        except BrokenProcessPool:
            self._pool = None
            sentence = "The process that computes this was ended by the system; move a slider to try again."
            raise Refused(sentence) from None

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._pool is None:
            return
        for process in list((self._pool._processes or {}).values()):
            process.terminate()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None


class _Refusal:
    """An NbaflError on its way between processes; the errors themselves do not travel well."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence


def _tried(function: Callable[..., Result], *arguments: object) -> Result | _Refusal:
    try:
        return function(*arguments)
    except NbaflError as error:
        return _Refusal(str(error))


def _stay_in_the_background() -> None:
    """Interrupts are the studio's business, and sliders come first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)
