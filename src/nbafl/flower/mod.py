"""The client's side as a Flower mod: one argument makes an existing ClientApp private.

    app = ClientApp(mods=[nbafl.flower.private(plan)])

Whatever the app's training function does with the received model, what leaves is the received model plus its update
clipped to C, plus noise, charged to the ledger: the `client` unit, the only one that can be promised around training
code nobody checked. Metrics, example counts and everything else in the reply stay at home; evaluate and query messages
are refused, since their answers carry no noise. Any failure becomes a refusal with a fixed sentence, because the text
of an exception may quote data (`Declined` and `Malformed` quote only what the server knows).
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

import numpy as np
from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from nbafl.errors import NbaflError, UsageError
from nbafl.flower import wire
from nbafl.flower.release import Releaser, check_instruction
from nbafl.flower.wire import Instruction, Layout, Malformed
from nbafl.plan import Plan
from nbafl.privacy.ledger import Declined, Ledger, Limits, Request

log = logging.getLogger("nbafl")

NAME = "nbafl-name"


def private(
    plan: Plan | str | Path,
    *,
    limits: Limits | None = None,
    state: str | Path | None = None,
    exposures: int = 1,
) -> Mod:
    """A mod for `ClientApp(mods=[...])`: clips, noises and accounts by `plan` (a Plan or its TOML file).

    `limits`: this client's own budget over all plans; if left out, what its ledger says, or the plan's claim.
    `state`: folder of the ledger [NBAFL_STATE, or ~/.nbafl]; each client has its own file in it, named by node config
    `nbafl-name` or `partition-id`.
    """
    agreed = plan if isinstance(plan, Plan) else Plan.from_toml(plan)
    if agreed.sensitivity != "client":
        raise UsageError(
            "sensitivity", agreed.sensitivity, "client around training code that nbafl does not control"
        )
    folder = Path(state or os.environ.get("NBAFL_STATE") or Path.home() / ".nbafl")
    claimed = Limits(agreed.epsilon, agreed.delta)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            ledger = _open_ledger(folder, context)
            try:
                if limits is not None or ledger.limits is None:
                    ledger.set_limits(limits or claimed)
                return _answer(Releaser(agreed, ledger, exposures), message, context, call_next)
            finally:
                ledger.close()
        except Exception as error:
            return refusal(error, message)

    return mod


def refusal(error: Exception, message: Message) -> Message:
    """The reply of a client that says no: why, if that quotes nothing of its own; else its own log knows."""
    if isinstance(error, NbaflError):
        log.warning("refused: %s", error)
    else:
        log.error("something went wrong; nothing was sent.", exc_info=error)
    told = isinstance(error, (Declined, Malformed))
    reason = str(error) if told else "this client cannot answer; its own log says why."
    return Message(Error(code=wire.REFUSED, reason=reason), reply_to=message)


def _answer(releaser: Releaser, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    if message.metadata.message_type.partition(".")[0] != "train":
        raise Declined("only training is answered: evaluations and queries would leave without noise.")
    instruction = Instruction.read(message.content)
    check_instruction(releaser.plan, instruction, None)
    received = wire.read_any(message.content.get(wire.ARRAYS))
    layout = Layout.of(received)
    start = layout.vector(received)
    wire.check_broadcast(start)
    request = Request(instruction.plan, instruction.round, wire.digest(received))
    train = functools.partial(_train, layout, message, context, call_next)
    upload = releaser.answer(request, instruction.client, start, train)
    return wire.answer(instruction, layout.arrays(upload, received), message)


def _train(layout: Layout, message: Message, context: Context, call_next: ClientAppCallable) -> np.ndarray:
    """The vector the app's own training ends with."""
    reply = call_next(message, context)
    if reply.has_error():
        raise Malformed("the app's training function returned an error.")
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise Malformed(f"the app's reply must hold one ArrayRecord, got {len(records)}.")
    return layout.vector(layout.read(records[0]))


def _open_ledger(folder: Path, context: Context) -> Ledger:
    name = context.node_config.get(NAME, context.node_config.get("partition-id"))
    if name is None:
        raise Declined(
            "this SuperNode has no name, so it has no ledger: start it with --node-config 'nbafl-name=\"NAME\"'."
        )
    return Ledger(folder / f"ledger-{_plain(str(name))}.sqlite")


def _plain(name: str) -> str:
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise UsageError(NAME, name, "letters, digits, - and _")
    return name
