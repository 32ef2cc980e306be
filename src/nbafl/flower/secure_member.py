"""A client's side of secure aggregation in a federation: what `nbafl.secure.client` needs of disk, ledger and training.

What happened is kept in the client's ledger database, in the transaction of the release itself; secrets in a file of
their own that is replaced whole, so that what the protocol erases is not kept by an append-only ledger. Every step
also leaves a row without a price: the anchor outside of the ledger's folder moves with it, and a disk put back shows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message

from nbafl.durable import write_bytes
from nbafl.errors import DataError, Refused
from nbafl.flower import steps, wire
from nbafl.flower.release import Broadcast, Read, Releaser, Train, check_instruction, trained
from nbafl.flower.roster import Roster
from nbafl.flower.wire import Instruction
from nbafl.plan import Plan
from nbafl.privacy.adversary import Release
from nbafl.privacy.integers import LARGEST_BROADCAST
from nbafl.privacy.ledger import Charge, Declined, Ledger, Price, Request
from nbafl.privacy.noise import SecureGaussian
from nbafl.privacy.secure_sums import SecureSums
from nbafl.privacy.units import Account, in_account
from nbafl.secure import encoding, sizes, state
from nbafl.secure.client import Client as Machine
from nbafl.secure.messages import AgreeRequest, TrainRequest, UnmaskRequest
from nbafl.secure.primitives import Broken, digest, join, split
from nbafl.secure.state import State
from nbafl.secure.terms import Terms

SECRETS = "secure.secrets"
NAME, OPEN, PREPARE, TRAIN, AGREE, UNMASK = "name", "open", "prepare", "train", "agree", "unmask"
_TABLE = "CREATE TABLE IF NOT EXISTS secure_state (plan TEXT PRIMARY KEY, state BLOB NOT NULL)"


def terms_of(plan: Plan, roster: Roster) -> Terms:
    """What all parties agreed on, from the plan and the roster."""
    roster.check_plan(plan)
    sums = plan.secure_sums()
    if sums is None:
        raise DataError("this plan does not use secure aggregation.")
    keys = tuple(base64.b64decode(member.signing_key) for member in roster.members)
    return Terms(
        plan=bytes.fromhex(plan.digest()),
        roster=bytes.fromhex(roster.digest()),
        keys=keys,
        accomplices=sums.accomplices,
        fewest=sums.fewest,
        last_round=plan.rounds,
        dimension=sums.sums.dimension,
        width=sums.grid.width,
    )


class SecureReleaser(Releaser):
    """`Releaser` for sums of integers: their price, and the words that a trained vector becomes."""

    roster: str = ""
    """sha256 of the roster, for whoever shows what was agreed."""

    @property
    def sums(self) -> SecureSums:
        sums = self.plan.secure_sums()
        assert sums is not None, "a secure releaser serves a secure plan"
        return sums

    def price(self, client: int, dimension: int | None = None) -> Price:  # noqa: ARG002 (all draw alike, d is the plan's)
        """What one more answer costs each account, and tells the server with its k accomplices.

        `rounding` is 2 tau of one round.
        """
        charges = {
            account: Charge(
                self.sums.protecting(release.uplink).cost_server(1), after, release.sensitivity.conditional
            )
            for account, (release, after) in self._accounts.items()
        }
        rounding = 2 * self.sums.sums.tau / self.plan.rounds
        return Price(self.account, charges, self.plan.rounds, self.adversary.name, rounding)

    def cost_alone(self, client: int) -> float:  # noqa: ARG002 (all draw alike)
        """mu^2 of one upload that somebody opened: more than k accomplices, or broken cryptography."""
        return self.sums.protecting(self.release.uplink).cost_upload

    def _charge(self, account: Account) -> tuple[Release, Callable[[int], float]]:
        release = in_account(self.release, account, self.reach.radius)
        protected = self.sums.protecting(release.uplink)
        return release, lambda answers: protected.cost(self.adversary, answers) if answers else 0.0

    def words(self, client: int, start: np.ndarray, train: Callable[[], np.ndarray]) -> np.ndarray:
        """z_i: trained, clipped in float64, rounded to the grid, with discrete Gaussian noise of its own."""
        centre = self.reach.centre(start)
        offset = self.reach.bound(self._finite(trained(train), centre), start)
        grid = self.sums.grid
        integers = encoding.on_grid(offset, float(self.sums.sums.weights[client]), grid.step)
        return encoding.to_words(integers + SecureGaussian().integers(grid.spread, len(integers)), grid.width)

    def check_start(self, start: np.ndarray) -> None:
        """Before anything is recorded: the theorem's rho holds below the largest broadcast, and d is the plan's."""
        if len(start) != self.sums.sums.dimension:
            raise Declined(
                f"the broadcast has {len(start)} coordinates, the plan {self.sums.sums.dimension}."
            )
        if float(np.abs(start).max()) + self.reach.radius >= LARGEST_BROADCAST:
            raise Declined(f"the broadcast holds weights of {LARGEST_BROADCAST:g} or more.")


class LedgerStore:
    """`secure.state.Store` over a ledger's database and a file of secrets beside it."""

    def __init__(self, ledger: Ledger, plan: str, price: Price, secrets: Path) -> None:
        """`plan`: the name of these releases in the ledger; `price`: of each of them."""
        self.ledger, self.plan, self.price, self.secrets = ledger, plan, price, secrets
        with self.ledger.transaction():
            self.ledger.execute(_TABLE)

    def load(self) -> tuple[bytes | None, bytes | None]:
        found = self.ledger.execute("SELECT state FROM secure_state WHERE plan = ?", (self.plan,))
        kept = self.secrets.read_bytes() if self.secrets.is_file() else None
        return (bytes(found[0][0]) if found else None), kept

    def save(
        self, expected: int, happened: bytes, secrets: bytes, charge: state.Charge | None = None
    ) -> None:
        after = State.decode(happened)
        with self.ledger.transaction():
            before = self.load()[0]
            if (State.decode(before).steps if before else 0) != expected:
                raise Refused("another process took a step in this client's name.")
            write_bytes(self.secrets, secrets, mode=0o600)  # first: see `secure.state`
            if charge is not None:
                request = Request(self.plan, charge.round, charge.commitment.hex())
                self.ledger.record(request, charge.upload, self.price)
            else:
                self.ledger.mark(Request(self.plan, after.round, ""), digest(happened).hex())
            self.ledger.execute("INSERT OR REPLACE INTO secure_state VALUES (?, ?)", (self.plan, happened))

    def check(self, round: int, commitment: bytes) -> None:
        self.ledger.check(Request(self.plan, round, commitment.hex()), self.price)

    def upload(self, round: int, commitment: bytes) -> bytes:
        stored = self.ledger.stored(Request(self.plan, round, commitment.hex()))
        if stored is None:
            raise Refused("the upload of this round is not in the ledger.")
        return stored


class SecureMember:
    """One client of a secure federation: the state machine, and the way from a server's message to a reply."""

    def __init__(
        self, releaser: SecureReleaser, roster: Roster, number: int, key: Ed25519PrivateKey, secrets: Path
    ) -> None:
        self.releaser, self.number = releaser, number
        releaser.roster = roster.digest()
        store = LedgerStore(releaser.ledger, releaser.plan.digest(), releaser.price(number - 1), secrets)
        self.machine = Machine(terms_of(releaser.plan, roster), number, key.private_bytes_raw(), store)

    @property
    def largest_request(self) -> int:
        """Bytes a step may have, beside the model."""
        return sizes.largest_request(self.machine.terms)

    def respond(
        self, message: Message, read: Read, train: Train, records: int | None = None
    ) -> tuple[Instruction, Message]:
        """The reply to one step of a round; whatever is wrong is `Declined` or `Malformed`, and nothing leaves."""
        if message.metadata.message_type.partition(".")[0] != "train":
            raise Declined("only training is answered: evaluations and queries would leave without noise.")
        instruction = Instruction.read(message.content)
        check_instruction(self.releaser.plan, instruction, records)
        step, body = steps.read(message.content)
        if step != NAME and instruction.client != self.number - 1:
            raise Declined(f"this is client {self.number} of the roster, not {instruction.client + 1}.")
        said = self._say(step, body, instruction, message, read, train)
        return instruction, steps.answer(instruction, said, message)

    def _say(
        self, step: str, body: bytes, instruction: Instruction, message: Message, read: Read, train: Train
    ) -> bytes:
        match step:
            case "name":
                return self.machine.name(body)
            case "open":
                return self.machine.open()
            case "prepare":
                self.machine.join(_parts(body))
                return self.machine.prepare(instruction.round)
            case "train":
                return self._train(TrainRequest.read(body), instruction, message, read, train)
            case "agree":
                return self.machine.agree(AgreeRequest.read(body))
            case "unmask":
                return self._unmask(UnmaskRequest.read(body))
        raise Declined(f"{step!r} is not a step of secure aggregation.")

    def _train(
        self, request: TrainRequest, instruction: Instruction, message: Message, read: Read, train: Train
    ) -> bytes:
        layout, received = read(message.content.get(wire.ARRAYS))
        start = layout.vector(received)
        wire.check_broadcast(start)
        self._check_start(start)
        if request.broadcast.hex() != wire.digest(received) or request.round != instruction.round:
            raise Declined("the list was made for another broadcast or round.")
        asked = Broadcast(instruction, layout, start)
        return self.machine.train(request, lambda _: self._words(asked, train))

    def _check_start(self, start: np.ndarray) -> None:
        self.releaser.check_start(start)

    def _words(self, asked: Broadcast, train: Train) -> np.ndarray:
        """What is masked and sent: the trained vector on the grid, with its noise."""
        return self.releaser.words(self.number - 1, asked.start, lambda: train(asked))

    def _unmask(self, request: UnmaskRequest) -> bytes:
        """The shares, and with them the prepare of the next round, if there is one."""
        revealed = self.machine.unmask(request)
        following = request.round + 1
        more = self.machine.prepare(following) if following <= self.machine.terms.last_round else b""
        return join(revealed, more)


def _parts(body: bytes) -> list[bytes]:
    try:
        return split(body)
    except Broken:
        raise Declined("the list of opens cannot be read.") from None
