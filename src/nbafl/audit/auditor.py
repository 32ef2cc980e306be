"""An audit of a plan: attack its mechanism as each adversary would, and set what was proved beside what was claimed.

Three things are done. The fast game (`game.py`) runs the mechanism many times in both worlds and lets every adversary
score the runs. A walk (`path.py`) takes a few runs along the real path, upload by upload, and checks the bounds that always
hold. Looks (`looks.py`) test all noise that was met. The verdict is `refuted` as soon as one proof exceeds its own account.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nbafl import protocol
from nbafl.audit import looks, pairs, path
from nbafl.audit.bounds import Outcomes, ceiling, distribution_free, gaussian_mu
from nbafl.audit.game import PATTERNS, Game, Played
from nbafl.audit.hidden_broadcasts import NAME as UNSEEN
from nbafl.audit.hidden_broadcasts import LastUploads
from nbafl.audit.looks import Look
from nbafl.audit.mechanism import Mechanism
from nbafl.audit.noise_sample import NoiseSample
from nbafl.audit.problems import Scene
from nbafl.audit.setting import setting_of, training_of, voices, worst_target
from nbafl.audit.shares import Shares
from nbafl.audit.views import Attack, GameSetting, View
from nbafl.errors import UsageError
from nbafl.plan import Plan
from nbafl.privacy import accounting, adversary
from nbafl.privacy.gaussian import gdp_epsilon

TRIALS = 200_000
CONFIDENCE = 0.95
LEAST_TRIALS = 1000


@dataclass(frozen=True)
class Proof:
    """What one attack showed: lower bounds on epsilon at the plan's delta."""

    adversary: str
    sees: str
    gaussian: float | None
    """Under the Gaussian trade-off curve; None where the mechanism's curve is another."""
    distribution_free: float
    accounted: float
    """What the plan's own accountant says this adversary may learn at most."""
    outcomes: Outcomes
    error: float
    """Probability that one of its two bounds is too large, each."""

    @property
    def epsilon(self) -> float:
        return max(self.gaussian or 0.0, self.distribution_free)

    @property
    def refuted(self) -> bool:
        return self.epsilon > self.accounted

    def to_dict(self) -> dict[str, float | None]:
        return {"gaussian": _finite(self.gaussian), "distribution_free": _finite(self.distribution_free)}


@dataclass(frozen=True)
class Audit:
    """All attacks and looks on one plan, and the verdict on its claim."""

    plan: Plan
    trials: int
    confidence: float
    problem: str
    attained: float
    """How much of Delta_U the worst pair attains."""
    proofs: dict[str, Proof]
    looks: list[Look]
    shares: Shares
    guessed_participation: float | None
    """K-random: how often the broadcast alone showed whether the target took part."""

    @property
    def claim(self) -> Proof:
        return self.proofs[adversary.parse(self.plan.adversary).name]

    @property
    def refuted_by(self) -> list[str]:
        """Every proof that exceeds its own account, by name."""
        claim = ["claim"] if self.claim.epsilon > self.plan.epsilon else []
        attacks = [f"attack: {name}" for name, proof in self.proofs.items() if proof.refuted]
        return claim + attacks + [look.name for look in self.looks if look.refuted]

    @property
    def refuted(self) -> bool:
        return bool(self.refuted_by)

    @property
    def ceiling(self) -> float:
        """The most a distribution-free bound can prove with these trials."""
        return ceiling(self.trials, self.plan.delta, 1 - self.shares.claim)

    def to_dict(self) -> dict[str, Any]:
        """`nbafl audit --json`."""
        return {
            "adversary": self.plan.adversary,
            "claimed_epsilon": self.plan.epsilon,
            "delta": self.plan.delta,
            "proved_epsilon": self.claim.to_dict(),
            "confidence": self.confidence,
            "trials": self.trials,
            "verdict": "refuted" if self.refuted else "consistent",
            "refuted_by": self.refuted_by,
            "distribution_free_ceiling": self.ceiling,
            "problem": self.problem,
            "attained_sensitivity": self.attained,
            "participation_guessed": self.guessed_participation,
            "error": self.shares.to_dict(),
            "attacks": {
                adversary.key_of(name): {
                    "proved_epsilon": proof.to_dict(),
                    "accounted_epsilon": _finite(proof.accounted),
                    "error_of_each_bound": proof.error,
                }
                for name, proof in self.proofs.items()
            },
            "looks": [look.to_dict() for look in self.looks],
        }


def audit(
    plan: Plan,
    trials: int = TRIALS,
    confidence: float = CONFIDENCE,
    mechanism: Mechanism | None = None,
    on_trials: Callable[[int], None] | None = None,
) -> Audit:
    """Attack the plan's mechanism with so many trials in each of two neighbouring worlds."""
    check(plan, trials, confidence)
    mechanism = mechanism or Mechanism()
    attacked = _Attacked.of(plan, mechanism)
    shares = attacked.shares(confidence)
    played = Game(attacked.pair, attacked.setting, attacked.views, mechanism).play(
        trials, plan.seed, on_trials
    )
    proofs = {view.name: attacked.proof(view, played.joined(view.name), shares) for view in attacked.views}
    if attacked.follows:
        proofs[UNSEEN] = attacked.unseen(mechanism, trials, shares)
    walked = path.walk(plan, mechanism)
    found = [
        *walked.looks(path.solved_within(plan)),
        *looks.at_noise(NoiseSample.join(walked.noise), "noise of the path", shares.noise),
        *looks.at_noise(played.noise, "noise of the game", shares.noise),
        *attacked.by_pattern(played, shares),
    ]
    guessed = played.guessed_right if attacked.pair.beacon is not None else None
    attained = attacked.pair.shift / float(plan.release().uplink[attacked.target])
    return Audit(plan, trials, confidence, attacked.problem, attained, proofs, found, shares, guessed)


def pair_of(plan: Plan, target: int, mechanism: Mechanism) -> tuple[pairs.Pair, str]:
    """The worst neighbouring pair for the plan's rule, and what it is in a few words; the canary is any record or person."""
    records = int(plan.client_sizes[target])
    place = int(protocol.numpy_generator(plan.seed, 0, "audit canary").integers(records))
    beacon = plan.drawn < plan.clients and records > 1 and plan.rule.beacon
    scene = Scene(records, (place,), beacon, persons=plan.person is not None)
    found = pairs.of(plan.rule, training_of(plan), scene, plan.adjacency, mechanism.upload)
    problem = plan.rule.problems[plan.adjacency]
    if scene.persons:
        problem += f"; the canary is a person with {len(scene.rows)} row{'s' if len(scene.rows) != 1 else ''}"
    return found, problem


@dataclass(frozen=True)
class _Attacked:
    """A plan's federation, its worst pair, and those who attack it."""

    plan: Plan
    target: int
    setting: GameSetting
    pair: pairs.Pair
    problem: str
    adversaries: dict[str, adversary.Adversary]
    views: list[View]

    @classmethod
    def of(cls, plan: Plan, mechanism: Mechanism) -> _Attacked:
        target = worst_target(plan)
        setting = setting_of(plan, target)
        pair, problem = pair_of(plan, target, mechanism)
        # Without a beacon nothing in a broadcast shows whether the target took part.
        blind = not plan.release().everyone and pair.beacon is None
        named = {each.name: each for each in (adversary.parse(plan.adversary), *_outsiders())}
        views = [Attack.of(each, setting, blind) for each in named.values()]
        return cls(
            plan, target, setting, pair, problem, named, [v for v in views if _noisy(v, setting, pair)]
        )

    @property
    def follows(self) -> bool:
        """Whether uploads contain the broadcast in a way that the attack on unseen broadcasts knows."""
        everyone = self.plan.release().everyone
        return (
            self.pair.follow == 1
            and everyone
            and self.setting.sigma > 0
            and isinstance(self.pair, pairs.LinearPair)
        )

    def shares(self, confidence: float) -> Shares:
        others = len(self.views) - 1 + len(self.views) * len(PATTERNS) + self.follows
        return Shares.of(confidence, others, samples=2)

    def proof(self, view: View, outcomes: Outcomes, shares: Shares) -> Proof:
        """What the view proved beside what the accountant says of its adversary."""
        named = self.adversaries[view.name]
        error = shares.claim if named.name == adversary.parse(self.plan.adversary).name else shares.other
        return self._proof(view, outcomes, error, self.setting, named, named.seen(self.plan.exposures))

    def by_pattern(self, played: Played, shares: Shares) -> list[Look]:
        """Every attack under each pattern of signs alone."""
        return [
            self._pattern(view, name, played.outcomes[view.name][name], shares)
            for view in self.views
            for name in PATTERNS
        ]

    def _pattern(self, view: View, pattern: str, outcomes: Outcomes, shares: Shares) -> Look:
        proof = self._proof(view, outcomes, shares.other, self.setting, self.adversaries[view.name], "")
        name = f"attack: {view.name}, signs {pattern}"
        return Look(
            name, "epsilon proved at the plan's delta", proof.accounted, proof.epsilon, 2 * shares.other
        )

    def unseen(self, mechanism: Mechanism, trials: int, shares: Shares) -> Proof:
        """The attack that sees L uploads of the target and no broadcast; a targeted adversary sees more."""
        plan, setting = self.plan, self.setting
        weights, sigmas, _ = voices(
            setting.other_weights, setting.other_sigmas, 0, most=1
        )  # nobody hears them apart
        setting = replace(setting, other_weights=weights, other_sigmas=sigmas, colluding=0)
        view = LastUploads(setting.exposures)
        played = Game(self.pair, setting, [view], mechanism, patterns=("++++",)).play(trials, plan.seed)
        last = "last upload" if plan.exposures == 1 else f"last {plan.exposures} uploads"
        sees = f"the target's {last} and not one broadcast"
        return self._proof(view, played.joined(UNSEEN), shares.other, setting, adversary.TARGETED, sees)

    def _proof(
        self,
        view: View,
        outcomes: Outcomes,
        error: float,
        setting: GameSetting,
        bounded_by: adversary.Adversary,
        sees: str,
    ) -> Proof:
        plan, confidence = self.plan, 1 - error
        release, noise = plan.release(), plan.noise_scales()
        gaussian = self._gaussian(view, setting, outcomes, confidence) if view.gaussian else None
        free = distribution_free(outcomes, plan.delta, confidence)
        accounted = accounting.epsilon_spent(release, noise, bounded_by, plan.delta)
        return Proof(view.name, sees, gaussian, free, accounted, outcomes, error)

    def _gaussian(self, view: View, setting: GameSetting, outcomes: Outcomes, confidence: float) -> float:
        """epsilon of the Gaussian curve (or of the mixture over participations) at the proven lower bound of mu."""
        plan, factor = self.plan, gaussian_mu(outcomes, confidence)
        release = plan.release()
        if release.everyone:
            mu = factor * math.sqrt(view.information(setting, self.pair, np.array([plan.rounds]))[0])
            return gdp_epsilon(mu, plan.delta)
        taken_part, log_weights = accounting.participation_weights(release)
        mus = factor * np.sqrt(view.information(setting, self.pair, taken_part))
        return accounting.mixture_epsilon(log_weights, mus, plan.delta)


def _outsiders() -> list[adversary.Adversary]:
    """The standard adversaries without accomplices: a game has one coalition, that of the plan's own adversary."""
    return [each for each in adversary.standard() if not each.accomplices]


def _noisy(view: View, setting: GameSetting, pair: pairs.Pair) -> bool:
    """Whether noise hides anything from the attack: where none does, there is nothing to test."""
    return bool(np.isfinite(view.information(setting, pair, np.array([setting.rounds]))[0]))


def check(plan: Plan, trials: int, confidence: float) -> None:
    if not plan.noise:
        raise UsageError("noise", plan.noise, "on: without noise a plan claims nothing that could be tested")
    if trials < LEAST_TRIALS:
        raise UsageError("trials", trials, f"at least {LEAST_TRIALS}")
    if not 0.5 <= confidence < 1:
        raise UsageError("confidence", confidence, "at least 0.5 and below 1")
    release = plan.release()
    if not (release.everyone or release.equal):
        # What a round tells would depend on who else was drawn, and so would the curve that a proof rests on.
        raise UsageError("sizes", "unequal", "equal for an audit of a plan with per_round below clients")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
