"""The Plan: a frozen, validated description of a federation, and what it promises.

This is the only module that joins privacy with training. A Plan answers three questions: how much noise goes where
(`noise_scales`), what that noise is worth against each adversary (`guarantees`, `summary`), and what each client
does in a round (`job`). It refuses what cannot be, in one sentence that names the field.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nbafl import caveats
from nbafl.errors import DataError, UsageError
from nbafl.privacy import accounting, adversary, calibration, sensitivity
from nbafl.privacy.adversary import Noise, Release
from nbafl.privacy.sensitivity import Sensitivity
from nbafl.privacy.statement import Statement

if TYPE_CHECKING:  # they bring torch, which a plan that is only looked at does not need
    from nbafl.protocol.training import Training
    from nbafl.simulation.job import Job

PROVEN_CONVEX_MODELS = ("softmax",)
UNASKED = "not asked for: pass --bounds"


class Plan(BaseModel):
    """A federation as it is meant to be. Field names are the command line's option names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clients: int = Field(50, ge=1, description="N, how many parties hold data")
    per_round: int | None = Field(None, ge=1, description="K, clients drawn at random each round; unset: all")
    rounds: int = Field(25, ge=1, description="T, how many aggregations are broadcast")
    samples: int = Field(100, ge=1, description="records a client holds, when all hold the same number")
    sizes: tuple[int, ...] | None = Field(None, description="records of each client, when they differ")
    dataset: str = Field("mnist", description="mnist (embedded), or a folder with one CSV file per client")
    target: str | None = Field(None, description="the column to predict, for a folder of CSV files")
    test: str | None = Field(None, description="a CSV file with the test records, for a folder of CSV files")
    partition: str = Field("iid", description="how MNIST is dealt out: iid, dirichlet:ALPHA or shards:S")
    features: Literal["raw", "scattering"] = Field("raw", description="what the model sees of a record")

    epsilon: float = Field(50.0, gt=0, description="the privacy loss claimed; smaller protects more")
    delta: float = Field(
        0.01, gt=0, lt=1, description="added to every chance beside the factor e^epsilon; far below 1/m"
    )
    exposures: int = Field(1, ge=1, description="L, uploads of each client that an outsider may see")
    calibration: Literal["paper", "separate", "exact"] = Field(
        "exact", description="how noise follows from (epsilon, delta): exact holds, paper is as printed"
    )
    adversary: str = Field(
        "eavesdropper",
        description="whom exact noise is made for: eavesdropper, eavesdropper-spread, targeted, broadcast, "
        "curious-server or colluders:COUNT",
    )
    sensitivity: Literal["paper", "proximal", "gradient", "client"] = Field(
        "paper", description="how far one record (or client) can move an upload; paper is conditional"
    )
    clip: float = Field(
        10.0, gt=0, description="C, norm bound of the weights (paper, proximal) or of the update (client)"
    )
    record_clip: float = Field(1.0, gt=0, description="G, norm bound of each record's gradient (gradient)")
    feature_norm: float | None = Field(
        None, gt=0, description="R, norm bound of (features, 1) of each record"
    )
    tolerance: float | None = Field(
        None, gt=0, description="solve the local problem to this gradient norm (proximal); unset: plain steps"
    )
    adjacency: Literal["replace", "drop"] = Field(
        "replace", description="what neighbouring data sets differ by"
    )
    noise: bool = Field(True, description="false: no noise, clipping stays, no guarantee")

    model: str = Field("mlp", description="mlp, softmax, or package.module:factory")
    local_steps: int = Field(5, ge=1, description="optimiser steps of a client in a round")
    lr: float = Field(0.1, gt=0, description="step size of the local optimiser")
    mu: float = Field(0.01, ge=0, description="weight of the proximal term")
    batch: int | None = Field(None, ge=1, description="records a local step uses; unset: all")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the server, after the noise")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of data split, initial weights, draws and noise")
    device: Literal["cpu", "cuda", "auto"] = Field("auto", description="where to compute")
    engine: Literal["auto", "dual", "plain", "vmap"] = Field(
        "auto", description="how to compute; same result"
    )
    eval_every: int = Field(1, ge=1, description="rounds between two evaluations")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**_with_dependent_defaults(fields))
        except ValidationError as error:
            raise _as_usage_error(error) from None

    @model_validator(mode="after")
    def _check(self) -> Plan:
        _check_counts(self)
        adversary.parse(self.adversary)
        if self.sensitivity == "client":
            return self
        if self.adjacency == "drop":
            raise UsageError(
                "adjacency", "drop", f"replace under sensitivity {self.sensitivity} (a record is swapped)"
            )
        self.sensitivity_of()
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    # --- what follows from the plan -------------------------------------------------------------------------

    @property
    def drawn(self) -> int:
        """K: how many clients take part in a round."""
        return self.per_round or self.clients

    @cached_property
    def client_sizes(self) -> np.ndarray:
        """|D_i| of every client."""
        if self.sizes is not None:
            return np.asarray(self.sizes, dtype=np.int64)
        return np.full(self.clients, self.samples, dtype=np.int64)

    @cached_property
    def client_weights(self) -> np.ndarray:
        """p_i: by records (eq. 1), or equal where a whole client is protected and its size is private too."""
        sizes = np.ones(self.clients) if self.weighting == "uniform" else self.client_sizes
        return sizes / sizes.sum()

    @property
    def weighting(self) -> Literal["records", "uniform"]:
        return "uniform" if self.sensitivity == "client" else "records"

    def sensitivity_of(self) -> Sensitivity:
        """How far one record (or client) can move one upload; refuses a premise the training breaks."""
        match self.sensitivity:
            case "paper":
                return sensitivity.paper(self.clip, self.client_sizes)
            case "client":
                return sensitivity.client(self.clip, self.clients, self.adjacency)
            case "gradient":
                return _gradient_sensitivity(self)
            case "proximal":
                return _proximal_sensitivity(self)

    def release(self) -> Release:
        """What leaves the federation, apart from the noise."""
        return self._release(self.sensitivity_of())

    def noise_scales(self) -> Noise:
        """sigma of each upload and of the broadcast; zero when the noise is switched off."""
        return self._noise

    @cached_property
    def _noise(self) -> Noise:
        if not self.noise:
            return Noise(np.zeros(self.clients), 0.0)
        return self._calibrated(self.calibration)

    def guarantees(self) -> dict[str, float]:
        """epsilon at this plan's delta against each adversary; infinite where nothing holds."""
        return self._epsilons(self.release(), self.noise_scales())

    def epsilon_after(self, rounds_done: int) -> float:
        """epsilon spent against this plan's adversary once so many rounds are over."""
        if rounds_done == 0:
            return 0.0
        so_far = dataclasses.replace(
            self.release(), rounds=rounds_done, exposures=min(self.exposures, rounds_done)
        )
        return accounting.epsilon_spent(
            so_far, self.noise_scales(), adversary.parse(self.adversary), self.delta
        )

    def training(self, task: str = "classification") -> Training:
        """What one client does in one round."""
        from nbafl.protocol.training import Training

        return Training(
            rule=self.sensitivity,
            steps=self.local_steps,
            lr=self.lr,
            mu=self.mu,
            batch=self.batch,
            clip=self.clip,
            record_clip=self.record_clip,
            tolerance=self.tolerance,
            feature_norm=self.feature_norm,
            loss="squared" if task == "regression" else "cross_entropy",
        )

    def job(self, task: str = "classification") -> Job:
        """This plan as the plain numbers a simulation needs."""
        from nbafl.simulation.job import Job

        noise = self.noise_scales()
        return Job(
            training=self.training(task),
            rounds=self.rounds,
            per_round=self.drawn,
            sigma_uplink=_scalar_or_tuple(noise.sigma_uplink),
            sigma_downlink=noise.sigma_downlink,
            weights=self.weighting,
            server_momentum=self.server_momentum,
            seed=self.seed,
            eval_every=self.eval_every,
        )

    def summary(self) -> dict[str, Any]:
        """The plan's answers as `nbafl plan --json` prints them."""
        release, noise = self.release(), self.noise_scales()
        sensitivity_of = release.sensitivity
        return {
            "sensitivity": {
                "uplink": float(sensitivity_of.uplink.max()),
                "downlink": release.downlink,
            },
            "noise": noise_summary(noise, release),
            "claimed": {
                "epsilon": self.epsilon if self.noise else None,
                "delta": self.delta,
                "adversary": self.adversary,
                "unit": sensitivity_of.unit,
                "adjacency": self.adjacency,
            },
            "paper_requirement": _finite(accounting.paper_requirement(release, noise, self.delta)),
            "guarantee": self._with_delta(self._epsilons(release, noise)),
            "conditional": sensitivity_of.conditional,
            "unconditional": self._with_delta(self._epsilons(self._unconditional_release(), noise)),
            "assumptions": self.assumptions(),
            "warnings": self.warnings(),
            "bound": {
                "printed": None,
                "repaired": None,
                "reason": dict.fromkeys(("printed", "repaired"), UNASKED),
            },
            "best": {"printed": None, "repaired": None, "empirical": None},
        }

    def paper_rule(self) -> dict[str, Any]:
        """What the paper's printed rule would have given at this plan's epsilon: its noise and its real worth."""
        release, noise = self.release(), self._calibrated("paper")
        return {
            "noise": noise_summary(noise, release),
            "guarantee": self._with_delta(self._epsilons(release, noise)),
        }

    def statement(self, model_digest: str, model_parameters: int) -> Statement:
        """The privacy statement of a run of this plan that ended in the model with this sha256."""
        return Statement(
            release=self.release(),
            noise=self.noise_scales(),
            epsilon=self.epsilon if self.noise else None,
            delta=self.delta,
            adversary=adversary.parse(self.adversary),
            calibration=self.calibration,
            guarantee=self.guarantees(),
            assumptions=tuple(self.assumptions()),
            plan_digest=self.digest(),
            model_digest=model_digest,
            model_parameters=model_parameters,
        )

    def assumptions(self) -> list[str]:
        """Everything an epsilon of this plan rests on, as sentences."""
        return caveats.assumptions(self)

    def warnings(self) -> list[str]:
        """What a careful reader should know before relying on this plan."""
        return caveats.warnings(self)

    # --- TOML -----------------------------------------------------------------------------------------------

    @classmethod
    def from_toml(cls, path: str | Path) -> Plan:
        """Read a plan; unknown keys and impossible values are refused."""
        return cls(**read_toml(path))

    def to_toml(self) -> str:
        """The plan as TOML, each field under a comment that says what it is."""
        lines = ["# An nbafl plan. Use it with: nbafl run --config FILE", ""]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            lines.append(f"# {field.description}")
            lines.append(f"# {name} is unset" if value is None else f"{name} = {_toml_value(value)}")
        return "\n".join(lines) + "\n"

    def digest(self) -> str:
        """sha256 of the plan's fields in a canonical order: what client and server agree on."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    # --- inside ---------------------------------------------------------------------------------------------

    def _release(self, sensitivity_of: Sensitivity) -> Release:
        return Release(
            sensitivity=sensitivity_of,
            weights=self.client_weights,
            rounds=self.rounds,
            per_round=self.drawn,
            exposures=self.exposures,
        )

    def _unconditional_release(self) -> Release:
        if self.sensitivity == "paper":
            return self._release(sensitivity.unconditional(self.clip, self.client_sizes))
        return self.release()

    def _calibrated(self, rule: str) -> Noise:
        named = adversary.parse(self.adversary)
        return calibration.calibrate(rule, self.release(), self.epsilon, self.delta, named)

    def _epsilons(self, release: Release, noise: Noise) -> dict[str, float]:
        named = {each.name: each for each in adversary.STANDARD}
        chosen = adversary.parse(self.adversary)
        named.setdefault(chosen.name, chosen)
        return {
            name.replace("-", "_"): accounting.epsilon_spent(release, noise, each, self.delta)
            for name, each in named.items()
        }

    def _with_delta(self, epsilons: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
        return {name: {"epsilon": value, "delta": self.delta} for name, value in _finite(epsilons).items()}


def read_toml(path: str | Path) -> dict[str, Any]:
    """The fields of a plan file, not yet checked against each other."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise DataError(f"config file {str(path)!r} does not exist.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"config file {str(path)!r} is not valid TOML: {error}.") from None
    except OSError as error:
        raise DataError(f"config file {str(path)!r} cannot be read: {error.strerror}.") from None


def noise_summary(noise: Noise, release: Release) -> dict[str, Any]:
    """The three noise scales; sigma_uplink is a list only where clients differ."""
    uplink = _scalar_or_tuple(noise.sigma_uplink)
    return {
        "sigma_uplink": list(uplink) if isinstance(uplink, tuple) else uplink,
        "sigma_downlink": noise.sigma_downlink,
        "sigma_aggregate": noise.aggregate(release),
    }


def _with_dependent_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """One default depends on another field: `gradient` is defined for exactly one local step."""
    if fields.get("sensitivity") == "gradient":
        fields = {"local_steps": 1, **fields}
    sizes = fields.get("sizes")
    if isinstance(sizes, (list, tuple)) and sizes:
        fields = {"clients": len(sizes), **fields}
    return fields


def _check_counts(plan: Plan) -> None:
    if plan.drawn > plan.clients:
        raise UsageError("per_round", plan.per_round, f"at most clients ({plan.clients})")
    if plan.exposures > plan.rounds:
        raise UsageError("exposures", plan.exposures, f"at most rounds ({plan.rounds})")
    if plan.sizes is None:
        return
    if len(plan.sizes) != plan.clients:
        raise UsageError("sizes", f"{len(plan.sizes)} numbers", f"one number per client ({plan.clients})")
    smallest = min(plan.sizes)
    if smallest < 1:
        raise UsageError("sizes", smallest, "at least 1 record for each client")


def _gradient_sensitivity(plan: Plan) -> Sensitivity:
    if plan.local_steps != 1:
        raise UsageError(
            "local_steps",
            plan.local_steps,
            "1 under sensitivity gradient (several un-noised steps have no bound)",
        )
    if plan.batch is not None:
        raise UsageError(
            "batch", plan.batch, "unset under sensitivity gradient (the step averages all records)"
        )
    return sensitivity.gradient(plan.record_clip, plan.client_sizes, plan.lr)


def _proximal_sensitivity(plan: Plan) -> Sensitivity:
    if plan.model not in PROVEN_CONVEX_MODELS:
        raise UsageError(
            "model", plan.model, "softmax under sensitivity proximal (it needs a convex, Lipschitz loss)"
        )
    if plan.feature_norm is None:
        raise UsageError(
            "feature_norm", None, "given under sensitivity proximal (unbounded features have no bound)"
        )
    if plan.batch is not None:
        raise UsageError(
            "batch", plan.batch, "unset under sensitivity proximal (the bound is for full batches)"
        )
    lipschitz, smoothness = sensitivity.softmax_constants(plan.feature_norm)
    steps = None if plan.tolerance is not None else plan.local_steps
    return sensitivity.proximal(
        plan.clip,
        plan.client_sizes,
        lipschitz=lipschitz,
        mu=plan.mu,
        tolerance=plan.tolerance,
        steps=steps,
        lr=plan.lr if steps else None,
        smoothness=smoothness if steps else None,
    )


def _scalar_or_tuple(values: np.ndarray) -> float | tuple[float, ...]:
    first = float(values[0])
    return first if bool(np.all(values == values[0])) else tuple(float(value) for value in values)


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _toml_value(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _as_usage_error(error: ValidationError) -> UsageError:
    """pydantic's first complaint as one sentence."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "plan"
    if first["type"] == "extra_forbidden":
        return UsageError("a plan's field", field, "one of " + ", ".join(Plan.model_fields))
    allowed = first["msg"].removeprefix("Input should be ").removeprefix("a ")
    return UsageError(field, first["input"], allowed)
