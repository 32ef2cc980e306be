"""The arithmetic of a budget: what a release is charged, what all charges are worth, and when the answer is no.

Every release is charged to every account (`units.Account`), at two prices in mu^2. `uploads` is what the
server itself learns: (Delta/sigma)^2 of an upload that it sees, or under secure aggregation what a sum tells it and the
accomplices planned for. `cost` is what the plan's own
adversary learns (`Adversary.cost`; trusts the others to add their noise). Both add up over rounds and plans within an
account and never across accounts. What finite precision adds to epsilon is added up beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from nbafl.errors import Refused, UsageError
from nbafl.privacy.gaussian import check_delta, check_epsilon, gdp_epsilon
from nbafl.privacy.units import Account

Number = TypeVar("Number", int, float)

TOLERANCE = 1e-6
"""Relative slack of the epsilon check: an exactly calibrated plan meets its claim to the last digits."""

NAMED = 6
"""Plans of one adversary that a sentence names."""


class Declined(Refused):
    """A no that whoever asked hears as well, as `told`: it quotes the request and the plan, nothing else."""

    @property
    def told(self) -> str:
        return str(self)


class BudgetSpent(Declined):
    """The next release would pass one of the owner's limits: which, and what was spent elsewhere, stays at home."""

    def __init__(self, text: str, limit: Limits | None = None) -> None:
        super().__init__(text)
        self.limit = limit

    @property
    def told(self) -> str:
        return "the budget is spent: another release would pass one of this client's own limits."


class PlanAnswered(BudgetSpent):
    """Every round of the plan was answered."""

    @property
    def told(self) -> str:
        return "every round of this plan was already answered."


class NotPriced(Declined):
    """Something on the ledger has no known price in the unit that is asked for."""

    @property
    def told(self) -> str:
        return "this client cannot account for another release; its own log says why."


@dataclass(frozen=True)
class Limits:
    """The owner's own bounds over everything this ledger ever records.

    `account` None: binds in the unit of whichever plan asks. `epsilon` is against the adversaries that the plans name,
    `epsilon_uploads` against whoever sees every upload, the server itself included.
    """

    epsilon: float
    delta: float
    releases: int | None = None
    account: Account | None = None
    epsilon_uploads: float | None = None

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        if self.epsilon_uploads is not None and not 1e-9 <= self.epsilon_uploads <= 1e9:
            raise UsageError("epsilon_uploads", self.epsilon_uploads, "a number from 1e-9 to 1e9, or unset")
        if self.releases is not None and self.releases < 1:
            raise UsageError("releases", self.releases, "at least 1, or unset for no limit")

    def stricter(self, other: Limits | None) -> Limits:
        """The smaller of each, for this account."""
        if other is None:
            return self
        return replace(
            self,
            epsilon=min(self.epsilon, other.epsilon),
            delta=min(self.delta, other.delta),
            releases=_smaller(self.releases, other.releases),
            epsilon_uploads=_smaller(self.epsilon_uploads, other.epsilon_uploads),
        )


def _smaller(one: Number | None, other: Number | None) -> Number | None:
    given = [each for each in (one, other) if each is not None]
    return min(given) if given else None


@dataclass(frozen=True)
class Charge:
    """What answering costs one account in mu^2: one answer to the server itself, r answers to the plan's adversary."""

    upload: float
    after: Callable[[int], float]
    conditional: bool = False


@dataclass(frozen=True)
class Price:
    """What answering a plan costs every account."""

    account: Account
    """The plan's own unit and adjacency."""
    charges: Mapping[Account, Charge]
    most: int
    """T: the plan never asks for more answers than it has rounds."""
    adversary: str
    rounding: float = 0.0
    """What finite precision adds to epsilon with each release."""

    @property
    def upload(self) -> float:
        return self.charges[self.account].upload

    def after(self, answers: int) -> float:
        return self.charges[self.account].after(answers)


@dataclass(frozen=True)
class Standing:
    """One account as it stands: sums over other plans, and what the asking plan was charged so far."""

    others: float
    mine: float
    uploads: float
    rounding: float
    unknown: tuple[str, ...] = ()
    """Plans of the first release whose price in this account is not known."""
    plan: str = ""
    """The asking plan."""
    adversaries: Mapping[str, str] = field(default_factory=dict)
    """Who is looking in each of the other plans."""

    def against(self, adversary: str) -> str:
        """Whom an epsilon of the other plans and the asking one is about, where the asking one names `adversary`."""
        return together({**self.adversaries, self.plan: adversary})

    def epsilon(self, delta: float, total: float, more_rounding: float = 0.0) -> float:
        """epsilon once the asking plan costs `total` in all; what was charged is never given back."""
        return epsilon_of(self.others + max(self.mine, total), self.rounding + more_rounding, delta)

    def epsilon_uploads(self, delta: float, more: float, more_rounding: float = 0.0) -> float:
        return epsilon_of(self.uploads + more, self.rounding + more_rounding, delta)


@dataclass(frozen=True)
class Sum:
    """What everything recorded is worth in one account; an epsilon is None where no bound is known."""

    account: Account
    unit: str
    adjacency: str
    delta: float
    epsilon: float | None
    """Against `together(adversaries)`: one who is in each plan the adversary that this plan names."""
    epsilon_uploads: float | None
    """Against the servers themselves: their view is every upload, or with k accomplices sums, as the plan says."""
    conditional: bool
    adversaries: Mapping[str, str]
    """Who is looking in each plan."""
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Spent:
    """The sums of the ledger, one for each account."""

    releases: int
    resends: int
    sums: tuple[Sum, ...]

    def of(self, account: Account | str) -> Sum:
        return next(each for each in self.sums if each.account == account)


def together(adversaries: Mapping[str, str]) -> str:
    """Whom an epsilon over several plans (digest to adversary) is about.

    Costs are added as each plan charges them, so it holds against nobody who sees more of a plan than its own adversary.
    """
    plans: dict[str, list[str]] = {}
    for plan, name in sorted(adversaries.items(), key=lambda entry: entry[::-1]):
        plans.setdefault(name, []).append(f"{plan[:12]}…")
    if len(plans) < 2:
        return "".join(plans) or "nobody"
    return "somebody who is " + " and ".join(f"{name} in {_listed(found)}" for name, found in plans.items())


def _listed(plans: list[str]) -> str:
    more = f" and {len(plans) - NAMED} others" if len(plans) > NAMED else ""
    return f"plan{'s' if len(plans) > 1 else ''} {', '.join(plans[:NAMED])}{more}"


def epsilon_of(cost: float, rounding: float, delta: float) -> float:
    """epsilon at delta of releases that cost mu^2 = `cost` together, finite precision included."""
    return gdp_epsilon(math.sqrt(cost), delta) + rounding if cost > 0 else 0.0


def check_price(price: Price, answers: int) -> None:
    """Refuse what cannot be accounted for: a price that is infinite, negative or not a number.

    Infinite is allowed for units that the plan does not protect: no bound is known for them.
    """
    for account, charge in price.charges.items():
        total = float(charge.after(answers))
        if account is not price.account and total == charge.upload == math.inf:
            continue
        if not (0 <= total < math.inf and 0 <= charge.upload < math.inf):
            raise Declined(
                f"this release cannot be accounted for: its price for a {account.unit} is {total!r}."
            )
    if not (0 <= price.rounding < math.inf):
        raise Declined("this release cannot be accounted for: its numbers are too long for this epsilon.")


def check_counts(price: Price, answers: int, releases: int, limits: Iterable[Limits]) -> None:
    """Refuse an answer beyond the plan's rounds or the owner's number of releases."""
    if answers >= price.most:
        raise PlanAnswered(
            f"the plan has {price.most} rounds, and {answers} releases were already made for it."
        )
    for limit in limits:
        if limit.releases is not None and releases >= limit.releases:
            raise BudgetSpent(
                f"the budget is spent: {releases} releases of at most {limit.releases} were made.", limit
            )


def check_limit(limit: Limits, account: Account, standing: Standing, price: Price, answers: int) -> None:
    """Refuse an answer that would bring an account past the owner's limit."""
    if standing.unknown:
        raise NotPriced(
            f"the ledger holds releases of plan {standing.unknown[0][:16]} whose price for a {account.unit} is "
            "not known: if 0.1.0 recorded them, its owner can supply the plan with nbafl ledger migrate --plan FILE; noisy "
            "scores of a plan that protects less have none."
        )
    charge = price.charges[account]
    if math.isinf(charge.upload):
        raise BudgetSpent(
            f"nothing bounds what this release tells of a {account.unit} ({account.change}), where this client has a limit.",
            limit,
        )
    epsilon = standing.epsilon(limit.delta, float(charge.after(answers)), price.rounding)
    _refuse_above(epsilon, limit.epsilon, limit, account, standing.against(price.adversary))
    if limit.epsilon_uploads is not None:
        uploads = standing.epsilon_uploads(limit.delta, charge.upload, price.rounding)
        _refuse_above(uploads, limit.epsilon_uploads, limit, account, "the server itself")


def _refuse_above(epsilon: float, most: float, limit: Limits, account: Account, against: str) -> None:
    if epsilon > most * (1 + TOLERANCE):
        raise BudgetSpent(
            f"the budget is spent: the next release would bring epsilon to {epsilon:.6g} at delta {limit.delta:g} for a "
            f"{account.unit} ({account.change}) against {against}, above this client's limit {most:g}.",
            limit,
        )


def share_used(
    limit: Limits, standing: Standing, price: Price, account: Account, answers: int, more: int
) -> float:
    """The share of a limit that is used up once a plan with so many answers has given `more`; above 1 is too much."""
    charge, rounding = price.charges[account], more * price.rounding
    share = standing.epsilon(limit.delta, charge.after(answers + more), rounding) / limit.epsilon
    if limit.epsilon_uploads is None:
        return share
    uploads = standing.epsilon_uploads(limit.delta, more * charge.upload, rounding)
    return max(share, uploads / limit.epsilon_uploads)
