"""Trackers as their own readers see them, and callbacks that fail without harming anybody."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run as Logged
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import nbafl
from nbafl.cli import run_command
from nbafl.tracking.tensorboard import TensorBoard
from nbafl.tracking.values import parameters

PLAN = nbafl.Plan(
    clients=3, samples=20, rounds=4, epsilon=8, delta=1e-5, sensitivity="gradient", model="softmax",
    features="raw", lr=0.5, record_clip=1.0, server_momentum=0.0, adversary="eavesdropper", eval_every=1,
)  # fmt: skip
EPSILON = "epsilon at delta 1e-05 per record replaced"


def federation() -> nbafl.Federation:
    rng = np.random.default_rng(3)
    parts = [(rng.normal(size=(20, 5)).astype(np.float32), rng.integers(0, 2, 20)) for _ in range(4)]
    return nbafl.Federation.from_arrays(clients=parts[:3], test=parts[3])


class Interrupted(nbafl.Callback):
    """Somebody pulls the plug in round 2."""

    def on_round(self, run: Any, metrics: dict[str, Any]) -> None:  # noqa: ARG002
        if metrics["round"] == 2:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for runs; its MLflow store is made once, as that takes MLflow seconds."""
    return tmp_path_factory.mktemp("runs with a blank")


@pytest.fixture(scope="module")
def resumed(store: Path) -> nbafl.Run:
    """A run that was interrupted and taken up again, tracked by both."""
    both = ["tensorboard", "mlflow"]
    out = store / "one's run"
    with pytest.raises(KeyboardInterrupt):
        nbafl.simulate(PLAN, federation(), out=out, callbacks=[*both, Interrupted()])
    assert logged(store)[0].info.status == "KILLED"
    return nbafl.simulate(PLAN, federation(), out=out, resume=True, callbacks=both)


def client(store: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{store / 'mlflow.db'}")


def logged(store: Path) -> list[Logged]:
    reader = client(store)
    (experiment,) = reader.search_experiments(filter_string="name = 'nbafl'")
    return list(reader.search_runs([experiment.experiment_id]))


def shown(run: nbafl.Run) -> EventAccumulator:
    return EventAccumulator(str(run.path / "tensorboard")).Reload()


def scalars(reader: EventAccumulator, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.tensor_proto.float_val[0]) for event in reader.Tensors(name)]


def expected(run: nbafl.Run, name: str) -> list[tuple[int, float]]:
    return [(line["round"], pytest.approx(line[name])) for line in run.metrics]


def test_tensorboard_reads_every_round_once(resumed: nbafl.Run) -> None:
    reader = shown(resumed)
    for name in ("test_accuracy", "train_loss", "clipped_fraction", "participants"):
        assert scalars(reader, name) == expected(resumed, name)
    so_far = scalars(reader, f"{EPSILON} so far/eavesdropper")
    assert so_far == [(done, pytest.approx(PLAN.epsilon_after(done))) for done in range(1, 5)]
    for adversary, stated in resumed.privacy["guarantee"].items():
        assert scalars(reader, f"{EPSILON}/{adversary}") == [(4, pytest.approx(stated["epsilon"]))]
    (statement,) = reader.Tensors("privacy statement")
    assert resumed.privacy["sentences"][0] in statement.tensor_proto.string_val[0].decode()


def test_tensorboard_knows_the_plan(resumed: nbafl.Run) -> None:
    content = shown(resumed).summary_metadata["_hparams_/session_start_info"].plugin_data.content
    told = HParamsPluginData.FromString(content).session_start_info.hparams
    assert told["rounds"].number_value == 4
    assert told["sensitivity"].string_value == "gradient"
    assert told["digest"].string_value == resumed.plan.digest()


def test_mlflow_reads_every_round_once(resumed: nbafl.Run, store: Path) -> None:
    (found,) = [each for each in logged(store) if each.info.run_name == resumed.path.name]
    reader = client(store)
    for name in ("test_accuracy", "train_loss", "seconds"):
        history = reader.get_metric_history(found.info.run_id, name)
        assert [(each.step, each.value) for each in history] == expected(resumed, name)
    for adversary, stated in resumed.privacy["guarantee"].items():
        (only,) = reader.get_metric_history(found.info.run_id, f"{EPSILON}/{adversary}")
        assert (only.step, only.value) == (4, pytest.approx(stated["epsilon"]))
    assert found.info.status == "FINISHED"
    assert found.data.params == {name: str(value) for name, value in parameters(resumed.plan).items()}
    assert resumed.privacy["sentences"][0] in found.data.tags["mlflow.note.content"]


def test_mlflow_keeps_statement_and_report(resumed: nbafl.Run, store: Path, tmp_path: Path) -> None:
    (found,) = [each for each in logged(store) if each.info.run_name == resumed.path.name]
    reader = client(store)
    for name in ("privacy.json", "report.html", "plan.toml"):
        kept = Path(reader.download_artifacts(found.info.run_id, name, str(tmp_path)))
        assert kept.read_bytes() == (resumed.path / name).read_bytes()


def test_a_sweep_is_tracked_run_by_run_and_once(
    resumed: nbafl.Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{resumed.path.parent / 'mlflow.db'}")
    for _ in range(2):  # called again it keeps its runs, and so do the trackers
        table = nbafl.sweep(
            PLAN, {"epsilon": [1.0, 8.0]}, federation(), out=tmp_path / "sweep", workers=1,
            callbacks=["mlflow", "tensorboard"],
        )  # fmt: skip
    made = {each.info.run_name: each for each in logged(store) if each.info.run_name != resumed.path.name}
    assert set(made) == {path.name for path in (table.path / "runs").iterdir()}
    for name, each in made.items():
        run = nbafl.Run.load(table.path / "runs" / name)
        history = client(store).get_metric_history(each.info.run_id, "test_loss")
        assert [(entry.step, entry.value) for entry in history] == expected(run, "test_loss")
        assert scalars(shown(run), "test_loss") == expected(run, "test_loss")
        (only,) = client(store).get_metric_history(each.info.run_id, f"{EPSILON}/curious_server")
        assert only.value == pytest.approx(run.privacy["guarantee"]["curious_server"]["epsilon"])


class FullDisk(TensorBoard):
    """The disk is full from round 2 on: the kernel itself refuses what is written."""

    def on_round(self, run: Any, metrics: dict[str, Any]) -> None:
        if metrics["round"] == 2:
            self._path = Path("/dev/full")
        super().on_round(run, metrics)


def test_a_tracker_that_fails_ends_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="nbafl"):
        run = nbafl.simulate(PLAN, federation(), out=tmp_path / "run", callbacks=[FullDisk()])
    assert run.finished
    assert run.rounds_done == 4
    assert [each.getMessage() for each in caplog.records if each.name == "nbafl"] == [
        "FullDisk failed and is told no more; the training goes on: [Errno 28] No space left on device"
    ]


class Diary(nbafl.Callback):
    """What somebody's own callback is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def on_begin(self, run: Any) -> None:
        self.told.append(run.plan.rounds)

    def on_round(self, run: Any, metrics: dict[str, Any]) -> None:  # noqa: ARG002
        self.told.append(metrics["round"])

    def on_end(self, run: Any) -> None:
        self.told.append((run.path / "report.html").is_file())


def test_a_callback_hears_every_round_in_order(tmp_path: Path) -> None:
    diary = Diary()
    with pytest.raises(KeyboardInterrupt):
        nbafl.simulate(PLAN, federation(), out=tmp_path / "run", callbacks=[diary, Interrupted()])
    assert diary.told == [4, 1, 2]
    again = Diary()
    nbafl.simulate(PLAN, federation(), out=tmp_path / "run", resume=True, callbacks=[again])
    assert again.told == [4, 1, 2, 3, 4, True]


@pytest.mark.parametrize("verb", ["run", "sweep", "serve"])
@pytest.mark.parametrize(
    ("tracker", "says"),
    [
        ("mlflow", "track must be a tracker that is installed: pip install 'nbafl[mlflow]', got 'mlflow'."),
        ("wandb", "track must be one of tensorboard, mlflow, got 'wandb'."),
    ],
)
def test_a_tracker_that_is_not_there_is_named_before_anything_is_written(
    verb: str,
    tracker: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert run_command([verb, "--preset", "paper", "--track", tracker]) == 2
    assert capsys.readouterr().err == f"nbafl: {says}\n"
    assert os.listdir(tmp_path) == []
