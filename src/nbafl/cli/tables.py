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
        console.print(_best_table(summary))
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
        value = summary["bound"].get(form, summary.get("predicted_loss"))
        if isinstance(value, dict):  # no value: the reason stands in its own column
            value = None
        reason = summary["reasons"].get(form) or ""
        table.add_row(
            form,
            number(value),
            number((best or {}).get("rounds")),
            number((best or {}).get("per_round")),
            reason,
        )
    return table


def number(value: Any) -> str:
    """Six digits; lists of clients' scales as their range; None is what has no finite value."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"{min(value):.6g} to {max(value):.6g}"
    return f"{value:.6g}"
