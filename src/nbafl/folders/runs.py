"""The run folder: what happened in one training, written round by round.

    runs/NAME/plan.toml          the plan, whole
              metrics.jsonl      a line a round
              checkpoint/        the state after the last finished round, and the lock of whoever works on the run
              facts.json         what it was made of: data, model, simulation or federation
              schema.toml        how rows became records, for data from tables
              model.safetensors  the final broadcast
              scores.json        how good it is, beside a constant predictor, and what training noticed
              privacy.json       the privacy statement
              report.html        the same for a person
              answers.jsonl      in a federation: who was drawn, who answered, why others did not
              audit.json         where `nbafl audit --out` was pointed here
              tensorboard/       events, where `--track tensorboard` was asked for
              evidence.html      the signed file of `nbafl evidence`
              label.json         a note and tags, where somebody wrote them in the studio

A round is finished once its checkpoint is in place; lines of metrics beyond it are dropped on resume. In a finished run
plan.toml, privacy.json and the model name one plan; a folder in which they do not is damaged, for whoever reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Self

from nbafl import locks
from nbafl.durable import check_folder, write_text
from nbafl.errors import DataError, UsageError
from nbafl.evaluation import Evaluation
from nbafl.folders import answers, files
from nbafl.folders.facts import Facts
from nbafl.folders.files import Line
from nbafl.plan import Plan

PLAN = "plan.toml"
METRICS = "metrics.jsonl"
MODEL = "model.safetensors"
PRIVACY = "privacy.json"
REPORT = "report.html"
SCHEMA = "schema.toml"
ANSWERS = answers.FILE
SCORES = "scores.json"
WORTH = (
    "epsilon",
    "delta",
    "adversary",
    "unit",
    "adjacency",
    "claimed",
    "delivers_claim",
    "guarantee",
    "evaluation",
)
"""Numbers of the privacy statement: of the run as it was, with whoever stayed away and all that was released."""
FINAL = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
PATIENCE = 0.5
LONGEST_HEADER = 100_000_000
"""Bytes of the JSON at the beginning of a model's file; safetensors allows no more."""


@dataclass(frozen=True)
class RunFolder:
    """A run folder, read; `nbafl.Run` adds what one can do with it."""

    path: Path
    plan: Plan

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Open a run folder; any other folder is refused in one sentence."""
        path = Path(path)
        if not (path / PLAN).is_file():
            raise DataError(f"{str(path)!r} is not a run folder: it holds no plan.toml.")
        run = cls(path, Plan.from_toml(path / PLAN))
        if run.finished:
            _check_one_plan(run)
        return run

    @property
    def metrics(self) -> list[Line]:
        """One entry a finished round; a line that was being written when the run was killed is left out."""
        return list(metrics_of(self.path))

    def newest(self) -> tuple[Line | None, list[float]]:
        """The newest value of everything measured, and the seconds of recent rounds; reads only the end of the file."""
        path = self.path / METRICS
        newest: Line = {}
        seconds: list[float] = []
        for line in files.last_lines(path):
            newest.update({name: value for name, value in _checked(line, path).items() if value is not None})
            seconds.append(float(line["seconds"]))
        return newest or None, seconds

    @property
    def rounds_done(self) -> int:
        newest, _ = self.newest()
        return int(newest["round"]) if newest else 0

    @property
    def finished(self) -> bool:
        return (self.path / MODEL).is_file()

    @property
    def active(self) -> bool:
        """Whether some process is working on this folder now."""
        return locks.is_held(_lock(self.path))

    @property
    def privacy(self) -> dict[str, Any]:
        """The privacy statement of a finished run."""
        statement = files.read_object(self.path / PRIVACY)
        if statement is None:
            raise DataError(f"{str(self.path)!r} has no privacy statement: the run is not finished.")
        return statement

    def summary(self) -> dict[str, Any]:
        """What `nbafl run --json` and `nbafl serve --json` print: `plan` as planned, `privacy` what the run is worth."""
        lines, stated = self.metrics, self.privacy if self.finished else None
        seconds = [line["seconds"] for line in lines]
        return {
            "plan": self.plan.summary(),
            "privacy": None if stated is None else {name: stated.get(name) for name in WORTH},
            "rounds_done": self.rounds_done,
            **_measured(lines),
            "seconds_per_round": float(median(seconds)) if seconds else None,
            "run_dir": str(self.path),
        }

    @property
    def facts(self) -> Facts | None:
        """What the run was really made of; None for a folder of the first release."""
        return Facts.load(self.path)

    @property
    def scores(self) -> dict[str, Any] | None:
        """How good the final model is; None for a folder that was not scored."""
        return files.read_object(self.path / SCORES)


def _check_one_plan(run: RunFolder) -> None:
    """The statement and the model of a finished run are about the plan beside them, by any name that plan has had."""
    statement, trained_by = files.read_object(run.path / PRIVACY), _plan_of_model(run.path / MODEL)
    names = run.plan.digests()
    if statement is not None and statement.get("plan_digest") not in names:
        raise files.damaged(run.path / PLAN, "it is not the plan that the run's privacy statement is about")
    if trained_by is not None and trained_by not in names:
        raise files.damaged(run.path / PLAN, "it is not the plan that the run's model was trained by")


def _plan_of_model(path: Path) -> str | None:
    """The digest of its plan that a model's file names in its header; None where the file has no such header."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, LONGEST_HEADER)))
        return str(header["__metadata__"]["plan"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def metrics_of(path: Path) -> Iterator[Line]:
    """The metrics of the finished rounds in a run folder, up to the first damaged line (DataError)."""
    return (_checked(line, path / METRICS) for line in files.lines(path / METRICS))


def begin(run: RunFolder, facts: Facts | None = None, schema: str | None = None) -> None:
    """Write down what the run is made of and what it promises, before anything happens."""
    if facts is not None:
        facts.save(run.path)
    if schema is not None:
        write_text(run.path / SCHEMA, schema)
    write_text(run.path / PLAN, run.plan.to_toml())


def write_privacy(
    run: RunFolder, model_digest: str, model_parameters: int, frozen_parameters: int = 0
) -> None:
    """privacy.json: what the run's noise is worth, for whom, and on what it rests; sums of scores are counted in.

    The plan stands in the folder as it was run: one of 0.1.0 that goes on may not have said of what data and model.
    """
    if Plan.from_toml(run.path / PLAN).digest() != run.plan.digest():
        write_text(run.path / PLAN, run.plan.to_toml())
    facts = run.facts
    statement = run.plan.statement(
        model_digest,
        model_parameters,
        frozen_parameters=frozen_parameters,
        simulated=facts is None or facts.where == "simulation",
        read_from_data=() if facts is None else facts.read_from_data,
        rounds=answers.read(run.path, run.plan),
        evaluation=Evaluation.of(facts),
    )
    files.write_json(run.path / PRIVACY, statement.to_dict())


def keep_rounds(path: Path, done: int) -> None:
    """Drop the metrics of rounds whose checkpoint was never finished."""
    files.keep_lines(path / METRICS, lambda line: line["round"] <= done)


def folder_of(plan: Plan, out: str | Path | None, resume: bool) -> Path:
    """The run's folder: an existing run when resuming, otherwise one that holds no run yet."""
    path = Path(out) if out is not None else fresh_folder(plan)
    if resume:
        RunFolder.load(path)
    elif (path / PLAN).exists():
        raise UsageError("out", str(path), "a folder without a run in it; use --resume to continue that run")
    check_folder("out", path)
    (path / "checkpoint").mkdir(parents=True, exist_ok=True)
    return path


def fresh_folder(plan: Plan) -> Path:
    """A name under runs/ that nobody uses yet."""
    return unused(Path("runs") / name_of(plan))


def unused(base: Path) -> Path:
    """`base`, or the first of base-2, base-3, … that nobody uses yet."""
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path


def name_of(plan: Plan) -> str:
    """When, what data, what is promised."""
    worth = f"eps{plan.epsilon:g}" if plan.noise else "no-noise"
    return f"{datetime.now():%Y%m%d-%H%M%S}-{Path(plan.dataset).name}-{worth}-{plan.calibration}"


def locked(path: Path) -> AbstractContextManager[None]:
    """One process at a time works on a run folder."""
    return locks.hold(_lock(path), PATIENCE, f"another process is working on {str(path)!r}.")


def _lock(path: Path) -> Path:
    return path / "checkpoint" / "lock"


def _checked(line: Line, path: Path) -> Line:
    if not isinstance(line.get("round"), int) or not isinstance(line.get("seconds"), int | float):
        raise files.damaged(path, "a line in it is not a round's metrics")
    return line


def _measured(lines: list[Line]) -> dict[str, float | None]:
    """The losses and accuracies of the newest round that was evaluated."""
    evaluated = (line for line in reversed(lines) if any(line.get(name) is not None for name in FINAL))
    newest: Line = next(evaluated, {})
    return {name: newest.get(name) for name in FINAL}
