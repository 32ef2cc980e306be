"""The attacked problems are the protocol's own, and what the attackers expect is what the accountant says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.paper_setting import Plan

from nbafl import protocol, rules
from nbafl.audit import auditor, problems
from nbafl.audit.game import Game
from nbafl.audit.mechanism import Mechanism
from nbafl.audit.setting import setting_of, worst_target
from nbafl.audit.views import Attack
from nbafl.privacy import adversary

PLANS = {
    "paper": Plan(samples=7),
    "gradient": Plan(sensitivity="gradient", samples=7, lr=0.3, record_clip=0.4),
    "client": Plan(sensitivity="client", samples=7, clip=0.5),
    "proximal": Plan(
        sensitivity="proximal",
        samples=7,
        model="softmax",
        feature_norm=6.0,
        mu=1.0,
        tolerance=1e-6,
        clip=50.0,
    ),
}
UNEQUAL = tuple(range(20, 70))


@pytest.mark.parametrize("name", PLANS)
def test_the_pair_attains_the_sensitivity_and_never_passes_it(name: str) -> None:
    plan = PLANS[name]
    pair, _ = auditor.pair_of(plan, 0, Mechanism())
    attained = pair.shift / float(plan.release().uplink[0])
    assert 0.95 < attained <= 1 + 1e-6
    assert float(pair.direction.norm()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["gradient", "client"])
def test_uploads_follow_the_broadcast_as_the_protocol_does(name: str) -> None:
    """The crafted data give the same update from any broadcast, so a trial need not train again every round."""
    plan = PLANS[name]
    pair, _ = auditor.pair_of(plan, 0, Mechanism())
    model = torch.nn.Linear(1, 1, bias=False)
    far = problems.CRAFTED * (plan.record_clip if name == "gradient" else plan.clip / plan.lr)
    training = protocol.Training(**{**vars(plan.training()), "steps": 1, "loss": "squared", "mu": 0.0})
    for world, side in enumerate((-1, 1)):
        for start in torch.randn(5, 1):
            x, y = torch.zeros(7, 1), torch.zeros(7)
            x[0], y[0] = 1.0, side * far
            if name == "client":
                x, y = torch.ones(1, 1), torch.full((1,), side * far)
            real = rules.upload(model, x, y, start, training)
            assert torch.allclose(pair.target(start[None], torch.tensor([world]), 1)[0], real, atol=1e-5)


def test_turning_a_round_around_swaps_the_worlds() -> None:
    for plan in PLANS.values():
        pair, _ = auditor.pair_of(plan, 0, Mechanism())
        start, worlds = pair.start.expand(2, -1), torch.tensor([0, 1])
        assert torch.allclose(pair.target(start, worlds, 1), pair.target(start, 1 - worlds, -1))


@pytest.mark.parametrize("name", ["broadcast", "targeted", "eavesdropper", "curious-server", "colluders:3"])
@pytest.mark.parametrize("sizes", [None, UNEQUAL])
@pytest.mark.parametrize("exposures", [1, 4])
def test_the_attackers_expect_what_the_accountant_charges(
    name: str, sizes: tuple[int, ...] | None, exposures: int
) -> None:
    """K = N: mu² of the attack, from the protocol's quantities, is the privacy core's (math.md, section 4)."""
    plan = Plan(sizes=sizes, adversary=name, epsilon=8, exposures=exposures, calibration="separate")
    named = adversary.parse(name)
    target = worst_target(plan)
    setting = setting_of(plan, target)
    pair, _ = auditor.pair_of(plan, target, Mechanism())
    attack = Attack.of(named, setting, blind=False)
    found = float(attack.information(setting, pair, np.array([plan.rounds]))[0])
    cost = named.cost(plan.release(), plan.noise_scales(), plan.rounds)
    assert found == pytest.approx(cost, rel=1e-5)


@pytest.mark.parametrize("colluders", [1, 100, 200, 598, 599])
def test_many_colluders_know_their_own_noise_and_no_more(colluders: int) -> None:
    """Beyond 256 clients several speak with one voice: if colluders shared one, the attack would know too much."""
    plan = Plan(
        clients=600, samples=10, adversary=f"colluders:{colluders}", calibration="separate", rounds=700
    )
    setting = setting_of(plan, 0)
    assert len(setting.other_weights) <= 256
    pair, _ = auditor.pair_of(plan, 0, Mechanism())
    named = adversary.parse(plan.adversary)
    found = Attack.of(named, setting, blind=False).information(setting, pair, np.array([plan.rounds]))[0]
    assert found == pytest.approx(named.cost(plan.release(), plan.noise_scales(), plan.rounds), rel=1e-5)


def test_only_what_is_certain_to_happen_counts_where_clients_are_drawn() -> None:
    """K < N: a colluder may not be drawn, and L taps of each client may never meet in one round with the target."""
    for colluders, certain in ((1, 0), (2, 0), (4, 2), (9, 7)):
        plan = Plan(clients=10, per_round=8, adversary=f"colluders:{colluders}", calibration="separate")
        assert setting_of(plan, 0).colluding == certain
    plan = Plan(per_round=10, adversary="eavesdropper-spread", exposures=2)
    setting = setting_of(plan, 0)
    assert Attack.of(adversary.EAVESDROPPER_SPREAD, setting, blind=False).taps == 2


def test_many_clients_speak_through_fewer_voices_with_the_same_noise() -> None:
    plan = Plan(clients=5000, samples=10)
    setting = setting_of(plan, 0)
    assert len(setting.other_weights) == 256
    assert setting.weight + setting.other_weights.sum() == pytest.approx(1)
    assert math.sqrt(setting.variance) == pytest.approx(plan.noise_scales().aggregate(plan.release()))


def test_trials_do_not_depend_on_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(clients=5, rounds=4, epsilon=8)
    setting = setting_of(plan, 0)
    pair, _ = auditor.pair_of(plan, 0, Mechanism())
    attacks = [Attack.of(adversary.EAVESDROPPER, setting, blind=False)]
    monkeypatch.setattr("nbafl.audit.game._CHUNK", 2000)
    found = []
    for cores in (1, 2):
        monkeypatch.setattr("nbafl.audit.game.cores", lambda cores=cores: cores)
        found.append(Game(pair, setting, attacks, Mechanism()).play(1500, seed=3).joined("eavesdropper"))
    assert np.array_equal(found[0].scores[1], found[1].scores[1])
    assert len(found[0].scores[0]) == 1500
