"""A Run: what happened, as its folder tells, and what can be done with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbafl.folders.earlier import going_on
from nbafl.folders.runs import RunFolder
from nbafl.plan import Plan

if TYPE_CHECKING:
    from torch import nn

    from nbafl.run.prediction import Predictions


@dataclass(frozen=True)
class Run(RunFolder):
    """A run folder, read, with the report and the model it leads to."""

    def predict(self, rows: Any, model: nn.Module | None = None) -> Predictions:
        """Answers of the final model for new rows: a file, a frame or an array. See `nbafl.run.prediction`."""
        from nbafl.run.prediction import predict

        return predict(self, rows, model)

    def model(self, model: nn.Module | None = None) -> nn.Module:
        """The final model; `model` is needed where the run was given a module that no name builds again."""
        from nbafl.run.prediction import model_of

        return model_of(self, model)

    def export_onnx(self, path: str | Path, model: nn.Module | None = None) -> Path:
        """The numeric part of the model as an ONNX file, the schema beside it."""
        from nbafl.run.prediction import export_onnx

        return export_onnx(self, path, model)

    def going_on(self, **changes: Any) -> Plan:
        """A plan that goes on from this run's model; its epsilon is for both runs together."""
        return Plan(**going_on(self.path, **changes))

    def report(self) -> Path:
        """Write report.html and return where it is."""
        from nbafl.report.html import write_report

        return write_report(self)
