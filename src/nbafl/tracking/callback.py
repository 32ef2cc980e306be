"""What a training tells whoever listens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from nbafl.folders.runs import RunFolder


class Callback(Protocol):
    """Told of a run as it happens: in a simulation, in a sweep, at the server of a federation.

    Subclass it and write the methods you need; the others do nothing. A callback that raises is dropped with a warning
    and the training goes on: nobody's tracker is worth a privacy budget. Every process that works on a run tells
    all of its finished rounds from the first, those before a resume included, so a run is known by its folder
    and a round by its number.
    """

    def on_begin(self, run: RunFolder) -> None:
        """The plan lies in `run.path`; no round of this process was made yet."""

    def on_round(self, run: RunFolder, metrics: dict[str, Any]) -> None:
        """A round is finished and kept; `metrics` is its line of metrics.jsonl, None where nothing was measured."""

    def on_end(self, run: RunFolder) -> None:
        """Model, privacy statement (`run.privacy`) and report are there."""

    def on_stop(self, run: RunFolder, error: BaseException) -> None:
        """The training ended early: Ctrl-C, a refusal, a failure. The finished rounds are kept."""
