"""The privacy statement: what a run protects, against whom, by how much, and on what that rests.

The same content goes to machines (`to_dict`, which becomes privacy.json) and to people (`sentences`). An
epsilon never stands alone here: it comes with its adversary, its delta, its unit and its premise, and
where the noise of a plan does not deliver what the plan claims, the statement says so.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from nbafl.privacy import accounting, subsampling
from nbafl.privacy.adversary import Adversary, Noise, Release, parse

NOT_COVERED = (
    "choosing hyper-parameters by looking at results on the same private data",
    "pilot runs and estimates of constants made on the private data",
    "losses and accuracies on training data published round by round",
    "the test set and each client's local test records",
    "timing, message sizes, memory and other side channels",
    "a client that stays away, or is turned away, because of what its own data are",
    "whoever knows the seed of a simulation (nbafl run), or tries seeds out: its noise follows from the seed in the plan, "
    "while a federation (nbafl serve and join) takes its noise from the operating system",
)
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
_LIBRARIES = ("nbafl", "dp-accounting", "numpy", "scipy", "torch")


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

    @property
    def holding(self) -> float:
        """The ε that the noise gives against the named adversary at δ; infinite where nothing holds."""
        key = self.adversary.name.replace("-", "_")
        if key in self.guarantee:
            return self.guarantee[key]
        return accounting.epsilon_spent(self.release, self.noise, self.adversary, self.delta)

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
            "assumptions": list(self.assumptions),
            "not_covered": list(NOT_COVERED),
            "versions": versions(),
            "plan_digest": self.plan_digest,
            "model_digest": self.model_digest,
            "model_parameters": self.model_parameters,
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
            self._on_what_premise(),
            f"Accountant: {self.accountant()}.",
            "Not covered: " + "; ".join(NOT_COVERED) + ".",
            "Computed with " + ", ".join(f"{name} {version}" for name, version in versions().items()) + ".",
            f"Plan {self.plan_digest[:16]}, model {self.model_digest[:16]} (sha256).",
        ]

    def accountant(self) -> str:
        """How ε was computed, in one phrase."""
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
        change = (
            "replaced by any other"
            if sensitivity.adjacency == "replace"
            else "left out (its slot sends only noise)"
        )
        return f"Protected: each client as a whole. The statement compares two federations with one client's data {change}."

    def _against_whom(self) -> str:
        secret = (
            "; who takes part in a round has to stay secret from it"
            if subsampling.amplifies(self.release, self.noise, self.adversary)
            else ""
        )
        seen = self.adversary.seen(self.release.exposures)
        return f"Adversary: {self.adversary.name}, who sees {seen}; it may know the data of everyone else{secret}."

    def _how_much(self) -> list[str]:
        if math.isinf(self.holding):
            return [
                f"Guarantee: none. Against {self.adversary.name} no finite epsilon holds with this noise."
            ]
        condition = " if the premise below holds" if self.release.sensitivity.conditional else ""
        first = (
            f"Guarantee{condition}: epsilon = {self.holding:.6g} at delta = {self.delta:g} against "
            f"{self.adversary.name} over all {self.release.rounds} rounds."
        )
        if self.epsilon is not None and not self.delivers:
            first += f" The claim of epsilon = {self.epsilon:g} ({self.calibration} calibration) is NOT met."
        return [first, self._meaning()]

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
            f"That means: whatever this adversary may conclude from what it sees, the chance that it does is at most "
            f"{times} times what it would be {otherwise}, plus {self.delta:g}. If it tests {question} and accepts a false "
            f"alarm in 1 case of 100, it detects at most {100 * self._power(0.01):.3g} of 100."
        )

    def _against_others(self) -> str:
        """The same noise against everybody else the plan has numbers for: an upload that is seen may cost far more."""
        condition = ", if the premise holds" if self.release.sensitivity.conditional else ""
        worth = []
        for each in (parse(name.replace("_", "-")) for name in self.guarantee):
            if each.name != self.adversary.name:
                value = self.guarantee[each.name.replace("-", "_")]
                gives = f"epsilon {value:.6g}" if math.isfinite(value) else "nothing"
                amplified = subsampling.amplifies(self.release, self.noise, each) and math.isfinite(value)
                secret = " (who must not learn who takes part)" if amplified else ""
                worth.append(f"{gives} against {each.name}{secret}")
        return (
            f"Against others the same noise gives, at delta = {self.delta:g}{condition}: "
            + ", ".join(worth)
            + "."
        )

    def _by_what(self) -> str:
        lowest, highest = float(self.noise.sigma_uplink.min()), float(self.noise.sigma_uplink.max())
        uplink = f"{lowest:.6g}" if lowest == highest else f"{lowest:.6g} to {highest:.6g}"
        drawn = f"{self.release.per_round} of {self.release.clients} clients in each of {self.release.rounds} rounds"
        if highest == self.noise.sigma_downlink == 0:
            return f"Mechanism: no noise at all, uploads are only clipped; {drawn}."
        bare = " The uploads carry none, so whoever sees one, the server included, is not hindered by any."
        return (
            f"Mechanism: fresh Gaussian noise in every coordinate, of standard deviation {uplink} in each upload and "
            f"{self.noise.sigma_downlink:.6g} added by the server to each average; {drawn}."
            + (bare if highest == 0 else "")
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
            "calibration": self.calibration,
            "sigma_uplink": float(uplink[0]) if np.ptp(uplink) == 0 else [float(sigma) for sigma in uplink],
            "sigma_downlink": float(self.noise.sigma_downlink),
            "sigma_aggregate": self.noise.aggregate(self.release),
            "clients": self.release.clients,
            "per_round": self.release.per_round,
            "rounds": self.release.rounds,
            "exposures": self.release.exposures,
        }

    def _power(self, false_positive_rate: float) -> float:
        return accounting.attack_power(self.release, self.noise, self.adversary, false_positive_rate)


def versions() -> dict[str, str]:
    """Versions of what computed and of what ran; a library that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
