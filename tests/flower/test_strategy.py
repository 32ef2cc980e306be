"""The strategy with clients in this process: same average as the protocol, right noise, safe resumption."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from scipy.stats import chi2
from tests.flower.rooms import MODEL, SIZE, Room, constant, one_round, plan_of, start
from tests.paper_setting import Plan

from nbafl.errors import DataError, Refused, UsageError
from nbafl.flower import NbAFL, wire
from nbafl.flower import strategy as strategies
from nbafl.flower.inbox import TAIL, Inbox
from nbafl.flower.open_round import TooFew
from nbafl.flower.release import precision_of
from nbafl.flower.wire import Instruction
from nbafl.privacy.noise import SecureGaussian, widened


def test_a_round_is_the_average_plus_the_plans_downlink_noise() -> None:
    plan = plan_of()
    strategy = NbAFL(plan, wait=1)
    final = one_round(strategy, Room(constant()))
    sigma = plan.noise_scales().sigma_downlink
    assert sigma > 0
    assert strategy.last is not None
    assert strategy.last.sigma_downlink == sigma
    assert abs(final.mean() - 0.0025) < 6 * sigma / math.sqrt(SIZE)
    assert abs(final.std() / sigma - 1) < 6 / math.sqrt(2 * SIZE)


def test_noise_missing_after_a_dropout_is_made_up_for() -> None:
    plan = plan_of()
    strategy = NbAFL(plan, wait=1)
    answer = constant()
    final = one_round(strategy, Room(lambda m, i: None if i.client == 2 else answer(m, i)))
    noise = plan.noise_scales()
    sigma = float(noise.sigma_uplink[0])
    # Four equal clients, three answer: Delta_D grows by 4/3, so the whole noise must (math.md (7.2)).
    needed = (4 / 3) ** 2 * (sigma**2 / 4 + noise.sigma_downlink**2) - sigma**2 / 3
    assert abs(final.std() / math.sqrt(needed) - 1) < 6 / math.sqrt(2 * SIZE)
    assert abs(final.mean() - (1 + 2 + 4) / 3000) < 6 * math.sqrt(needed / SIZE)
    assert strategy.last is not None
    assert strategy.last.missing == {2: "no answer in time"}


def test_too_few_answers_stop_the_run_and_say_why() -> None:
    def answer(message: Message, asked: Instruction) -> Message:
        if asked.client == 0:
            return constant()(message, asked)
        return Message(Error(wire.REFUSED, "the budget is spent"), reply_to=message)

    with pytest.raises(
        TooFew, match=r"round 1 stopped: 1 of 4 .* 2 are needed .*the budget is spent"
    ) as stop:
        start(NbAFL(plan_of(), wait=1), Room(answer))
    assert "2 are needed" in stop.value.told
    assert "budget" not in stop.value.told  # one client's limit is not told to the others


def test_nobody_connected_stops_the_run() -> None:
    with pytest.raises(Refused, match="only 1 of 4 clients were connected"):
        start(NbAFL(plan_of(), wait=0.3), Room(constant(), clients=1))


def test_a_client_that_left_is_not_waited_for_and_the_run_goes_on() -> None:
    room = Room(constant())
    strategy = NbAFL(plan_of(), wait=30, grace=0.0)

    def answer(message: Message, asked: Instruction) -> Message:
        if asked.client == 3 and asked.round == 2:
            room.online.discard(103)
            return Message(Error(wire.REFUSED, "the budget is spent"), reply_to=message)
        return constant()(message, asked)

    room.answer = answer
    start(strategy, room)
    assert strategy.last is not None
    assert strategy.last.answered == [0, 1, 2]
    assert strategy.last.missing == {3: "the budget is spent"}


def test_k_of_n_are_drawn_anew_each_round_and_secretly() -> None:
    plan = plan_of(clients=10, per_round=3, rounds=6)
    rooms = [Room(constant(), clients=10) for _ in range(2)]
    for room in rooms:
        start(NbAFL(plan, wait=1), room)
        assert [asked.round for asked in room.asked] == [r for r in range(1, 7) for _ in range(3)]
    draws = [[asked.client for asked in room.asked] for room in rooms]
    assert len({tuple(draws[0][i : i + 3]) for i in range(0, 18, 3)}) > 1
    assert draws[0] != draws[1], "a public seed would make the draw public"  # equal by chance: 120^-6
    assert len({asked.ticket for room in rooms for asked in room.asked}) == 36


def test_momentum_is_the_protocols_server_step() -> None:
    plan = plan_of(rounds=2, server_momentum=0.5)
    strategy = NbAFL(plan, wait=1)
    final = start(strategy, Room(constant()))
    # Steps of 0.0025 each round: v1 = 0.0025, v2 = 0.5 v1 + 0.0025, w = v1 + v2.
    noise = 6 * plan.noise_scales().sigma_downlink * 4 / math.sqrt(SIZE)
    assert abs(final.mean() - (0.0025 + 0.5 * 0.0025 + 0.0025)) < noise


def test_the_result_is_the_mean_of_the_last_broadcasts() -> None:
    broadcasts = []

    def remembers(message: Message, asked: Instruction) -> Message | None:
        if asked.client == 0:
            broadcasts.append(next(iter(message.content["arrays"].values())).numpy().mean())
        return constant()(message, asked)

    plan = plan_of(rounds=4, server_average=3)
    final = start(NbAFL(plan, wait=1), Room(remembers))
    # each round adds 0.0025 and noise: rounds 2 and 3 are seen as broadcasts, round 4 is one step beyond the third
    noise = 6 * plan.noise_scales().aggregate(plan.release()) / math.sqrt(SIZE)
    assert abs(final.mean() - (broadcasts[2] + 2 * broadcasts[3] + 0.0025) / 3) < noise
    assert abs(final.mean() - broadcasts[3] - 0.0025) > 0.0015 - noise


@pytest.mark.parametrize(
    "optimiser", [{"server_optimiser": "adam", "server_momentum": 0.5}, {"server_average": 3}]
)
def test_a_killed_server_keeps_its_optimiser(tmp_path: Path, optimiser: dict) -> None:
    plan = plan_of(rounds=3, **optimiser)
    killed, resumed = (NbAFL(plan, wait=1, checkpoint=tmp_path / "state.safetensors") for _ in range(2))

    def dies(message: Message, asked: Instruction) -> Message | None:
        if asked.round == 3:
            raise KeyboardInterrupt
        return constant()(message, asked)

    with pytest.raises(KeyboardInterrupt):
        start(killed, Room(dies))
    assert killed.kept
    resumed.resume(wire.to_record(killed._start))
    assert resumed.kept.keys() == killed.kept.keys()
    assert all(torch.equal(value, killed.kept[name]) for name, value in resumed.kept.items())


def test_a_killed_server_goes_on_from_its_checkpoint_with_the_same_draw(tmp_path: Path) -> None:
    plan = plan_of(clients=6, per_round=3, rounds=5)
    first = NbAFL(plan, wait=1, checkpoint=tmp_path / "state.safetensors")
    room = Room(constant(), clients=6)

    def dies(message: Message, asked: Instruction) -> Message | None:
        if asked.round == 4:
            raise KeyboardInterrupt
        return constant()(message, asked)

    room.answer = dies
    with pytest.raises(KeyboardInterrupt):
        start(first, room)
    broadcast = first._start["weight"]
    again, second = (
        Room(constant(), clients=6),
        NbAFL(plan, wait=1, checkpoint=tmp_path / "state.safetensors"),
    )
    sent: list[np.ndarray] = []

    def remembers(message: Message, asked: Instruction) -> Message:
        sent.append(message.content["arrays"]["weight"].numpy())
        return constant()(message, asked)

    again.answer = remembers
    start(second, again)
    assert [asked.round for asked in again.asked] == [4, 4, 4, 5, 5, 5]
    np.testing.assert_array_equal(sent[0], broadcast)
    assert room.asked[-1].client in [asked.client for asked in again.asked[:3]]
    assert (tmp_path / "state.safetensors").stat().st_mode & 0o077 == 0


def test_a_checkpoint_of_another_plan_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "state.safetensors"
    start(NbAFL(plan_of(rounds=1), wait=1, checkpoint=place), Room(constant()))
    with pytest.raises(Refused, match="belongs to another plan"):
        start(NbAFL(plan_of(rounds=2), wait=1, checkpoint=place), Room(constant()))
    place.write_bytes(place.read_bytes()[:100])
    with pytest.raises(DataError, match="is damaged"):
        start(NbAFL(plan_of(rounds=1), wait=1, checkpoint=place), Room(constant()))


def test_uploads_beyond_what_clipping_and_noise_allow_are_not_averaged() -> None:
    plan = plan_of(rounds=1)
    strategy = NbAFL(plan, wait=1)

    def answer(message: Message, asked: Instruction) -> Message:
        return constant(1e4 if asked.client == 1 else 0.0)(message, asked)

    final = start(strategy, Room(answer))
    assert strategy.last is not None
    assert "all that clipping and noise allow" in strategy.last.missing[1]
    assert np.abs(final).max() < 1


def test_honest_noise_passes_the_norm_check() -> None:
    plan = plan_of(rounds=1)
    sigma, generator = float(plan.noise_scales().sigma_uplink[0]), np.random.default_rng(5)

    def answer(message: Message, asked: Instruction) -> Message:
        received = wire.read_any(message.content["arrays"])
        update = generator.standard_normal(MODEL["weight"].shape) * sigma
        update[0, 0] += 1.0
        return wire.answer(asked, {**received, "weight": update.astype(np.float32)}, message)

    strategy = NbAFL(plan, wait=1)
    start(strategy, Room(answer))
    assert strategy.last is not None
    assert strategy.last.answered == [0, 1, 2, 3]


def test_an_honest_upload_of_two_million_numbers_passes_the_norm_check() -> None:
    """The grid widens the noise by more than 0.1% there; the first release allowed for 0.1%."""
    size = 2_000_000
    plan = Plan(
        clients=4,
        rounds=100,
        sensitivity="client",
        clip=1.0,
        epsilon=0.02,
        delta=1e-5,
        adversary="curious-server",
    )
    start = {"weight": np.zeros(size, dtype=np.float32)}
    inbox = Inbox(plan, wire.Layout.of(start), start)
    sigma, sensitivity = float(plan.noise_scales().sigma_uplink[0]), 2.0
    paid = precision_of(plan, size)
    assert widened(sigma, sensitivity, size) * paid.widening > 1.001 * sigma
    honest = SecureGaussian().add(np.eye(1, size).ravel(), sigma, sensitivity, widening=paid.widening)
    assert inbox.check_norm(honest.astype(np.float32).astype(np.float64), 0) < inbox.largest_norm(0)


@pytest.mark.parametrize("size", [1, 2, 10, 1000, 10**6, 10**9])
def test_an_honest_upload_fails_the_norm_check_with_less_than_e_to_the_minus_72(size: int) -> None:
    """P(|z| > sqrt(d) + 12), z standard normal in d dimensions: the chi law's own tail."""
    assert chi2.logsf((math.sqrt(size) + TAIL) ** 2, size) < -(TAIL**2) / 2


def test_a_model_with_absurd_weights_is_never_broadcast(tmp_path: Path) -> None:
    plan = plan_of(rounds=2, clip=1e9)
    place = tmp_path / "state.safetensors"
    with pytest.raises(Refused, match="far out of range: it is not broadcast"):
        start(NbAFL(plan, wait=1, checkpoint=place), Room(constant(1e7)))


def test_evaluation_happens_on_the_server_only() -> None:
    seen: list[int] = []

    def evaluate(round: int, _: ArrayRecord) -> MetricRecord:
        seen.append(round)
        return MetricRecord({"accuracy": 0.5})

    strategy = NbAFL(plan_of(), wait=1)
    start(strategy, Room(constant()), evaluate_fn=evaluate, num_rounds=3)
    assert seen == [0, 1, 2, 3]
    assert list(strategy.configure_evaluate(1, wire.to_record(MODEL), RecordDict(), None)) == []  # type: ignore[arg-type]


def test_what_cannot_be_promised_is_refused() -> None:
    with pytest.raises(UsageError, match="sensitivity must be client around training code"):
        NbAFL(plan_of(sensitivity="paper"))
    with pytest.raises(UsageError, match="noise must be true"):
        NbAFL(plan_of(noise=False))
    with pytest.raises(UsageError, match="min_answers must be between 1 and"):
        NbAFL(plan_of(), min_answers=5)
    with pytest.raises(UsageError, match="num_rounds must be the plan's 3 rounds"):
        start(NbAFL(plan_of(), wait=1), Room(constant()), num_rounds=7)


def test_a_lost_client_costs_its_grace_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 0.1.0 every later round waited the whole grace for it again."""
    now, waited = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        waited.append(room.asked[-1].round if room.asked else 0)

    monkeypatch.setattr(strategies.time, "sleep", sleep)
    monkeypatch.setattr(strategies.time, "monotonic", lambda: now[0])
    answers = constant()

    def leaves_after_the_first_round(message: Message, asked: Instruction) -> Message | None:
        room.online.discard(103)
        return answers(message, asked)

    room = Room(leaves_after_the_first_round)
    start(NbAFL(plan_of(rounds=8), grace=5.0), room)
    assert set(waited) == {1}, "only the round after the loss waits"
    assert 5.0 <= now[0] < 6.0


def test_a_client_that_said_it_was_lost_is_not_waited_for_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strategies.time, "sleep", lambda _: pytest.fail("nobody needs to wait"))
    answers = constant()

    def lost_once(message: Message, asked: Instruction) -> Message | None:
        if asked.client == 2 and asked.round == 1:
            room.online.discard(102)
            return Message(Error(wire.LOST, "its connection was lost."), reply_to=message)
        if asked.round == 3:
            room.online.add(102)
        return answers(message, asked)

    room = Room(lost_once)
    start(NbAFL(plan_of(rounds=5), grace=5.0), room)
    assert [asked.round for asked in room.asked if asked.client == 2] == [1, 4, 5]
