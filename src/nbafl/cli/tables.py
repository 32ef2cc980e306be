"""What `plan` and `run` print for a person: tables of noise and guarantees, and the sentences that belong to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from nbafl import aggregation
from nbafl.privacy.scope import Scope

if TYPE_CHECKING:
    from nbafl.plan import Plan


def print_plan(plan: Plan, summary: dict[str, Any], console: Console | None = None) -> None:
    """The whole answer of `nbafl plan`."""
    console = console or Console()
    console.print(_setting(plan))
    console.print(_noise_table(plan, summary))
    console.print(_guarantee_table(plan, summary))
    if plan.noise:
        console.print(_claim(plan, summary), highlight=False)
        console.print(_modes_table(plan, summary["aggregation"]))
    console.print(
        "\n".join(["[bold]Assumptions[/bold]", *(f"  • {line}" for line in summary["assumptions"])])
    )
    for warning in summary["warnings"]:
        console.print(f"[yellow]Warning:[/yellow] {warning}")
    if "curves" in summary:
        _print_bounds(summary, console)


def _claim(plan: Plan, summary: dict[str, Any]) -> str:
    """The two badges: is the claim kept, and is it strong."""
    from nbafl.privacy import adversary, badges
    from nbafl.studio.answer import best_guess

    named = adversary.parse(plan.adversary)
    found = summary["guarantee"][named.key]["epsilon"]
    delivers = badges.holds(found, plan.epsilon)
    guess = best_guess(plan, named)
    return (
        f"[bold]Claim[/bold]: {badges.kept(delivers, summary['conditional']).word}. [bold]Strength[/bold]: "
        f"{badges.strength(guess).word}; against {named.name} the best guess about one {summary['claimed']['unit']} "
        f"can be right {badges.percent(guess)} of the time{plan.rule.if_it_holds} (a coin: 50%)."
    )


def _print_bounds(summary: dict[str, Any], console: Console) -> None:
    """What --bounds adds: the three forms at this plan, their curves, and how the best T follows epsilon."""
    curves = summary["curves"]
    console.print(_best_table(summary))
    console.print(
        _curve_table("Loss gap (printed, repaired) and loss (empirical) over T", "T", curves["rounds"])
    )
    console.print(_curve_table("The same over K", "K", curves["per_round"]))
    console.print(_epsilon_table(curves["epsilon"]))
    rehearsal = summary.get("rehearsal")
    if rehearsal is not None:
        right = "" if rehearsal["accuracy"] is None else f", accuracy {rehearsal['accuracy']:.1%}"
        console.print(
            f"Rehearsed {rehearsal['draws']} times with noise of this size: training loss {rehearsal['loss']:.4g} "
            f"(give or take {rehearsal['loss_spread']:.2g}){right}."
        )
    console.print(summary["pilot_note"])


def _setting(plan: Plan) -> str:
    who = f"{plan.clients} clients" + (
        f", {plan.drawn} drawn each round" if plan.drawn < plan.clients else ""
    )
    scope = Scope.of(plan)
    return (
        f"[bold]Plan[/bold]: {who}, {plan.rounds} rounds, claim epsilon={plan.epsilon:g} at delta={plan.delta:g} against "
        f"{plan.adversary} (L={plan.exposures}), per {scope.whom}{scope.premise}; calibration {plan.calibration}, "
        f"sensitivity {plan.sensitivity}"
    )


def _noise_table(plan: Plan, summary: dict[str, Any]) -> Table:
    table = Table(title="Noise (standard deviation of each coordinate)")
    for heading in ("", "this plan", "the paper's rule"):
        table.add_column(heading, justify="left" if not heading else "right")
    paper = plan.paper_rule()["noise"]
    rows = (
        ("at each client, sigma_U", "sigma_uplink"),
        ("at the server, sigma_D", "sigma_downlink"),
        ("in all, sigma_A", "sigma_aggregate"),
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
    table.add_column("adversary", no_wrap=True)
    table.add_column("sees")
    table.add_column("this plan" + plan.rule.if_it_holds, justify="right")
    if summary["conditional"]:
        table.add_column("unconditional (2C)", justify="right")
    table.add_column("paper's rule", justify="right")
    paper = plan.paper_rule()["guarantee"]
    for each in plan.adversaries():
        row = [each.name, each.short, number(summary["guarantee"][each.key]["epsilon"])]
        if summary["conditional"]:
            row.append(number(summary["unconditional"][each.key]["epsilon"]))
        table.add_row(*row, number(paper[each.key]["epsilon"]))
    table.caption = aggregation.masked(plan).removeprefix("; ") or None
    return table


def _modes_table(plan: Plan, modes: dict[str, Any]) -> Table:
    """What the same claim costs, and is worth against the others, when the server sees uploads and when it sees sums."""
    scope = Scope.of(plan)
    about = f"epsilon at delta={plan.delta:g}, per {scope.whom}{scope.premise}"
    title = f"The same claim under both ways of aggregation: {about}"
    if plan.aggregation == "secure":
        title += (
            f" (M={modes['min_answers']}, k={modes['accomplices']}, grid step {modes['grid']['step']:g}, "
            f"{modes['grid']['bits']} bits)"
        )
    table = Table(title=title)
    table.add_column("adversary", no_wrap=True)
    shown = {mode: modes[mode] for mode in ("plain", "secure")}
    for mode in shown:
        table.add_column(mode + (" (this plan)" if mode == modes["mode"] else ""), justify="right")
    refused = [
        f"[yellow]{mode}:[/yellow] {each['refused']}" for mode, each in shown.items() if "refused" in each
    ]
    for each in plan.adversaries():
        table.add_row(
            each.name,
            *(
                "–" if "refused" in made else number(made["guarantee"][each.key]["epsilon"])
                for made in shown.values()
            ),
        )
    table.add_row(
        _opener(plan, modes),
        *("–" if "refused" in made else number(made["opened"]["epsilon"]) for made in shown.values()),
    )
    table.add_section()
    table.add_row(
        "noise in all, sigma_A",
        *("–" if "refused" in made else number(made["sigma_aggregate"]) for made in shown.values()),
    )
    table.caption = "\n".join(refused) or None
    return table


def _opener(plan: Plan, modes: dict[str, Any]) -> str:
    """Who sees single uploads: under plain aggregation any server, under secure one with more accomplices than planned."""
    more = modes.get("accomplices", aggregation.accomplices(plan)) + 1
    return f"server, {more} or more accomplices"


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
