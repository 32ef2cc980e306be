"""The report of a run: one HTML file with everything in it, that asks nothing of the network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbafl import fields
from nbafl.durable import write_text
from nbafl.evaluation import Evaluation
from nbafl.folders import answers, audits, homes
from nbafl.privacy import badges
from nbafl.privacy.scope import Scope
from nbafl.report.audit import part
from nbafl.report.curves import draw_all
from nbafl.report.front import five_lines
from nbafl.report.notices import accumulated_noise
from nbafl.report.pages import environment

if TYPE_CHECKING:
    from nbafl.run import Run


def write_report(run: Run) -> Path:
    """Write report.html into the run folder."""
    path = run.path / "report.html"
    write_text(path, render(run))
    return path


def render(run: Run) -> str:
    """The page as text."""
    summary = run.summary()
    metrics = run.metrics
    statement, facts = run.privacy, run.facts
    template = environment().get_template("report.html")
    return template.render(
        **part(run.path, run.plan, audits.read(run.path)),
        name=_name(run.path.resolve()),
        plan=run.plan,
        scope=Scope.of(run.plan),
        summary=summary,
        statement=statement,
        facts=facts,
        front=five_lines(run.plan, facts, statement),
        scores=run.scores,
        badges=(
            badges.kept(statement["delivers_claim"], run.plan.rule.conditional),
            badges.strength(statement.get("best_guess")),
        ),
        pictures=draw_all(metrics, _noise_lengths(run, summary), "record_clip" in run.plan.rule.uses),
        fields=_fields(run),
        unconditional=_from_clipping(run),
        paper_rule=run.plan.paper_rule(),
        prices=summary["plan"]["aggregation"],
        last=metrics[-1] if metrics else {},
    )


def _name(path: Path) -> str:
    """What the run is called: a federation's by its home, where every run folder has the same name."""
    return path.parent.name if homes.is_home(path.parent) else path.name


def _from_clipping(run: Run) -> dict[str, float | None]:
    """What the run's noise is worth against each adversary without the premise of its rule, where it has one."""
    plan, rounds = run.plan, answers.read(run.path, run.plan)
    if not plan.rule.conditional:
        return {}
    found = plan.guarantees(rounds, Evaluation.of(run.facts), plan.rule.unconditional(plan))
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _noise_lengths(run: Run, summary: dict[str, Any]) -> list[float]:
    """The expected length of all noise in the model after each round."""
    sigma, parameters = summary["plan"]["noise"]["sigma_aggregate"], run.privacy["model_parameters"]
    return accumulated_noise(sigma, parameters, run.rounds_done, run.plan.carried_on)


def _fields(run: Run) -> list[tuple[str, Any, str]]:
    return [(name, getattr(run.plan, name), field.sentence) for name, field in fields.table().items()]
