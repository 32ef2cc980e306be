"""The trainings behind the figures, computed with torch and numpy alone.

`nbafl reproduce --jobs FILE` writes the trainings with all their noise scales; on any machine that has torch and
numpy, `python -m nbafl.paper.trainings FILE RESULTS` computes them (on a GPU where there is one); back here,
`nbafl reproduce --results RESULTS` draws them.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nbafl.data.federation import Federation
from nbafl.errors import DataError
from nbafl.simulation.batch import simulate_batch
from nbafl.simulation.job import Job
from nbafl.simulation.models import build
from nbafl.simulation.scoring.metrics import RoundMetrics

Curve = dict[str, list[float]]
"""`round`, and for each measured name its values in those rounds."""

MEASURED = ("train_loss", "train_accuracy", "test_accuracy")


@dataclass(frozen=True)
class Trial:
    """One training: whose data (drawn by the seed), which job, and what is measured."""

    clients: int
    samples: int
    job: Job
    test: bool  # whether accuracy on the test set is measured too

    @property
    def key(self) -> str:
        """A digest of everything the result depends on."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def cost(self) -> int:
        """Client rounds: what the work is roughly proportional to."""
        return self.job.rounds * (self.job.per_round or self.clients)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Trial:
        return Trial(**{**fields, "job": Job.from_dict(fields["job"])})


def compute(
    trials: Sequence[Trial],
    on_cost: Callable[[int], None] = lambda _: None,
    on_done: Callable[[dict[str, Curve]], None] = lambda _: None,
    device: str = "auto",
) -> dict[str, Curve]:
    """All trainings, batch by batch; `on_cost` hears of finished client rounds, `on_done` of finished batches."""
    results: dict[str, Curve] = {}
    for batch in _batches(trials):
        first = batch[0]
        # MNIST as the paper deals it: random records, the same number for every client.
        data = Federation.mnist(clients=first.clients, samples=first.samples, seed=first.job.seed)
        curves = simulate_batch(
            data,
            build("mlp", data.shape, data.outputs, first.job.seed),
            [each.job for each in batch],
            device=device,
            measure={"train", "test"} if first.test else {"train"},
            on_round=lambda _, metrics: on_cost(metrics.participants),
        )
        done = {each.key: _curve(metrics) for each, metrics in zip(batch, curves, strict=True)}
        results |= done
        on_done(done)
    return results


def _batches(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Trainings over the same data together, the long ones first so that no core waits at the end."""
    groups: dict[tuple[int, int, int, bool], list[Trial]] = {}
    for each in trials:
        groups.setdefault((each.clients, each.samples, each.job.seed, each.test), []).append(each)
    return [sorted(group, key=lambda each: -each.cost) for group in groups.values()]


def _curve(metrics: list[RoundMetrics]) -> Curve:
    seen = [each for each in metrics if each.train_loss is not None]
    curve: Curve = {"round": [each.round for each in seen]}
    for name in MEASURED:
        values = [getattr(each, name) for each in seen]
        if None not in values:
            curve[name] = values
    return curve


def write_trials(path: str | Path, trainings: Sequence[Trial]) -> None:
    """The file that `python -m nbafl.paper.trainings` reads."""
    Path(path).write_text(json.dumps({"trainings": [each.to_dict() for each in trainings]}), encoding="utf-8")


def read_trials(path: str | Path) -> list[Trial]:
    return [Trial.from_dict(fields) for fields in _read(path, "trainings")]


def read_results(path: str | Path) -> dict[str, Curve]:
    """Curves by the digest of their training."""
    return dict(_read(path, "results"))


def _read(path: str | Path, name: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))[name]
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{str(path)!r} does not hold {name} of nbafl reproduce.") from None


def main(arguments: list[str]) -> None:
    """python -m nbafl.paper.trainings TRAININGS RESULTS"""
    source, target = arguments
    trials = read_trials(source)
    started = time.perf_counter()
    results: dict[str, Curve] = {}

    def keep(done: dict[str, Curve]) -> None:
        results.update(done)
        Path(target).write_text(json.dumps({"results": results}), encoding="utf-8")
        print(f"{len(results)} of {len(trials)} trainings, {time.perf_counter() - started:.0f} s", flush=True)

    compute(trials, on_done=keep)


if __name__ == "__main__":
    main(sys.argv[1:])
