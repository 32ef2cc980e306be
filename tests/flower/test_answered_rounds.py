"""The rounds as they were, offline and silent clients included: what serve's statement is made of."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from tests.flower.rooms import MODEL, Room, constant, hub_of
from tests.paper_setting import Plan
from torch import nn

from nbafl.flower import NbAFL, wire
from nbafl.flower.server import Server
from nbafl.flower.wire import Instruction
from nbafl.folders import answers, runs
from nbafl.protocol import draw
from nbafl.run import Run

SMALL = Plan(
    clients=3,
    per_round=2,
    rounds=1,
    sensitivity="client",
    clip=1.0,
    epsilon=1.0,
    delta=1e-3,
    adversary="broadcast",
)


def round_with(offline: int | None, vanishes: int | None = None, seed: int = 0) -> dict[str, object]:
    """One round over a grid; `vanishes` disconnects after the draw."""
    room = Room(constant(), clients=3)
    strategy = NbAFL(SMALL, wait=0.1, grace=0.1, min_answers=1, clients={100 + i: i for i in range(3)})
    strategy.draw_seed = seed
    if offline is not None:
        room.online.discard(100 + offline)
    messages = list(strategy.configure_train(1, wire.to_record(MODEL), ConfigRecord(), room))
    if vanishes is not None:
        room.online.discard(100 + vanishes)
    strategy.aggregate_train(1, room.send_and_receive(messages))
    assert strategy.last is not None
    return asdict(strategy.last)


def statement(folder: Path, entries: list[dict[str, object]]) -> dict[str, object]:
    run = Run(folder, SMALL)
    folder.mkdir()
    runs.begin(run)
    for entry in entries:
        answers.add(folder / answers.FILE, entry)
    runs.write_privacy(run, "0" * 64, 5)
    return run.privacy


def test_a_client_offline_at_the_draw_is_in_the_statement(tmp_path: Path) -> None:
    """N = 3, K = 2, T = 1: the first release stated epsilon = 1 whoever was offline."""
    whole = statement(tmp_path / "whole", [round_with(None)])
    assert whole["epsilon"] == pytest.approx(1.0, rel=1e-4)
    assert whole["delivers_claim"]
    assert whole["rounds"] == {"made": 1, "everyone_online": 1, "everyone_answered": 1}
    seeds = {
        tuple(round_with(None, seed=seed)["drawn"]): seed  # type: ignore[arg-type]
        for seed in range(40)
    }
    assert set(seeds) == {(0, 1), (0, 2), (1, 2)}
    for drawn, seed in seeds.items():
        away = statement(tmp_path / f"away{seed}", [round_with(2, seed=seed)])
        assert away["epsilon"] > 1.2, "also where both clients drawn were there, and nobody drawn was missing"
        assert not away["delivers_claim"]
        assert any("in the other 1 the draw counts as known" in each for each in away["sentences"])
        later = statement(tmp_path / f"later{seed}", [round_with(None, vanishes=2, seed=seed)])
        assert later["epsilon"] > 1.2, f"gone after the draw of {drawn}"


def test_a_client_that_said_no_is_not_online() -> None:
    strategy = NbAFL(SMALL, wait=0.1, min_answers=1, clients={100 + i: i for i in range(3)})
    strategy.gone[1] = "the budget is spent"
    list(strategy.configure_train(1, wire.to_record(MODEL), ConfigRecord(), Room(constant(), clients=3)))
    assert strategy.last is not None
    assert strategy.last.online == [0, 2]


def test_a_round_without_a_record_counts_as_the_worst(tmp_path: Path) -> None:
    known = statement(tmp_path / "known", [round_with(2)])
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / answers.FILE).touch()
    (lost,) = answers.read(tmp_path / "lost", SMALL) or []
    assert not lost.everyone_online
    assert SMALL.guarantees([lost])["broadcast"] > known["epsilon"]
    assert answers.read(tmp_path, SMALL) is None, "a simulation has no such file"


def test_missing_answers_cost_no_more_than_planned(tmp_path: Path) -> None:
    """K = N: the top-up keeps the plan's epsilon, and the statement says how many rounds had everyone's answer."""
    plan = Plan(
        clients=4, rounds=2, sensitivity="client", clip=1.0, epsilon=2.0, delta=1e-5, adversary="broadcast"
    )
    room = Room(lambda m, i: None if i.client == 3 else constant()(m, i), clients=4)
    strategy = NbAFL(plan, wait=0.1, grace=0.1, clients={100 + i: i for i in range(4)})
    for number in (1, 2):
        messages = list(strategy.configure_train(number, wire.to_record(MODEL), ConfigRecord(), room))
        strategy.aggregate_train(number, room.send_and_receive(messages))
        assert strategy.last is not None
        answers.add(tmp_path / answers.FILE, asdict(strategy.last))
    held = answers.read(tmp_path, plan)
    assert held is not None
    made = plan.statement("0" * 64, 5, rounds=held)
    assert made.holding == pytest.approx(2.0, rel=1e-6)
    assert made.to_dict()["rounds"] == {"made": 2, "everyone_online": 2 * 0, "everyone_answered": 0}
    assert [len(each.answered) for each in held if isinstance(each.answered, np.ndarray)] == [3, 3]


LATE = Plan(
    clients=10, per_round=3, rounds=6, sensitivity="client", clip=1.0, epsilon=1.0, delta=1e-5, adversary="broadcast",
)  # fmt: skip


def line_of(number: int, drawn: list[int], *late: int) -> dict[str, object]:
    """A round with everybody online, in which some who were drawn gave nothing in time."""
    everybody = list(range(LATE.clients))
    answered = [each for each in drawn if each not in late]
    return {
        "number": number, "drawn": drawn, "answered": answered, "online": everybody, "still_online": everybody,
        "attempts": 1, "sigma_downlink": 0.0, "missing": dict.fromkeys(late, "no answer in time"),
    }  # fmt: skip


def secret(folder: Path, *entries: dict[str, object]) -> list[bool]:
    folder.mkdir()
    for entry in entries:
        answers.add(folder / answers.FILE, entry)
    return [each.everyone_online for each in answers.read(folder, LATE) or ()]


def test_rounds_around_one_in_which_somebody_gave_nothing_keep_no_secret(tmp_path: Path) -> None:
    """A broken client that stays connected: rounds in which all answered are those without it, q is K/(N - 1) there."""
    rounds = [line_of(number, [0, 1, 2]) for number in range(1, 7)]
    assert secret(tmp_path / "whole", *rounds) == [True] * 6
    rounds[3] = line_of(4, [3, 4, 9], 9)
    assert secret(tmp_path / "always", *rounds) == [False] * 6
    rounds[1], rounds[5] = line_of(2, [1, 2, 9]), line_of(6, [0, 1, 9])
    assert secret(tmp_path / "once", *rounds) == [True, True, False, False, False, True]
    rounds[4] = line_of(5, [7, 8, 9], 7, 9)
    assert secret(tmp_path / "two", *rounds) == [False] * 6


def test_what_is_told_while_rounds_are_made_counts_them_too(tmp_path: Path) -> None:
    """The live number and the statement read the same rounds, after a failure and after a restart."""
    silent: set[int] = set()

    def answer(message: Message, asked: Instruction) -> Message | None:
        received = wire.read_any(message.content["arrays"])
        nothing = {name: np.zeros_like(value) for name, value in received.items()}
        return None if asked.client in silent else wire.answer(asked, nothing, message)

    room = Room(answer, clients=10)
    plan = LATE.with_fields(rounds=8)
    server = Server(
        plan, nn.Linear(4, 3), hub_of(room, 10), wait=0.2, min_answers=1, answers=tmp_path / answers.FILE
    )  # type: ignore[arg-type]
    failing = int(draw(server.strategy.draw_seed, 5, 10, 3)[0])
    for number in range(1, 9):
        if number == 5:
            silent.add(failing)
        server.step()
        again = Server(plan, nn.Linear(4, 3), hub_of(room, 10), answers=tmp_path / answers.FILE)  # type: ignore[arg-type]
        again.restore(server.state())
        assert server.progress.epsilon == pytest.approx(again.progress.epsilon)
        if number == 4:
            assert server.progress.epsilon == pytest.approx(plan.epsilon_after(4), rel=1e-4)
    made = answers.first(tmp_path / answers.FILE, plan, 8)
    assert not any(each.everyone_online for each in made[4:])
