"""A Run: what happened, as a folder, and `simulate`, which makes one.

    runs/NAME/plan.toml          the plan, whole
              metrics.jsonl      a line a round
              checkpoint/        the state after the last finished round, replaced in one step
              model.safetensors  the final broadcast
              privacy.json       the privacy statement
              report.html        the same for a person

A round is finished once its checkpoint is in place; lines of metrics beyond it are dropped on resume. Every random
draw is a function of (seed, round, purpose), so a run that was killed goes on to the very same model.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np
from safetensors.torch import load, save

from nbafl.data.federation import Federation
from nbafl.durable import write_bytes, write_text
from nbafl.errors import DataError, Refused, UsageError
from nbafl.plan import Plan
from nbafl.simulation.metrics import RoundMetrics
from nbafl.simulation.models import Factory, build, check
from nbafl.simulation.simulator import Simulator

if TYPE_CHECKING:
    from torch import Tensor, nn

OnRound = Callable[[RoundMetrics], None]
FINAL = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


@dataclass(frozen=True)
class Run:
    """A run folder, read."""

    path: Path
    plan: Plan

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Open a run folder; a folder that is none is refused in one sentence."""
        path = Path(path)
        if not (path / "plan.toml").is_file():
            raise DataError(f"{str(path)!r} is not a run folder: it holds no plan.toml.")
        return cls(path, Plan.from_toml(path / "plan.toml"))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One entry a finished round; a line that was being written when the run was killed is left out."""
        return list(_whole_lines(self.path / "metrics.jsonl"))

    @property
    def rounds_done(self) -> int:
        lines = self.metrics
        return int(lines[-1]["round"]) if lines else 0

    @property
    def finished(self) -> bool:
        return (self.path / "model.safetensors").is_file()

    @property
    def active(self) -> bool:
        """Whether some process is working on this folder now."""
        lock = self.path / "checkpoint" / "lock"
        if not lock.is_file():
            return False
        with open(lock, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @property
    def privacy(self) -> dict[str, Any]:
        """The privacy statement of a finished run."""
        return json.loads((self.path / "privacy.json").read_text(encoding="utf-8"))

    def summary(self) -> dict[str, Any]:
        """What `nbafl run --json` prints."""
        lines = self.metrics
        seconds = [line["seconds"] for line in lines]
        return {
            "plan": self.plan.summary(),
            "rounds_done": self.rounds_done,
            **_measured(lines),
            "seconds_per_round": float(np.median(seconds)) if seconds else None,
            "run_dir": str(self.path),
        }

    def report(self) -> Path:
        """Write report.html and return where it is."""
        from nbafl.report.html import write_report

        return write_report(self)


def federation_of(plan: Plan) -> Federation:
    """The data a plan names."""
    if plan.dataset == "mnist":
        if plan.sizes is not None:
            return Federation.mnist(sizes=plan.sizes, partition=plan.partition, seed=plan.seed)
        return Federation.mnist(
            clients=plan.clients, samples=plan.samples, partition=plan.partition, seed=plan.seed
        )
    if plan.target is None:
        raise UsageError("target", None, "the name of the column to predict, for a folder of CSV files")
    return Federation.from_csv(plan.dataset, target=plan.target, test=plan.test)


def seen_by_the_model(plan: Plan, federation: Federation) -> Federation:
    """The same records with the plan's features and norm bound."""
    if plan.features == "raw" and plan.feature_norm is None:
        return federation
    return federation.with_features(plan.features, plan.feature_norm)


def simulate(
    plan: Plan,
    federation: Federation | None = None,
    model: str | nn.Module | Factory | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
) -> Run:
    """Train `plan` over `federation` on this machine and leave a run folder.

    `model` is a name as in Plan.model, a factory of (input shape, outputs), or an nn.Module with its initial weights;
    left out, the plan's.
    """
    federation = federation_of(plan) if federation is None else federation
    _check_fits(plan, federation)
    federation = seen_by_the_model(plan, federation)
    model = _model(model or plan.model, federation, plan.seed)
    simulator = Simulator(
        federation, model, plan.job(federation.task), device=plan.device, engine=plan.engine
    )
    path = folder_of(plan, out, resume)
    with locked(path):
        return train(Run(path, plan), simulator, _fingerprint(plan, federation, model), resume, on_round)


def _model(given: str | nn.Module | Factory, federation: Federation, seed: int) -> nn.Module:
    from torch import nn

    if not isinstance(given, nn.Module):
        return build(given, federation.shape, federation.outputs, seed)
    check(given, type(given).__name__, federation.shape, federation.outputs)
    return given


class Trainer(Protocol):
    """Whatever makes rounds: the simulator, or the server of a real federation."""

    round: int
    vector: Tensor

    def step(self) -> RoundMetrics: ...
    def state(self) -> dict[str, Tensor]: ...
    def restore(self, state: dict[str, Tensor]) -> None: ...
    def module(self) -> nn.Module: ...


def train(run: Run, simulator: Trainer, fingerprint: str, resume: bool, on_round: OnRound | None) -> Run:
    """All rounds that are left, each one kept in the run folder before the next begins."""
    if resume:
        _restore(run, simulator, fingerprint)
    else:
        write_text(run.path / "plan.toml", run.plan.to_toml())
        _checkpoint(run.path, simulator, fingerprint)
    with open(run.path / "metrics.jsonl", "a", encoding="utf-8") as log:
        while simulator.round < run.plan.rounds:
            metrics = simulator.step()
            _check_finite(metrics)
            log.write(_as_line(asdict(metrics)))
            log.flush()
            _checkpoint(run.path, simulator, fingerprint)
            if on_round:
                on_round(metrics)
    _finish(run, simulator)
    return run


def _check_finite(metrics: RoundMetrics) -> None:
    """A model that is NaN or infinite is never broadcast, kept or vouched for."""
    if metrics.broadcast_norm is not None and not math.isfinite(metrics.broadcast_norm):
        raise Refused(
            f"the model is no longer finite after round {metrics.round}: training diverged (a smaller lr or more "
            "bounded features help); the rounds before it are kept."
        )


def _finish(run: Run, simulator: Trainer) -> None:
    """The final model, the privacy statement and the report."""
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in simulator.module().state_dict().items()
    }
    content = save(tensors, metadata={"plan": run.plan.digest()})
    write_privacy(run.path, run.plan, hashlib.sha256(content).hexdigest(), simulator.vector.numel())
    write_bytes(run.path / "model.safetensors", content)
    run.report()


def write_privacy(path: Path, plan: Plan, model_digest: str, model_parameters: int) -> None:
    """privacy.json: what the plan's noise is worth, for whom, and on what it rests."""
    statement = plan.statement(model_digest, model_parameters)
    write_text(path / "privacy.json", json.dumps(statement.to_dict(), indent=2, allow_nan=False) + "\n")


def _checkpoint(path: Path, simulator: Trainer, fingerprint: str) -> None:
    tensors = {name: value.detach().cpu().contiguous() for name, value in simulator.state().items()}
    metadata = {"round": str(simulator.round), "fingerprint": fingerprint}
    content = save(tensors, metadata=metadata)
    # 0600: the server of a real federation keeps the secret seed of its draw in it.
    write_bytes(path / "checkpoint" / "state.safetensors", content, mode=0o600)


def _restore(run: Run, simulator: Trainer, fingerprint: str) -> None:
    """Take up the last finished round; drop metrics of a round whose checkpoint never came to be."""
    state = run.path / "checkpoint" / "state.safetensors"
    if not state.is_file():
        write_text(run.path / "metrics.jsonl", "")
        return
    content = state.read_bytes()
    metadata = _safetensors_metadata(content, state)
    if metadata.get("fingerprint") != fingerprint:
        raise Refused(
            f"{str(run.path)!r} was made from other data or another model: it cannot be resumed with these."
        )
    simulator.restore(load(content))
    lines = [line for line in run.metrics if line["round"] <= simulator.round]
    write_text(run.path / "metrics.jsonl", "".join(map(_as_line, lines)))


def _safetensors_metadata(content: bytes, path: Path) -> dict[str, str]:
    try:
        length = int.from_bytes(content[:8], "little")
        return json.loads(content[8 : 8 + length])["__metadata__"]
    except (ValueError, KeyError):
        raise DataError(f"checkpoint {str(path)!r} is damaged.") from None


def _check_fits(plan: Plan, federation: Federation) -> None:
    if federation.clients != plan.clients:
        raise UsageError("clients", plan.clients, f"the number of clients in the data ({federation.clients})")
    if not np.array_equal(federation.sizes, plan.client_sizes):
        found = sorted(set(federation.sizes.tolist()))
        allowed = f"{found[0]} records" if len(found) == 1 else "given as sizes"
        raise UsageError("samples", plan.samples, f"what each client in the data holds ({allowed})")


def _fingerprint(plan: Plan, federation: Federation, model: nn.Module) -> str:
    """Plan, who holds which records, their labels and a sample of their features, and the model's shape."""
    digest = hashlib.sha256(plan.digest().encode())
    digest.update(json.dumps([[n, list(p.shape)] for n, p in model.named_parameters()]).encode())
    digest.update(np.ascontiguousarray(federation.sizes).tobytes())
    digest.update(np.ascontiguousarray(federation.y).tobytes())
    digest.update(np.ascontiguousarray(federation.x[:: max(1, len(federation.x) // 64)]).tobytes())
    return digest.hexdigest()


def folder_of(plan: Plan, out: str | Path | None, resume: bool) -> Path:
    """The run's folder: an existing run when resuming, otherwise one that holds no run yet."""
    path = Path(out) if out is not None else fresh_folder(plan)
    if resume:
        Run.load(path)
    elif (path / "plan.toml").exists():
        raise UsageError(
            "out", str(path), "a folder without a run in it; use --resume to go on with that run"
        )
    elif path.exists() and not path.is_dir():
        raise UsageError("out", str(path), "a folder, not a file")
    (path / "checkpoint").mkdir(parents=True, exist_ok=True)
    return path


def fresh_folder(plan: Plan) -> Path:
    """A name under runs/ that nobody uses yet."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    worth = f"eps{plan.epsilon:g}" if plan.noise else "no-noise"
    base = Path("runs") / f"{stamp}-{Path(plan.dataset).name}-{worth}-{plan.calibration}"
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time works on a run folder."""
    with open(path / "checkpoint" / "lock", "ab") as file:
        if not _lock_within(file, seconds=0.5):
            raise Refused(f"another process is working on {str(path)!r}.")
        yield


def _lock_within(file: IO[bytes], seconds: float) -> bool:
    """Try for a moment: whoever only asks whether a run is active holds the lock for an instant too."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield json.loads(line)


def _as_line(metrics: dict[str, Any]) -> str:
    """A line of metrics.jsonl; a loss beyond what a float holds is null, as JSON knows no infinity."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
    return json.dumps(finite, allow_nan=False) + "\n"


def _measured(lines: list[dict[str, Any]]) -> dict[str, float | None]:
    """The losses and accuracies of the newest round that was evaluated."""
    evaluated = (line for line in reversed(lines) if any(line.get(name) is not None for name in FINAL))
    newest: dict[str, Any] = next(evaluated, {})
    return {name: newest.get(name) for name in FINAL}
