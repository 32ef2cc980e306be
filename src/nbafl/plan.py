"""The Plan: a frozen, validated description of a federation, and what it promises.

This is the only module that joins privacy with training. A Plan answers three questions: how much noise goes where
(`noise_scales`), what that noise is worth against each adversary (`guarantees`, `summary`), and what each client
does in a round (`job`). It refuses what cannot be, in one sentence that names the field.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import PrivateAttr, ValidationError, model_validator

from nbafl import (
    aggregation,
    caveats,
    class_weights,
    continuing,
    fields,
    plan_file,
    plan_limits,
    plan_summary,
    rules,
    settings,
)
from nbafl.errors import UsageError
from nbafl.fields import PlanFields
from nbafl.presets import FIRST_RELEASE, digest_of
from nbafl.privacy import accounting, adversary, calibration
from nbafl.privacy.adversary import Adversary
from nbafl.privacy.dropouts import AnsweredRound
from nbafl.privacy.gaussian import gdp_epsilon
from nbafl.privacy.outcome import Outcome
from nbafl.privacy.release import Noise, Release
from nbafl.privacy.secure_sums import SecureSums
from nbafl.privacy.sensitivity import Sensitivity
from nbafl.privacy.statement import Statement
from nbafl.rules import Rule
from nbafl.tasks import CLASSIFICATION, LOSSES

if TYPE_CHECKING:  # they bring torch, which a plan that is only looked at does not need
    from nbafl.evaluation import Evaluation
    from nbafl.protocol.training import Training
    from nbafl.simulation.job import Job


class Plan(PlanFields):
    """A federation as it is meant to be; its fields are those of the table in `nbafl.fields`."""

    _fitted: tuple[str, ...] = PrivateAttr(())
    _given: frozenset[str] = PrivateAttr(frozenset())

    def __init__(self, **given: Any) -> None:
        said = frozenset(name for name, value in given.items() if value is not None)
        try:
            given = settings.with_dependent_defaults(given)
            given = {**given, **settings.hash_of_init(given)}
            found = settings.fitted(given)
            super().__init__(**{**given, **found})
            self._fitted, self._given = tuple(found), said
        except ValidationError as error:
            raise _as_usage_error(error) from None

    @model_validator(mode="after")
    def _check(self) -> Plan:
        plan_limits.check(self)
        self.rule.check(self)
        self.sensitivity_of()
        continuing.check(self)
        aggregation.check(self)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def fitted(self) -> dict[str, Any]:
        """The settings that were left out and follow from public numbers, with their values."""
        return {name: getattr(self, name) for name in self._fitted}

    # --- what follows from the plan -------------------------------------------------------------------------

    @property
    def drawn(self) -> int:
        """K: how many clients take part in a round."""
        return self.per_round or self.clients

    @property
    def counted(self) -> str:
        """What the sizes of clients are numbers of."""
        return "records" if self.person is None else "persons"

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
    def rule(self) -> Rule:
        """What clients do, and what one record or client can change of it."""
        return rules.find(self.sensitivity)

    @property
    def weighting(self) -> Literal["records", "uniform"]:
        """How p_i follow from the sizes."""
        return self.rule.weighting

    @property
    def carried_on(self) -> float | None:
        """The share of a step, and of its noise, that the server repeats in the next round; None under adam."""
        return self.server_momentum if self.server_optimiser == "sgd" else None

    def sensitivity_of(self) -> Sensitivity:
        """How far one record (or client) can move one upload."""
        return self.rule.sensitivity(self)

    def release(self) -> Release:
        """What leaves the federation, apart from the noise."""
        return self.release_of(self.sensitivity_of())

    def release_of(self, sensitivity_of: Sensitivity) -> Release:
        """What leaves the federation where one record or client can move an upload so far."""
        return Release(
            sensitivity=sensitivity_of,
            weights=self.client_weights,
            rounds=self.rounds,
            per_round=self.drawn,
            exposures=self.exposures,
            earlier=self.continues or (),
        )

    def calibrated(self, rule: str) -> Noise:
        """The noise that a rule of calibration gives for what is claimed."""
        named = adversary.parse(self.adversary)
        epsilon = (
            self.training_epsilon if rule == "exact" else self.epsilon
        )  # the paper's rule knows no reserve
        return calibration.calibrate(rule, self.release(), epsilon, self.delta, named)

    @property
    def training_epsilon(self) -> float:
        """What the noise is made for: the claim, less what is kept for scores."""
        return calibration.training_share(self.epsilon, self.delta, self.reserve)

    def epsilons(self, release: Release, noise: Noise, secure: SecureSums | None) -> dict[str, float]:
        """epsilon against each adversary of what is released with this noise."""
        return self._worth(Outcome(release, noise, secure))

    def _worth(self, outcome: Outcome) -> dict[str, float]:
        return {
            each.key: outcome.epsilon(each, self.delta) if each.among(self.clients) else math.inf
            for each in self.adversaries()
        }

    def noise_scales(self) -> Noise:
        """sigma of each upload and of the broadcast; zero when the noise is switched off."""
        return self._noise

    @cached_property
    def _noise(self) -> Noise:
        if not self.noise:
            return Noise(np.zeros(self.clients), 0.0)
        secure = self.secure_sums()
        if secure is not None:
            return aggregation.noise_of(self, secure)
        return self.calibrated(self.calibration)

    def secure_sums(self) -> SecureSums | None:
        """What the sums of secure aggregation hold and cost; None under plain aggregation."""
        return self._secure

    @cached_property
    def _secure(self) -> SecureSums | None:
        return aggregation.sums_of(self) if self.aggregation == aggregation.SECURE else None

    def with_fields(self, **changes: Any) -> Plan:
        """The same plan with some fields changed; all the others count as given."""
        return Plan(**{**self.model_dump(), **changes})

    def gives(self, name: str) -> bool:
        """Whether a field was given, and not left to its default or to what follows from others."""
        return name in self._given

    def with_facts(self, **facts: Any) -> Plan:
        """The plan for data of which these facts are known: what was given stays, what was left out follows from them."""
        if all(name in self._given or getattr(self, name) == fact for name, fact in facts.items()):
            return self
        return Plan(**facts | {name: getattr(self, name) for name in self._given})

    def adversaries(self) -> list[Adversary]:
        """Those this plan says its worth against: the standard ones, and its own."""
        return list(dict.fromkeys([*adversary.standard(), adversary.parse(self.adversary)]))

    def guarantees(
        self,
        rounds: Sequence[AnsweredRound] | None = None,
        evaluation: Evaluation | None = None,
        sensitivity: Sensitivity | None = None,
    ) -> dict[str, float]:
        """epsilon at this plan's delta against each adversary; infinite where nothing holds.

        `rounds`: those of a federation as they were, in place of the plan's; `evaluation`: scores that clients released
        besides; `sensitivity`: another one than the plan's, such as what clipping alone gives.
        """
        (release, secure), noise = self._released(evaluation), self.noise_scales()
        if sensitivity is not None:
            release = dataclasses.replace(release, sensitivity=sensitivity)
        return self._worth(Outcome(release, noise, secure, rounds))

    def _released(
        self, evaluation: Evaluation | None, done: int | None = None
    ) -> tuple[Release, SecureSums | None]:
        """What leaves, scores of an evaluation included; `done`: those up to this round."""
        return (self.release(), self.secure_sums()) if evaluation is None else evaluation.beside(self, done)

    def epsilon_after(self, rounds_done: int, evaluation: Evaluation | None = None) -> float:
        """epsilon spent against this plan's adversary once so many rounds are over, and the scores up to then."""
        (release, secure), named = self._released(evaluation, rounds_done), adversary.parse(self.adversary)
        if rounds_done == 0:
            return gdp_epsilon(math.sqrt(release.before(named.name)), self.delta)
        if secure is not None:
            return secure.epsilon(named, self.delta, rounds_done)
        so_far = dataclasses.replace(release, rounds=rounds_done, exposures=min(self.exposures, rounds_done))
        return accounting.epsilon_spent(so_far, self.noise_scales(), named, self.delta)

    @property
    def largest_weight(self) -> float:
        """The largest public class weight, which G and the constants of a loss are multiplied by."""
        return class_weights.largest(class_weights.parse(self.class_weights or "").values())

    @property
    def weighted_classes(self) -> tuple[str, ...]:
        """The classes that have a weight of their own, for those who need a plan's numbers and know no other classes."""
        return tuple(class_weights.parse(self.class_weights or ""))

    def loss_of(self, task: str | None) -> str:
        """What one record's loss is called: the plan's own, or the task's."""
        return self.loss or LOSSES[task or CLASSIFICATION]

    def training(self, task: str | None = None, classes: Sequence[str] = ()) -> Training:
        """What one client does in one round; `classes` are their names in the order of the model's answers."""
        from nbafl.protocol.training import Training

        if self.task is not None and task is not None and task != self.task:
            raise UsageError("task", self.task, f"{task}, as the data say")
        weights = self.class_weights
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
            loss=self.loss_of(task or self.task),
            class_weights=None if weights is None else class_weights.in_order(weights, classes),
        )

    def job(self, task: str | None = None, classes: Sequence[str] = ()) -> Job:
        """This plan as the plain numbers a simulation needs."""
        from nbafl.simulation.job import Job

        noise, secure = self.noise_scales(), self.secure_sums()
        return Job(
            training=self.training(task, classes),
            rounds=self.rounds,
            per_round=self.drawn,
            sigma_uplink=plan_summary.scalar_or_tuple(noise.sigma_uplink),
            sigma_downlink=noise.sigma_downlink,
            weights=self.weighting,
            server_momentum=self.server_momentum,
            server_optimiser=self.server_optimiser,
            server_lr=self.server_lr,
            server_average=self.server_average,
            seed=self.seed,
            eval_every=self.eval_every,
            grid=None if secure is None else secure.grid.numbers,
            rounds_before=sum(each.rounds for each in self.continues or ()),
        )

    def summary(self) -> dict[str, Any]:
        """The plan's answers as `nbafl plan --json` prints them."""
        return plan_summary.summary(self)

    def paper_rule(self) -> dict[str, Any]:
        """What the paper's printed rule would have given at this plan's epsilon: its noise and its real worth."""
        return plan_summary.paper_rule(self)

    def statement(
        self,
        model_digest: str,
        model_parameters: int,
        *,
        frozen_parameters: int = 0,
        simulated: bool = True,
        read_from_data: tuple[str, ...] = (),
        rounds: Sequence[AnsweredRound] | None = None,
        evaluation: Evaluation | None = None,
    ) -> Statement:
        """The privacy statement of a run of this plan that ended in the model with this sha256."""
        release, secure = self._released(evaluation)
        guarantee = self.guarantees(rounds, evaluation)
        return Statement(
            release=release,
            noise=self.noise_scales(),
            epsilon=self.epsilon if self.noise else None,
            delta=self.delta,
            adversary=adversary.parse(self.adversary),
            calibration=self.calibration,
            guarantee=guarantee,
            assumptions=tuple(self.assumptions()),
            plan_digest=self.digest(),
            model_digest=model_digest,
            model_parameters=model_parameters,
            frozen_parameters=frozen_parameters,
            simulated=simulated,
            read_from_data=read_from_data,
            rounds=None if rounds is None else tuple(rounds),
            secure=secure,
            evaluation=None if evaluation is None else evaluation.statement(self, guarantee),
            remarks=tuple(caveats.about_training(self)),
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
        content, defaults = plan_file.read(path)
        return cls(**{**defaults, **content})

    def to_toml(self) -> str:
        """The plan as TOML, each field under a comment that says what it is."""
        return plan_file.written(self)

    def digest(self) -> str:
        """sha256 of what is promised and done to the data, which client and server agree on; not of how it is computed."""
        promised = {name for name, field in fields.table().items() if field.entry.promise}
        if not self.secure_sums():
            promised -= aggregation.FIELDS
        if not self.reserve:
            promised -= {"reserve"}
        return digest_of(self.model_dump(mode="json", include=promised))

    def legacy_digest(self) -> str | None:
        """What 0.1.0 called this plan; None where it says something that 0.1.0 did not know."""
        later = {name: field.default for name, field in fields.table().items() if name not in FIRST_RELEASE}
        if any(getattr(self, name) != default for name, default in later.items()):
            return None
        return digest_of(self.model_dump(mode="json", include=set(FIRST_RELEASE)))

    def digests(self) -> tuple[str, ...]:
        """Every name this plan has had, the present one first."""
        legacy = self.legacy_digest()
        return (self.digest(),) if legacy is None else (self.digest(), legacy)


def _as_usage_error(error: ValidationError) -> UsageError:
    """pydantic's first complaint as one sentence."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "plan"
    if first["type"] == "extra_forbidden":
        return UsageError("a plan's field", field, "one of " + ", ".join(Plan.model_fields))
    if first["type"] == "missing":
        return UsageError(field, None, "given")
    if first["type"] == "unexpected_keyword_argument":
        return UsageError(field, first["input"], "left out")
    allowed = first["msg"].removeprefix("Input should be ")
    allowed = allowed.replace("less than or equal to", "at most").replace(
        "greater than or equal to", "at least"
    )
    return UsageError(field, first["input"], allowed)
