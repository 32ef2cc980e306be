"""What a client's owner allows before the first upload: the plan's promise is shown, and the limit is the owner's own.

The server writes the plan and names the adversary, so the plan's epsilon binds nothing that the server chooses: a plan
against `broadcast` may promise epsilon = 1 while its uploads are worth tens of thousands to the server itself. So an
owner sees both numbers first, may limit both, and is asked for a limit where neither the command nor the ledger has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nbafl.errors import UsageError
from nbafl.flower.release import Releaser
from nbafl.plan import Plan
from nbafl.privacy.adversary import CURIOUS_SERVER
from nbafl.privacy.ledger import Limits, epsilon_of


@dataclass(frozen=True)
class Wanted:
    """What the owner said when starting; None: nothing."""

    epsilon: float | None = None
    delta: float | None = None
    releases: int | None = None
    epsilon_uploads: float | None = None

    @property
    def says_nothing(self) -> bool:
        return self.epsilon is None and self.epsilon_uploads is None


Ask = Callable[[Releaser], Wanted]
"""Shows the promise to whoever sits at the terminal and returns the limits they choose."""


def agree(releaser: Releaser, asked: Wanted, ask: Ask | None = None) -> Limits:
    """The owner's limits for the plan's unit: those asked for where they are stricter than the ledger's.

    Nothing said, nothing on the ledger and nobody to ask is a usage error: the plan's own epsilon is no limit.
    """
    current = releaser.ledger.limits_of(releaser.account)
    if current is None and asked.says_nothing:
        if ask is None:
            allowed = (
                f"given: this client's own limit for a {releaser.account.unit} over all plans (or --epsilon-uploads, over "
                "what the server itself sees); the plan is the server's word, not a limit"
            )
            raise UsageError("epsilon", None, allowed)
        asked = ask(releaser)
    epsilon = asked.epsilon if asked.epsilon is not None else asked.epsilon_uploads
    if epsilon is None:
        if current is None:
            raise UsageError("epsilon", None, "given: this client's own limit over all plans")
        epsilon = current.epsilon
    wanted = Limits(
        epsilon,
        asked.delta if asked.delta is not None else (current.delta if current else releaser.plan.delta),
        asked.releases,
        releaser.account,
        asked.epsilon_uploads,
    )
    return releaser.ledger.set_limits(wanted.stricter(current))


@dataclass(frozen=True)
class Promise:
    """What a plan promises a client, and what its answers are worth to the server: scores and runs before it included."""

    epsilon: float
    """Of all the plan's rounds and all besides, against the adversary that the plan names."""
    epsilon_uploads: float
    """The same to the server itself: it sees uploads, or with its k accomplices sums."""
    epsilon_upload: float
    """Of a single upload to somebody who sees it."""

    @classmethod
    def of(cls, releaser: Releaser) -> Promise:
        """For the client whose noise is smallest beside what it sends: its number is not known yet."""
        plan, uplink = releaser.plan, releaser.release.uplink
        dearest = int((uplink / releaser.noise.sigma_uplink).argmax())
        price, before = releaser.price(dearest), releaser.release.before
        cost, uploads = price.after(plan.rounds), plan.rounds * price.upload
        rounding = plan.rounds * price.rounding
        if releaser.evaluation is not None:
            scores = releaser.evaluation.price(plan)
            cost, uploads = cost + scores.after(scores.most), uploads + scores.most * scores.upload
            rounding += scores.most * scores.rounding
        return cls(
            epsilon_of(before(releaser.adversary.name) + cost, rounding, plan.delta),
            epsilon_of(before(CURIOUS_SERVER.name) + uploads, rounding, plan.delta),
            epsilon_of(releaser.cost_alone(dearest), price.rounding, plan.delta),
        )


def _besides(releaser: Releaser) -> str:
    """What an epsilon covers besides the uploads of this plan."""
    before = sum(each.rounds for each in releaser.release.earlier)
    told = f", with the {before} rounds of the runs it continues" if before else ""
    if releaser.evaluation is not None:
        told += f", with {releaser.evaluation.count(releaser.plan)} noisy scores on held-out records"
    return told


def _worth(plan: Plan, promise: Promise, besides: str, condition: str) -> list[str]:
    """What the server itself gets, and what a single upload is worth."""
    secure, at = plan.secure_sums(), f"at delta {plan.delta:g}"
    if secure is None:
        return [
            f"worth to the server itself, which sees every upload: epsilon {promise.epsilon_uploads:.6g} {at} over "
            f"{plan.rounds} uploads{besides}, {promise.epsilon_upload:.6g} for one{condition}"
        ]
    count = secure.accomplices
    helped = f" with {count} accomplice{'s' if count > 1 else ''}" if count else " without accomplices"
    return [
        f"worth to the server itself{helped}, which sees sums of at least {secure.fewest} uploads: epsilon "
        f"{promise.epsilon_uploads:.6g} {at} over {plan.rounds} sums{besides}{condition}",
        f"worth of a single upload that is opened, by a server with more than {count} accomplices or by broken "
        f"cryptography: epsilon {promise.epsilon_upload:.6g} {at}{condition}",
    ]


def sentences(releaser: Releaser) -> list[str]:
    """The promise in words, each epsilon with its unit, adversary, delta and condition."""
    plan, promise, sensitivity = releaser.plan, Promise.of(releaser), releaser.release.sensitivity
    condition = (
        " (if the premise of the plan's sensitivity holds, which is not checked)"
        if sensitivity.conditional
        else ""
    )
    besides = _besides(releaser)
    who = f"a {releaser.account.unit} ({releaser.account.change})"
    taking_part = "if it takes part in every round" if plan.drawn < plan.clients else "over all rounds"
    return [
        f"promised to {who}: epsilon {promise.epsilon:.6g} at delta {plan.delta:g} against {plan.adversary}, "
        f"{taking_part}{besides}{condition}",
        *_worth(plan, promise, besides, condition),
    ]
