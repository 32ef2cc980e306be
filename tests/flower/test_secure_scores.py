"""Sums of scores under secure aggregation: real clients, ledgers and secrets on disk, without a network."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from secure_party import CLIENTS, Party

from nbafl.errors import Refused
from nbafl.evaluation import Evaluation
from nbafl.flower import secure_scores, steps, wire
from nbafl.flower.client import Client
from nbafl.flower.keys import read_signing_key
from nbafl.flower.secure_member import SecureReleaser
from nbafl.flower.secure_scores import ScoreMember, ScoreRounds
from nbafl.plan import Plan
from nbafl.privacy import adversary
from nbafl.privacy.ledger import Limits
from nbafl.privacy.units import Account

AGREED = Evaluation(2, 3.0)


@pytest.fixture(autouse=True)
def _identity() -> None:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 2, 3


class Scoring(Party):
    """The same party; client i also holds 100 i records of which the model at zero gets some right."""

    def client(self, number: int) -> Client:
        made = super().client(number)
        source = np.random.default_rng(100 + number)
        x = source.uniform(-0.3, 0.3, (100 * number, 6)).astype(np.float32)
        made.evaluation, made.held_out = AGREED, (x, source.integers(0, 3, len(x)))
        assert isinstance(made.releaser, SecureReleaser)
        key = read_signing_key(self.folder / "keys" / f"c{number}")
        place = self.folder / f"{number}" / "scores.secrets"
        made.scores = ScoreMember(made.releaser, AGREED, self.roster, number, key, place, len(x), made.total)
        return made

    def scoring(self) -> ScoreRounds:
        def there() -> dict[int, int]:
            return {node: node for node in range(1, CLIENTS + 1) if node not in self.room.silent}

        return ScoreRounds(
            self.plan, self.roster, self.folder / "scores", self.room, there, wait=1.0, grace=0.0, evaluation=AGREED
        )  # fmt: skip

    def truth(self, *numbers: int) -> tuple[float, float]:
        start = self.layout.vector(self.layout.read(self.arrays))
        totals = [self.room.clients[number].total(start) for number in numbers or range(1, CLIENTS + 1)]
        return sum(total for total, _ in totals), sum(units for _, units in totals)


def test_the_server_learns_the_sum_and_ledgers_hold_its_price(tmp_path: Path) -> None:
    party, everybody = Scoring(tmp_path), range(1, CLIENTS + 1)
    scoring = party.scoring()
    for index in (1, 2):  # three rounds, asked after the second and the last
        found = scoring.mean(index, party.arrays, party.layout)
        noise = AGREED.sigma * math.sqrt(CLIENTS / 2)  # M - k = 2 clients' noise is sigma
        assert np.abs(found.vector - party.truth()).max() < 8 * noise
        assert found.vector[0] != round(found.vector[0])
        share = scoring.share(found)
        assert share is not None
        assert abs(share - party.truth()[0] / party.truth()[1]) < 0.2
    for number in everybody:
        releaser = party.room.clients[number].releaser
        rows = [row for row in releaser.ledger.rows() if row.kind == "release"]
        assert [(row.plan, row.round) for row in rows] == [
            (AGREED.digest(party.plan), index) for index in (1, 2)
        ]
        price = AGREED.price(party.plan)
        assert sum(row.cost for row in rows) == pytest.approx(price.after(2))
        releaser.ledger.verify()
    with pytest.raises(Refused):  # there is no third
        scoring.mean(3, party.arrays, party.layout)


def test_training_and_scores_do_not_meet(tmp_path: Path) -> None:
    """Rounds of both, one after another, with a restart of a client and of the server in between."""
    party = Scoring(tmp_path)
    party.mean(1)
    party.mean(2)
    party.scoring().mean(1, party.arrays, party.layout)
    party.restart(2)
    party.rounds = party.server()
    party.mean(3)
    found = party.scoring().mean(2, party.arrays, party.layout)
    assert found.members == [0, 1, 2, 3]
    assert party.room.clients[2].releaser.ledger.spent().releases == 3 + 2


def test_a_client_that_is_away_costs_its_share_and_no_more(tmp_path: Path) -> None:
    party = Scoring(tmp_path)
    scoring = party.scoring()
    scoring.mean(1, party.arrays, party.layout)
    party.room.silent = {4}
    found = scoring.mean(2, party.arrays, party.layout)
    assert found.members == [0, 1, 2]
    assert np.abs(found.vector - party.truth(1, 2, 3)).max() < 8 * AGREED.sigma * math.sqrt(3 / 2)


def test_scores_never_leave_in_the_open(tmp_path: Path) -> None:
    """Whatever a server asks: a plain evaluation, another client's or plan's, an index that is none."""
    party = Scoring(tmp_path)
    client = party.room.clients[1]
    from flwr.app import ConfigRecord, Message, MessageType, RecordDict

    def ask(**changed: object) -> str:
        asked = wire.Instruction(party.plan.digest(), 1, "t", 0)
        content = steps.question("open", b"", replace(asked, **changed))  # type: ignore[arg-type]
        message = Message(content, dst_node_id=1, message_type=MessageType.EVALUATE)
        message.metadata.__dict__["_message_id"] = "m"
        reply = client.handle(message)
        assert reply is not None
        return reply.error.reason if reply.has_error() else ""

    assert ask() == ""
    assert "another plan" in ask(plan="0" * 64)
    assert "another client" in ask(client=1)
    assert "no evaluation 3" in ask(round=3)
    assert "no evaluation 0" in ask(round=0)
    plain = RecordDict(
        {
            wire.ARRAYS: party.arrays,
            wire.CONFIG: ConfigRecord({**wire.Instruction(party.plan.digest(), 2, "t", 0).to_config()}),
        }
    )
    for scores in (client.scores, None):
        client.scores = scores
        message = Message(plain, dst_node_id=1, message_type=MessageType.EVALUATE)
        message.metadata.__dict__["_message_id"] = "m"
        reply = client.handle(message)
        assert reply is not None
        assert reply.has_error()
    assert [row for row in client.releaser.ledger.rows() if row.kind == "release"] == []


def test_a_spent_limit_ends_the_scores_and_not_the_training(tmp_path: Path) -> None:
    party = Scoring(tmp_path)
    client = party.room.clients[1]
    client.releaser.ledger.set_limits(Limits(1e-3, 1e-3))
    found = party.scoring().mean(1, party.arrays, party.layout)
    assert found.members == [1, 2, 3]
    assert client.spent is None


def test_the_price_is_that_of_an_independent_accountant(tmp_path: Path) -> None:
    """The noise of M - k clients is the agreed sigma: E sums are E/sigma^2, but for the grid."""
    plan = Scoring(tmp_path).plan
    price, sums, made = AGREED.price(plan), AGREED.sums(plan), AGREED.count(plan)
    assert sums is not None
    assert price.charges[Account.RECORD].upload == pytest.approx(1 / AGREED.sigma**2, rel=1e-2)
    assert price.charges[Account.RECORD].upload >= 1 / AGREED.sigma**2
    assert price.charges[Account.CLIENT].upload == math.inf
    assert price.after(made) == pytest.approx(sums.cost(adversary.parse(plan.adversary), made))
    stated = AGREED.statement(plan)
    alone = dp_accounting.get_epsilon_gaussian(AGREED.sigma / math.sqrt(made), plan.delta)
    assert stated["epsilon_counts_alone"] == pytest.approx(alone, rel=1e-2)
    assert stated["epsilon_counts_alone"] >= alone
    assert stated["epsilon_with_training"] > max(alone, plan.epsilon)
    assert "with 1 accomplices, who sees sums of at least 3" in stated["sentence"]


def test_noise_of_a_sum_is_as_wide_as_agreed(tmp_path: Path) -> None:
    """What one client adds, over many draws: sigma / sqrt(M - k) on both numbers. Seven standard errors."""
    party = Scoring(tmp_path)
    member, draws = party.room.clients[3].scores, 1500
    assert isinstance(member, ScoreMember)
    asked = secure_scores.Broadcast(
        wire.Instruction("", 1, "", 2), party.layout, party.layout.vector(party.layout.read(party.arrays))
    )
    grid = member.sums.grid
    words = [member._words(asked, lambda _: np.empty(0)) for _ in range(draws)]
    values = np.array([secure_scores.encoding.to_integers(each, grid.width) * grid.step for each in words])
    sigma = AGREED.sigma / math.sqrt(2)
    assert np.abs(values.mean(0) - party.truth(3)).max() < 7 * sigma / math.sqrt(draws)
    assert np.abs(values.std(0) / sigma - 1).max() < 7 / math.sqrt(2 * draws)


def test_whole_clients_say_their_mean_and_not_their_size(tmp_path: Path) -> None:
    party = Scoring(tmp_path, sensitivity="client", clip=1.0)
    assert party.plan.sensitivity_of().unit == "client"
    found = party.scoring().mean(1, party.arrays, party.layout)
    start = party.layout.vector(party.layout.read(party.arrays))
    means = [client.total(start) for client in party.room.clients.values()]
    assert all(0 <= mean <= 1 and units == 1 for mean, units in means)
    assert found.vector[1] == CLIENTS
    assert abs(found.vector[0] - sum(mean for mean, _ in means)) < 8 * AGREED.sigma * math.sqrt(CLIENTS / 2)
    assert isinstance(party.plan, Plan)
    price = AGREED.price(party.plan)
    assert {charge.upload for charge in price.charges.values()} == {price.upload}
