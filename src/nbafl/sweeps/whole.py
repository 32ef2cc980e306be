"""`nbafl.sweep`: every run of a grid, its table, its pictures and its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbafl import tracking
from nbafl.durable import write_text
from nbafl.errors import UsageError
from nbafl.folders.runs import REPORT, unused
from nbafl.plan import Plan
from nbafl.run import Run
from nbafl.run.simulation import check_fits
from nbafl.sweeps import local, on_ray
from nbafl.sweeps.folder import SweepFolder
from nbafl.sweeps.grid import Grid
from nbafl.sweeps.page import write_page
from nbafl.sweeps.table import SweepTable, read
from nbafl.sweeps.train import Task, as_held
from nbafl.tracking import Callback, Listeners

if TYPE_CHECKING:
    from nbafl.data.federation import Federation

OnDone = Callable[[int, int, str], None]
"""Called with (runs finished, runs in all, the name of the run that was finished or kept)."""


def sweep(
    plan: Plan,
    grid: Mapping[str, Sequence[Any]],
    federation: Federation | None = None,
    model: Any = None,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    holdout: float | None = None,
    on_done: OnDone | None = None,
    callbacks: Sequence[str | Callback] = (),
) -> SweepTable:
    """Train every combination of the values in `grid`, with every seed, and return the table.

    Called again with the same folder it keeps the finished runs and makes the others. `callbacks` are told of each run
    once it is finished, its rounds in order (trackers by name, or objects of your own: `nbafl.Callback`).
    """
    asked = Grid.of(plan, grid, seeds, holdout)
    return run_grid(asked, federation, model, out, workers, ray, on_done, callbacks)


def run_grid(
    grid: Grid,
    federation: Federation | None = None,
    model: Any = None,
    out: str | Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    on_done: OnDone | None = None,
    callbacks: Sequence[str | Callback] = (),
) -> SweepTable:
    """The same for a grid that is already put together."""
    listening = tracking.find(callbacks)
    if workers is not None and workers < 1:
        raise UsageError("workers", workers, "at least 1")
    points = grid.points()
    if federation is not None:
        held = federation if grid.holdout is None else federation.holdout(grid.holdout, points[0].plan.seed)
        check_fits(as_held(points[0].plan, held), held)  # before anything is written
    folder = SweepFolder(out if out is not None else fresh_folder())
    folder.open(grid)
    missing = [point for point in points if not folder.finished(point)]
    finished = len(points) - len(missing)

    def done(task: Task) -> None:
        nonlocal finished
        finished += 1
        _tell(folder.runs / task.name, listening)
        if on_done:
            on_done(finished, len(points), task.name)

    for point in points:
        if point not in missing:
            _tell(folder.run(point), listening)
    if on_done and finished:
        on_done(finished, len(points), "kept")
    tasks = [Task(point.name, point.plan.model_dump(exclude_unset=True), grid.holdout) for point in missing]
    places = [folder.run(point) for point in missing]
    if tasks and ray is not None:
        on_ray.make_all(tasks, places, ray, federation, model, done)
    elif tasks:
        local.make_all(tasks, places, min(workers or local.cores(), len(tasks)), federation, model, done)
    table = read(folder, grid)
    table.write()
    _write_best(table)
    write_page(table)
    return table


def _tell(path: Path, callbacks: Sequence[Callback]) -> None:
    """All there is to tell of a finished run, wherever it was made; a tracker wants its report too."""
    if not callbacks:
        return
    run = Run.load(path)
    if not (path / REPORT).is_file():
        run.report()
    with Listeners(run, callbacks).during():
        pass


def fresh_folder() -> Path:
    """A name under runs/ that nobody uses yet."""
    return unused(Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-sweep")


def _write_best(table: SweepTable) -> None:
    """best.toml: the best setting as a plan for all records, ready for `nbafl run --config`."""
    best = next((entry for entry in table.settings() if entry["best"]), None)
    if best is None:
        return
    setting = {field: best[field] for field in table.grid.axes}
    plan = Plan(**{**table.grid.base, **setting, "seed": table.grid.seeds[0]})
    write_text(table.path / "best.toml", plan.to_toml())
