"""The options that `plan`, `run`, `audit` and `serve` share, and how they become a Plan.

Precedence: option > --config file > --preset > default. Every option is therefore unset by default here; the
defaults (the paper's setting) live in `Plan`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from nbafl.errors import DataError, UsageError
from nbafl.presets import OF_MNIST, PRESETS

if TYPE_CHECKING:
    from nbafl.data.federation import Federation
    from nbafl.plan import Plan

Verb = TypeVar("Verb", bound=Callable[..., Any])

_WHO, _PRIVACY, _TRAINING, _OUTPUT = "Who takes part", "Privacy", "Training", "Output"


def _option(kind: Any, help: str, panel: str, *names: str, metavar: str | None = None) -> Any:
    return Annotated[kind | None, typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar)]


PLAN_OPTIONS: dict[str, Any] = {
    "clients": _option(int, "N, parties that hold data. [50]", _WHO),
    "per_round": _option(int, "K, clients drawn at random each round. [all]", _WHO),
    "rounds": _option(int, "T, aggregations. [25]", _WHO),
    "samples": _option(int, "Records of each client. [100]", _WHO),
    "sizes": _option(
        str, "A file with one number of records per line, for unequal clients. [equal]", _WHO, metavar="FILE"
    ),
    "dataset": _option(
        str,
        "mnist, or a folder with one CSV file per client and public ranges of its numbers in ranges.toml. [mnist]",
        _WHO,
        metavar="mnist|DIR",
    ),
    "target": _option(str, "Column to predict; needed for a folder of CSV files.", _WHO, metavar="COLUMN"),
    "test": _option(
        str, "CSV file with test records, for a folder of CSV files. [none]", _WHO, metavar="FILE"
    ),
    "partition": _option(str, "How MNIST is dealt out: iid, dirichlet:ALPHA or shards:S. [iid]", _WHO),
    "features": _option(str, "What the model sees of a record: raw or scattering. [raw]", _WHO),
    "epsilon": _option(float, "Privacy loss claimed; smaller protects more. [50]", _PRIVACY),
    "delta": _option(
        float, "Added to every chance beside the factor e^epsilon; keep it far below 1/m. [0.01]", _PRIVACY
    ),
    "exposures": _option(int, "L, uploads of each client an outsider may see. [1]", _PRIVACY),
    "calibration": _option(
        str, "How noise follows from epsilon: paper, separate or exact. [exact]", _PRIVACY
    ),
    "adversary": _option(
        str,
        "Whom exact noise is made for: eavesdropper, eavesdropper-spread, targeted, broadcast, curious-server or "
        "colluders:COUNT. [eavesdropper]",
        _PRIVACY,
    ),
    "sensitivity": _option(
        str,
        "How far a record can move an upload: paper (conditional), proximal, gradient or client. [paper]",
        _PRIVACY,
    ),
    "clip": _option(float, "C, norm of the weights, or of the update under client. [10]", _PRIVACY),
    "record_clip": _option(float, "G, norm of each record's gradient, under gradient. [1]", _PRIVACY),
    "feature_norm": _option(
        float, "R, norm bound of (features, 1) of each record; needed under proximal. [none]", _PRIVACY
    ),
    "tolerance": _option(
        float, "Gradient norm the local problem is solved to, under proximal. [none: local steps]", _PRIVACY
    ),
    "adjacency": _option(
        str, "What neighbours differ by: replace, or drop (under client). [replace]", _PRIVACY
    ),
    "noise": Annotated[
        bool | None,
        typer.Option(
            "--noise/--no-noise", help="Noise on or off; clipping stays. [on]", rich_help_panel=_PRIVACY
        ),
    ],
    "model": _option(str, "mlp, softmax or package.module:factory. [mlp]", _TRAINING),
    "local_steps": _option(int, "Optimiser steps of a client in a round. [5; 1 under gradient]", _TRAINING),
    "lr": _option(float, "Step size of the local optimiser. [0.1]", _TRAINING),
    "mu": _option(float, "Weight of the proximal term. [0.01]", _TRAINING),
    "batch": _option(int, "Records of a local step. [all]", _TRAINING),
    "server_momentum": _option(
        float, "Momentum of the server, after the noise, 0 to below 1. [0]", _TRAINING
    ),
    "seed": _option(int, "Seed of split, weights, draws and noise. [0]", _TRAINING),
    "device": _option(str, "Where to compute: cpu, cuda or auto. [auto]", _TRAINING),
    "engine": _option(
        str, "How to compute, with the same result: auto, dual, plain or vmap. [auto]", _TRAINING
    ),
    "eval_every": _option(int, "Rounds between evaluations. [1]", _TRAINING),
    "preset": _option(str, "Start from a named setting: " + " or ".join(PRESETS) + ". [none]", _OUTPUT),
    "config": _option(str, "Start from a plan file. [none]", _OUTPUT, metavar="plan.toml"),
}


def with_plan_options(verb: Verb) -> Verb:
    """Give a verb the shared options; it receives those the user set as its first argument, a dict."""
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in PLAN_OPTIONS.items()
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

    def wrapper(**values: Any) -> Any:
        given = {name: values.pop(name) for name in PLAN_OPTIONS}
        return verb({name: value for name, value in given.items() if value is not None}, **values)

    wrapper.__signature__ = inspect.Signature(shared + own)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in shared + own}
    wrapper.__doc__ = verb.__doc__
    return wrapper  # type: ignore[return-value]


def plan_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Merge preset, config file and options into the fields of a Plan."""
    from nbafl.plan import read_toml

    given = dict(given)
    preset, config = given.pop("preset", None), given.pop("config", None)
    if preset is not None and preset not in PRESETS:
        raise UsageError("preset", preset, "one of " + ", ".join(PRESETS))
    if "sizes" in given:
        given["sizes"] = read_sizes(given["sizes"])
    chosen = {**(read_toml(config) if config else {}), **given}
    start = PRESETS[preset] if preset is not None else {}
    if chosen.get("dataset", "mnist") != "mnist":
        start = {name: value for name, value in start.items() if name not in OF_MNIST}
    return {**start, **chosen}


def plan_and_federation(given: dict[str, Any]) -> tuple[Plan, Federation]:
    """The plan the user described and the data it names."""
    from nbafl.plan import Plan
    from nbafl.run import federation_of

    fields = plan_fields(given)
    if fields.get("dataset", "mnist") == "mnist":
        plan = Plan(**fields)
        return plan, federation_of(plan)
    federation = federation_of(Plan(**{name: fields[name] for name in _DATA_FIELDS & fields.keys()}))
    return Plan(**_with_found_sizes(fields, federation.sizes.tolist())), federation


def plan_of(given: dict[str, Any]) -> Plan:
    """The plan alone; a folder of CSV files is read because its sizes belong to the plan."""
    from nbafl.plan import Plan

    fields = plan_fields(given)
    return Plan(**fields) if fields.get("dataset", "mnist") == "mnist" else plan_and_federation(given)[0]


_DATA_FIELDS = {"dataset", "target", "test", "features", "feature_norm"}


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
