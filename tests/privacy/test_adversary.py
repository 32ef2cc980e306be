"""What each adversary's view costs, against brute force over participants, coalitions and taps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.errors import UsageError
from nbafl.privacy import adversary, sensitivity
from nbafl.privacy.release import Noise, Release, round_costs


def equal_release(clients: int, per_round: int, rounds: int, exposures: int, clip: float = 10.0) -> Release:
    return Release(
        sensitivity.paper(clip, [100] * clients), np.full(clients, 1 / clients), rounds, per_round, exposures
    )


def random_release(
    rng: np.random.Generator, clients: int, per_round: int, rounds: int, exposures: int
) -> Release:
    sizes = rng.integers(5, 200, clients)
    weights = sizes / sizes.sum() if rng.random() < 0.5 else rng.dirichlet(np.full(clients, 3.0))
    return Release(sensitivity.paper(10, sizes), weights, rounds, per_round, exposures)


def random_noise(rng: np.random.Generator, release: Release) -> Noise:
    return Noise(release.uplink * rng.uniform(0.2, 3, release.clients), float(rng.choice([0.0, 0.02, 0.3])))


def broadcast_cost(
    release: Release, noise: Noise, target: int, taking_part: tuple[int, ...], known: set[int]
) -> float:
    """(p_jΔ_j)² over the noise that remains when the noises of `known` are subtracted; from first principles."""
    total = sum(release.weights[i] for i in taking_part)
    share = {i: release.weights[i] / total for i in taking_part}
    left = sum((share[i] * noise.sigma_uplink[i]) ** 2 for i in taking_part if i not in known)
    return (share[target] * release.uplink[target]) ** 2 / (left + noise.sigma_downlink**2)


def brute_force(release: Release, noise: Noise, coalition: int) -> tuple[float, float, float]:
    """The largest a, c and b over targets, participants and coalitions."""
    upload = tapped = broadcast = 0.0
    for target in range(release.clients):
        upload = max(upload, (release.uplink[target] / noise.sigma_uplink[target]) ** 2)
        rest = [i for i in range(release.clients) if i != target]
        for others in itertools.combinations(rest, release.per_round - 1):
            members = (target, *others)
            tapped = max(tapped, broadcast_cost(release, noise, target, members, set(others)))
            for colluding in itertools.combinations(rest, coalition):
                broadcast = max(broadcast, broadcast_cost(release, noise, target, members, set(colluding)))
    return upload, tapped, broadcast


@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(2, 6), data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_round_costs_bound_every_choice_of_participants(seed: int, clients: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    per_round = data.draw(st.integers(1, clients))
    coalition = data.draw(st.integers(0, clients - 1))
    release = random_release(rng, clients, per_round, 3, 1)
    noise = random_noise(rng, release)
    found = round_costs(release, noise, coalition)
    upload, tapped, broadcast = brute_force(release, noise, coalition)
    assert found.upload.max() == pytest.approx(upload)
    assert found.tapped.max() >= tapped * (1 - 1e-12)
    assert found.broadcast.max() >= broadcast * (1 - 1e-12)
    if per_round == clients:
        assert found.tapped.max() == pytest.approx(tapped)
        assert found.broadcast.max() == pytest.approx(broadcast)
    assert np.all(found.upload >= found.tapped * (1 - 1e-12))
    assert np.all(found.tapped >= found.broadcast * (1 - 1e-12))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_worst_participants_are_found_exactly_where_one_order_serves_both_sums(seed: int) -> None:
    """With equal σ, small weights mean both little noise and a large share: the bound is attained."""
    rng = np.random.default_rng(seed)
    release = random_release(rng, 6, 3, 3, 1)
    noise = Noise(np.full(6, 0.5), 0.1)
    _, tapped, broadcast = brute_force(release, noise, 0)
    found = round_costs(release, noise)
    assert found.tapped.max() == pytest.approx(tapped)
    assert found.broadcast.max() == pytest.approx(broadcast)


def test_equal_clients_give_the_closed_forms() -> None:
    clients, rounds, exposures = 50, 25, 3
    for per_round in (50, 20):
        release = equal_release(clients, per_round, rounds, exposures)
        noise = Noise(np.full(clients, 0.05), 0.003)
        u, v = (0.05 / 0.2) ** 2, (per_round * 0.003 / 0.2) ** 2
        rest = 1 / (per_round * u + v)
        expected = {
            "broadcast": rounds * rest,
            "targeted": 3 / u + 22 * rest,
            "eavesdropper": 3 / u + 3 / (u + v) + 19 * rest,
            "curious-server": rounds / u,
            "colluders:4": rounds / ((per_round - 4) * u + v),
        }
        for name, cost in expected.items():
            assert adversary.parse(name).cost(release, noise, rounds) == pytest.approx(cost, rel=1e-12)


def test_exposures_are_clamped_to_the_participations() -> None:
    release, noise = equal_release(10, 5, 8, 4), Noise(np.full(10, 0.1), 0.01)
    costs = round_costs(release, noise)
    a, b, c = (float(column[0]) for column in (costs.upload, costs.broadcast, costs.tapped))
    found = adversary.EAVESDROPPER.costs(release, noise, np.arange(9))
    assert found == pytest.approx(
        [0, a, 2 * a, 3 * a, 4 * a, 4 * a + c, 4 * a + 2 * c, 4 * a + 3 * c, 4 * a + 4 * c]
    )
    assert adversary.TARGETED.costs(release, noise, np.array([3, 6])) == pytest.approx([3 * a, 4 * a + 2 * b])


def worst_taps(
    costs_by_taps: dict[int, float], partners: tuple[tuple[int, ...], ...], exposures: int
) -> float:
    """The most an eavesdropper gains in rounds with these partners when it may tap each of them `exposures` times."""
    best = 0.0
    everyone = sorted({i for group in partners for i in group})
    subsets = [[s for k in range(len(g) + 1) for s in itertools.combinations(g, k)] for g in partners]
    for choice in itertools.product(*subsets):
        used = [sum(i in tapped for tapped in choice) for i in everyone]
        if all(number <= exposures for number in used):
            best = max(best, sum(costs_by_taps[len(tapped)] for tapped in choice))
    return best


@pytest.mark.parametrize(
    ("clients", "per_round", "participations"), [(3, 2, 3), (4, 2, 4), (4, 3, 4), (5, 2, 4)]
)
def test_spread_taps_dominate_every_allocation_and_the_plain_formula_does_not(
    clients: int, per_round: int, participations: int
) -> None:
    """All ways in which the target's rounds can be shared with others, all ways to place L = 1 tap on each of them."""
    release = equal_release(clients, per_round, participations, 1)
    noise = Noise(np.full(clients, 0.1), 0.01)
    costs = round_costs(release, noise)
    u, v = (0.1 / 0.2) ** 2, (per_round * 0.01 / 0.2) ** 2
    by_taps = {taps: 1 / ((per_round - taps) * u + v) for taps in range(per_round)}
    assert by_taps[per_round - 1] == pytest.approx(costs.tapped[0])
    groups = list(itertools.combinations(range(1, clients), per_round - 1))
    # One round goes to the target's own upload; the worst is over the partners in the rest.
    truth = costs.upload[0] + max(
        worst_taps(by_taps, partners, 1) for partners in itertools.product(groups, repeat=participations - 1)
    )
    spread = adversary.EAVESDROPPER_SPREAD.cost(release, noise, participations)
    plain = adversary.EAVESDROPPER.cost(release, noise, participations)
    assert spread >= truth * (1 - 1e-12)
    assert plain < truth * (1 - 1e-6)
    if (clients - 1) % (per_round - 1) == 0:
        assert spread == pytest.approx(truth)


@given(seed=st.integers(0, 2**32 - 1), data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_spread_dominates_random_taps_of_unequal_clients(seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    clients = data.draw(st.integers(2, 7))
    per_round = data.draw(st.integers(1, clients))
    rounds, exposures = 8, data.draw(st.integers(1, 3))
    release = random_release(rng, clients, per_round, rounds, exposures)
    noise = random_noise(rng, release)
    bound = adversary.EAVESDROPPER_SPREAD.cost(release, noise, rounds)
    for target in range(clients):
        rest = [i for i in range(clients) if i != target]
        budget = dict.fromkeys(rest, exposures)
        total = exposures * (release.uplink[target] / noise.sigma_uplink[target]) ** 2
        for _ in range(rounds - exposures):
            others = (
                rng.choice(rest, per_round - 1, replace=False) if per_round > 1 else np.array([], dtype=int)
            )
            known = {int(i) for i in others if budget[int(i)] > 0 and rng.random() < 0.8}
            for i in known:
                budget[i] -= 1
            total += broadcast_cost(release, noise, target, (target, *map(int, others)), known)
        assert total <= bound * (1 + 1e-9)
    assert bound >= adversary.EAVESDROPPER.cost(release, noise, rounds) * (1 - 1e-12)
    if per_round == clients:
        assert bound == pytest.approx(adversary.EAVESDROPPER.cost(release, noise, rounds))


def test_no_noise_costs_infinitely_much_but_only_where_it_is_seen() -> None:
    release = equal_release(5, 5, 4, 1)
    silent_clients = Noise(np.zeros(5), 0.01)
    assert adversary.CURIOUS_SERVER.cost(release, silent_clients, 4) == math.inf
    assert adversary.TARGETED.cost(release, silent_clients, 4) == math.inf
    assert math.isfinite(adversary.BROADCAST.cost(release, silent_clients, 4))
    for each in (*adversary.standard(), adversary.colluders(2), adversary.EAVESDROPPER_SPREAD):
        assert each.cost(release, Noise(np.zeros(5), 0.0), 4) == math.inf
        assert each.cost(release, Noise(np.zeros(5), 0.0), 0) == 0
    one_silent = Noise(np.array([0.0, 1, 1, 1, 1]), 0.0)
    assert adversary.CURIOUS_SERVER.cost(release, one_silent, 4) == math.inf


def test_all_others_colluding_leave_the_target_its_own_noise() -> None:
    release, noise = equal_release(5, 5, 4, 1), Noise(np.full(5, 0.1), 0.0)
    assert adversary.colluders(4).cost(release, noise, 4) == pytest.approx(
        adversary.CURIOUS_SERVER.cost(release, noise, 4)
    )


def test_a_dropped_client_counts_twice_when_its_slot_is_filled() -> None:
    weights = np.full(10, 0.1)
    dropped = sensitivity.client(1.0, 10, "drop")
    assert Release(dropped, weights, 5, 10, 1).uplink[0] == 1
    assert Release(dropped, weights, 5, 4, 1).uplink[0] == 2
    assert Release(sensitivity.client(1.0, 10), weights, 5, 4, 1).uplink[0] == 2


def test_a_million_clients_of_many_kinds() -> None:
    sizes = np.random.default_rng(1).integers(10, 500, 1_000_000)
    release = Release(sensitivity.paper(10, sizes), sizes / sizes.sum(), 25, 1000, 1)
    costs = round_costs(release, Noise(release.uplink, 0.0))
    assert costs.upload == pytest.approx(np.ones(len(costs.upload)))
    assert len(costs.upload) == len(np.unique(sizes))
    # Weights by records and σ ∝ Δ make every p_iσ_i the same: K of them hide each other.
    assert costs.broadcast == pytest.approx(np.full(len(costs.upload), 1e-3))


def test_names_are_parsed_and_others_refused() -> None:
    for each in (*adversary.table(), adversary.colluders(3), adversary.parse("curious-server:2")):
        assert adversary.parse(each.name) == each
        assert adversary.of_key(each.key) == each
        assert adversary.name_of(each.key) == each.name
    assert adversary.of_key("unseen_broadcasts") is None
    assert adversary.name_of("unseen_broadcasts") == "unseen-broadcasts"
    assert {each.key for each in adversary.standard()} == {
        "broadcast",
        "targeted",
        "eavesdropper",
        "curious_server",
        "colluders_1",
    }
    for bad in (
        "",
        "server",
        "colluders",
        "colluders:",
        "colluders:0",
        "colluders:-1",
        "colluders:x",
        "colluders:01",
        "colluders:9999999999",
        "broadcast:2",
        "curious-server:0",
        "curious-server:",
    ):
        with pytest.raises(UsageError, match="adversary must be"):
            adversary.parse(bad)
    with pytest.raises(UsageError, match="fewer colluders"):
        adversary.colluders(5).cost(equal_release(5, 5, 4, 1), Noise(np.ones(5), 0.0), 4)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("per_round", {"per_round": 51}),
        ("per_round", {"per_round": 0}),
        ("exposures", {"exposures": 26}),
        ("exposures", {"exposures": 0}),
        ("rounds", {"rounds": 0}),
        ("weights", {"weights": np.full(50, 0.1)}),
        ("weights", {"weights": np.full(49, 1 / 49)}),
        ("weights", {"weights": np.r_[0.0, np.full(49, 1 / 49)]}),
    ],
)
def test_impossible_releases_are_refused(field: str, changes: dict[str, object]) -> None:
    fields = {"weights": np.full(50, 0.02), "rounds": 25, "per_round": 50, "exposures": 1, **changes}
    with pytest.raises(UsageError) as refusal:
        Release(sensitivity.paper(10, [100] * 50), **fields)  # type: ignore[arg-type]
    assert refusal.value.field == field


def test_impossible_noise_is_refused() -> None:
    for sigma_uplink, sigma_downlink in (
        (np.array([-1.0]), 0.0),
        (np.array([math.nan]), 0.0),
        (np.ones(1), -1.0),
    ):
        with pytest.raises(UsageError, match="sigma"):
            Noise(sigma_uplink, sigma_downlink)
    with pytest.raises(UsageError, match="sigma_uplink"):
        round_costs(equal_release(5, 5, 4, 1), Noise(np.ones(4), 0.0))
