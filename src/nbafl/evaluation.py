"""How good is the model, where nobody has a public test set: noisy sums of scores on the clients' own records.

At every k-th round, and at the last, each client scores the broadcast model on its held-out records, adds noise on the
integer grid, writes the release into its ledger, and sends the number. The server adds the numbers up and divides by
the number of units behind them. This module has what was agreed and what it costs; `nbafl.flower` sends the numbers.

Scores lie between 0 and 1: 1 for a right class and 0 for a wrong one; for numbers the squared error, cut off at the
agreed bound and divided by it. What is added up is one score for each unit that the plan protects: of a record its own,
of a person the mean over its records, of a client the mean over all it holds (of which only one number leaves, and no size).
So one replaced unit changes a sum by at most 1, a sum is (1/sigma)-GDP for the unit, and E sums cost E/sigma^2 in mu^2 (they
compose like any Gaussian releases, also when each is of a model that earlier releases led to).

A record that is only trained on is not touched by a sum: given the broadcast, it depends on held-out records alone.
Charging both to one account, as ledger and statement do, is therefore safe, and stays so when somebody's record lies in both
parts. A unit larger than the plan's has no bound: it may be replaced by one with any other number of held-out units, and
that number leaves with the sum. A smaller one is part of a unit. Whoever sees a sum sees it whole, and its mean is
published, so the price is the same against every adversary.

Under secure aggregation the sums are those of a second secure aggregation (`nbafl.flower.secure_scores`): two numbers, of
which a replaced unit moves the first by at most 1 and the second not at all. The agreed sigma is then the noise of a sum
that holds M uploads less those of k accomplices.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbafl.durable import write_text
from nbafl.errors import DataError, Refused, UsageError
from nbafl.plan import Plan
from nbafl.plan_limits import LEAST_RESERVE
from nbafl.privacy import badges
from nbafl.privacy.adversary import CURIOUS_SERVER, Adversary, parse
from nbafl.privacy.gaussian import gdp_epsilon, gdp_mu
from nbafl.privacy.integers import SMALLEST_SPREAD, Grid, IntegerSums
from nbafl.privacy.ledger import Charge, Price
from nbafl.privacy.release import Release
from nbafl.privacy.secure_sums import SecureSums
from nbafl.privacy.units import Account
from nbafl.tasks import REGRESSION

if TYPE_CHECKING:
    from nbafl.folders.facts import Facts

FILE = "evaluation.toml"
SENSITIVITY = 1.0
"""One replaced unit changes one score, which lies between 0 and 1."""
USUAL, LEAST = 10.0, 0.5
"""Noise of a sum where nobody says otherwise, and the least there may be."""
WIDER = (1.0, 1.01, 1.1, 1.4, 2.0, 4.0)
"""How much wider than (10.4) asks the noise of a sum is tried."""
NUMBERS = 2
"""Of one upload to a secure sum: the sum of scores, and the number of units."""
BITS = 40
_WITHIN = {"record": ("record",), "person": ("record", "person"), "client": ("record", "person", "client")}
"""Units whose change stays within one unit of the plan."""


@dataclass(frozen=True)
class Evaluation:
    """What was agreed on beside the plan; every client has it in its handout."""

    every: int
    sigma: float
    error_bound: float | None = None
    """B: squared errors count up to this much; for numbers."""

    def __post_init__(self) -> None:
        if type(self.every) is not int or self.every < 1:
            raise UsageError("evaluate-every", self.every, "a whole number of rounds, at least 1")
        if not isinstance(self.sigma, (int, float)) or not LEAST <= self.sigma < math.inf:
            raise UsageError("evaluate-noise", self.sigma, f"a number of records, at least {LEAST}")
        bound = self.error_bound
        if bound is not None and not (type(bound) in (int, float) and 0 < bound < math.inf):
            raise UsageError(
                "evaluate-bound", bound, "a positive number: the largest squared error that counts"
            )

    @classmethod
    def paid_by(cls, plan: Plan, every: int, error_bound: float | None = None) -> Evaluation:
        """With little noise that the plan's reserve pays for, so that its claim is kept; the usual where it has none.

        By (10.4), and up to four times as much where that is not exact.
        """
        first = cls(every, USUAL, error_bound)
        if not plan.reserve:
            return first
        least = max(LEAST, math.sqrt(first.count(plan) / plan.reserve) / gdp_mu(plan.epsilon, plan.delta))

        def wider(factor: float) -> Evaluation:
            return replace(first, sigma=factor * least)

        low, high = 1.0, next((each for each in WIDER if wider(each).keeps(plan)), None)
        if high is None:
            raise UsageError("reserve", plan.reserve, "larger: no noise of that size keeps the plan's claim")
        for _ in range(0 if high == low else 6):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if wider(middle).keeps(plan) else (middle, high)
        return wider(high)

    def keeps(self, plan: Plan) -> bool:
        """Whether the plan's claim holds with these sums beside its training."""
        return badges.holds(plan.epsilon_after(plan.rounds, self), plan.epsilon)

    def reserve(self, plan: Plan) -> float | None:
        """The share of the budget, of its mu*^2, with which the plan would keep its claim beside these sums, if any does."""
        price = self.price(plan)
        share = price.after(price.most) / gdp_mu(plan.epsilon, plan.delta) ** 2
        for factor in WIDER:
            tried = max(LEAST_RESERVE, math.ceil(1000 * factor * share) / 1000)
            try:
                if self.keeps(plan.with_fields(reserve=tried)):
                    return tried
            except (UsageError, Refused):
                break
        return None

    @classmethod
    def load(cls, path: Path) -> Evaluation:
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
            return cls(**content)
        except OSError as error:
            raise DataError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError):
            allowed = "every = ROUNDS, sigma = NOISE and, for numbers, error_bound = B"
            raise DataError(f"{str(path)!r} must hold {allowed} only.") from None

    @classmethod
    def of(cls, facts: Facts | None) -> Evaluation | None:
        """What the facts of a run say was agreed on, if anything was."""
        if facts is None or facts.evaluation is None:
            return None
        try:
            return cls(**facts.evaluation)
        except TypeError:
            raise DataError("the facts of this run are damaged: they hold no evaluation.") from None

    def save(self, path: Path) -> None:
        lines = ["# noisy sums of scores on the clients' own records", f"every = {self.every}"]
        lines.append(f"sigma = {float(self.sigma)!r}")
        if self.error_bound is not None:
            lines.append(f"error_bound = {float(self.error_bound)!r}")
        write_text(path, "\n".join(lines) + "\n")

    def digest(self, plan: Plan) -> str:
        """The name of these releases in a ledger: another one than the training's."""
        bound = [] if self.error_bound is None else [float(self.error_bound)]
        content = json.dumps(["nbafl-evaluation", plan.digest(), self.every, float(self.sigma), *bound])
        return hashlib.sha256(content.encode()).hexdigest()

    def due(self, number: int, plan: Plan) -> bool:
        """Whether clients are asked after this round."""
        return number % self.every == 0 or number == plan.rounds

    def index(self, number: int) -> int:
        """Which evaluation the one after this round is, from 1; for rounds in which one is due."""
        return -(-number // self.every)

    def count(self, plan: Plan, done: int | None = None) -> int:
        """E: evaluations in the whole plan, or up to a round."""
        done = plan.rounds if done is None else done
        return done // self.every + (done == plan.rounds and done % self.every != 0)

    def check_task(self, task: str) -> None:
        """Errors need a bound, right answers none."""
        if task == REGRESSION and self.error_bound is None:
            allowed = "given where numbers are learnt: the largest squared error that counts"
            raise UsageError("evaluate-bound", None, allowed)
        if task != REGRESSION and self.error_bound is not None:
            allowed = "left out where classes are learnt: right answers are counted"
            raise UsageError("evaluate-bound", self.error_bound, allowed)

    def total(
        self, output: np.ndarray, y: np.ndarray, unit: str, persons: np.ndarray | None = None
    ) -> tuple[float, int]:
        """(sum of the units' scores, number of units) of what a model answers to held-out records.

        `persons`: how many rows each person has, one after another, where a person is protected.
        """
        scores = self._scores(output, y)
        if unit == "client":
            return min(1.0, math.fsum(scores) / len(scores)), 1
        if unit == "person":
            assert persons is not None, "a plan that protects persons knows whose rows they are"
            first = np.concatenate([[0], np.cumsum(persons)[:-1]])
            means = np.minimum(1.0, np.add.reduceat(scores, first) / persons)
            return math.fsum(means), len(persons)
        return math.fsum(scores), len(scores)

    def _scores(self, output: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Between 0 and 1 for every record, whatever the model says: what is no number is as wrong as can be."""
        if self.error_bound is None:
            single = output.shape[-1] == 1  # a binary model: above 0 it speaks for the second class
            return ((output[..., 0] > 0 if single else output.argmax(-1)) == y).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = (output.reshape(y.shape).astype(np.float64) - y) ** 2 / self.error_bound
        return np.clip(np.where(np.isnan(errors), 1.0, errors), 0.0, 1.0)

    def metrics(self, share: float) -> dict[str, float]:
        """The mean score as the metric it stands for."""
        if self.error_bound is None:
            return {"test_accuracy": share}
        return {"test_loss": share * self.error_bound}

    def price(self, plan: Plan, widening: float = 1.0) -> Price:
        """What one sum costs every account, math.md (10.3) and (9.1), and so much with each further one.

        `widening`: how much wider than agreed its noise is drawn, for finite precision (sums of their own pay otherwise).
        """
        own, named, made = plan.sensitivity_of(), parse(plan.adversary), self.count(plan)
        sums = self.sums(plan)
        charges = {account: self._charge(sums, moved(plan, account), named, widening) for account in Account}
        rounding = 0.0 if sums is None else 2 * sums.sums.tau / made
        return Price(Account.of(own.unit, own.adjacency), charges, made, named.name, rounding)

    def _charge(self, sums: SecureSums | None, far: float, named: Adversary, widening: float) -> Charge:
        """mu^2 = (Delta/sigma)^2 a sum; of a secure one what it tells the server, and the plan's adversary."""
        if sums is None:
            each = (far / (self.sigma * widening)) ** 2
            return Charge(each, _times(lambda answers: answers * each))
        protected = sums.protecting(np.full(sums.sums.clients, far))
        return Charge(protected.cost_server(1), _times(lambda answers: protected.cost(named, answers)))

    def sums(self, plan: Plan, done: int | None = None) -> SecureSums | None:
        """What secure sums of scores hold; None where they leave one by one.

        Their grid has M - k spreads that make the agreed sigma, each of 2^10 steps or more.
        """
        training = plan.secure_sums()
        if training is None:
            return None
        each = self.sigma / math.sqrt(max(1, training.fewest - training.accomplices))
        step = 2.0 ** math.floor(math.log2(each / (2 * SMALLEST_SPREAD)))
        grid, ones = Grid(step, each / step, BITS), np.ones(plan.clients)
        # How many units a client may hold: no sum wraps around (`IntegerSums.fits`), and float64 is right to `ROUNDING`.
        largest = min(2.0**18, 2.0 ** (grid.bits - 2) * grid.step / plan.clients)
        room = IntegerSums(ones, ones, largest, NUMBERS, self.count(plan, done))
        return SecureSums(room, grid, training.fewest, training.accomplices)

    def beside(self, plan: Plan, done: int | None = None) -> tuple[Release, SecureSums | None]:
        """All that leaves: the plan's release and sums with the scores beside them; `done`: those up to this round."""
        release, training = plan.release(), plan.secure_sums()
        made = self.count(plan, done)
        if training is None:
            return replace(release, scores=made * (SENSITIVITY / self.sigma) ** 2), None
        return release, replace(training, beside=self.sums(plan, done) if made else None)

    def statement(self, plan: Plan, guarantee: Mapping[str, float] | None = None) -> dict[str, Any]:
        """What the sums add to a run, for its privacy statement, against a server that sees every one.

        `guarantee`: the run's epsilon against each adversary, the sums included [as planned].
        """
        made, secure = self.count(plan), self.beside(plan)[1]
        if secure is None or secure.beside is None:
            alone = gdp_epsilon(math.sqrt(self.price(plan).upload * made), plan.delta)
            both = (guarantee or plan.guarantees(evaluation=self))[CURIOUS_SERVER.key]
            seen = "a curious server, who sees every one"
        else:
            server = replace(CURIOUS_SERVER, accomplices=secure.accomplices)
            alone, both = (each.epsilon(server, plan.delta) for each in (secure.beside, secure))
            seen = f"a curious server with {secure.accomplices} accomplices, who sees sums of at least {secure.fewest}"
        return self._stated(plan, alone, both, seen)

    def _stated(self, plan: Plan, alone: float, both: float, seen: str) -> dict[str, Any]:
        """Numbers and sentences; `seen`: by whom."""
        price, made = self.price(plan), self.count(plan)
        account = price.account
        scored = "counts of right answers" if self.error_bound is None else "sums of clipped squared errors"
        return {
            "counts": made,
            "sigma": self.sigma,
            "sensitivity": SENSITIVITY,
            "unit": account.unit,
            "adjacency": account.adjacency,
            "mu_squared_each": price.upload,
            "delta": plan.delta,
            "adversary": "curious-server",
            "epsilon_counts_alone": alone if math.isfinite(alone) else None,
            "epsilon_with_training": both if math.isfinite(both) else None,
            "error_bound": self.error_bound,
            "sentence": (
                f"Besides the training, each client released up to {made} noisy {scored} on its held-out records: epsilon "
                f"{alone:.4g} at delta {plan.delta:g} for a {account.unit} ({account.change}) against {seen}; together with "
                f"all its uploads epsilon {both:.4g} against the same. Every epsilon of this statement includes them, as if "
                "each adversary saw them too."
            ),
            "assumption": self._public(plan, account),
        }

    def _public(self, plan: Plan, account: Account) -> str:
        """What of the held-out records no noise hides."""
        if account.unit != "client":
            return f"How many {account.unit}s each client holds out for the evaluation is public."
        if plan.secure_sums() is None:
            return "Which clients hold records out for the evaluation is public; how many is not told."
        return "How many records a client holds out for the evaluation is not told."


def _times(cost: Callable[[int], float]) -> Callable[[int], float]:
    """So many answers; none cost nothing, also where one has no bound."""
    return lambda answers: cost(answers) if answers else 0.0


def moved(plan: Plan, account: Account) -> float:
    """Delta of (10.3): 1 within a unit of the plan; what holds several has no bound, for it may hold any number of them."""
    return SENSITIVITY if account.unit in _WITHIN[plan.sensitivity_of().unit] else math.inf
