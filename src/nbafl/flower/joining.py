"""`nbafl.join`: take part in a federation with one's own data, code, key and limits."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from nbafl.data import mnist
from nbafl.errors import DataError, Refused, UsageError
from nbafl.evaluation import FILE as EVALUATION
from nbafl.evaluation import Evaluation
from nbafl.flower import first_release, headroom
from nbafl.flower.headroom import Owner
from nbafl.flower.inspection import NO_ROOM, Facts, Own, file_hash, problems, remarks
from nbafl.flower.keys import read_private_key, read_signing_key
from nbafl.flower.limits import Ask, Wanted, agree, sentences
from nbafl.flower.local_data import client_data, read_schema
from nbafl.flower.node import Connection, Lost, alone, refuse_wrong_certificate, stay
from nbafl.flower.offline import check_flower
from nbafl.flower.party import Party
from nbafl.flower.release import Releaser, check_client
from nbafl.flower.roster import Roster
from nbafl.flower.secure_member import SECRETS, SecureMember, SecureReleaser
from nbafl.flower.secure_scores import SECRETS as SCORES
from nbafl.flower.secure_scores import ScoreMember
from nbafl.flower.small_client import SmallClient, suits
from nbafl.folders import homes
from nbafl.plan import Plan
from nbafl.privacy.ledger import Ledger, Spent, rehearsal
from nbafl.protocol.linear_regression import LinearRegression

log = logging.getLogger("nbafl")

LEDGER = "ledger.sqlite"


@dataclass(frozen=True)
class Outcome:
    """How a client's part in a federation ended."""

    ended: str | None
    """What the server said at the end; None when this client left first."""
    refused: str | None
    """Why this client releases nothing more, if its budget is spent."""
    ledger: Path
    spent: Spent
    released: int
    """Uploads of this client to this plan, over all its starts."""

    @property
    def problem(self) -> str | None:
        """Why the federation did not finish for this client; None when it did."""
        if self.refused:
            return f"This client left the federation: {self.refused}"
        if self.ended == "finished" and not self.released:
            return "The federation finished, but this client released nothing to it."
        return None if self.ended == "finished" else f"The federation did not finish: {self.ended}"


@dataclass(frozen=True)
class Agreement:
    """What the client got beforehand, by a way it trusts."""

    plan: Path
    certificate: Path
    schema: Path | None
    roster: Path | None = None
    evaluation: Path | None = None

    @classmethod
    def of(
        cls,
        handout: str | Path | None,
        plan: str | Path | None = None,
        certificate: str | Path | None = None,
        schema: str | Path | None = None,
    ) -> Agreement:
        """The files of a handout folder, or those named one by one."""
        if handout is not None:
            folder = Path(handout)
            found = folder / homes.SCHEMA
            found = found if found.is_file() else folder / homes.OLD_SCHEMA  # refused with the way out
            plan, certificate = plan or folder / homes.PLAN, certificate or folder / homes.AUTHORITY
            schema = schema or (found if found.is_file() else None)
        if plan is None or certificate is None:
            raise UsageError("handout", None, "the server's handout folder, or --plan and --certificate")
        if not Path(certificate).is_file():
            raise UsageError("certificate", str(certificate), "a file: the certificate of the federation")
        members = Path(handout) / homes.ROSTER if handout is not None else None
        members = members if members is not None and members.is_file() else None
        counted = Path(handout) / EVALUATION if handout is not None else None
        counted = counted if counted is not None and counted.is_file() else None
        return cls(Path(plan), Path(certificate), None if schema is None else Path(schema), members, counted)

    def own(self, key: ec.EllipticCurvePublicKey) -> Own:
        """What these files say, to be held against the server's."""
        roster = Roster.load(self.roster) if self.roster is not None else None
        member = roster.find(key) if roster is not None else None
        if roster is not None and member is None:
            raise DataError(f"roster {str(self.roster)!r} does not name the key of this client.")
        number = member.index if member is not None else None
        return Own(number, roster.digest() if roster is not None else "", file_hash(self.schema))


@dataclass(frozen=True)
class Asked:
    """What a client's owner asked for beside the data; see `join`."""

    outputs: int | None = None
    state: str | Path | None = None
    epsilon: float | None = None
    delta: float | None = None
    exposures: int = 1
    epsilon_uploads: float | None = None
    max_releases: int | None = None
    proxy: str | None = None
    ask: Ask | None = None
    held_out: str | None = None

    @property
    def limits(self) -> Wanted:
        return Wanted(self.epsilon, self.delta, self.max_releases, self.epsilon_uploads)


def join(
    address: str,
    key: str | Path,
    data: str,
    agreement: Agreement | str | Path,
    *,
    outputs: int | None = None,
    state: str | Path | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    exposures: int = 1,
    epsilon_uploads: float | None = None,
    max_releases: int | None = None,
    proxy: str | None = None,
    ask: Ask | None = None,
    held_out: str | None = None,
    patience: float = 600.0,
    on_agreed: Callable[[Releaser], None] | None = None,
    on_answer: Callable[[int], None] | None = None,
) -> Outcome:
    """Answer the server at `address` (HOST:PORT) until the federation is over or this client's budget is spent.

    `agreement`: the server's handout folder, or an `Agreement`. `data`: as `nbafl join --data`. `state`: folder of the
    ledger [~/.nbafl/KEY]. `epsilon`, `delta`, `epsilon_uploads`, `max_releases`: this client's own limits over all plans
    [its ledger's]; without any, `ask` is called, or the call refused. `proxy`: an HTTPS proxy as URL [HTTPS_PROXY].
    `held_out`: records of the same form as `data` on which the model is measured, where that was agreed on.
    `on_agreed` is told what is about to happen before anything is sent, `on_answer` each round answered.
    """
    asked = Asked(
        outputs, state, epsilon, delta, exposures, epsilon_uploads, max_releases, proxy, ask, held_out
    )
    with _party(address, key, data, agreement, asked, on_agreed, on_answer) as (client, connection, owner):
        for sentence in owner.not_applied(client.releaser.account):
            log.warning("%s", sentence)
        stay(connection, client.handle, lambda: client.spent is not None, patience)
        ledger, plan = client.releaser.ledger, client.releaser.plan
        released = sum(row.plan == plan.digest() and row.kind == "release" for row in ledger.rows())
        return Outcome(client.ended, client.spent, ledger.path, ledger.spent(), released)


@dataclass(frozen=True)
class Check:
    """What `join --check` found; nothing was released, and nothing written to the ledger."""

    problems: list[str]
    remarks: list[str]
    round_trip: float
    facts: Facts
    number: int
    possible: int
    """Answers to this plan that the limits allow."""
    promise: list[str]
    """What the plan promises, and what its uploads are worth to the server itself."""


def check(
    address: str, key: str | Path, data: str, agreement: Agreement | str | Path, asked: Asked | None = None
) -> Check:
    """Would this client's part work? Connects, compares everything with the server's, and releases nothing.

    The limits asked for are tried out on a copy of the ledger: it gets no row and no limit from this.
    """
    line = _party(address, key, data, agreement, asked or Asked(), None, None, trial=True)
    with line as (client, connection, owner):
        releaser = client.releaser
        with _reached(connection), connection.visiting() as said:
            facts, number = Facts.from_json(said), int(said["client"])
            found, told = list(problems(client, client.own, facts, number)), list(remarks(facts))
            if NO_ROOM in found and (stopped := headroom.stopping(releaser, number)) is not None:
                found[found.index(NO_ROOM)] = f"{NO_ROOM[:-1]}: {owner.explain(stopped)}"
            else:
                told += owner.not_applied(releaser.account)
            known = 0 <= number < releaser.plan.clients
            price = releaser.price(number) if known else None
            possible = releaser.ledger.affordable(releaser.plan.digest(), price) if price else 0
            promise = sentences(releaser)
            return Check(found, told, connection.round_trip(), facts, number, possible, promise)


@contextmanager
def _party(
    address: str,
    key: str | Path,
    data: str,
    agreement: Agreement | str | Path,
    asked: Asked,
    on_agreed: Callable[[Releaser], None] | None,
    on_answer: Callable[[int], None] | None,
    trial: bool = False,
) -> Iterator[tuple[Party, Connection, Owner]]:
    """This client with its ledger open, its line to the server, not yet used, and what its owner said.

    `trial`: the ledger is a copy that is thrown away.
    """
    check_flower()
    _check_address(address)
    if not isinstance(agreement, Agreement):
        agreement = Agreement.of(agreement)
    plan, private = Plan.from_toml(agreement.plan), read_private_key(key)
    folder = Path(asked.state) if asked.state else Path.home() / ".nbafl" / Path(key).name
    with alone(folder), _ledger(folder / LEDGER, trial) as ledger:
        secure = plan.secure_sums() is not None
        releaser = (SecureReleaser if secure else Releaser)(plan, ledger, asked.exposures)
        if agreement.evaluation is not None and (secure or asked.held_out is not None):
            releaser.evaluation = Evaluation.load(agreement.evaluation)
        first_release.supply_known(ledger, agreement.plan)
        owner = Owner(tuple(ledger.limits()), asked.limits, folder)
        agree(releaser, asked.limits, asked.ask)
        own = agreement.own(private.public_key())
        member = _member(releaser, agreement, own, key, folder) if secure else None
        client = _client(releaser, data, agreement.schema, asked.outputs, on_answer, own, member)
        if asked.held_out is not None:
            _set_apart(client, agreement, asked.held_out, asked.outputs)
        if member is not None and agreement.evaluation is not None:
            client.scores = _score_member(client, agreement, own, key, folder)
        mnist.load.cache_clear()  # digits of all the others, where this client's came from there
        if on_agreed:
            on_agreed(releaser)
        largest = client.layout.largest_bytes + (member.largest_request if member else 0)
        yield client, Connection(address, agreement.certificate, private, largest, asked.proxy), owner


def _ledger(place: Path, trial: bool) -> AbstractContextManager[Ledger]:
    """The client's ledger, left open for whoever reads the outcome; or a copy of it to try things on."""
    return rehearsal(place) if trial else nullcontext(Ledger(place))


def _set_apart(client: Party, agreement: Agreement, data: str, outputs: int | None) -> None:
    """The records on which the model is measured."""
    if agreement.evaluation is None:
        raise UsageError("held-out", data, "left out: the handout agrees on no evaluation")
    schema, plan = read_schema(agreement.schema) if agreement.schema else None, client.releaser.plan
    local = client_data(data, plan, schema, outputs, suits(plan))
    if local.shape != client.shape:
        raise UsageError("held-out", data, "records of the same form as the data")
    client.evaluation, client.held_out = Evaluation.load(agreement.evaluation), (local.x, local.y)
    client.held_out_persons = local.persons


def _score_member(
    client: Party, agreement: Agreement, own: Own, key: str | Path, folder: Path
) -> ScoreMember:
    """This client's part in secure sums of scores, which all clients of the roster make together."""
    assert isinstance(client.releaser, SecureReleaser)
    assert agreement.evaluation is not None
    assert agreement.roster is not None
    assert own.number is not None
    client.evaluation, persons = Evaluation.load(agreement.evaluation), client.held_out_persons
    units = len(client.held_out[1]) if persons is None else len(persons)
    files = (read_signing_key(key), folder / SCORES)
    roster = Roster.load(agreement.roster)
    return ScoreMember(
        client.releaser, client.evaluation, roster, own.number + 1, *files, units, client.total
    )


@contextmanager
def _reached(connection: Connection) -> Iterator[None]:
    """A server that cannot be reached is one sentence, at once."""
    try:
        yield
    except (httpx.TransportError, Lost, ssl.SSLError) as error:
        refuse_wrong_certificate(connection.address, error)
        raise Refused(f"the server at {connection.address} could not be reached ({error}).") from None
    finally:
        connection.close()


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    named = bool(host) and not any(letter.isspace() or letter in "/@?#" for letter in host)
    if not (named and port.isdecimal() and 1 <= int(port) <= 65535):
        raise UsageError("address", address, "HOST:PORT with a port between 1 and 65535")


def _client(
    releaser: Releaser,
    data: str,
    schema: Path | None,
    outputs: int | None,
    on_answer: Callable[[int], None] | None,
    own: Own,
    secure: SecureMember | None,
) -> Party:
    plan = releaser.plan
    local = client_data(data, plan, read_schema(schema) if schema else None, outputs, suits(plan))
    for remark in local.remarks:
        log.info("your records: %s", remark)
    number = int(plan.client_sizes.argmin()) if own.number is None else own.number
    check_client(plan, number, local.units)
    if suits(plan):
        regression = LinearRegression(local.shape, local.outputs)
        return SmallClient(
            releaser, regression, local.x, local.y, local.task, on_answer, own, secure, local.classes
        )
    from nbafl.flower.client import Client  # loads torch, which a small client does without
    from nbafl.simulation.models import build

    model = build(plan.model, local.shape, local.outputs, plan.seed)
    return Client(
        releaser, model, local.x, local.y, local.task, on_answer, own, local.persons, secure, local.classes
    )


def _member(
    releaser: Releaser, agreement: Agreement, own: Own, key: str | Path, folder: Path
) -> SecureMember:
    """This client's part in secure aggregation: its number and keys as the roster has them."""
    assert isinstance(releaser, SecureReleaser)
    if agreement.roster is None or own.number is None:
        raise DataError(
            "secure aggregation needs the roster: take the handout folder the server made with it."
        )
    roster = Roster.load(agreement.roster)
    return SecureMember(releaser, roster, own.number + 1, read_signing_key(key), folder / SECRETS)
