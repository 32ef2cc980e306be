"""A broadcast that has left is never made again, and a round that stopped is not one that kept its secret."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from tests.flower.rooms import OneRoom, Room, constant, hub_of
from torch import nn

from nbafl.evaluation import Evaluation
from nbafl.flower import wire
from nbafl.flower.average import noisy_average
from nbafl.flower.evaluation import HELD_OUT, RIGHT
from nbafl.flower.open_round import OpenRound, TooFew
from nbafl.flower.release import Releaser
from nbafl.flower.roster import Roster
from nbafl.flower.server import Server
from nbafl.flower.serving import _make_rounds
from nbafl.flower.wire import Instruction
from nbafl.folders import answers, runs
from nbafl.plan import Plan
from nbafl.privacy.ledger import Ledger
from nbafl.protocol import draw
from nbafl.run import checkpoint
from nbafl.run.loop import train
from nbafl.run.result import Run

CLIENTS = 4
SCORED = Plan(
    clients=CLIENTS, samples=30, rounds=2, sensitivity="gradient", record_clip=1.0, lr=0.5, server_momentum=0.0, epsilon=1.0,
    delta=1e-5, adversary="broadcast", features="raw", model="softmax", reserve=0.1,
)  # fmt: skip


class Killed(BaseException):
    """kill -9, as far as the process that is gone can tell."""


class Scoring(OneRoom):
    """Clients who train and score; in the second question of a scoring the server dies, if it is to die."""

    def __init__(self, dies: bool, away: tuple[int, ...] = ()) -> None:
        self.dies, self.away, self.trained, self.scored = dies, away, [], []

    def get_node_ids(self) -> list[int]:
        return [100 + each for each in range(CLIENTS) if each not in self.away]

    def reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        message.metadata.__dict__["_src_node_id"] = 0
        asked = Instruction.read(message.content)
        arrays = wire.read_any(message.content["arrays"])
        if message.metadata.message_type == MessageType.TRAIN:
            self.trained.append(asked.round)
            answer = wire.answer(asked, {name: np.zeros_like(each) for name, each in arrays.items()}, message)
        else:
            self.scored.append((asked.round, np.concatenate([each.ravel() for each in arrays.values()])))
            if self.dies and len(self.scored) == 2:
                raise Killed
            said = {**asked.answered(), RIGHT: 5.0, HELD_OUT: 8}
            answer = Message(RecordDict({wire.ANSWER: ConfigRecord(said)}), reply_to=message)
        answer.metadata.__dict__["_src_node_id"] = node
        return answer


class Names:
    """Of a roster what a run's facts ask for."""

    names = tuple(f"client-{each}" for each in range(CLIENTS))


class Data:
    """Of the server's data the same."""

    task, given_shape, outputs, x, y = "classification", (4,), 3, None, None


def serve(folder: Path, grid: Scoring, resume: bool, every: int = 1) -> None:
    """The rounds as `nbafl serve` makes and keeps them."""
    torch.manual_seed(0)
    run = Run(folder, SCORED)
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    server = Server(
        SCORED, nn.Linear(4, 3), hub_of(grid, CLIENTS), wait=0.2, min_answers=1, answers=folder / answers.FILE
    )
    server.strategy.grace = 0.1
    server.evaluation = Evaluation.paid_by(SCORED, every)
    server.say_goodbye = lambda _: None  # type: ignore[method-assign]
    roster: Roster = Names()  # type: ignore[assignment]
    _make_rounds(run, server, roster, Data(), resume, None, ())  # type: ignore[arg-type]


def test_a_server_killed_while_clients_score_broadcasts_that_round_once(tmp_path: Path) -> None:
    """Made again without client 1 and with other noise, the two broadcasts together gave its upload away."""
    first, second = Scoring(dies=True), Scoring(dies=False, away=(0,))
    with pytest.raises(Killed):
        serve(tmp_path / "run", first, resume=False)
    serve(tmp_path / "run", second, resume=True)
    assert first.trained == [1] * CLIENTS
    assert second.trained == [2] * (CLIENTS - 1), "round 1 is not made a second time"
    ones = [broadcast for number, broadcast in (*first.scored, *second.scored) if number == 1]
    assert len(ones) > CLIENTS - 1
    for other in ones[1:]:
        np.testing.assert_array_equal(other, ones[0])
    lines = Run(tmp_path / "run", SCORED).metrics
    assert [line["round"] for line in lines] == [1, 2]
    assert [line["participants"] for line in lines] == [CLIENTS, CLIENTS - 1]
    assert all(line["test_accuracy"] is not None for line in lines)
    assert [each.answers for each in answers.read(tmp_path / "run", SCORED) or ()] == [CLIENTS, CLIENTS - 1]


def test_a_server_killed_once_metrics_tell_of_a_broadcast_makes_no_other(tmp_path: Path, monkeypatch) -> None:
    """Its norm was in metrics.jsonl, and whoever follows that file saw one of another average after the restart."""
    kept, folder = checkpoint.write, tmp_path / "run"

    def dies(run: Run, trainer: Server, fingerprint: str) -> None:
        if trainer.round == 1:
            raise Killed
        kept(run, trainer, fingerprint)

    monkeypatch.setattr(checkpoint, "write", dies)
    with pytest.raises(Killed):
        serve(folder, Scoring(dies=False), resume=False, every=2)
    monkeypatch.undo()
    (told,) = Run(folder, SCORED).metrics
    serve(folder, Scoring(dies=False, away=(0,)), resume=True, every=2)
    again, _ = Run(folder, SCORED).metrics
    assert (again["broadcast_norm"], again["participants"]) == (told["broadcast_norm"], CLIENTS)


SECRET = Plan(
    clients=20, per_round=5, rounds=1, sensitivity="client", clip=1.0, epsilon=1.0, delta=1e-3, adversary="colluders:1",
    features="raw", server_momentum=0.0,
)  # fmt: skip


def secret_server(folder: Path, online: set[int]) -> Server:
    room = Room(constant(), clients=20)
    room.online = {100 + each for each in online}
    torch.manual_seed(0)
    return Server(
        SECRET, nn.Linear(4, 3), hub_of(room, 20), wait=0.2, min_answers=5, answers=folder / answers.FILE
    )  # type: ignore[arg-type]


def statement(folder: Path) -> dict[str, object]:
    runs.begin(Run(folder, SECRET))
    runs.write_privacy(Run(folder, SECRET), "0" * 64, 15)
    return Run(folder, SECRET).privacy


def test_a_round_that_stopped_before_it_was_made_does_not_count_as_one_with_a_secret_draw(
    tmp_path: Path,
) -> None:
    """Who was away when it stopped was drawn: delta is 0.0115 then, not 0.001, although all were online at last."""
    first = secret_server(tmp_path, set(range(20)))
    target = int(draw(first.strategy.draw_seed, 1, 20, 5)[0])
    again, kept = secret_server(tmp_path, set(range(20)) - {target}), first.state()
    again.restore(kept)
    with pytest.raises(TooFew):
        again.step()
    third = secret_server(tmp_path, set(range(20)))
    third.restore(kept)
    third.step()
    (made,) = answers.read(tmp_path, SECRET) or ()
    assert not made.everyone_online
    told = statement(tmp_path)
    assert told["epsilon"] > 1.5
    assert not told["delivers_claim"]


def test_the_seed_of_the_draw_is_too_long_to_be_looked_for_and_outlives_a_restart(tmp_path: Path) -> None:
    first, again = (secret_server(tmp_path / name, set(range(20))) for name in "ab")
    assert max(secret_server(tmp_path, {0}).strategy.draw_seed for _ in range(9)) >= 2**100
    first.strategy.draw_seed = 2**123 + 2**62 - 1
    again.restore(first.state())
    assert again.strategy.draw_seed == 2**123 + 2**62 - 1
    earlier = {**first.state(), "draw_seed": torch.tensor(2**61 + 5)}
    again.restore(earlier)
    assert again.strategy.draw_seed == 2**61 + 5


def test_a_run_killed_before_its_first_state_was_kept_draws_once(tmp_path: Path) -> None:
    """Started again it kept no state before the first round either: killed there, it asked others."""
    run, drawn = Run(tmp_path, SECRET), []
    (tmp_path / "checkpoint").mkdir()
    runs.begin(run)  # and killed

    def asked(server: Server) -> OpenRound:
        drawn.append(draw(server.strategy.draw_seed, 1, 20, 5).tolist())
        raise Killed

    for _ in range(2):
        server = secret_server(run.path, set(range(20)))
        server._round = lambda _, server=server: asked(server)  # type: ignore[method-assign, misc]
        with pytest.raises(Killed):
            train(run, server, ("f",), resume=True, on_round=None)
    assert drawn[0] == drawn[1]
    third = secret_server(run.path, set(range(20)))
    train(run, third, ("f",), resume=True, on_round=None, report=False)
    (made,) = answers.read(run.path, SECRET) or ()
    assert not made.everyone_online


def test_one_attempt_with_everybody_keeps_the_secret(tmp_path: Path) -> None:
    secret_server(tmp_path, set(range(20))).step()
    assert statement(tmp_path)["epsilon"] == pytest.approx(1.0, rel=1e-4)


def test_whoever_was_away_for_a_moment_was_not_there_all_the_time(tmp_path: Path) -> None:
    server = secret_server(tmp_path, set(range(20)))
    server.hub.postbox.steady = lambda _: {100 + each for each in range(19)}
    server.step()
    (made,) = answers.read(tmp_path, SECRET) or ()
    assert not made.everyone_online


def test_waiting_for_who_was_drawn_shows_that_they_were(tmp_path: Path) -> None:
    """In the second round client 7 is away at the draw and back in time: who saw the wait knows that it was drawn."""
    plan = SECRET.with_fields(rounds=2)
    room = Room(constant(), clients=20)
    server = Server(
        plan, nn.Linear(4, 3), hub_of(room, 20), wait=5.0, min_answers=1, answers=tmp_path / answers.FILE
    )  # type: ignore[arg-type]
    while 7 not in draw(server.strategy.draw_seed, 2, 20, 5):
        server.strategy.draw_seed += 1
    server.step()
    looks = 0

    def back_at_the_third_look() -> set[int]:
        nonlocal looks
        looks += 1
        return {100 + each for each in range(20) if each != 7 or looks > 2}

    room.get_node_ids = back_at_the_third_look  # type: ignore[method-assign]
    server.step()
    one, other = answers.read(tmp_path, plan) or ()
    assert one.everyone_online
    assert not other.everyone_online
    assert other.answers == 5


def test_noise_below_float32s_spacing_still_hides_in_the_average(tmp_path: Path) -> None:
    """Weights of 1, noise of a tenth of their spacing: rounded each by itself, uploads gave broadcasts without noise."""
    plan = Plan(
        clients=5, samples=20, rounds=1, sensitivity="gradient", lr=1e-8, epsilon=1.0, delta=1e-5, features="raw",
        adversary="broadcast",
    )  # fmt: skip
    size = 40_000
    releaser = Releaser(plan, Ledger(tmp_path / "ledger.sqlite", anchors=tmp_path / "anchors"))
    start, zero = np.ones(size), np.zeros(size)
    sent = [
        releaser._hidden(zero, client, releaser.reach.rounding(start), 1.0).astype(float)
        for client in range(5)
    ]
    sigma = float(plan.noise_scales().sigma_uplink[0])
    assert sigma < 0.1 * np.spacing(np.float32(1.0))
    assert ((sent[0] + start).astype(np.float32) == 1.0).all(), "what was sent before"
    whole = {client: releaser.grid.multiples(each, client) for client, each in enumerate(sent)}
    happened = OpenRound(1, list(range(5)), answered=list(range(5)))
    moved = noisy_average(plan, happened, whole, start) - start
    expected = math.sqrt(sigma**2 / 5 + happened.sigma_downlink**2)
    assert abs(moved.std() / expected - 1) < 6 / math.sqrt(2 * size)
