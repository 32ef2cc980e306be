"""The audit of a plan under secure aggregation: `sums` played with the plan's own M, k, spread and sensitivity.

Two servers attack, both with the plan's k accomplices: one that lets every upload arrive, and one that makes clients drop
out until a sum holds M names. The second is what the plan's noise is made for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbafl.audit.looks import Look
from nbafl.audit.sums import SumMechanism, SumSetting, SumView, audit_sums
from nbafl.errors import UsageError
from nbafl.plan import Plan
from nbafl.privacy import adversary
from nbafl.privacy.secure_sums import SecureSums

DRAWS = 100_000_000
"""Noise of every client in every round of every trial is drawn: long plans get fewer trials."""
LEAST_TRIALS = 200


@dataclass(frozen=True)
class SecureAudit:
    """What the two servers proved, the looks at sums and noise, and the verdict."""

    plan: Plan
    trials: int
    confidence: float
    looks: list[Look]

    @property
    def claim(self) -> Look:
        """The server that makes clients drop out: the one the plan is calibrated for."""
        return next(look for look in self.looks if look.name == DROPPING)

    @property
    def refuted(self) -> bool:
        return any(look.refuted for look in self.looks)

    def to_dict(self) -> dict[str, Any]:
        """`nbafl audit --json`; the proof is the better of the Gaussian and the distribution-free bound."""
        return {
            "adversary": self.plan.adversary,
            "claimed_epsilon": self.plan.epsilon,
            "delta": self.plan.delta,
            "proved_epsilon": {"gaussian": self.claim.proof, "distribution_free": None},
            "confidence": self.confidence,
            "trials": self.trials,
            "verdict": "refuted" if self.refuted else "consistent",
            "refuted_by": [look.name for look in self.looks if look.refuted],
            "looks": [look.to_dict() for look in self.looks],
        }

    def sentences(self) -> list[str]:
        """The audit in plain words."""
        plan, verdict = self.plan, "REFUTED" if self.refuted else "consistent"
        said = [
            f"Claim: epsilon {plan.epsilon:g} at delta {plan.delta:g} against {plan.adversary}, under secure aggregation.",
            f"Verdict: {verdict}. Proved: epsilon is at least {self.claim.proof:.4g} (confidence {self.confidence:g}, "
            f"{self.trials} runs in each world; sums with the fewest uploads the plan allows, less the accomplices' parts).",
            "Not attacked here: the masks, which tests/secure does, and more accomplices than planned.",
        ]
        return said + [
            f"Refuted by {look.name}: {look.measures} is {look.proof:.4g}, at most {look.account:.4g} in a sound mechanism."
            for look in self.looks
            if look.refuted
        ]


WATCHING, DROPPING = "server", "server that makes clients drop out"


def audit_secure(
    plan: Plan, trials: int, confidence: float, mechanism: SumMechanism | None = None
) -> SecureAudit:
    """Attack the sums of a plan; `trials` in each world, or as many as its length allows."""
    secure = plan.secure_sums()
    if secure is None:
        raise UsageError("aggregation", plan.aggregation, "secure for an audit of sums")
    made = max(LEAST_TRIALS, min(trials, DRAWS // (2 * plan.clients * plan.rounds)))
    named = adversary.parse(plan.adversary)
    views = [
        SumView(WATCHING, False, secure.epsilon(named, plan.delta)),
        SumView(DROPPING, True, secure.epsilon(named, plan.delta)),
    ]
    looks = audit_sums(_setting(plan, secure), views, plan.delta, made, confidence, mechanism)
    return SecureAudit(plan, made, confidence, looks)


def _setting(plan: Plan, secure: SecureSums) -> SumSetting:
    """The plan's numbers; the worst record moves the target's integers by A, rounded down to whole steps."""
    return SumSetting(
        clients=plan.clients,
        fewest=secure.fewest,
        accomplices=adversary.parse(plan.adversary).accomplices,
        rounds=plan.rounds,
        spread=secure.grid.spread,
        shift=int(secure.sums.reach(secure.grid.step)),
    )
