"""The client's side as a Flower mod: one argument makes an existing ClientApp private.

    app = ClientApp(mods=[nbafl.flower.private(plan)])
    app = ClientApp(mods=[nbafl.flower.private(plan, roster="roster.toml")])        # secure aggregation

Whatever the app's training function does with the received model, what leaves is its update clipped to C, plus noise,
charged to the ledger: the `client` unit, the only one that can be promised around training
code nobody checked. Metrics, example counts and everything else in the reply stay at home; evaluate and query messages
are refused, since their answers carry no noise. Any failure becomes a refusal with a fixed sentence, because the text
of an exception may quote data (`Declined` and `Malformed` quote only what the server knows).
"""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Context, Message

from nbafl.errors import DataError, UsageError
from nbafl.flower import steps, wire
from nbafl.flower.keys import read_signing_key
from nbafl.flower.release import Broadcast, Releaser, refusal, respond
from nbafl.flower.roster import Roster
from nbafl.flower.secure_member import SecureMember, SecureReleaser
from nbafl.flower.wire import Layout, Malformed
from nbafl.plan import Plan
from nbafl.privacy.ledger import Declined, Ledger, Limits
from nbafl.privacy.units import Account

if TYPE_CHECKING:  # they moved between the versions of Flower
    from flwr.clientapp.typing import ClientAppCallable, Mod

log = logging.getLogger("nbafl")

NAME = "nbafl-name"


def private(
    plan: Plan | str | Path,
    *,
    limits: Limits | None = None,
    state: str | Path | None = None,
    exposures: int = 1,
    roster: Roster | str | Path | None = None,
    key: str | Path | None = None,
) -> Mod:
    """A mod for `ClientApp(mods=[...])`: clips, noises and accounts by `plan` (a Plan or its TOML file).

    Under secure aggregation it also masks, and needs the `roster` (or its file) and this client's private `key`: a
    file of `nbafl keys make`, or the folder where one lies for each name [NBAFL_KEY].

    `limits`: this client's own budget over all plans, in the plan's unit unless it names another; if left out, what
    its ledger says, or the plan's claim: whoever writes the app is trusted with that, as with the data.
    `state`: folder of the ledger [NBAFL_STATE, or ~/.nbafl]; each client has its own file in it, named by node config
    `nbafl-name` or `partition-id`.
    """
    agreed = plan if isinstance(plan, Plan) else Plan.from_toml(plan)
    if not agreed.rule.any_training:
        raise UsageError(
            "sensitivity", agreed.sensitivity, "client around training code that nbafl does not control"
        )
    secure = _secure(agreed, roster, key)
    account, claimed = Account.of("client", agreed.adjacency), Limits(agreed.epsilon, agreed.delta)
    folder = Path(state or os.environ.get("NBAFL_STATE") or Path.home() / ".nbafl")
    verified: set[Path] = set()  # a chain is walked once a process, not in every round

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            name = _name(context)
            ledger = Ledger(folder / f"ledger-{name}.sqlite")
            try:
                if limits is not None or ledger.limits_of(account) is None:
                    ledger.set_limits(
                        replace(limits or claimed, account=(limits or claimed).account or account)
                    )
                known = ledger.path in verified
                train = functools.partial(_train, message, context, call_next)
                if secure is None:
                    releaser = Releaser(agreed, ledger, exposures, verified=known)
                    verified.add(ledger.path)
                    return respond(releaser, message, _read, train)[1]
                masking = SecureReleaser(agreed, ledger, exposures, verified=known)
                verified.add(ledger.path)
                member = secure.member(masking, name, folder / f"secrets-{name}")
                return member.respond(message, _read, train)[1]
            finally:
                ledger.close()
        except Exception as error:
            return refusal(error, message)

    return mod


def _read(record: object) -> tuple[Layout, dict[str, np.ndarray]]:
    received = wire.read_any(record)
    return Layout.of(received), received


def _train(message: Message, context: Context, call_next: ClientAppCallable, asked: Broadcast) -> np.ndarray:
    """The vector the app's own training ends with."""
    reply = call_next(steps.without_bytes(message), context)
    if reply.has_error():
        raise Malformed("the app's training function returned an error.")
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise Malformed(f"the app's reply must hold one ArrayRecord, got {len(records)}.")
    return asked.layout.vector(asked.layout.read(records[0]))


@dataclass(frozen=True)
class _Secure:
    """What a client needs for secure aggregation beside its plan: the roster, and where its key lies."""

    roster: Roster
    key: Path

    def member(self, releaser: SecureReleaser, name: str, secrets: Path) -> SecureMember:
        """This client as the roster has it, found by its signing key."""
        signing = read_signing_key(self.key / name if self.key.is_dir() else self.key)
        found = self.roster.signing(signing)
        if found is None:
            raise DataError(f"the roster does not have the signing key of {name!r}.")
        return SecureMember(releaser, self.roster, found.number, signing, secrets)


def _secure(plan: Plan, roster: Roster | str | Path | None, key: str | Path | None) -> _Secure | None:
    if plan.aggregation == "plain":
        return None
    if roster is None:
        raise UsageError("roster", None, "the roster or its file under secure aggregation")
    place = key or os.environ.get("NBAFL_KEY")
    if not place:
        raise UsageError("key", None, "this client's key file, or a folder of them, under secure aggregation")
    return _Secure(roster if isinstance(roster, Roster) else Roster.load(roster), Path(place))


def _name(context: Context) -> str:
    name = context.node_config.get(NAME, context.node_config.get("partition-id"))
    if name is None:
        raise Declined(
            "this SuperNode has no name, so it has no ledger: start it with --node-config 'nbafl-name=\"NAME\"'."
        )
    return _plain(str(name))


def _plain(name: str) -> str:
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise UsageError(NAME, name, "letters, digits, - and _")
    return name
