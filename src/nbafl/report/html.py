"""The report of a run: one HTML file with everything in it, that asks nothing of the network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, select_autoescape

from nbafl.durable import write_text
from nbafl.report.curves import draw_all

if TYPE_CHECKING:
    from nbafl.run import Run


def write_report(run: Run) -> Path:
    """Write report.html into the run folder."""
    path = run.path / "report.html"
    write_text(path, render(run))
    return path


def render(run: Run) -> str:
    """The page as text."""
    environment = Environment(loader=PackageLoader("nbafl", "report"), autoescape=select_autoescape())
    environment.filters |= {"number": _number, "epsilon": _epsilon}
    summary = run.summary()
    metrics = run.metrics
    noise = {**summary["plan"]["noise"], "aggregate_norm": _noise_norm(run, summary)}
    return environment.get_template("report.html").render(
        name=run.path.resolve().name,
        plan=run.plan,
        summary=summary,
        statement=run.privacy,
        pictures=draw_all(metrics, noise),
        fields=_fields(run),
        paper_rule=run.plan.paper_rule(),
        last=metrics[-1] if metrics else {},
    )


def _noise_norm(run: Run, summary: dict[str, Any]) -> float:
    """E||n|| is about sigma_A sqrt(d) for a model of d parameters."""
    dimension = run.privacy["model_parameters"]
    return float(summary["plan"]["noise"]["sigma_aggregate"] * math.sqrt(dimension))


def _fields(run: Run) -> list[tuple[str, Any, str]]:
    described = type(run.plan).model_fields
    return [(name, getattr(run.plan, name), field.description or "") for name, field in described.items()]


def _epsilon(value: float | None) -> str:
    """An epsilon; where none is finite it must not read as if nothing were lost."""
    return "∞" if value is None else _number(value)


def _number(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_number(each) for each in value[:8]) + (" …" if len(value) > 8 else "")
    if isinstance(value, int | float):
        return f"{value:,.0f}" if 1e6 <= abs(value) < 1e12 else f"{value:.6g}"
    return str(value)
