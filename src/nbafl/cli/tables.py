"""What `plan` and `run` print for a person: tables of noise and guarantees, and the sentences that belong to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from nbafl.plan import Plan

SEES = {
    "broadcast": "all broadcasts",
    "targeted": "broadcasts, L uploads of one client",
    "eavesdropper": "broadcasts, L uploads of each client",
    "eavesdropper_spread": "the same, taps spread over rounds",
    "curious_server": "every upload",
}


def print_plan(plan: Plan, summary: dict[str, Any], console: Console | None = None) -> None:
    """The whole answer of `nbafl plan`."""
    console = console or Console()
    console.print(_setting(plan))
    console.print(_noise_table(plan, summary))
    console.print(_guarantee_table(plan, summary))
    console.print(
        "\n".join(["[bold]Assumptions[/bold]", *(f"  • {line}" for line in summary["assumptions"])])
    )
    for warning in summary["warnings"]:
        console.print(f"[yellow]Warning:[/yellow] {warning}")
    if "curves" in summary:
        _print_bounds(summary, console)


def _print_bounds(summary: dict[str, Any], console: Console) -> None:
    """What --bounds adds: the three forms at this plan, their curves, and how the best T follows epsilon."""
    curves = summary["curves"]
    console.print(_best_table(summary))
    console.print(
        _curve_table("Loss gap (printed, repaired) and loss (empirical) over T", "T", curves["rounds"])
    )
    console.print(_curve_table("The same over K", "K", curves["per_round"]))
    console.print(_epsilon_table(curves["epsilon"]))
    console.print(summary["pilot_note"])


def _setting(plan: Plan) -> str:
    who = f"{plan.clients} clients" + (
        f", {plan.drawn} drawn each round" if plan.drawn < plan.clients else ""
    )
    return (
        f"[bold]Plan[/bold]: {who}, {plan.rounds} rounds, claim epsilon={plan.epsilon:g} at delta={plan.delta:g} against "
        f"{plan.adversary} (L={plan.exposures}), calibration {plan.calibration}, sensitivity {plan.sensitivity}"
    )


def _noise_table(plan: Plan, summary: dict[str, Any]) -> Table:
    table = Table(title="Noise (standard deviation of each coordinate)")
    for heading in ("", "this plan", "the paper's rule"):
        table.add_column(heading, justify="left" if not heading else "right")
    paper = plan.paper_rule()["noise"]
    rows = (
        ("uploads, sigma_U", "sigma_uplink"),
        ("broadcast, sigma_D", "sigma_downlink"),
        ("in the aggregate, sigma_A", "sigma_aggregate"),
    )
    for label, key in rows:
        table.add_row(label, number(summary["noise"][key]), number(paper[key]))
    table.add_section()
    table.add_row("sensitivity of an upload", number(summary["sensitivity"]["uplink"]), "")
    table.add_row("sensitivity of a broadcast", number(summary["sensitivity"]["downlink"]), "")
    return table


def _guarantee_table(plan: Plan, summary: dict[str, Any]) -> Table:
    unit = summary["claimed"]["unit"]
    table = Table(title=f"epsilon at delta={plan.delta:g}, per {unit} ({plan.adjacency}), for each adversary")
    table.add_column("adversary")
    table.add_column("sees")
    table.add_column("this plan" + (" if 2C/m holds" if summary["conditional"] else ""), justify="right")
    if summary["conditional"]:
        table.add_column("unconditional (2C)", justify="right")
    table.add_column("paper's rule", justify="right")
    paper = plan.paper_rule()["guarantee"]
    for name, entry in summary["guarantee"].items():
        row = [name.replace("_", "-"), SEES.get(name, "see assumptions"), number(entry["epsilon"])]
        if summary["conditional"]:
            row.append(number(summary["unconditional"][name]["epsilon"]))
        table.add_row(*row, number(paper[name]["epsilon"]))
    return table


def _best_table(summary: dict[str, Any]) -> Table:
    table = Table(title="Convergence: value at this plan, and the best T and K")
    for heading in ("form", "value", "best T", "best K", "why not"):
        table.add_column(heading)
    for form, best in summary["best"].items():
        value = summary["predicted_loss"] if form == "empirical" else summary["bound"][form]
        reason = summary["reasons"].get(form) or ""
        table.add_row(
            form,
            number(value),
            number((best or {}).get("rounds")),
            number((best or {}).get("per_round")),
            reason,
        )
    return table


def _curve_table(title: str, symbol: str, curves: dict[str, Any]) -> Table:
    """A dozen points of each form's curve over T or K, and what is special about it."""
    table = Table(title=title)
    table.add_column(symbol, justify="right")
    for form in curves:
        table.add_column(form, justify="right")
    points = {
        form: dict(zip(curve["candidates"], curve["values"], strict=True)) for form, curve in curves.items()
    }
    shared = sorted(set.intersection(*(set(found) for found in points.values())))
    special = {curve["at"] for curve in curves.values() if curve["at"] is not None}
    for at in sorted({*shared[:: max(1, len(shared) // 12)], *special}):
        cells = [_point(found.get(at), at == curves[form]["at"]) for form, found in points.items()]
        table.add_row(str(at), *cells)
    return table


def _point(value: float | None, best: bool) -> str:
    return "" if value is None else f"{value:.4g}" + (" ← least" if best else "")


def _epsilon_table(moves: list[dict[str, Any]]) -> Table:
    table = Table(title="How the best T moves with epsilon")
    table.add_column("epsilon", justify="right")
    for form in moves[0]["best_rounds"]:
        table.add_column(form, justify="right")
    for move in moves:
        table.add_row(number(move["epsilon"]), *(number(best) for best in move["best_rounds"].values()))
    return table


def number(value: Any) -> str:
    """Six digits; lists of clients' scales as their range; None is what has no finite value."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"{min(value):.6g} to {max(value):.6g}"
    return f"{value:.6g}"
