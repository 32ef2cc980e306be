"""Scores on a client's own records over the wire: its noisy sum (`nbafl.evaluation`), and what a server makes of many."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from nbafl.evaluation import SENSITIVITY, Evaluation
from nbafl.flower import wire
from nbafl.flower.wire import Instruction, Malformed
from nbafl.plan import Plan
from nbafl.privacy.ledger import Declined, Ledger, Request
from nbafl.privacy.noise import SecureGaussian, largest_coordinate

RIGHT, HELD_OUT = "nbafl-right", "nbafl-held-out"
TAIL = 40.0
"""No honest sum lies further than so many sigma outside of 0 … h."""
ROUNDING = 2.0**-50
"""A sum of scores is off by less than this for each of them."""


def answer(
    evaluation: Evaluation,
    plan: Plan,
    ledger: Ledger,
    message: Message,
    broadcast: str,
    total: float,
    units: int,
    widening: float = 1.0,
) -> Message:
    """A client's noisy sum: the stored one for a question asked again, else a new release, recorded before it leaves.

    `widening`: of all noise of this plan, for finite precision.
    """
    instruction = Instruction.read(message.content)
    request = Request(evaluation.digest(plan), instruction.round, broadcast)
    stored = ledger.stored(request)
    if stored is None:
        if units > largest_coordinate(evaluation.sigma):  # public numbers both
            raise Declined(f"noise {evaluation.sigma:g} is too small for {units} held-out records.")
        price = evaluation.price(plan, widening)
        ledger.check(request, price)
        rounding = units * ROUNDING
        noisy = SecureGaussian().add(np.array([total]), evaluation.sigma, SENSITIVITY, rounding, widening)
        stored = noisy.astype(np.float64).tobytes()
        ledger.record(request, stored, price)
    said: dict[str, Any] = {
        **instruction.answered(),
        RIGHT: float(np.frombuffer(stored, dtype=np.float64)[0]),
        HELD_OUT: units,
    }
    return Message(RecordDict({wire.ANSWER: ConfigRecord(said)}), reply_to=message)


def check_asked(
    evaluation: Evaluation | None, plan: Plan, instruction: Instruction, held_out: int
) -> Evaluation:
    """A client scores only where that was agreed on, in the rounds it was agreed for."""
    if evaluation is None or held_out == 0:
        raise Declined("this client has not agreed to an evaluation, or holds no records for it.")
    if not 1 <= instruction.round <= plan.rounds or not evaluation.due(instruction.round, plan):
        raise Declined(f"the model is not measured in round {instruction.round}.")
    return evaluation


def mean_score(evaluation: Evaluation, replies: Iterable[tuple[Message, Instruction]]) -> float | None:
    """The mean score over all units that were scored; None when nobody answered."""
    right, held_out = 0.0, 0
    for reply, expected in replies:
        if reply.has_error():
            continue
        wire.check_answer(reply.content, expected)
        said = reply.content[wire.ANSWER]
        count, size = said.get(RIGHT), said.get(HELD_OUT)
        if (
            type(count) is not float
            or type(size) is not int
            or not 1 <= size < 2**40
            or not math.isfinite(count)
        ):
            raise Malformed("a sum of scores is not a number, or covers no records.")
        if not -TAIL * evaluation.sigma <= count <= size + TAIL * evaluation.sigma:
            raise Malformed("a sum of scores is further off than noise can explain.")
        right, held_out = right + count, held_out + size
    # Between 0 and 1 is where a mean score lies: cutting off is post-processing.
    return min(1.0, max(0.0, right / held_out)) if held_out else None
