"""The options that `plan`, `run`, `audit` and `serve` share, and how they become a Plan.

Precedence: option > --config file > --preset > default. Every option is therefore unset by default here; the
defaults live in the table of fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from nbafl.cli.data import settled_test
from nbafl.errors import DataError, UsageError
from nbafl.field_entries import PlanField
from nbafl.fields import table
from nbafl.presets import OF_MNIST, PRESETS

if TYPE_CHECKING:
    from nbafl.data.federation import Federation
    from nbafl.plan import Plan

Verb = TypeVar("Verb", bound=Callable[..., Any])


def _option(field: PlanField) -> Any:
    """The option of a field, as typer wants it."""
    option = typer.Option(
        *([f"--{field.name}/--no-{field.name}"] if field.kind == "bool" else []),
        help=f"{field.sentence} [{field.shown_default}]",
        rich_help_panel=field.entry.group,
        metavar=field.entry.metavar,
    )
    return Annotated[_KINDS[field.kind] | None, option]


def _output(help: str, metavar: str | None = None) -> Any:
    return Annotated[str | None, typer.Option(help=help, rich_help_panel="Output", metavar=metavar)]


_KINDS: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "list": str}
TRACK = typer.Option(
    help="Also log to tensorboard or mlflow (repeat for both). [neither]",
    metavar="TRACKER",
    rich_help_panel="Output",
)
PLAN_OPTIONS: dict[str, Any] = {
    **{name: _option(field) for name, field in table().items()},
    "preset": _output("Start from a named setting: " + " or ".join(PRESETS) + ". [none]"),
    "config": _output("Start from a plan file. [none]", metavar="plan.toml"),
}


def _several(field: PlanField) -> Any:
    """The option of a field that may be given several values; `values_of` reads them."""
    if field.kind in ("bool", "list"):
        return _option(field)
    told = f"{field.sentence} [{field.shown_default}]"
    return Annotated[
        str | None, typer.Option(help=told, rich_help_panel=field.entry.group, metavar=field.entry.metavar)
    ]


SEVERAL_OPTIONS: dict[str, Any] = {
    **PLAN_OPTIONS,
    **{name: _several(field) for name, field in table().items()},
}


def values_of(name: str, given: Any) -> list[Any]:
    """The values of a field, separated by commas, or by semicolons where one value may hold commas.

    `none` leaves a field unset."""
    field = table()[name]
    kind = _KINDS[field.kind]
    if not isinstance(given, str) or field.kind == "list":
        return [given]
    values = []
    for part in (part.strip() for part in given.split(";" if field.entry.commas else ",")):
        try:
            values.append(None if part == "none" and field.default is None else kind(part))
        except ValueError:
            raise UsageError(
                name, part, f"a value of the kind {kind.__name__}, or several with commas"
            ) from None
    return values


def with_plan_options(verb: Verb, options: dict[str, Any] | None = None) -> Verb:
    """Give a verb the shared options; it receives those the user set as its first argument, a dict."""
    options = PLAN_OPTIONS if options is None else options
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options.items()
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

    def wrapper(**values: Any) -> Any:
        given = {name: values.pop(name) for name in options}
        return verb({name: value for name, value in given.items() if value is not None}, **values)

    wrapper.__signature__ = inspect.Signature(shared + own)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in shared + own}
    wrapper.__doc__ = verb.__doc__
    return wrapper  # type: ignore[return-value]


def plan_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Merge preset, config file and options into the fields of a Plan."""
    from nbafl import plan_file

    given = dict(given)
    preset, config = given.pop("preset", None), given.pop("config", None)
    if preset is not None and preset not in PRESETS:
        raise UsageError("preset", preset, "one of " + ", ".join(PRESETS))
    if "sizes" in given:
        given["sizes"] = read_sizes(given["sizes"])
    if "continues" in given:
        return _going_on(given, preset, config)
    content, defaults = plan_file.read(config) if config else ({}, {})
    chosen = {**content, **given}
    start = {**defaults, **(PRESETS[preset] if preset is not None else {})}
    if chosen.get("dataset", "mnist") != "mnist":
        start = {name: value for name, value in start.items() if name not in OF_MNIST}
    if "sizes" in chosen:  # they say how many clients there are, and what each holds
        start = {name: value for name, value in start.items() if name not in ("clients", "samples")}
    about = next((name for name in _OF_TABLES if name in given), None)
    if about is not None and chosen.get("dataset", "mnist") == "mnist":
        raise UsageError("dataset", "mnist", f"the folder of the tables that --{about} is about")
    return {**start, **chosen}


def _going_on(given: dict[str, Any], preset: str | None, config: str | None) -> dict[str, Any]:
    """The plan of the run that is gone on with, with the options given."""
    from nbafl.folders.earlier import going_on

    for name, value in (("preset", preset), ("config", config), ("init", given.get("init"))):
        if value is not None:
            raise UsageError(
                "continues", given["continues"], f"without --{name}: the run has a plan and a model"
            )
    return going_on(given.pop("continues"), **given)


def plan_and_federation(given: dict[str, Any]) -> tuple[Plan, Federation]:
    """The plan the user described and the data it names."""
    from nbafl.plan import Plan
    from nbafl.run import federation_of
    from nbafl.run.plan_data import found_dimension, public_facts

    fields = settled_test(plan_fields(given))
    if fields.get("dataset", "mnist") == "mnist":
        plan = Plan(**{**fields, **_of_mnist(fields)})
        return plan, federation_of(plan)
    described = Plan(**{name: fields[name] for name in _DATA_FIELDS & fields.keys()})
    federation = federation_of(described)
    fields = _with_found_sizes(fields, federation.units.tolist())
    found = found_dimension(fields, lambda: _seen(described, federation))
    raw = fields.get("features", "raw") == "raw"
    return Plan(**{**public_facts(federation, raw), **fields, **found}), federation


def plan_of(given: dict[str, Any]) -> Plan:
    """The plan alone; a folder of CSV files is read because its sizes belong to the plan."""
    from nbafl.plan import Plan

    fields = plan_fields(given)
    if fields.get("dataset", "mnist") == "mnist":
        return Plan(**{**fields, **_of_mnist(fields)})
    return plan_and_federation(given)[0]


def _seen(plan: Plan, federation: Federation) -> tuple[tuple[int, ...], int]:
    """Shape of a record as the model sees it, and number of outputs."""
    from nbafl.run.plan_data import seen_by_the_model

    return tuple(seen_by_the_model(plan, federation).shape), federation.outputs


def _of_mnist(fields: dict[str, Any]) -> dict[str, int]:
    """How many coordinates a model of the user's own has on MNIST, where the plan needs to know."""
    from nbafl.plan import Plan
    from nbafl.run import federation_of
    from nbafl.run.plan_data import found_dimension

    def one_client() -> tuple[tuple[int, ...], int]:
        seen = {name: fields[name] for name in {"model", "features", "feature_norm"} & fields.keys()}
        small = Plan(**seen, clients=1, samples=10)
        return _seen(small, federation_of(small))

    return found_dimension(fields, one_client)


_DATA_FIELDS = {"dataset", "target", "test", "task", "ignore", "person", "features", "feature_norm"}
_OF_TABLES = ("target", "test", "ignore")  # without a folder they would silently be about the digits


def _with_found_sizes(fields: dict[str, Any], sizes: list[int]) -> dict[str, Any]:
    """A folder of CSV files decides N and the sizes; a plan that says otherwise is refused."""
    if fields.get("clients", len(sizes)) != len(sizes):
        raise UsageError(
            "clients", fields["clients"], f"the number of files in {fields['dataset']!r} ({len(sizes)})"
        )
    if list(fields.get("sizes") or sizes) != sizes:
        raise UsageError("sizes", fields["sizes"], f"what the files in {fields['dataset']!r} hold ({sizes})")
    samples = fields.get("samples")
    if samples is not None and "sizes" not in fields and set(sizes) != {samples}:
        raise UsageError(
            "samples", samples, f"unset: the files in {fields['dataset']!r} hold {sizes} records"
        )
    if fields.get("partition", "iid") != "iid":
        raise UsageError(
            "partition", fields["partition"], "unset for a folder of CSV files, which says who has what"
        )
    return {**fields, "clients": len(sizes), "sizes": tuple(sizes)}


def read_sizes(path: str) -> tuple[int, ...]:
    """One whole number per line."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip()]
        sizes = tuple(int(line) for line in lines)
    except OSError as error:
        raise DataError(f"sizes file {path!r} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise DataError(f"sizes file {path!r} must hold one whole number per line.") from None
    if not sizes:
        raise DataError(f"sizes file {path!r} is empty; it must hold one whole number per line.")
    return sizes
