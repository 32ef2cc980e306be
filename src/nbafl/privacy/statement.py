"""The privacy statement: what a run protects, against whom, by how much, and on what that rests.

The same content goes to machines (`to_dict`, which becomes privacy.json) and to people (`sentences`). An
epsilon never stands alone here: it comes with its adversary, its delta, its unit and its premise, and
where the noise of a plan does not deliver what the plan claims, the statement says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbafl.privacy import badges, subsampling
from nbafl.privacy.adversary import Adversary, of_key
from nbafl.privacy.dropouts import AnsweredRound
from nbafl.privacy.outcome import Outcome
from nbafl.privacy.release import Noise, Release
from nbafl.privacy.secure_sums import SecureSums
from nbafl.privacy.versions import versions

TEST_RECORDS = "the test set and each client's local test records"
NOT_COVERED = (
    "choosing hyper-parameters by looking at results on the same private data",
    "pilot runs and estimates of constants made on the private data",
    "losses and accuracies on training data published round by round",
    "the share of uploads that were clipped and their norm before noise, which metrics and report of a simulation show",
    TEST_RECORDS,
    "timing, message sizes, memory and other side channels",
    "a client that stays away, or is excluded, because of its own data",
)
SEED = (
    "anyone who knows or guesses the seed of a simulation (nbafl run): its noise follows from the seed in the plan, "
    "while a federation (nbafl serve and join) takes its noise from the operating system"
)
EXACT = "of noise with all its digits: what finite precision takes is paid for against the adversary above"
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)


@dataclass(frozen=True)
class Statement:
    """Everything a privacy claim needs beside it; `epsilon` is the claim, or None for a run without noise."""

    release: Release
    noise: Noise
    epsilon: float | None
    delta: float
    adversary: Adversary
    calibration: str
    guarantee: Mapping[str, float]
    assumptions: tuple[str, ...]
    plan_digest: str
    model_digest: str
    model_parameters: int | None = None
    """Weights that were trained: those that were clipped, noised and averaged."""
    frozen_parameters: int = 0
    """Weights that stayed as they were given."""
    simulated: bool = True
    """Whether the noise follows from the plan's seed; a federation's comes from the operating system."""
    read_from_data: tuple[str, ...] = ()
    """What shaped the model and was read from private records, as phrases."""
    secure: SecureSums | None = None
    """The sums of secure aggregation; None where the server sees every upload."""

    rounds: tuple[AnsweredRound, ...] | None = None
    """A federation's rounds as they were; None: as the plan has them."""
    remarks: tuple[str, ...] = ()
    """Sentences about where the training started and what followed the noise."""
    evaluation: Mapping[str, Any] | None = None
    """Scores that clients released on records of their own (`Evaluation.statement`); every epsilon includes them."""

    @property
    def not_covered(self) -> list[str]:
        """What no epsilon of this statement speaks about."""
        read = [f"{each}: read from the private records before training" for each in self.read_from_data]
        always = [each for each in NOT_COVERED if self.evaluation is None or each != TEST_RECORDS]
        return [*always, *([SEED] if self.simulated else []), *read]

    def all_assumptions(self) -> list[str]:
        """What the plan's epsilon rests on, and that what was read from the data stays as it is."""
        found = [*self.assumptions, *([] if self.evaluation is None else [self.evaluation["assumption"]])]
        if self.frozen_parameters:
            found.append(
                f"{self.model_parameters:,} weights were trained; the other {self.frozen_parameters:,} are frozen and "
                "assumed to be public: the guarantee does not cover the data they were made from."
            )
        if not self.read_from_data:
            return found
        read = (
            "The shape of the model and its features were read from the private records "
            f"({'; '.join(self.read_from_data)}): the guarantee compares data sets that give the same shape and features. "
            "A public schema avoids this."
        )
        return [*found, read]

    @property
    def holding(self) -> float:
        """The ε that the noise gives against the named adversary at δ; infinite where nothing holds."""
        if self.adversary.key in self.guarantee:
            return self.guarantee[self.adversary.key]
        return self.outcome.epsilon(self.adversary, self.delta)

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.release, self.noise, self.secure, self.rounds)

    @property
    def delivers(self) -> bool:
        """Whether the noise is worth what was claimed (to the accuracy of the calibration)."""
        return self.epsilon is not None and self.holding <= self.epsilon * (1 + 1e-6)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: no NaN, no infinity (null instead)."""
        sensitivity = self.release.sensitivity
        return {
            "unit": sensitivity.unit,
            "adjacency": sensitivity.adjacency,
            "adversary": {"name": self.adversary.name, "sees": self.adversary.sees},
            "epsilon": _finite(self.holding),
            "delta": self.delta,
            "claimed": {"epsilon": self.epsilon, "delta": self.delta, "adversary": self.adversary.name},
            "delivers_claim": self.delivers,
            "guarantee": {
                name: {"epsilon": _finite(value), "delta": self.delta}
                for name, value in self.guarantee.items()
            },
            "mechanism": self._mechanism(),
            "rounds": self._rounds(),
            "evaluation": None if self.evaluation is None else dict(self.evaluation),
            "sensitivity": {
                "model": sensitivity.model,
                "uplink": float(self.release.uplink.max()),
                "downlink": self.release.downlink,
                "premise": sensitivity.premise,
                "verified": not sensitivity.conditional,
            },
            "accountant": self.accountant(),
            "attack": [
                {"false_positive_rate": rate, "true_positive_rate": self._power(rate)}
                for rate in FALSE_POSITIVE_RATES
            ],
            "best_guess": self.best_guess(),
            "assumptions": self.all_assumptions(),
            "not_covered": self.not_covered,
            "versions": versions(),
            "plan_digest": self.plan_digest,
            "model_digest": self.model_digest,
            "model_parameters": self.model_parameters,
            "frozen_parameters": self.frozen_parameters,
            "continues": [
                {"plan": each.plan, "model": each.model, "rounds": each.rounds, "cost": dict(each.cost)}
                for each in self.release.earlier
            ],
            "sentences": self.sentences(),
        }

    def sentences(self) -> list[str]:
        """The statement for a reader who knows no differential privacy."""
        return [
            self._who_is_protected(),
            self._against_whom(),
            *self._how_much(),
            *([self._against_others()] if any(map(math.isfinite, self.guarantee.values())) else []),
            self._by_what(),
            *([] if self.evaluation is None else [self.evaluation["sentence"]]),
            *self._how_the_rounds_were(),
            *self.remarks,
            *self._together(),
            self._on_what_premise(),
            f"Accountant: {self.accountant()}.",
            "Not covered: " + "; ".join(self.not_covered) + ".",
            "Computed with " + ", ".join(f"{name} {version}" for name, version in versions().items()) + ".",
            f"Plan {self.plan_digest[:16]}, model {self.model_digest[:16]} (sha256).",
        ]

    def accountant(self) -> str:
        """How ε was computed, in one phrase."""
        if self.secure is not None:
            return (
                "exact composition of sums with discrete Gaussian noise (one mu for the whole run, what rounding and "
                "the sampler's precision add included), converted with dp-accounting"
            )
        if self.release.everyone:
            return "exact composition of Gaussian releases (one mu for the whole run), converted with dp-accounting"
        if subsampling.amplifies(self.release, self.noise, self.adversary):
            return (
                "privacy loss distribution of rounds with a secret draw without replacement, replace-one, discretised "
                "from above by dp-accounting's connect-the-dots"
            )
        return (
            "mean over how often a client is drawn (binomial) of exact Gaussian compositions; no amplification by "
            "sampling is claimed"
        )

    def _who_is_protected(self) -> str:
        sensitivity = self.release.sensitivity
        if sensitivity.unit == "record":
            return (
                "Protected: each single record of each client. The statement compares two data sets that differ in "
                "one record of one client, replaced by any other; how many records a client has is public."
            )
        if sensitivity.unit == "person":
            return (
                "Protected: each person of each client, with all of their rows. The statement compares two data sets that "
                "differ in all rows of one person, replaced by any others; how many persons a client has is public."
            )
        change = (
            "replaced by any others"
            if sensitivity.adjacency == "replace"
            else "left out (its slot sends only noise)"
        )
        return (
            f"Protected: each client as a whole. The statement compares two federations with one client's data {change}; "
            "how many records a client says it has is public."
        )

    def _against_whom(self) -> str:
        secret = (
            "; who takes part in a round has to stay secret from it"
            if subsampling.amplifies(self.release, self.noise, self.adversary)
            else ""
        )
        seen = self.adversary.seen(self.release.exposures)
        if self.secure is not None:
            seen += f"; uploads are masked, and only sums of at least {self.secure.fewest} of them open"
        return f"Adversary: {self.adversary.name}, who sees {seen}; it may know the data of everyone else{secret}."

    def _how_much(self) -> list[str]:
        if math.isinf(self.holding):
            return [
                f"Guarantee: none. Against {self.adversary.name} no finite epsilon holds with this noise."
            ]
        condition = " if the premise below holds" if self.release.sensitivity.conditional else ""
        first = (
            f"Guarantee{condition}: epsilon = {self.holding:.6g} at delta = {self.delta:g} against "
            f"{self.adversary.name} over all {self.release.rounds} rounds{self._and_besides()}."
        )
        if self.epsilon is not None and not self.delivers:
            first += f" The claim of epsilon = {self.epsilon:g} ({self.calibration} calibration) is NOT met."
            first += "" if self.evaluation is None else " The noise leaves no room for the scores."
        return [first, self._meaning()]

    def _and_besides(self) -> str:
        """What the epsilon covers besides the run's rounds."""
        before = sum(each.rounds for each in self.release.earlier)
        return (f" and the {before} rounds of the runs it continues" if before else "") + (
            "" if self.evaluation is None else f" and {self.evaluation['counts']} noisy scores of each client"
        )

    def _together(self) -> list[str]:
        """The price of each run and their sum."""
        if not self.release.earlier:
            return []
        name = self.adversary.name
        parts = [each.cost.get(name, math.inf) for each in self.release.earlier]
        total, scores = self.outcome.cost(self.adversary), self.release.scores
        told = " + ".join(f"{part:.6g}" for part in (*parts, total - scores - sum(parts)))
        told += f" + {scores:.6g} for the scores" if scores else ""
        return [f"Price against {name} in mu^2, run by run: {told} = {total:.6g}."]

    def _meaning(self) -> str:
        """(ε, δ) as the definition has it, for one record or client, and the best test at a false positive rate of 1%.

        Not in terms of beliefs: that odds grow by more than e^ε has a chance that may be many times δ.
        """
        sensitivity = self.release.sensitivity
        otherwise, question = (
            f"if a {sensitivity.unit} had been any other",
            f"which of two values a {sensitivity.unit} had",
        )
        if sensitivity.adjacency == "drop":
            otherwise, question = "without a client's data", "whether a client's data were there"
        factor = math.exp(self.holding) if self.holding < 700 else math.inf
        times = f"e^{self.holding:.4g} (on its own no useful limit)"
        if factor < 1e6:
            times = f"{factor:.3g}" if factor < 100 else f"{factor:,.0f}"
        return (
            f"That means: for any conclusion this adversary may draw from what it sees, the probability is at most "
            f"{times} times what it would be {otherwise}, plus {self.delta:g}. If it tests {question} and accepts a false "
            f"alarm in 1 case of 100, it detects at most {badges.percent(self._power(0.01))}."
        )

    def _against_others(self) -> str:
        """The same noise against everybody else the plan has numbers for: an upload that is seen may cost far more."""
        condition = ", if the premise holds" if self.release.sensitivity.conditional else ""
        worth = []
        for key, value in self.guarantee.items():
            each = of_key(key)
            if each is not None and each != self.adversary and each.among(self.release.clients):
                gives = f"epsilon {value:.6g}" if math.isfinite(value) else "nothing"
                amplified = subsampling.amplifies(self.release, self.noise, each) and math.isfinite(value)
                secret = " (who must not learn who takes part)" if amplified else ""
                worth.append(f"{gives} against {each.name}{secret}")
        return (
            f"Against others the same noise gives, at delta = {self.delta:g}{condition}: "
            + ", ".join(worth)
            + ("." if self.simulated or self.secure is not None else f" ({EXACT}).")
        )

    def _by_what(self) -> str:
        lowest, highest = float(self.noise.sigma_uplink.min()), float(self.noise.sigma_uplink.max())
        uplink = f"{lowest:.6g}" if lowest == highest else f"{lowest:.6g} to {highest:.6g}"
        drawn = f"{self.release.per_round} of {self.release.clients} clients in each of {self.release.rounds} rounds"
        if highest == self.noise.sigma_downlink == 0:
            return f"Mechanism: no noise at all, uploads are only clipped; {drawn}."
        if self.secure is not None:
            return self._by_sums(uplink)
        return (
            f"Mechanism: fresh Gaussian noise in every coordinate, of standard deviation {uplink} in each upload and "
            f"{self.noise.sigma_downlink:.6g} added by the server to each average; {drawn}."
        )

    def _by_sums(self, uplink: str) -> str:
        """Secure aggregation in a sentence: what hides whom, on what that rests, and what more accomplices could do."""
        assert self.secure is not None
        least, count, grid = self.secure.fewest, self.secure.accomplices, self.secure.grid
        return (
            f"Mechanism: every client rounds its upload to multiples of {grid.step:g}, adds discrete Gaussian noise of "
            f"standard deviation {uplink} and a mask; the server opens only sums of at least M = {least} of the "
            f"{self.release.clients} uploads, in each of {self.release.rounds} rounds. That it learns nothing else is "
            f"computational (X25519, Ed25519, AES-256, HKDF-SHA256) and holds while at most k = {count} clients work "
            f"with it; with {count + 1} or more, or broken cryptography, single uploads may be opened: each costs "
            f"mu^2 = {self.secure.cost_upload:.4g}."
        )

    def _on_what_premise(self) -> str:
        sensitivity = self.release.sensitivity
        status = (
            "NOT verified: the guarantee is conditional on it"
            if sensitivity.conditional
            else "proved, provided that the training is as the premise says"
        )
        return (
            f"Sensitivity ({sensitivity.model}): one {sensitivity.unit} moves an upload by at most "
            f"{float(self.release.uplink.max()):.6g}. Premise: {sensitivity.premise} This is {status}."
        )

    def _mechanism(self) -> dict[str, Any]:
        uplink = self.noise.sigma_uplink
        return {
            "name": "Gaussian",
            "aggregation": "plain" if self.secure is None else "secure",
            **({} if self.secure is None else self.secure.to_dict()),
            "calibration": self.calibration,
            "sigma_uplink": float(uplink[0]) if np.ptp(uplink) == 0 else [float(sigma) for sigma in uplink],
            "sigma_downlink": float(self.noise.sigma_downlink),
            "sigma_aggregate": self.noise.aggregate(self.release),
            "clients": self.release.clients,
            "per_round": self.release.per_round,
            "rounds": self.release.rounds,
            "exposures": self.release.exposures,
        }

    def _rounds(self) -> dict[str, int] | None:
        """How many rounds of a federation were complete; None for a simulation, where all are."""
        if self.rounds is None:
            return None
        online = sum(each.everyone_online for each in self.rounds)
        full = sum(each.answers == self.release.per_round for each in self.rounds)
        return {"made": len(self.rounds), "everyone_online": online, "everyone_answered": full}

    def _how_the_rounds_were(self) -> list[str]:
        counted = self._rounds()
        if counted is None:
            return []
        made, online = counted["made"], counted["everyone_online"]
        told = (
            f"Rounds: {made} were made; everyone drawn answered in {counted['everyone_answered']} of them. Where answers "
            "were missing, the server added their noise itself."
        )
        if subsampling.amplifies(self.release, self.noise, self.adversary) and online < made:
            told += (
                f" All clients were online and able to answer in {online} of them; in the other {made - online} the draw "
                "counts as known to the adversary, who may know who was not."
            )
        return [told]

    def best_guess(self) -> float | None:
        """How often the best guess between two equally likely values of a unit is right: (1 + TV)/2.

        TV, the total variation between what the adversary sees in the two worlds, is delta at epsilon = 0.
        """
        if math.isinf(self.holding):
            return None
        return 0.5 + 0.5 * self.outcome.delta(self.adversary, 0.0)

    def _power(self, false_positive_rate: float) -> float:
        return self.outcome.power(self.adversary, false_positive_rate)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
