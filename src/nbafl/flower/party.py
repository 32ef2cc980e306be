"""nbafl's own client app: the server's instructions are data, the code that runs is installed here.

A message says which round it is and what the model looks like now; everything else (the plan, the model's code, the
data, the limits) the client has from its owner. How it trains is the business of two kinds of party: `client.Client`
for any model, with torch, and `small_client.SmallClient` for softmax regression, without.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from nbafl.data.checks import Arrays
from nbafl.evaluation import Evaluation
from nbafl.flower import evaluation, headroom, inspection, steps, wire
from nbafl.flower.inspection import Facts, Own
from nbafl.flower.release import Broadcast, Releaser, check_instruction, precision_of, refusal, respond
from nbafl.flower.secure_member import SecureMember
from nbafl.flower.wire import Instruction, Layout, Malformed
from nbafl.privacy.ledger import BudgetSpent, Declined

log = logging.getLogger("nbafl")


class Party(ABC):
    """One party: its data, its model, and the only way out (`Releaser`)."""

    def __init__(
        self,
        releaser: Releaser,
        layout: Layout,
        shape: tuple[int, ...],
        units: int,
        task: str,
        on_answer: Callable[[int], None] | None,
        own: Own | None,
        secure: SecureMember | None,
        classes: Sequence[str] = (),
    ) -> None:
        """`layout`: of its model; `shape`: of a record; `secure`: its part in secure aggregation, if any.

        `units`: how many records it holds, or persons, where these are protected; `classes`: their names, if any.
        """
        self.releaser, self.on_answer, self.secure = releaser, on_answer, secure
        self.layout, self.shape, self.units = layout, shape, units
        self.own = own or Own(None, "", "")
        self.evaluation: Evaluation | None = None
        """What was agreed on for measuring the model on this client's own records."""
        self.held_out: Arrays = (np.empty(0), np.empty(0))
        """Records for that."""
        self.scores: SecureMember | None = None
        """This client's part in secure sums of scores."""
        self.held_out_persons: np.ndarray | None = None
        """How many rows each person has there, where a person is protected."""
        self.training = releaser.plan.training(task, classes)
        self.ended: str | None = None
        """How the federation ended, once the server said so."""
        self.spent: str | None = None
        """Why nothing more can be released, once the budget is spent."""

    @abstractmethod
    def _train(self, asked: Broadcast) -> np.ndarray:
        """What this client would upload before its noise, as a float64 vector."""

    @abstractmethod
    def _answers(self, point: np.ndarray, x: np.ndarray) -> np.ndarray:
        """What the model with these weights answers to each record."""

    def handle(self, message: Message) -> Message | None:
        """The reply to a message; None when the server says that the federation is over."""
        config = message.content.get(wire.CONFIG) if message.has_content() else None
        if isinstance(config, ConfigRecord) and isinstance(config.get(wire.END), str):
            self.ended = wire.printable(str(config[wire.END]))
            return None
        try:
            if isinstance(config, ConfigRecord) and wire.CHECK in config:
                return self._check(config, message)
            if message.metadata.message_type == MessageType.EVALUATE:
                return self._measure(message)
            instruction, reply = self._respond(message)
            if self.on_answer and steps.uploads(message.content):
                self.on_answer(instruction.round)
            return reply
        except Exception as error:
            if isinstance(error, BudgetSpent):
                self.spent = str(error)
            return refusal(error, message)

    def _respond(self, message: Message) -> tuple[Instruction, Message]:
        if self.secure is not None:
            return self.secure.respond(message, self._read, self._train, self.units)
        return respond(self.releaser, message, self._read, self._train, self.units)

    def _check(self, config: ConfigRecord, message: Message) -> Message:
        """Whether this client could answer, before anything is released."""
        facts, number = Facts.read(config), config.get(wire.CLIENT)
        if type(number) is not int:
            raise Malformed(f"the field {wire.CLIENT!r} must be int.")
        for remark in inspection.remarks(facts):
            log.warning("%s", remark)
        for problem in inspection.problems(self, self.own, facts, number):
            if problem == inspection.NO_ROOM:
                log.warning("%s", headroom.stopping(self.releaser, number))
            raise Declined(problem)
        counted = self.releaser.plan.counted
        log.info("checked: plan, roster, schema, model, number of %s and limits fit the server's.", counted)
        ready = ConfigRecord({wire.CHECK: wire.PROTOCOL})
        return Message(RecordDict({wire.ANSWER: ready}), reply_to=message)

    def _measure(self, message: Message) -> Message:
        """How the broadcast model does on held-out records, with noise; in the open, or in a secure sum."""
        try:
            return self._scored(message)
        except BudgetSpent as error:  # the training may still have room
            log.warning("refused: %s", error)
            raise Declined(error.told) from None

    def _scored(self, message: Message) -> Message:
        if self.scores is not None:
            return self.scores.respond(message, self._read, self._train)[1]
        instruction, plan = Instruction.read(message.content), self.releaser.plan
        check_instruction(plan, instruction, None)
        agreed = evaluation.check_asked(self.evaluation, plan, instruction, len(self.held_out[1]))
        if self.secure is not None:
            raise Declined("this plan uses secure aggregation: scores leave masked, or not at all.")
        _, received = self._read(message.content.get(wire.ARRAYS))
        start = self.layout.vector(received)
        wire.check_broadcast(start)
        made = evaluation.answer(
            agreed, plan, self.releaser.ledger, message, wire.digest(received), *self.total(start),
            precision_of(plan, start.size).widening,
        )  # fmt: skip
        log.info("round %d: a noisy sum of scores is recorded; sending.", instruction.round)
        return made

    def total(self, point: np.ndarray) -> tuple[float, int]:
        """(sum of scores, number of units) of the model with these weights on the held-out records."""
        x, y = self.held_out
        if self.evaluation is None or not len(y):
            return 0.0, 0
        unit = self.releaser.plan.sensitivity_of().unit
        return self.evaluation.total(self._answers(point, x), y, unit, self.held_out_persons)

    def _read(self, record: object) -> tuple[Layout, dict[str, np.ndarray]]:
        """The arrays received; what this client's own model looks like (its classes, its columns) is not told."""
        try:
            return self.layout, self.layout.read(record)
        except Malformed as error:
            log.warning("the broadcast does not fit this client's model: %s", error)
            raise Declined("the broadcast does not fit this client's model; its own log says why.") from None
