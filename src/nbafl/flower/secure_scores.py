"""Evaluation without a test set under secure aggregation: the server sees the sum of all clients' scores, and no single one.

The j-th evaluation is the j-th round of a second secure aggregation with terms of its own (`Terms.plan` is the evaluation's
name), run by the same state machines as the training's and priced the same way (`nbafl.evaluation`). What a client adds is
two numbers, the sum of its scores and the number of units behind it, with discrete Gaussian noise on both; a plan that
protects whole clients has its mean score and nothing else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, MessageType

from nbafl.evaluation import BITS, NUMBERS, Evaluation
from nbafl.flower import steps
from nbafl.flower.release import Broadcast, Read, Train
from nbafl.flower.roster import Roster
from nbafl.flower.secure_member import LedgerStore, SecureMember, SecureReleaser, terms_of
from nbafl.flower.secure_rounds import SecureMean, SecureRounds
from nbafl.flower.wire import Instruction
from nbafl.plan import Plan
from nbafl.privacy.ledger import Declined
from nbafl.privacy.noise import SecureGaussian
from nbafl.secure import encoding
from nbafl.secure.client import Client as Machine
from nbafl.secure.server import Opened
from nbafl.secure.terms import Terms

log = logging.getLogger("nbafl")

SECRETS = "scores.secrets"
Total = Callable[[np.ndarray], tuple[float, int]]
"""(sum of scores, number of units) of the model with these weights."""


def score_terms(evaluation: Evaluation, plan: Plan, roster: Roster) -> Terms:
    """The training's terms, for sums of scores."""
    return replace(
        terms_of(plan, roster),
        plan=bytes.fromhex(evaluation.digest(plan)),
        last_round=evaluation.count(plan),
        dimension=NUMBERS,
        width=BITS // 8,
    )


class ScoreMember(SecureMember):
    """One client's part in sums of scores; a client without held-out records adds nothing but noise."""

    def __init__(
        self,
        releaser: SecureReleaser,
        evaluation: Evaluation,
        roster: Roster,
        number: int,
        key: Ed25519PrivateKey,
        secrets: Path,
        units: int,
        total: Total,
    ) -> None:
        """`units`: how many this client holds; `total`: scores a model on them."""
        plan = releaser.plan
        self.releaser, self.number, self.evaluation, self.total = releaser, number, evaluation, total
        sums = evaluation.sums(plan)
        assert sums is not None, "a plan with secure aggregation"
        self.sums = sums
        if units > self.sums.sums.largest:
            raise Declined(f"noise {evaluation.sigma:g} is too small for {units} held-out records.")
        store = LedgerStore(releaser.ledger, evaluation.digest(plan), evaluation.price(plan), secrets)
        self.machine = Machine(score_terms(evaluation, plan, roster), number, key.private_bytes_raw(), store)

    def respond(
        self,
        message: Message,
        read: Read,
        train: Train,
        records: int | None = None,  # noqa: ARG002
    ) -> tuple[Instruction, Message]:
        """The reply to one step of an evaluation."""
        instruction, plan = Instruction.read(message.content), self.releaser.plan
        if instruction.plan != plan.digest() or instruction.client != self.number - 1:
            raise Declined("this evaluation is of another plan, or for another client.")
        if not 1 <= instruction.round <= self.evaluation.count(plan):
            raise Declined(f"there is no evaluation {instruction.round} in this plan.")
        step, body = steps.read(message.content)
        said = self._say(step, body, instruction, message, read, train)
        return instruction, steps.answer(instruction, said, message)

    def _check_start(self, start: np.ndarray) -> None:
        """Scores lie between 0 and 1 whatever the weights are."""

    def _words(self, asked: Broadcast, train: Train) -> np.ndarray:  # noqa: ARG002 (nothing is trained)
        total, units = self.total(asked.start)
        if self.releaser.plan.sensitivity_of().unit == "client":
            units = 0  # how many records it holds is its own business; the server counts clients
        grid = self.sums.grid
        integers = encoding.on_grid(np.array([total, float(units)]), 1.0, grid.step)
        return encoding.to_words(integers + SecureGaussian().integers(grid.spread, NUMBERS), grid.width)


@dataclass
class ScoreRounds(SecureRounds):
    """Sums of scores with whoever is connected; `mean` gives (sum, number of units) as its vector."""

    evaluation: Evaluation | None = None
    kind: ClassVar[str] = MessageType.EVALUATE

    def _terms(self) -> Terms:
        assert self.evaluation is not None
        return score_terms(self.evaluation, self.plan, self.roster)

    def _decoded(self, opened: Opened, start: np.ndarray) -> SecureMean:  # noqa: ARG002
        assert self.evaluation is not None
        sums = self.evaluation.sums(self.plan)
        assert sums is not None, "a plan with secure aggregation"
        grid = sums.grid
        total, units = encoding.to_integers(opened.words, grid.width) * grid.step
        if self.plan.sensitivity_of().unit == "client":
            units = float(len(opened.members))
        members = [each - 1 for each in opened.members]
        return SecureMean(np.array([total, units]), members)

    def share(self, mean: SecureMean) -> float | None:
        """The mean score; None where so few records are behind the sum that it is all noise."""
        assert self.evaluation is not None
        total, units = mean.vector
        noise = self.evaluation.sigma * math.sqrt(len(mean.members))
        if not units > min(noise, len(mean.members)):
            return None
        return float(min(1.0, max(0.0, total / units)))
