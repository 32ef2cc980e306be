"""`--track mlflow`: runs in a local MLflow store beside the run folders, or wherever MLFLOW_TRACKING_URI says.

The store is a SQLite file, `mlflow.db`; no server is needed, and MLflow's own messages home are switched off. A run is
known in it by its folder, so that one that is taken up again goes on there, and by its rounds, so that none is logged twice.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbafl.folders.runs import PLAN, PRIVACY, REPORT
from nbafl.tracking.callback import Callback
from nbafl.tracking.values import epsilons, parameters, scalars

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from nbafl.folders.runs import RunFolder

STORE = "mlflow.db"
ARTIFACTS = "mlflow-artifacts"
FOLDER_TAG = "nbafl.folder"
DIGEST_TAG = "nbafl.plan"
ALWAYS = "seconds"
"""A number that every round has: its history says which rounds were logged."""


class MLflow(Callback):
    """One run as MLflow's."""

    def on_begin(self, run: RunFolder) -> None:
        self._client = _client(run)
        experiment = _experiment(self._client, run)
        self._id = self._found(experiment, run) or self._made(experiment, run)
        self._client.update_run(self._id, status="RUNNING")
        self._logged = {each.step for each in self._client.get_metric_history(self._id, ALWAYS)}

    def on_round(self, run: RunFolder, metrics: dict[str, Any]) -> None:
        if metrics["round"] not in self._logged:
            self._log(scalars(run, metrics), metrics["round"])

    def on_end(self, run: RunFolder) -> None:
        known = self._client.get_run(self._id).data.metrics
        new = {name: value for name, value in epsilons(run).items() if name not in known}
        self._log(new, run.rounds_done)
        self._client.set_tag(self._id, "mlflow.note.content", "\n\n".join(run.privacy["sentences"]))
        for name in (PLAN, PRIVACY, REPORT):
            if (run.path / name).is_file():
                self._client.log_artifact(self._id, str(run.path / name))
        self._client.set_terminated(self._id, "FINISHED")

    def on_stop(self, run: RunFolder, error: BaseException) -> None:  # noqa: ARG002
        wanted = isinstance(error, KeyboardInterrupt) or getattr(error, "exit_code", 1) == 0
        self._client.set_terminated(self._id, "KILLED" if wanted else "FAILED")

    def _found(self, experiment: str, run: RunFolder) -> str | None:
        """The newest run of this folder and this plan; none for a run that has only just begun."""
        if not run.metrics:
            return None
        asked = f"tags.`{DIGEST_TAG}` = '{run.plan.digest()}'"
        found = self._client.search_runs([experiment], asked, order_by=["attributes.start_time DESC"])
        folder = _address(run.path)
        return next((str(e.info.run_id) for e in found if e.data.tags.get(FOLDER_TAG) == folder), None)

    def _made(self, experiment: str, run: RunFolder) -> str:
        from mlflow.entities import Param

        tags = {FOLDER_TAG: _address(run.path), DIGEST_TAG: run.plan.digest()}
        made = self._client.create_run(experiment, run_name=run.path.name, tags=tags)
        given = [Param(name, str(value)) for name, value in parameters(run.plan).items()]
        self._client.log_batch(made.info.run_id, params=given)
        return str(made.info.run_id)

    def _log(self, values: dict[str, float], step: int) -> None:
        """All numbers of a round in one transaction."""
        from mlflow.entities import Metric

        now = time.time_ns() // 10**6
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in values.items()])


def _client(run: RunFolder) -> MlflowClient:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    from mlflow import MlflowClient

    return MlflowClient(_told_store() or f"sqlite:///{run.path.absolute().parent / STORE}")


def _told_store() -> str | None:
    return os.environ.get("MLFLOW_TRACKING_URI") or None


def _experiment(client: MlflowClient, run: RunFolder) -> str:
    """The experiment MLFLOW_EXPERIMENT_NAME, or nbafl; with a store of our own its artifacts lie beside it."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "nbafl"
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    beside = (run.path.absolute().parent / ARTIFACTS).as_uri()
    return str(client.create_experiment(name, artifact_location=None if _told_store() else beside))


def _address(path: Path) -> str:
    return str(path.resolve())
