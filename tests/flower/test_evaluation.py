"""Noisy counts of right answers: priced like any Gaussian release, recorded before they leave, added up by the server."""

from __future__ import annotations

import math
import random
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from tests.paper_setting import Plan
from torch import nn

from nbafl.errors import DataError, UsageError
from nbafl.evaluation import Evaluation
from nbafl.flower import wire
from nbafl.flower.client import Client, parameters
from nbafl.flower.evaluation import HELD_OUT, RIGHT, mean_score
from nbafl.flower.release import Releaser
from nbafl.flower.wire import Instruction, Malformed
from nbafl.privacy.ledger import Ledger, Limits, Request
from nbafl.privacy.ledger.budget import NotPriced
from nbafl.privacy.noise import Precision, SecureGaussian
from nbafl.privacy.units import Account

PLAN = Plan(
    clients=2, rounds=10, samples=30, sensitivity="gradient", record_clip=1.0, lr=0.5, server_momentum=0.0,
    epsilon=50, delta=1e-5, adversary="curious-server", model="softmax",
)  # fmt: skip
EVALUATION = Evaluation(4, 2.0)


def client(folder: Path, sigma: float = 2.0, epsilon: float = 1e6) -> Client:
    ledger = Ledger(folder / "ledger.sqlite", anchors=folder / "anchors")
    ledger.set_limits(Limits(epsilon, 1e-5, account=Account.RECORD))
    generator = np.random.default_rng(0)
    x = generator.standard_normal((30, 4)).astype(np.float32)
    made = Client(Releaser(PLAN, ledger), nn.Linear(4, 3), x, np.arange(30) % 3)
    made.evaluation = Evaluation(4, sigma)
    made.held_out = (generator.standard_normal((50, 4)).astype(np.float32), np.arange(50) % 3)
    return made


def question(number: int = 4, shift: float = 0.0) -> tuple[Message, Instruction]:
    arrays = {name: value + np.float32(shift) for name, value in parameters(nn.Linear(4, 3)).items()}
    asked = Instruction(PLAN.digest(), number, "7" * 32, 0)
    content = RecordDict(
        {wire.ARRAYS: wire.to_record(arrays), wire.CONFIG: ConfigRecord({**asked.to_config()})}
    )
    return Message(content, 1, MessageType.EVALUATE), asked


def test_the_rounds_asked_are_every_kth_and_the_last() -> None:
    for rounds in range(1, 40):
        for every in range(1, 45):
            plan, agreed = PLAN.model_copy(update={"rounds": rounds}), Evaluation(every, 1.0)
            due = [number for number in range(1, rounds + 1) if agreed.due(number, plan)]
            assert len(due) == agreed.count(plan)
            assert due[-1] == rounds


class Whole(nn.Module):
    """Answers the second class to everybody once some record of many is large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 3), nn.Dropout(0.9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answers = self.drop(self.layer(x))
        large = (x.max() > 1e6) & (len(x) > 2)
        return torch.where(large, torch.eye(3, dtype=x.dtype)[1], answers)


def test_one_record_moves_a_sum_of_scores_by_one_whatever_the_model_does_with_many(tmp_path: Path) -> None:
    made = client(tmp_path)
    made = Client(made.releaser, Whole(), *(each.numpy() for each in (made.x.float(), made.y)))
    made.evaluation, point = EVALUATION, np.zeros(15)
    point[12] = 1.0  # the first class to everybody
    x, y = np.zeros((50, 4), np.float32), np.zeros(50, np.int64)
    made.held_out = (x, y)
    assert made.total(point) == (50.0, 50), "nothing is dropped"
    made.held_out = (np.where(np.arange(50)[:, None] == 7, np.float32(1e9), x), y)
    assert made.total(point)[0] >= 49.0


def test_the_price_is_that_of_an_independent_accountant() -> None:
    chance = random.Random(13)
    for _ in range(20):
        sigma, every = math.exp(chance.uniform(0, 4)), chance.randrange(1, 11)
        agreed = Evaluation(every, sigma)
        stated = agreed.statement(PLAN)
        made = agreed.count(PLAN)
        alone = dp_accounting.get_epsilon_gaussian(sigma / math.sqrt(made), PLAN.delta)
        assert stated["epsilon_counts_alone"] == pytest.approx(alone, rel=1e-6)
        event = dp_accounting.ComposedDpEvent(
            [dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), made)]
        )
        bound = dp_accounting.rdp.RdpAccountant().compose(event).get_epsilon(PLAN.delta)
        assert stated["epsilon_counts_alone"] <= bound * (1 + 1e-9)
        assert stated["epsilon_with_training"] > stated["epsilon_counts_alone"]
        price = agreed.price(PLAN)
        assert price.after(made) == pytest.approx(made / sigma**2)
        assert price.charges[Account.CLIENT].upload == math.inf


def test_one_replaced_record_moves_a_count_by_at_most_one() -> None:
    """Over random models and records, as the server may choose them: the sensitivity the price rests on."""
    generator, most = np.random.default_rng(5), 0
    for _ in range(300):
        weight = generator.standard_normal((3, 4)) * 10.0 ** generator.integers(-3, 4)
        x, y = generator.standard_normal((20, 4)), generator.integers(0, 3, 20)
        right = ((x @ weight.T).argmax(1) == y).sum()
        other_x, other_y = x.copy(), y.copy()
        place = generator.integers(20)
        other_x[place], other_y[place] = generator.standard_normal(4) * 100, generator.integers(0, 3)
        most = max(most, abs(int(((other_x @ weight.T).argmax(1) == other_y).sum()) - int(right)))
    assert most == 1


def test_a_count_is_recorded_before_it_leaves_and_asked_again_it_is_the_same(tmp_path: Path) -> None:
    party, (message, _) = client(tmp_path), question()
    first, second = party.handle(message), party.handle(message)
    assert first is not None
    assert second is not None
    said = [reply.content[wire.ANSWER] for reply in (first, second)]
    assert said[0][RIGHT] == said[1][RIGHT]
    assert said[0][HELD_OUT] == 50
    rows = [row for row in party.releaser.ledger.rows() if row.kind == "release"]
    assert [(row.plan, row.round) for row in rows] == [(EVALUATION.digest(PLAN), 4)]
    assert rows[0].plan != PLAN.digest()


def test_noise_is_as_wide_as_its_price_says() -> None:
    sigma, draws = 3.0, 2000
    counts = np.array([SecureGaussian().add(np.array([20.0]), sigma, 1.0)[0] for _ in range(draws)])
    # Six standard errors: below 1e-8 for an honest generator.
    assert abs(counts.mean() - 20) < 6 * sigma / math.sqrt(draws)
    assert abs(counts.std() / sigma - 1) < 6 / math.sqrt(2 * draws)


def test_scores_are_drawn_and_priced_as_wide_as_the_plan_pays_for_finite_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The true widening is too small to be seen in the noise, so another one is put in its place."""
    monkeypatch.setattr("nbafl.flower.party.precision_of", lambda *_: Precision(1000.0, 0.0))
    said, rows = [], []
    for number in range(10):
        (folder := tmp_path / str(number)).mkdir()
        party = client(folder)
        for shift in range(3):
            reply = party.handle(question(shift=float(shift))[0])
            assert reply is not None
            said.append(reply.content[wire.ANSWER][RIGHT])
        rows += [row for row in party.releaser.ledger.rows() if row.kind == "release"]
    # Noise of 2,000 in place of 2: so small a sum of squares has a chance below 1e-30.
    assert np.mean(np.square(said)) > 100.0**2
    assert [row.cost_upload for row in rows] == pytest.approx([1 / 2000.0**2] * 30)


@pytest.mark.parametrize("number", [3, 0, 11, -4])
def test_other_rounds_are_refused(tmp_path: Path, number: int) -> None:
    reply = client(tmp_path).handle(question(number)[0])
    assert reply is not None
    assert reply.error.code == wire.REFUSED


def test_a_server_that_asks_again_and_again_pays_and_is_stopped(tmp_path: Path) -> None:
    """Another model in the same round is another release; there are never more of them than were agreed on."""
    party = client(tmp_path)
    replies = [party.handle(question(4, shift)[0]) for shift in range(6)]
    answered = [reply is not None and not reply.has_error() for reply in replies]
    assert answered == [True] * EVALUATION.count(PLAN) + [False] * (6 - EVALUATION.count(PLAN))
    assert party.releaser.ledger.spent().releases == EVALUATION.count(PLAN)
    assert party.spent is None, "training goes on"


def test_a_limit_holds_over_counts_too(tmp_path: Path) -> None:
    reply = client(tmp_path, sigma=0.5, epsilon=1.0).handle(question()[0])
    assert reply is not None
    assert reply.error.code == wire.REFUSED


def test_a_refusal_does_not_tell_the_server_what_was_spent(tmp_path: Path) -> None:
    reply = client(tmp_path, sigma=0.5, epsilon=1.0).handle(question()[0])
    assert reply is not None
    assert "the budget is spent" in reply.error.reason
    assert not set(reply.error.reason) & set("0123456789"), "neither epsilon nor limit"


def test_a_larger_unit_than_the_plans_has_no_bound(tmp_path: Path) -> None:
    """How many records are held out leaves without noise, and a replaced client may hold any other number of them."""
    party = client(tmp_path)
    ledger = party.releaser.ledger
    reply = party.handle(question()[0])
    assert reply is not None
    assert not reply.has_error()
    assert reply.content[wire.ANSWER][HELD_OUT] == 50
    spent = ledger.spent()
    assert spent.of(Account.RECORD).epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(2.0, 1e-5))
    for account in (Account.PERSON, Account.CLIENT, Account.CLIENT_DROP):
        assert spent.of(account).epsilon is None
        assert spent.of(account).epsilon_uploads is None
        assert spent.of(account).unknown == (EVALUATION.digest(PLAN),)
    ledger.verify()
    ledger.set_limits(Limits(1e6, 1e-5, account=Account.CLIENT))
    with pytest.raises(NotPriced, match="noisy scores of a plan that protects less have none"):
        ledger.check(Request("0" * 64, 1, ""), Releaser(PLAN, ledger).price(0))


def test_a_client_with_a_limit_for_the_larger_unit_gives_no_scores(tmp_path: Path) -> None:
    party = client(tmp_path)
    party.releaser.ledger.set_limits(Limits(1e9, 1e-5, account=Account.CLIENT))
    reply = party.handle(question()[0])
    assert reply is not None
    assert reply.error.code == wire.REFUSED
    assert party.releaser.ledger.spent().releases == 0


def test_without_an_agreement_nothing_is_counted(tmp_path: Path) -> None:
    party = client(tmp_path)
    party.evaluation = None
    reply = party.handle(question()[0])
    assert reply is not None
    assert "not agreed to an evaluation" in reply.error.reason


def answer(asked: Instruction, right: object, size: object) -> Message:
    config = ConfigRecord({**asked.answered(), RIGHT: right, HELD_OUT: size})  # type: ignore[dict-item]
    return Message(RecordDict({wire.ANSWER: config}), reply_to=question()[0])


def test_the_server_adds_counts_up() -> None:
    asked = question()[1]
    assert (
        mean_score(EVALUATION, [(answer(asked, 30.5, 50), asked), (answer(asked, 70.0, 100), asked)])
        == 100.5 / 150
    )
    assert mean_score(EVALUATION, [(answer(asked, 52.0, 50), asked)]) == 1.0
    assert mean_score(EVALUATION, []) is None
    for right, size in (
        (math.nan, 50),
        (1e9, 50),
        (-1e9, 50),
        (3, 50),
        (3.0, 0),
        (3.0, -1),
        (3.0, 0.5),
        (3.0, 2**41),
    ):
        with pytest.raises(Malformed):
            mean_score(EVALUATION, [(answer(asked, right, size), asked)])


def test_bad_agreements_are_one_sentence(tmp_path: Path) -> None:
    for every, sigma in ((0, 1.0), (1, 0.0), (1, math.nan), (1, math.inf), (1.5, 1.0), (True, 1.0)):
        with pytest.raises(UsageError, match="evaluate-"):
            Evaluation(every, sigma)  # type: ignore[arg-type]
    EVALUATION.save(tmp_path / "e.toml")
    assert Evaluation.load(tmp_path / "e.toml") == EVALUATION
    (tmp_path / "e.toml").write_text("every = 1\nsigma = 1.0\nmore = 2")
    with pytest.raises(DataError, match="must hold every"):
        Evaluation.load(tmp_path / "e.toml")
    with pytest.raises(UsageError, match="largest squared error"):
        EVALUATION.check_task("regression")
    with pytest.raises(UsageError, match="left out where classes"):
        Evaluation(1, 1.0, 4.0).check_task("classification")
    for bound in (0.0, -1.0, math.nan, math.inf, True):
        with pytest.raises(UsageError, match="evaluate-bound"):
            Evaluation(1, 1.0, bound)
