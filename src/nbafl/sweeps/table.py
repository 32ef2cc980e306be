"""The results of a sweep: a row a run, and a summary over the seeds of each setting.

Nothing in it depends on who computed a run or how long it took, so the same sweep gives the same table everywhere.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from nbafl.durable import write_text
from nbafl.plan import Plan
from nbafl.privacy import adversary
from nbafl.privacy.adversary import Adversary
from nbafl.run import Run
from nbafl.sweeps.folder import SweepFolder
from nbafl.sweeps.grid import Grid, Point
from nbafl.sweeps.price import composed_epsilon

if TYPE_CHECKING:
    import pandas

MEASURED = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "worst_client_accuracy")


@dataclass(frozen=True)
class SweepTable:
    """What a sweep found. `pandas.DataFrame(table.rows)` and `pandas.read_csv(table.path / "table.csv")` both work."""

    path: Path
    grid: Grid
    rows: list[dict[str, Any]]

    def to_pandas(self) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame(self.rows)

    @property
    def score(self) -> str:
        """What runs are compared by: accuracy on records nobody trained on, or loss where there are no classes."""
        for name in ("test_accuracy", "test_loss", "train_loss"):
            if any(row[name] is not None for row in self.rows):
                return name
        return "train_loss"

    @property
    def scored_on(self) -> str:
        """Which records the score was measured on, in words."""
        if self.score == "train_loss":
            return "the clients' own training records, for want of others"
        if self.grid.holdout is None:
            return "the test records"
        return f"held-out training records ({self.grid.holdout:.0%} of every client's)"

    def settings(self) -> list[dict[str, Any]]:
        """One entry for each setting: its fields, how many seeds, mean and deviation of every measure, the best marked."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            groups.setdefault(json.dumps([row[field] for field in self.grid.axes]), []).append(row)
        made = [_summary(rows, self.grid) for rows in groups.values()]
        sign = -1 if self.score.endswith("loss") else 1
        scored = [entry for entry in made if entry[self.score]["mean"] is not None]
        best = max(scored, key=lambda entry: sign * entry[self.score]["mean"], default=None)
        for entry in made:
            entry["best"] = entry is best
        return made

    def composed(self) -> list[dict[str, Any]]:
        """epsilon of all runs together against each standard adversary, had they been made in one federation."""
        groups: dict[tuple[str, str], list[Plan]] = {}  # costs of different units do not add up
        for point in self.grid.points():
            sensitivity = point.plan.sensitivity_of()
            groups.setdefault((sensitivity.unit, sensitivity.adjacency), []).append(point.plan)
        return [
            {"unit": unit, "adjacency": adjacency, **_priced(plans, each)}
            for (unit, adjacency), plans in groups.items()
            for each in adversary.standard()
        ]

    def to_dict(self) -> dict[str, Any]:
        """What table.json holds."""
        return {
            "score": self.score,
            "score_on": self.scored_on,
            "runs": self.rows,
            "settings": self.settings(),
            "composed": self.composed(),
        }

    def write(self) -> None:
        """table.csv and table.json."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_text(self.path / "table.csv", text.getvalue())
        write_text(self.path / "table.json", json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")


def _priced(plans: Sequence[Plan], against: Adversary) -> dict[str, Any]:
    delta = max(plan.delta for plan in plans)
    epsilon = composed_epsilon(plans, against, delta)
    shown = epsilon if math.isfinite(epsilon) else None
    return {"adversary": against.name, "epsilon": shown, "delta": delta, "runs": len(plans)}


def read(folder: SweepFolder, grid: Grid) -> SweepTable:
    """The table of the runs as they are in the folder."""
    return SweepTable(folder.path, grid, [_row(folder, point, grid) for point in grid.points()])


def _row(folder: SweepFolder, point: Point, grid: Grid) -> dict[str, Any]:
    run = Run.load(folder.run(point))
    last = next((line for line in reversed(run.metrics) if line.get("train_loss") is not None), {})
    statement = run.privacy
    guarantee = {f"epsilon_{name}": each["epsilon"] for name, each in statement["guarantee"].items()}
    chosen = statement["guarantee"][adversary.key_of(run.plan.adversary)]["epsilon"]
    told = {
        "claimed_epsilon": run.plan.epsilon if run.plan.noise else None,
        "real_epsilon": chosen,
        "delta": run.plan.delta,
        "against": run.plan.adversary,
        "unit": statement["unit"],
        "conditional": not statement["sensitivity"]["verified"],
        "premise": run.plan.rule.if_it_holds.strip(),
        "rounds": run.plan.rounds,
    }
    told = {name: value for name, value in told.items() if name not in grid.axes}
    measured = {name: last.get(name) for name in MEASURED}
    return {"name": point.name, **point.setting, "seed": run.plan.seed, **told, **measured, **guarantee}


def _summary(rows: Sequence[dict[str, Any]], grid: Grid) -> dict[str, Any]:
    entry: dict[str, Any] = {field: rows[0][field] for field in grid.axes}
    entry |= {name: rows[0].get(name) for name in ("real_epsilon", "delta", "against", "unit", "premise")}
    entry["seeds"] = len(rows)
    for name in MEASURED:
        values = [row[name] for row in rows if row[name] is not None]
        entry[name] = {
            "mean": fmean(values) if values else None,
            "deviation": stdev(values) if len(values) > 1 else None,
        }
    return entry
