"""The one table of a plan's fields.

Each field is declared once, with its name, type, default, limits, description, symbol, group and slider. Options of
the command line, comments in TOML, controls of the studio, rows of a report and the table in docs/reference.md are all
made from it (`table`). What follows from the fields is the Plan's business, which inherits them.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nbafl import rules
from nbafl.field_entries import COARSE, EVERY, Entry, PlanField, Slider
from nbafl.privacy import adversary, gaussian
from nbafl.privacy.release import Earlier

WHO, PRIVACY, TRAINING = "Who takes part", "Privacy", "Training"
MOST_CLIENTS = 1_000_000
"""A plan keeps a few numbers for each client: with a million of them it answers in seconds and 250 MB."""
MOST_ROUNDS = 100_000
"""Where K of N are drawn, the account has a term for each number of rounds a client may take part in."""


def _field(default: Any, about: str, entry: Entry, **limits: Any) -> Any:
    return Field(default, description=about, json_schema_extra={"entry": entry}, **limits)  # type: ignore[dict-item]


def _adversaries() -> dict[str, str]:
    return {each.kind: f"{each.title}: sees {each.short}" for each in adversary.table()}


def _rules() -> dict[str, str]:
    return {rule.name: rule.label for rule in rules.table()}


def _named(**labels: str) -> Callable[[], dict[str, str]]:
    return lambda: labels


class PlanFields(BaseModel):
    """The table itself. Field names are the command line's option names, with `-` for `_`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clients: int = _field(
        50,
        "parties that hold data",
        Entry("Clients", WHO, "N", slider=Slider(2, 1000), shown="front"),
        ge=1,
        le=MOST_CLIENTS,
    )
    per_round: int | None = _field(
        None,
        "clients drawn at random each round, without replacement",
        Entry("Drawn each round", WHO, "K", unset="all", slider=Slider(1, 50, EVERY), shown="front"),
        ge=1,
    )
    rounds: int = _field(
        25,
        "aggregations, each of them broadcast",
        Entry("Rounds", WHO, "T", slider=Slider(1, 500), shown="front", fitted=True),
        ge=1,
        le=MOST_ROUNDS,
    )
    samples: int = _field(
        1200,
        "records of each client, where all hold the same number",
        Entry("Records per client", WHO, "m", slider=Slider(10, 10_000), shown="front"),
        ge=1,
        le=10**12,
    )
    sizes: tuple[int, ...] | None = _field(
        None,
        "records of each client, where they differ; on the command line a file with one number per line",
        Entry("Sizes", WHO, unset="equal", metavar="FILE"),
    )
    dataset: str = _field(
        "mnist",
        "the embedded mnist, or a folder with one CSV or Parquet file per client and preferably a schema.toml "
        "(nbafl data schema)",
        Entry("Data", WHO, metavar="mnist|DIR", promise=False),
    )
    target: str | None = _field(
        None,
        "column to predict; needed for a folder of files",
        Entry("Target", WHO, unset="none", metavar="COLUMN"),
    )
    test: str | None = _field(
        None,
        "file with test records, for a folder of files",
        Entry("Test records", WHO, unset="none", metavar="FILE", promise=False),
    )
    task: Literal["binary", "classification", "regression"] | None = _field(
        None,
        "what the target is: binary (two classes, one output), classification or regression, where it could be either",
        Entry("Task", WHO, unset="as the data say"),
    )
    ignore: str | None = _field(
        None,
        "columns to leave out, separated by commas",
        Entry("Ignored columns", WHO, unset="none", metavar="COLUMNS", commas=True),
    )
    person: str | None = _field(
        None,
        "column that says whose row it is: all rows of a person are protected together (gradient); sizes then count persons",
        Entry("Person", WHO, unset="each row is its own", metavar="COLUMN"),
    )
    class_weights: str | None = _field(
        None,
        "public weights of classes, like ill=5,well=1 (others weigh 1): the weighted sum is divided by the number of "
        "records, and bounds grow with the largest weight",
        Entry("Class weights", WHO, unset="all 1", metavar="CLASS=WEIGHT,...", commas=True),
    )
    partition: str = _field(
        "iid", "how MNIST is dealt out: iid, dirichlet:ALPHA or shards:S", Entry("Partition", WHO)
    )
    features: Literal["raw", "scattering"] = _field(
        "scattering",
        "what the model sees of a record: raw, or scattering (a fixed wavelet transform of images)",
        Entry("Features", WHO, choices=_named(raw="Raw", scattering="Scattering (images)")),
    )

    epsilon: float = _field(
        1.0,
        "privacy loss claimed; smaller protects more and needs more noise",
        Entry("Privacy loss", PRIVACY, "ε", slider=Slider(0.1, 1000), shown="front"),
        ge=gaussian.LEAST_EPSILON,
        le=gaussian.MOST_EPSILON,
    )
    delta: float = _field(
        1e-5,
        "additive slack of (ε, δ)-differential privacy; keep it far below 1/m",
        Entry("Slack", PRIVACY, "δ", slider=Slider(1e-8, 0.1, COARSE), shown="front"),
        ge=gaussian.LEAST_DELTA,
        lt=1,
    )
    exposures: int = _field(
        1,
        "uploads of the protected client that an outsider may see; it may hear all others in as many further rounds",
        Entry("Uploads overheard", PRIVACY, "L", slider=Slider(1, 25, EVERY), shown="front"),
        ge=1,
        le=MOST_ROUNDS,
    )
    calibration: Literal["paper", "separate", "exact"] = _field(
        "exact",
        "how noise follows from ε: exact holds against the adversary, paper is as printed, separate is the paper's two "
        "requirements with exact arithmetic",
        Entry(
            "How noise follows from ε (calibration)",
            PRIVACY,
            choices=_named(
                exact="Exact: holds against the adversary chosen",
                separate="Separate: the paper's two requirements, exact arithmetic",
                paper="Paper: the rule as printed",
            ),
            shown="front",
        ),
    )
    adversary: str = _field(
        adversary.EAVESDROPPER.name,
        f"adversary that exact noise is computed for: {adversary.names()}",
        Entry("Who is looking (adversary)", PRIVACY, choices=_adversaries, shown="front"),
    )
    aggregation: Literal["plain", "secure"] = _field(
        "plain",
        "what the server sees: plain (every noisy upload), or secure (sums of at least M masked uploads, and nothing else)",
        Entry(
            "What the server sees (aggregation)",
            PRIVACY,
            choices=_named(plain="Plain: every noisy upload", secure="Secure: sums of masked uploads"),
            shown="front",
        ),
    )
    min_answers: int | None = _field(
        None,
        "fewest uploads of a sum; under plain aggregation a round with fewer stops the server",
        Entry(
            "Fewest uploads",
            PRIVACY,
            "M",
            unset="secure: a tenth of the clients may stay away; plain: half of those drawn",
            shown="details",
        ),
        ge=1,
    )
    dimension: int | None = _field(
        None,
        "coordinates of the model, which the grid of secure aggregation depends on",
        Entry("Coordinates", PRIVACY, "d", unset="found from data and model", shown="details"),
        ge=1,
        le=10**10,
    )
    sensitivity: str = _field(
        "gradient",
        "what clients upload, and how far one record, or one client, can move it: "
        + ", ".join(f"{rule.name} ({rule.short})" for rule in rules.table()),
        Entry("What one record can change (sensitivity)", PRIVACY, choices=_rules, shown="front"),
    )
    clip: float = _field(
        10.0,
        "norm bound of what is clipped before the upload, the weights or the update",
        Entry("Clipping norm", PRIVACY, "C", slider=Slider(0.1, 100), shown="front"),
        gt=0,
    )
    record_clip: float = _field(
        1.0,
        "norm bound of each record's gradient",
        Entry("Record gradient norm", PRIVACY, "G", slider=Slider(0.01, 100), shown="front", fitted=True),
        ge=1e-30,
        le=1e30,
    )
    feature_norm: float | None = _field(
        None,
        "norm bound of (features, 1) of each record, above 1",
        Entry("Feature norm", PRIVACY, "R", unset="none", shown="details"),
        gt=1,
        le=1e30,
    )
    tolerance: float | None = _field(
        None,
        "gradient norm to which the local problem is solved",
        Entry("Solved to", PRIVACY, "τ", unset="none: local steps", shown="details"),
        gt=0,
    )
    adjacency: Literal["replace", "drop"] = _field(
        "replace",
        "what neighbouring data differ by: replace, or drop",
        Entry(
            "Neighbours",
            PRIVACY,
            choices=_named(replace="Replace", drop="Drop (whole clients)"),
            shown="details",
        ),
    )
    reserve: float = _field(
        0.0,
        "share of the budget (of its mu²) that the noise leaves to noisy scores at the clients (serve --evaluate-every)",
        Entry("Reserve for scores", PRIVACY, shown="details"),
        ge=0,
        le=0.9,
    )
    noise: bool = _field(
        True, "noise on or off; without it clipping stays and nothing is guaranteed", Entry("Noise", PRIVACY)
    )

    model: str = _field(
        "softmax",
        "what is trained: mlp, softmax or package.module:factory",
        Entry(
            "Model",
            TRAINING,
            choices=_named(mlp="MLP 784-256-10", softmax="Softmax regression"),
            shown="details",
        ),
    )
    loss: str | None = _field(
        None,
        "a loss of your own, package.module:function of (outputs, targets) with one number per record",
        Entry("Loss", TRAINING, unset="as the task says", metavar="MODULE:FUNCTION"),
    )
    init: str | None = _field(
        None,
        "file with public weights to start from, by the model's own names",
        Entry(
            "Starting weights", TRAINING, unset="drawn by the seed", metavar="FILE.safetensors", promise=False
        ),
    )
    init_sha256: str | None = _field(
        None,
        "sha256 of that file",
        Entry("Hash of the starting weights", TRAINING, unset="that of init", metavar="HEX"),
        pattern="^[0-9a-f]{64}$",
    )
    continues: tuple[Earlier, ...] | None = _field(
        None,
        "finished runs that this one continues: epsilon is then for all of them together; on the command line the "
        "folder of the last one, whose plan and model are the starting point",
        Entry("Goes on with", TRAINING, unset="none", metavar="RUN"),
    )
    local_steps: int = _field(
        1,
        "optimiser steps of a client in a round",
        Entry("Local steps", TRAINING, "S", shown="details"),
        ge=1,
        le=1_000_000,
    )
    lr: float = _field(
        0.1,
        "step size of the local optimiser",
        Entry("Step size", TRAINING, "η", shown="details", fitted=True),
        gt=0,
    )
    mu: float = _field(
        0.01, "weight of the proximal term", Entry("Proximal weight", TRAINING, "μ", shown="details"), ge=0
    )
    batch: int | None = _field(
        None, "records of a local step", Entry("Batch", TRAINING, unset="all", shown="details"), ge=1
    )
    server_momentum: float = _field(
        0.0,
        "momentum of the server, after the noise, so it costs no privacy; 0 to below 1",
        Entry("Server momentum", TRAINING, fitted=True),
        ge=0,
        lt=1,
    )
    server_optimiser: Literal["sgd", "adam"] = _field(
        "sgd",
        "what the server does with a round's noisy average, which costs no privacy: sgd takes it (with server_momentum), "
        "adam scales each weight's step (server_momentum is its first beta)",
        Entry("Server optimiser", TRAINING),
    )
    server_lr: float | None = _field(
        None,
        "step size of the server's adam",
        Entry("Server step size", TRAINING, unset="0.01 with adam"),
        gt=0,
    )
    server_average: int = _field(
        1,
        "the final model is the mean of this many last broadcasts; costs no privacy",
        Entry("Averaged models", TRAINING),
        ge=1,
    )
    seed: int = _field(
        0,
        "seed of data split, initial weights, draws and, in simulation, noise",
        Entry("Seed", TRAINING, shown="details"),
        ge=0,
        lt=2**31,
    )
    device: Literal["cpu", "cuda", "auto"] = _field(
        "auto", "where to compute: cpu, cuda or auto", Entry("Device", TRAINING, promise=False)
    )
    engine: Literal["auto", "dual", "plain", "clients", "vmap"] = _field(
        "auto",
        "how to compute, with the same result: auto, dual, plain, clients or vmap",
        Entry("Engine", TRAINING, promise=False),
    )
    eval_every: int = _field(
        10, "rounds between two evaluations", Entry("Evaluation", TRAINING, promise=False), ge=1
    )


@cache
def table() -> dict[str, PlanField]:
    """Every field by its name, in the order of the table."""
    return {
        name: PlanField(
            name,
            str(field.description),
            _kind(field.annotation),
            field.default,
            typing.cast(dict[str, Any], field.json_schema_extra)["entry"],
        )
        for name, field in PlanFields.model_fields.items()
    }


def _kind(annotation: Any) -> str:
    """The type of a field's values, without None."""
    if typing.get_origin(annotation) is Literal:
        return "str"
    parts = [part for part in typing.get_args(annotation) if part is not type(None)] or [annotation]
    if typing.get_origin(parts[0]) is Literal:
        return "str"
    return "list" if typing.get_origin(parts[0]) is tuple else str(parts[0].__name__)
