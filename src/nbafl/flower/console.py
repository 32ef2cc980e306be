"""What people see of a running federation: log lines, and a live table of its rounds."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nbafl.plan import Plan
from nbafl.simulation.metrics import RoundMetrics

SHOWN = 20


class _OnStderr(logging.Handler):
    """Writes to what stderr is now: the live table takes it over while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def configure_logging(quiet: bool = False) -> None:
    """Sentences of nbafl on stderr; Flower's own log only where something went wrong."""
    handler = _OnStderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("nbafl")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    os.environ.setdefault("FLWR_LOG_LEVEL", "CRITICAL")  # read when Flower is imported
    for chatty in ("httpx", "httpcore", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)


class RoundTable:
    """A table that grows by a row a round; plain lines where there is no terminal."""

    def __init__(self, plan: Plan, quiet: bool) -> None:
        self.plan, self.quiet = plan, quiet
        self._console = Console(stderr=True)
        self._rows: list[tuple[str, ...]] = []
        live = self._console.is_terminal and not quiet
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
                f"{plan.epsilon_after(metrics.round):.4g}",
                f"{metrics.seconds:.1f}",
            )
        )
        if self._live:
            self._live.update(self._table(), refresh=True)
        elif not self.quiet:
            titles = (column.header for column in self._table().columns)
            cells = zip(titles, self._rows[-1], strict=True)
            print(", ".join(f"{title} {cell}" for title, cell in cells), file=sys.stderr, flush=True)

    def _table(self) -> Table:
        plan = self.plan
        table = Table(
            caption=f"epsilon is against {plan.adversary}, at delta {plan.delta:g}; plan {plan.digest()[:12]}"
        )
        for title in ("round", "test loss", "accuracy", "answered", "epsilon", "seconds"):
            table.add_column(title, justify="right")
        for row in self._rows[-SHOWN:]:
            table.add_row(*row)
        return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
