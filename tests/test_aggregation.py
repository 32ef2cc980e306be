"""Plans under secure aggregation: prices by an independent accountant, refusals, sentences, the simulation's sums."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from tests.paper_setting import Plan

import nbafl
from nbafl import aggregation
from nbafl.errors import UsageError
from nbafl.privacy import adversary
from nbafl.protocol import generator, integer_sum
from nbafl.secure import encoding


def secure(**fields: Any) -> Plan:
    given: dict[str, Any] = {
        "clients": 10,
        "samples": 60,
        "rounds": 12,
        "epsilon": 2.0,
        "delta": 1e-5,
        "sensitivity": "gradient",
        "model": "softmax",
        "features": "raw",
        "aggregation": "secure",
        "adversary": "curious-server:2",
        **fields,
    }
    return Plan(**given)


def independent_epsilon(plan: Plan, honest: int) -> float:
    """By dp-accounting's RDP of a Gaussian, from the statement's own numbers: sigma, Delta, step, d, and nothing of ours."""
    mechanism = plan.statement("0" * 64, 1).to_dict()["mechanism"]
    sigma = np.min(mechanism["sigma_uplink"])
    moved = float(plan.release().uplink.max()) + mechanism["step"] * math.sqrt(mechanism["dimension"])
    ratio = sigma * math.sqrt(honest) / moved
    composed = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(ratio), plan.rounds)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    return float(accountant.compose(composed).get_epsilon(plan.delta))


@pytest.mark.parametrize(("clients", "fewest", "count"), [(6, 5, 0), (10, 9, 2), (10, 10, 2), (20, 16, 5)])
def test_prices_agree_with_an_independent_accountant(clients: int, fewest: int, count: int) -> None:
    name = f"curious-server:{count}" if count else "curious-server"
    plan = secure(clients=clients, min_answers=fewest, adversary=name)
    guarantee = plan.guarantees()
    assert guarantee[adversary.parse(name).key] == pytest.approx(plan.epsilon, rel=1e-6)
    for each, honest in (
        (adversary.parse(name), fewest - count),
        (adversary.BROADCAST, fewest),
        (adversary.EAVESDROPPER, fewest),
        (adversary.colluders(1), fewest - 1),
    ):
        spent = guarantee[each.key]
        assert spent == pytest.approx(independent_epsilon(plan, honest), rel=5e-3)


def test_epsilon_is_monotone_in_m_and_k() -> None:
    """For fixed noise: fewer uploads in a sum or more accomplices cost more; beyond k the upload itself is priced."""
    plan = secure(clients=20, min_answers=18, adversary="curious-server:3")
    sums = plan.secure_sums()
    assert sums is not None
    spent = [sums.cost(adversary.parse(f"curious-server:{count}")) for count in range(1, 6)]
    assert all(less < more for less, more in itertools.pairwise(spent[:4]))
    assert spent[3] == spent[4] == plan.rounds * sums.cost_upload
    assert sums.cost(adversary.CURIOUS_SERVER) == sums.cost(adversary.BROADCAST) < spent[0]
    noises = [
        secure(clients=20, min_answers=m, adversary="curious-server:3").noise_scales() for m in (13, 16, 20)
    ]
    scales = [float(noise.sigma_uplink[0]) for noise in noises]
    assert scales == sorted(scales, reverse=True)
    assert scales[0] / scales[2] == pytest.approx(math.sqrt(17 / 10), rel=1e-3)


def test_unequal_clients_draw_the_same_spread_and_the_worst_is_covered() -> None:
    plan = secure(clients=5, sizes=(10, 20, 40, 80, 160), min_answers=4, adversary="curious-server:1")
    sums, noise = plan.secure_sums(), plan.noise_scales()
    assert sums is not None
    q = aggregation.weights(plan)
    np.testing.assert_allclose(noise.sigma_uplink * q, sums.grid.spread * sums.grid.step)
    assert plan.guarantees()["curious_server_1"] == pytest.approx(plan.epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"per_round": 5}, "per_round must be unset"),
        ({"calibration": "paper"}, "calibration must be exact"),
        ({"calibration": "separate"}, "calibration must be exact"),
        ({"noise": False}, "noise must be on"),
        ({"min_answers": 6}, "min_answers must be from 7"),
        ({"min_answers": 11}, "min_answers must be from 7"),
        ({"adversary": "curious-server:9"}, "clients must be at least 11"),
        ({"clients": 1, "adversary": "curious-server"}, "clients must be at least 2"),
        ({"epsilon": 75.0}, "tail"),
        ({"dataset": "folder", "target": "y"}, "dimension must be given"),
        ({"model": "some.module:factory"}, "dimension must be given"),
        ({"lr": 1e6, "record_clip": 1e6, "samples": 10**9, "epsilon": 40.0}, "bits a coordinate"),
    ],
)
def test_what_secure_aggregation_cannot_do_is_refused_in_a_sentence(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        secure(**fields)


def test_defaults_of_m_leave_a_tenth_away() -> None:
    assert aggregation.fewest(secure(clients=50, adversary="curious-server:5")) == 45
    assert aggregation.fewest(secure(clients=5, adversary="curious-server")) == 4
    assert aggregation.fewest(secure(clients=10, adversary="curious-server:7")) == 9


def test_a_plain_plans_digest_does_not_know_secure_aggregation() -> None:
    plain = secure(aggregation="plain")
    assert plain.digest() == secure(aggregation="plain", min_answers=9, dimension=7).digest()
    assert plain.digest() != secure().digest()
    assert len({secure().digest(), secure(min_answers=10).digest(), secure(dimension=7851).digest()}) == 3
    again = Plan(**{**secure().model_dump()})
    assert again.digest() == secure().digest()


def test_statement_and_warnings_say_what_it_rests_on() -> None:
    plan = secure()
    told = " ".join(plan.statement("0" * 64, 7850).sentences())
    for words in ("computational", "k = 2", "M = 9", "3 or more", "single uploads may be opened"):
        assert words in told
    assert any("computational" in line for line in plan.assumptions())
    assert not any("k = 0" in line for line in plan.warnings())
    assert any("k = 0" in line for line in secure(adversary="curious-server").warnings())
    assert "computational" not in " ".join(secure(aggregation="plain").assumptions())


def test_both_modes_stand_side_by_side() -> None:
    for mode in ("plain", "secure"):
        modes = secure(aggregation=mode).summary()["aggregation"]
        assert modes["mode"] == mode
        assert set(modes["plain"]["guarantee"]) == set(modes["secure"]["guarantee"])
        assert modes["secure"]["sigma_aggregate"] < modes["plain"]["sigma_aggregate"]
        assert modes["plain"]["opened"] == modes["plain"]["guarantee"]["curious_server"]
        worst = max(each["epsilon"] for each in modes["secure"]["guarantee"].values())
        assert modes["secure"]["opened"]["epsilon"] > worst
    refused = secure(aggregation="plain", per_round=5).summary()["aggregation"]["secure"]["refused"]
    assert refused.startswith("per_round must be unset")


def test_data_from_python_need_no_dimension(tmp_path: Path) -> None:
    """The grid is that of the model really trained, not of the built-in model on MNIST."""
    source = np.random.default_rng(0)
    clients = [
        (source.uniform(-0.3, 0.3, (100, 6)).astype(np.float32), source.integers(3, size=100))
        for _ in range(10)
    ]
    run = nbafl.simulate(
        secure(clients=10, rounds=1, samples=100),
        nbafl.Federation.from_arrays(clients, outputs=3),
        out=tmp_path / "run",
    )
    sums = run.plan.secure_sums()
    assert sums is not None
    assert run.plan.dimension == sums.sums.dimension == 21


# --- simulation -----------------------------------------------------------------------------------------------------


def test_the_simulations_sum_is_that_of_encoded_vectors() -> None:
    """Without noise: the clients' integers added up modulo 2^b and read back, to within the rounding of n uploads."""
    source = np.random.default_rng(3)
    sizes = np.array([1.0, 2.0, 5.0])
    p, q = sizes / sizes.sum(), sizes / sizes.max()
    step, vectors = 2.0**-20, source.normal(size=(3, 50))
    centre = source.normal(size=50)
    integers = sum(encoding.on_grid(v, weight, step) for v, weight in zip(vectors, q, strict=True))
    deployed = integers * step / q.sum() + centre
    mean = torch.from_numpy(p @ vectors + centre)
    simulated = integer_sum(mean, torch.from_numpy(centre), p, (step, 0.0, 32), generator(0, 1, "noise"))
    np.testing.assert_allclose(simulated.numpy(), deployed, atol=2 * step)


def test_sums_that_leave_the_range_wrap_around_as_in_a_federation() -> None:
    step, p = 2.0**-8, np.array([0.5, 0.5])
    mean = torch.tensor([2.0**22 + 1.0, -(2.0**22) - 3.0, 0.25], dtype=torch.float64)
    found = integer_sum(
        mean, torch.zeros(3, dtype=torch.float64), p, (step, 0.0, 32), generator(0, 1, "noise")
    )
    integers = np.rint(mean.numpy() * 2 / step).astype(np.int64)
    wrapped = encoding.to_integers(encoding.to_words(integers, 4), 4)
    np.testing.assert_allclose(found.numpy(), wrapped * step / 2)
    assert abs(found[0].item() - mean[0].item()) > 1e6


def test_the_simulations_noise_is_that_of_all_clients() -> None:
    step, spread, clients = 2.0**-20, 2.0**12, 9
    p = np.full(clients, 1 / clients)
    zero = torch.zeros(200_000, dtype=torch.float64)
    noise = integer_sum(zero, zero, p, (step, spread, 32), generator(5, 1, "noise")).numpy()
    expected = spread * step * math.sqrt(clients) / clients
    assert noise.std() == pytest.approx(expected, rel=0.01)
    on_grid = noise * clients / step
    np.testing.assert_allclose(on_grid, np.rint(on_grid), atol=1e-6)


def test_a_secure_run_trains_and_resumes_like_any_other(tmp_path: Path) -> None:
    plan = secure(epsilon=60.0, rounds=4, delta=1e-3, lr=0.5)
    run = nbafl.simulate(plan, out=tmp_path / "run")
    assert run.privacy["mechanism"]["aggregation"] == "secure"
    assert run.privacy["delivers_claim"]
    assert run.metrics[-1]["test_accuracy"] > 0.3
    again = nbafl.simulate(plan, out=tmp_path / "again")
    assert [line["test_loss"] for line in again.metrics] == [line["test_loss"] for line in run.metrics]


def test_a_model_of_another_size_than_the_plans_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dimension must be the model's number of coordinates, 7850"):
        nbafl.simulate(secure(dimension=10), out=tmp_path / "run")
