"""An audit of a plan: attack its mechanism as each adversary would, and set what was proved beside what was claimed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nbafl.audit import pairs
from nbafl.audit.bounds import Outcomes, ceiling, distribution_free, gaussian_mu
from nbafl.audit.game import VOICES, Attack, Game, Mechanism, Setting, information
from nbafl.audit.unseen import NAME as UNSEEN
from nbafl.audit.unseen import UnseenGame, optimal_test
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

    @property
    def epsilon(self) -> float:
        return max(self.gaussian or 0.0, self.distribution_free)

    def to_dict(self) -> dict[str, float | None]:
        return {"gaussian": _finite(self.gaussian), "distribution_free": _finite(self.distribution_free)}


@dataclass(frozen=True)
class Audit:
    """All attacks on one plan, and the verdict on its claim."""

    plan: Plan
    trials: int
    confidence: float
    problem: str
    attained: float
    """How much of Delta_U the worst pair attains."""
    proofs: dict[str, Proof]
    guessed_participation: float | None
    """K-random: how often the broadcast alone showed whether the target took part."""

    @property
    def claim(self) -> Proof:
        return self.proofs[adversary.parse(self.plan.adversary).name]

    @property
    def refuted(self) -> bool:
        return self.claim.epsilon > self.plan.epsilon

    @property
    def ceiling(self) -> float:
        """The most a distribution-free bound can prove with these trials."""
        return ceiling(self.trials, self.plan.delta, self.confidence)

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
            "distribution_free_ceiling": self.ceiling,
            "problem": self.problem,
            "attained_sensitivity": self.attained,
            "participation_guessed": self.guessed_participation,
            "attacks": {
                name.replace("-", "_"): {
                    "proved_epsilon": proof.to_dict(),
                    "accounted_epsilon": _finite(proof.accounted),
                }
                for name, proof in self.proofs.items()
            },
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
    release, noise = plan.release(), plan.noise_scales()
    target = worst_target(plan)
    setting = setting_of(plan, target)
    pair, problem = pair_of(plan, target, mechanism)
    # Without a beacon nothing in a broadcast shows whether the target took part.
    blind = not release.everyone and pair.beacon is None
    named = {each.name: each for each in (adversary.parse(plan.adversary), *adversary.STANDARD)}
    attacks = [Attack.of(each, setting, blind) for each in named.values()]
    attacks = [attack for attack in attacks if _noisy(attack, setting, pair)]
    game = Game(pair, setting, attacks, mechanism)
    outcomes = game.play(trials, plan.seed, on_trials)
    proofs = {
        attack.name: Proof(
            attack.name,
            named[attack.name].seen(plan.exposures),
            _gaussian(plan, attack, setting, pair, outcomes[attack.name], confidence),
            distribution_free(outcomes[attack.name], plan.delta, confidence),
            accounting.epsilon_spent(release, noise, named[attack.name], plan.delta),
            outcomes[attack.name],
        )
        for attack in attacks
    }
    if pair.follow == 1 and release.everyone and setting.sigma > 0 and plan.sensitivity != "proximal":
        proofs[UNSEEN] = _unseen(plan, pair, setting, mechanism, trials, confidence)
    guessed = min(1.0, float(np.mean(game.guessed_right))) if pair.beacon is not None else None
    attained = pair.shift / float(release.uplink[target])
    return Audit(plan, trials, confidence, problem, attained, proofs, guessed)


def pair_of(plan: Plan, target: int, mechanism: Mechanism) -> tuple[pairs.Pair, str]:
    """The worst neighbouring pair for the plan's rule, and what it is in a few words."""
    training, records = plan.training(), int(plan.client_sizes[target])
    beacon = plan.drawn < plan.clients and records > 1
    match plan.sensitivity:
        case "paper":
            found = pairs.mean_estimation(training, records, beacon, mechanism.upload)
            return found, "mean estimation, one record of norm C turned around"
        case "gradient":
            found = pairs.crafted_gradient(training, records, beacon, mechanism.upload)
            return found, "one record with a crafted gradient turned around"
        case "client":
            found = pairs.whole_client(training, plan.adjacency, mechanism.upload)
            return (
                found,
                "a whole client turned around"
                if plan.adjacency == "replace"
                else "a whole client, there or not",
            )
        case "proximal":
            sure = pairs.SurePair(training, records)
            return sure, "softmax regression, one record of an unexpected class moved to the other side"


def worst_target(plan: Plan) -> int:
    """The client against whom the plan's adversary learns most."""
    release, noise = plan.release(), plan.noise_scales()
    if release.equal and np.ptp(noise.sigma_uplink) == 0:
        return 0
    seen = adversary.parse(plan.adversary)
    rounds = np.array([float(plan.rounds)])
    uploads, taps, rest = (float(view[0]) for view in seen.views(plan.exposures, rounds, np.ones(1)))
    own = (release.weights * noise.sigma_uplink) ** 2
    share = (release.weights * release.uplink) ** 2
    aggregate = noise.aggregate(release) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        learned = np.nan_to_num(uploads * share / own) + taps * share / (own + noise.sigma_downlink**2)
        learned = learned + rest * share / aggregate
    return int(np.argmax(np.nan_to_num(learned)))


def setting_of(plan: Plan, target: int) -> Setting:
    """The federation from the target's side: the others' weights and noise, those with most noise first."""
    release, noise = plan.release(), plan.noise_scales()
    weights, sigmas = release.weights, noise.sigma_uplink
    if not release.everyone:
        weights = np.full(plan.drawn, 1 / plan.drawn)
        sigmas = sigmas[: plan.drawn]
    others = np.delete(np.arange(len(weights)), target)
    others = others[np.argsort(-(weights * sigmas)[others], kind="stable")]
    # Of the colluders only those count who are certain to be drawn together with the target: the others may be elsewhere.
    certain = max(0, adversary.parse(plan.adversary).colluders - (plan.clients - plan.drawn))
    grouped = _voices(weights[others], sigmas[others], certain)
    return Setting(
        rounds=plan.rounds,
        exposures=plan.exposures,
        drawn=plan.drawn / plan.clients,
        weight=float(weights[target]),
        sigma=float(sigmas[target]),
        other_weights=grouped[0],
        other_sigmas=grouped[1],
        colluding=grouped[2],
        sigma_downlink=noise.sigma_downlink,
    )


def _voices(
    weights: np.ndarray, sigmas: np.ndarray, colluders: int, most: int = VOICES
) -> tuple[np.ndarray, np.ndarray, int]:
    """Not too many other clients: beyond `most` several speak as one, whose noise is exactly their weighted sum.

    Colluders come first and never share a voice with others; the last number says how many voices are theirs.
    """
    if len(weights) <= most:
        return weights, sigmas, colluders
    theirs, others = min(colluders, most // 2), len(weights) - colluders
    parts = np.array_split(np.arange(colluders), theirs) if theirs else []
    parts += np.array_split(np.arange(colluders, len(weights)), min(most - theirs, others)) if others else []
    joint = np.array([weights[part].sum() for part in parts])
    spread = np.array([math.sqrt(np.sum((weights[part] * sigmas[part]) ** 2)) for part in parts]) / joint
    return joint, spread, theirs


def _gaussian(
    plan: Plan, attack: Attack, setting: Setting, pair: pairs.Pair, outcomes: Outcomes, confidence: float
) -> float | None:
    """epsilon of the Gaussian curve (or of the mixture over participations) at the proven lower bound of mu."""
    if attack.blind:
        return None
    factor = gaussian_mu(outcomes, confidence)
    release = plan.release()
    if release.everyone:
        rounds = np.array([plan.rounds])
        mu = factor * math.sqrt(information(attack, setting, pair, rounds)[0])
        return gdp_epsilon(mu, plan.delta)
    taken_part, log_weights = accounting.participation_weights(release)
    mus = factor * np.sqrt(information(attack, setting, pair, taken_part))
    return accounting.mixture_epsilon(log_weights, mus, plan.delta)


def _unseen(
    plan: Plan, pair: pairs.Pair, setting: Setting, mechanism: Mechanism, trials: int, confidence: float
) -> Proof:
    """The attack that sees L uploads of the target and no broadcast; a targeted adversary sees more."""
    attack = Attack(UNSEEN, setting.exposures, 0)
    weights, sigmas, _ = _voices(
        setting.other_weights, setting.other_sigmas, 0, most=1
    )  # nobody hears them apart
    setting = replace(setting, other_weights=weights, other_sigmas=sigmas, colluding=0)
    outcomes = UnseenGame(pair, setting, [attack], mechanism).play(trials, plan.seed)[UNSEEN]
    _, expected = optimal_test(pair, setting, setting.exposures)
    mu = gaussian_mu(outcomes, confidence) * math.sqrt(expected)
    bounded = accounting.epsilon_spent(plan.release(), plan.noise_scales(), adversary.TARGETED, plan.delta)
    last = "last upload" if plan.exposures == 1 else f"last {plan.exposures} uploads"
    sees = f"the target's {last} and not one broadcast"
    return Proof(
        UNSEEN,
        sees,
        gdp_epsilon(mu, plan.delta),
        distribution_free(outcomes, plan.delta, confidence),
        bounded,
        outcomes,
    )


def _noisy(attack: Attack, setting: Setting, pair: pairs.Pair) -> bool:
    """Whether noise hides anything from the attack: where none does, there is nothing to test."""
    return bool(np.isfinite(information(attack, setting, pair, np.array([setting.rounds]))[0]))


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
