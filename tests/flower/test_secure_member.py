"""A secure federation in one room: real clients, ledgers and secrets on disk, without a network."""

from __future__ import annotations

import json
import math
import secrets
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict
from secure_party import CLIENTS, Party
from tests.paper_setting import Plan

from nbafl.errors import Refused, UsageError
from nbafl.flower import secure_member, steps, wire
from nbafl.flower.client import Client, parameters
from nbafl.flower.mod import private
from nbafl.flower.release import Releaser
from nbafl.flower.secure_member import SecureReleaser
from nbafl.flower.secure_rounds import SecureRounds
from nbafl.flower.secure_strategy import SecureNbAFL
from nbafl.flower.strategy import NbAFL
from nbafl.flower.wire import Instruction
from nbafl.privacy.ledger import Declined, Ledger, Limits, Request
from nbafl.secure import encoding
from nbafl.secure.server import RoundLost


def test_three_rounds_give_means_near_what_clients_trained(tmp_path: Path) -> None:
    party = Party(tmp_path)
    for number in (1, 2, 3):
        vector = party.mean(number)
        start = party.layout.vector(party.layout.read(party.arrays))
        noise = float(party.plan.noise_scales().sigma_uplink[0]) / math.sqrt(CLIENTS)
        assert np.linalg.norm(vector - start) < 0.5 + 8 * noise * math.sqrt(21)
        assert np.isfinite(vector).all()
    for number in range(1, CLIENTS + 1):
        assert len(party.rows(number)) == 3
        party.room.clients[number].releaser.ledger.verify()


def test_the_ledger_charges_what_the_plan_promises(tmp_path: Path) -> None:
    """After all rounds the ledger's epsilon is the plan's claim: mu^2 by the theorem, and 2 tau."""
    party = Party(tmp_path)
    for number in (1, 2, 3):
        party.mean(number)
    ledger = party.room.clients[1].releaser.ledger
    spent = ledger.spent(party.plan.delta).of("record")
    assert spent.epsilon == pytest.approx(party.plan.epsilon, rel=1e-4)
    sums = party.plan.secure_sums()
    assert sums is not None
    rows = party.rows(1)
    assert sum(row.cost for row in rows) == pytest.approx(sums.cost(party.room.clients[1].releaser.adversary))
    # the plan names the server with its accomplice, so the limit on the server itself counts the same
    assert rows[0].cost_upload == pytest.approx(sums.cost(party.room.clients[1].releaser.adversary, 1))
    assert spent.epsilon_uploads == pytest.approx(spent.epsilon)


def test_every_client_draws_noise_of_the_plans_spread(tmp_path: Path) -> None:
    """Uploads of clients that trained nothing are noise alone: each variance within 7 standard errors of s^2."""
    party = Party(tmp_path)
    start = party.layout.vector(party.layout.read(party.arrays))
    for number in range(1, CLIENTS + 1):
        releaser = party.room.clients[number].releaser
        assert isinstance(releaser, SecureReleaser)
        grid = releaser.sums.grid
        draws = np.concatenate(
            [
                encoding.to_integers(releaser.words(number - 1, start, lambda: start), grid.width)
                for _ in range(100)
            ]
        )
        ratio = float(np.mean(draws.astype(np.float64) ** 2)) / grid.spread**2
        assert abs(ratio - 1) < 7 * math.sqrt(2 / len(draws))


def test_every_client_may_restart_between_any_two_messages(tmp_path: Path) -> None:
    party = Party(tmp_path)
    handle = Client.handle
    restarted = []

    def handle_and_die(self: Client, message: Message) -> Message | None:
        reply = handle(self, message)
        restarted.append(message.metadata.dst_node_id)
        party.restart(message.metadata.dst_node_id)
        return reply

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Client, "handle", handle_and_die)
        for number in (1, 2, 3):
            party.mean(number)
    assert len(restarted) >= 3 * 3 * CLIENTS
    assert all(len(party.rows(number)) == 3 for number in range(1, CLIENTS + 1))


@pytest.mark.parametrize("step", ["train", "agree", "unmask"])
def test_a_server_killed_in_any_exchange_goes_on(tmp_path: Path, step: str) -> None:
    """Also after the last exchange, when clients are in the next round already."""
    party = Party(tmp_path)
    party.mean(1)
    take = SecureRounds._take

    class KilledError(BaseException):
        pass

    def take_and_die(self: SecureRounds, running: object, asked: str, *rest: object) -> None:
        take(self, running, asked, *rest)  # type: ignore[arg-type]
        if asked == step:
            raise KilledError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SecureRounds, "_take", take_and_die)
        with pytest.raises(KilledError):
            party.mean(2)
    before = [party.rows(number) for number in range(1, CLIENTS + 1)]
    party.rounds = party.server()
    party.mean(2)
    assert [party.rows(number) for number in range(1, CLIENTS + 1)] == before
    party.rounds = party.server()
    party.mean(3)


def test_a_round_is_lost_when_too_few_upload_and_the_next_one_works(tmp_path: Path) -> None:
    party = Party(tmp_path)
    party.mean(1)
    take = SecureRounds._take

    def silenced(self: SecureRounds, running: object, asked: str, *rest: object) -> None:
        party.room.silent = {1, 2} if asked == "train" else set()
        take(self, running, asked, *rest)  # type: ignore[arg-type]
        party.room.silent = set()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SecureRounds, "_take", silenced)
        with pytest.raises(RoundLost, match="2 uploads came in"):
            party.mean(2)
    party.mean(3)
    assert [len(party.rows(number)) for number in (1, 2, 3, 4)] == [2, 2, 3, 3]


def test_a_client_that_lost_its_secrets_says_so_and_the_others_go_on(tmp_path: Path) -> None:
    party = Party(tmp_path)
    party.mean(1)
    party.secrets(2).unlink()
    party.restart(2)
    party.mean(2)
    assert "excluded from the run" in party.rounds.missing[2]
    assert len(party.rows(2)) == 1


def test_a_ledger_put_back_is_refused(tmp_path: Path) -> None:
    """Each step leaves a row, so the anchor knows that the folder is older than what was sent."""
    party = Party(tmp_path)
    party.mean(1)
    running = party.folder / "1"
    party.room.clients[1].releaser.ledger.close()
    copy = {file.name: file.read_bytes() for file in running.iterdir() if file.is_file()}
    party.room.clients[1] = party.client(1)
    party.mean(2)
    party.room.clients[1].releaser.ledger.close()
    for file in running.iterdir():
        file.unlink()
    for name, content in copy.items():
        (running / name).write_bytes(content)
    with pytest.raises(Refused):
        party.client(1)


def test_nothing_secret_is_in_the_ledger_and_the_file_of_secrets_is_private(tmp_path: Path) -> None:
    party = Party(tmp_path)
    party.rounds._open(1)
    party.rounds._prepare(1)
    kept = json.loads(party.secrets(1).read_bytes())
    database = b"".join(file.read_bytes() for file in (tmp_path / "1").glob("ledger.sqlite*"))
    for name in ("mask", "seed"):
        assert len(kept[name]) == 64
        assert kept[name].encode() not in database
        assert bytes.fromhex(kept[name]) not in database
    assert party.secrets(1).stat().st_mode & 0o777 == 0o600


def ask(
    party: Party, step: str, body: bytes, number: int = 1, round: int = 1, **records: object
) -> str | None:
    """The reason of a refusal, or None."""
    instruction = Instruction(party.plan.digest(), round, secrets.token_hex(16), number - 1)
    content = RecordDict({**steps.question(step, body, instruction), **records})
    message = Message(content, dst_node_id=1, message_type=MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = "m"
    reply = party.room.clients[1].handle(message)
    assert reply is not None
    return reply.error.reason if reply.has_error() else None


def test_what_a_server_may_not_ask_is_refused_without_a_row(tmp_path: Path) -> None:
    party = Party(tmp_path)
    party.rounds._open(1)
    party.rounds._prepare(1)
    running = party.rounds.server.begin(1, bytes(32), party.rounds.prepared)
    request = running.train_request(1).encode()
    assert "only training" not in str(ask(party, "open", b""))
    assert (
        ask(party, "train", request, arrays=party.arrays)
        == "the list was made for another broadcast or round."
    )
    assert "not 2" in str(ask(party, "train", request, number=2, arrays=party.arrays))
    assert "not a step" in str(ask(party, "evaluate", b""))
    for step in ("train", "agree", "unmask", "prepare"):
        assert ask(party, step, b"\xff\xff", arrays=party.arrays) is not None
    huge = {name: value * 0 + 2.0**20 for name, value in parameters(party.model).items()}
    refused = str(ask(party, "train", request, arrays=wire.to_record(huge)))
    assert "weights" in refused
    assert not party.rows(1)


def test_a_broadcast_of_another_size_is_refused(tmp_path: Path) -> None:
    party = Party(tmp_path)
    releaser = party.room.clients[1].releaser
    assert isinstance(releaser, SecureReleaser)
    with pytest.raises(Refused, match="20 coordinates, the plan 21"):
        releaser.check_start(np.zeros(20))


def test_a_spoilt_sum_is_lost_not_averaged(tmp_path: Path) -> None:
    """A client that adds garbage of its own is not named, but its sum is not used."""
    party = Party(tmp_path)
    party.mean(1)
    words = secure_member.SecureReleaser.words

    def garbage(self: SecureReleaser, client: int, start: np.ndarray, train: object) -> np.ndarray:
        found = words(self, client, start, train)  # type: ignore[arg-type]
        return found + np.uint32(2**30) if client == 2 else found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SecureReleaser, "words", garbage)
        with pytest.raises(RoundLost, match="sent a bad upload"):
            party.mean(2)
    party.mean(3)


def test_a_secure_plan_is_never_answered_in_the_plain(tmp_path: Path) -> None:
    """Its noise is made for sums: a plain releaser and the plain strategy refuse it, the mod asks for the roster."""
    party = Party(tmp_path)
    ledger = Ledger(tmp_path / "plain.sqlite", anchors=tmp_path / "anchors")
    ledger.set_limits(Limits(1e9, 1e-3))
    request = Request(party.plan.digest(), 1, "b")
    with pytest.raises(Declined, match="masked, or not at all"):
        Releaser(party.plan, ledger).answer(request, 0, np.zeros(21), lambda: np.zeros(21))
    assert not [row for row in ledger.rows() if row.kind == "release"]
    whole = Plan(
        clients=4, rounds=3, sensitivity="client", clip=1.0, aggregation="secure", adversary="curious-server:1",
        epsilon=8.0, delta=1e-5, dimension=21,
    )  # fmt: skip
    with pytest.raises(UsageError, match="aggregation must be plain for NbAFL"):
        NbAFL(whole)
    with pytest.raises(UsageError, match="roster must be the roster or its file"):
        private(whole)
    with pytest.raises(UsageError, match="aggregation must be secure for SecureNbAFL"):
        SecureNbAFL(whole.with_fields(aggregation="plain"), party.roster, tmp_path)
