"""`--track tensorboard`: event files in the run folder, so that `tensorboard --logdir runs` shows every run.

Events are written one by one, without TensorBoard's own queue, whose thread would report a full disk on its own. A run
that is taken up again gets a new file with all its rounds in place of the old one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from nbafl.tracking.callback import Callback
from nbafl.tracking.values import epsilons, parameters, scalars

if TYPE_CHECKING:
    from nbafl.folders.runs import RunFolder

FOLDER = "tensorboard"
EVENTS = "events.out.tfevents"
"""TensorBoard knows its files by this part of their names."""


class TensorBoard(Callback):
    """One run as TensorBoard's events."""

    def on_begin(self, run: RunFolder) -> None:
        folder = run.path / FOLDER
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{EVENTS}*"):
            old.unlink()
        self._path: Path = folder / f"{EVENTS}.{time.time_ns() // 10**9:010d}.nbafl"
        self._write(Event(file_version="brain.Event:2", source_metadata=SourceMetadata(writer="nbafl")))
        self._add(hparams_pb(parameters(run.plan), trial_id=run.path.name), 0)

    def on_round(self, run: RunFolder, metrics: dict[str, Any]) -> None:
        for name, value in scalars(run, metrics).items():
            self._add(scalar_pb(name, value), metrics["round"])

    def on_end(self, run: RunFolder) -> None:
        stated = "\n".join(f"- {sentence}" for sentence in run.privacy["sentences"])
        for name, value in epsilons(run).items():
            self._add(scalar_pb(name, value, description=stated), run.rounds_done)
        self._add(text_pb("privacy statement", stated), run.rounds_done)
        self._add(text_pb("report", f"`{run.path / 'report.html'}`"), run.rounds_done)

    def _add(self, summary: Summary, step: int) -> None:
        self._write(Event(summary=summary, step=step))

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        with open(self._path, "ab") as file:
            RecordWriter(file).write(event.SerializeToString())
