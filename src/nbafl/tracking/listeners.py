"""All callbacks of one training, told in order; one that fails is dropped, never the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbafl.tracking.callback import Callback

if TYPE_CHECKING:
    from nbafl.folders.runs import RunFolder

log = logging.getLogger("nbafl")


class Listeners:
    """Those who want to know of one run."""

    def __init__(self, run: RunFolder, callbacks: Iterable[Callback]) -> None:
        self._run, self._left = run, list(callbacks)

    @contextmanager
    def during(self) -> Iterator[None]:
        """Around a training: the beginning, the rounds that are there already, and an end of whatever kind."""
        self._tell(lambda each: each.on_begin(self._run))
        if self._left:
            for line in self._run.metrics:
                self.round(line)
        try:
            yield
        except BaseException as error:
            reason = error
            self._tell(lambda each: each.on_stop(self._run, reason))
            raise
        self._tell(lambda each: each.on_end(self._run))

    def round(self, metrics: dict[str, Any]) -> None:
        """One more finished round."""
        self._tell(lambda each: each.on_round(self._run, metrics))

    def _tell(self, say: Callable[[Callback], None]) -> None:
        for each in tuple(self._left):
            try:
                say(each)
            except Exception as error:
                self._left.remove(each)
                log.warning(
                    "%s failed and is told no more; the training goes on: %s",
                    type(each).__name__,
                    _sentence(error),
                )


def _sentence(error: Exception) -> str:
    """The first line of what went wrong; libraries' messages may be pages long."""
    told = str(error).strip()
    return told.splitlines()[0] if told else type(error).__name__
