"""Reproduce the figures: compute or recall the runs, draw, test the claims, write one page.

What the out folder holds: `nbafl.folders.reproductions`. A second call with the same numbers only draws, and what earlier
calls with these numbers left in the folder stays on the page.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nbafl.durable import write_text
from nbafl.errors import DataError, UsageError
from nbafl.folders import reproductions
from nbafl.paper import fig02_03, fig04_05, fig06_07, fig08, fig09, fig10, fig11, page
from nbafl.paper.evidence import LEVEL
from nbafl.paper.fig08 import Expressions
from nbafl.paper.pictures import Panel, Picture, same_limits, write
from nbafl.paper.runs import Runs, Wanted
from nbafl.paper.settings import CALIBRATIONS, Settings, describe
from nbafl.paper.verdicts import verdicts

MOST_SEEDS = 10_000
FIGURES = tuple(range(2, 12))
SHARED_SCALE = (2, 3, 4, 5, 6, 7, 10)
PROMISES = {
    "paper": "ε as claimed by the paper at δ = {delta:g}; the real ε is given with the verdicts",
    "exact": "ε at δ = {delta:g} against the eavesdropper, granting the sensitivity 2C/m",
}
_TRAINED = (fig02_03, fig04_05, fig06_07, fig09, fig10, fig11)

Meter = Callable[[int], None]
"""Told of finished client rounds."""


@dataclass(frozen=True)
class Reproduction:
    """What came out."""

    verdicts: list[dict[str, Any]]
    page: Path
    kept: tuple[int, ...] = ()
    """Figures of earlier calls that the page lists too."""


def runs_of(figures: tuple[int, ...], settings: Settings, seeds: int) -> Runs:
    """The trainings that these figures need."""
    if not 1 <= seeds <= MOST_SEEDS:
        allowed = f"from 1 to {MOST_SEEDS} (at least 2 for any statistical test)"
        raise UsageError("seeds", seeds, allowed)
    for number in figures:
        if number not in FIGURES:
            raise UsageError(
                "figures", number, "between 2 and 11 (figure 1 is a drawing, see docs/protocol.md)"
            )
    return Runs(settings, seeds, _wanted(figures, settings), among=_wanted(FIGURES, settings))


def _wanted(figures: tuple[int, ...], settings: Settings) -> list[Wanted]:
    return [
        each
        for module in _TRAINED
        if set(module.NUMBERS) & set(figures)
        for calibration in CALIBRATIONS
        for each in module.wanted(settings, calibration)
    ]


def recall(runs: Runs, out: Path) -> Runs:
    """The same runs with what an earlier call left in the out folder."""
    cached = out / reproductions.DATA / reproductions.RESULTS
    if cached.exists():
        runs.load(cached)
    return runs


def reproduce(
    figures: tuple[int, ...] = FIGURES,
    seeds: int = 5,
    out: Path = Path("runs/reproduce"),
    settings: Settings | None = None,
    results: Path | None = None,
    meter: Callable[[int], AbstractContextManager[Meter]] | None = None,
) -> Reproduction:
    """Figures, verdicts and the page; `results` are runs computed elsewhere (`nbafl.paper.trainings`).

    `meter(total)` gives a context whose value is told of finished client rounds.
    """
    settings = settings or Settings()
    runs = recall(runs_of(figures, settings, seeds), out)
    if results is not None:
        runs.load(results)
    data = out / reproductions.DATA
    data.mkdir(parents=True, exist_ok=True)
    missing = sum(trial.cost for trial in runs.missing())
    with meter(missing) if meter and missing else nullcontext(lambda _: None) as told:
        runs.complete(data / reproductions.RESULTS, told)
    expressions = Expressions(settings, data)
    images = _draw(figures, runs, expressions, out)
    entries = verdicts(runs, expressions, figures)
    kept = _kept(figures, runs, expressions, out)
    images |= {number: _drawn(number, out) for number in kept}
    every = sorted(
        [*entries, *(each for found in kept.values() for each in found)], key=lambda e: e["figure"]
    )
    reproductions.write_verdicts(out, every)
    grids = {name: getattr(settings, name) for name in ("round_grid", "drawn_grid", "client_grid")}
    made = out / reproductions.PAGE
    write_text(made, page.render(describe(settings), seeds, LEVEL, grids, images, every))
    return Reproduction(entries, made, tuple(kept))


def _kept(
    figures: tuple[int, ...], runs: Runs, expressions: Expressions, out: Path
) -> dict[int, list[dict[str, Any]]]:
    """The verdicts of other figures that an earlier call left here, if it made them with the same numbers."""
    found: dict[int, list[dict[str, Any]]] = {}
    for entry in _earlier(out):
        if entry["evidence"]["seeds"] == runs.seeds:
            found.setdefault(entry["figure"], []).append(entry)
    return {
        number: found[number]
        for number in sorted(found.keys() & set(FIGURES) - set(figures))
        if all(path.is_file() for _, path in _drawn(number, out))
        and not runs.only(_wanted((number,), runs.settings)).missing()
        and (number not in (*fig08.NUMBERS, *fig09.NUMBERS) or expressions.measured)
    }


def _earlier(out: Path) -> list[dict[str, Any]]:
    """The verdicts that an earlier call left; none where they cannot be read or are not ours."""
    try:
        found = reproductions.read_verdicts(out)
    except DataError:
        return []
    return [asdict(each) for each in found if isinstance(each.evidence.get("seeds"), int)]


def _drawn(number: int, out: Path) -> list[tuple[str, Path]]:
    """Where the two pictures of a figure are, each with what to say to those who cannot see it."""
    return [
        (
            f"Figure {number} under {calibration} calibration",
            out / f"{reproductions.picture_name(number, calibration)}.png",
        )
        for calibration in CALIBRATIONS
    ]


def _draw(
    figures: tuple[int, ...], runs: Runs, expressions: Expressions, out: Path
) -> dict[int, list[tuple[str, Path]]]:
    """Write every picture; the two of a figure share their y-axis where that hides neither."""
    images: dict[int, list[tuple[str, Path]]] = {}
    for number in figures:
        pair = [_picture(number, runs, expressions, calibration) for calibration in CALIBRATIONS]
        if number in SHARED_SCALE:
            limits = same_limits(pair)
            pair = [_limited(picture, limits) for picture in pair]
        for picture in pair:
            write(replace(picture, note=_note(picture, runs)), out)
        images[number] = _drawn(number, out)
    return images


def _note(picture: Picture, runs: Runs) -> str:
    """What stands under a picture: its own remarks, what the bands are, and what an epsilon in it means."""
    seeds = (
        [f"bands: one standard deviation over {runs.seeds} seeds"]
        if picture.banded and runs.seeds > 1
        else []
    )
    remarks = "; ".join([*([picture.note] if picture.note else []), *seeds])
    promise = PROMISES[picture.calibration].format(delta=runs.settings.delta)
    return f"{remarks}\n{promise}" if remarks else promise


def _picture(number: int, runs: Runs, expressions: Expressions, calibration: str) -> Picture:
    if number == 8:
        return fig08.pictures(expressions, calibration)[0]
    if number == 9:
        return fig09.pictures(runs, expressions, calibration)[0]
    (module,) = (each for each in _TRAINED if number in each.NUMBERS)
    return next(each for each in module.pictures(runs, calibration) if each.number == number)


def _limited(picture: Picture, limits: tuple[float, float]) -> Picture:
    panels: tuple[Panel, ...] = tuple(replace(panel, limits=limits) for panel in picture.panels)
    return replace(picture, panels=panels)
