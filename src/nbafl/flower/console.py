"""What people see of a running federation: log lines, and a live table of its rounds."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nbafl.errors import UsageError
from nbafl.privacy.scope import Scope

if TYPE_CHECKING:  # clients log too, and should not load torch for it
    from nbafl.flower.monitor import Progress
    from nbafl.plan import Plan
    from nbafl.simulation.scoring.metrics import RoundMetrics

log = logging.getLogger("nbafl")

SHOWN = 20


class _OnStderr(logging.Handler):
    """Writes to what stderr is now: the live table takes it over while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


class _JsonLines(logging.Formatter):
    """One JSON object a line, for machines that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps({**line, **getattr(record, "facts", {})})


def configure_logging(quiet: bool = False, log: str = "text") -> None:
    """Sentences of nbafl on stderr (`text`), or JSON lines (`json`); Flower's own log only where something went wrong."""
    if log not in ("text", "json"):
        raise UsageError("log", log, "text or json")
    handler = _OnStderr()
    lines = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(_JsonLines() if log == "json" else lines)
    logger = logging.getLogger("nbafl")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    os.environ.setdefault("FLWR_LOG_LEVEL", "CRITICAL")  # read when Flower is imported
    for chatty in ("httpx", "httpcore", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)


class RoundTable:
    """A table that grows by a row a round; plain lines where there is no terminal."""

    def __init__(self, plan: Plan, progress: Progress, quiet: bool, as_json: bool = False) -> None:
        """`progress` knows what the rounds have spent when one of them is added."""
        self.plan, self.progress, self.quiet, self.as_json = plan, progress, quiet, as_json
        self._scope = Scope.of(plan)
        self._console = Console(stderr=True)
        self._rows: list[tuple[str, ...]] = []
        live = self._console.is_terminal and not (quiet or as_json)
        self._live = Live(self._table(), console=self._console, auto_refresh=False) if live else None

    def __enter__(self) -> RoundTable:
        if self._live:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def add(self, metrics: RoundMetrics, missing: Sequence[str] = ()) -> None:
        """Show one finished round, and who was drawn but did not answer."""
        plan = self.plan
        silent = f" (not {', '.join(missing)})" if missing else ""
        self._rows.append(
            (
                f"{metrics.round}/{plan.rounds}",
                _number(metrics.test_loss, ".4f"),
                _number(metrics.test_accuracy, ".2%"),
                f"{metrics.participants}/{plan.drawn}{silent}",
                _number(self.progress.epsilon, ".4g"),
                f"{metrics.seconds:.1f}",
            )
        )
        if self._live:
            self._live.update(self._table(), refresh=True)
        elif self.as_json:
            said = {"round": metrics.round, "participants": metrics.participants, "missing": list(missing)}
            measured = {"test_loss": metrics.test_loss, "test_accuracy": metrics.test_accuracy}
            spent = {"epsilon": self.progress.epsilon, **self._scope.to_dict()}
            facts = {**said, **measured, **spent, "seconds": metrics.seconds}
            log.info("round %d of %d", metrics.round, plan.rounds, extra={"facts": facts})
        elif not self.quiet:
            if len(self._rows) == 1:
                print(self._table().caption, file=sys.stderr, flush=True)
            titles = (column.header for column in self._table().columns)
            cells = zip(titles, self._rows[-1], strict=True)
            print(", ".join(f"{title} {cell}" for title, cell in cells), file=sys.stderr, flush=True)

    def _table(self) -> Table:
        table = Table(caption=f"epsilon is {self._scope.words}; plan {self.plan.digest()[:12]}")
        for title in ("round", "test loss", "accuracy", "answered", "epsilon", "seconds"):
            table.add_column(title, justify="right")
        for row in self._rows[-SHOWN:]:
            table.add_row(*row)
        return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
