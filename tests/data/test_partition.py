"""Dealing records: disjoint, exact sizes, repeatable, as skewed as asked for, and impossible deals refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.data import partition
from nbafl.data.partition import Repeated, client_sizes, parse, split
from nbafl.errors import UsageError

fixed = settings(derandomize=True, deadline=None, max_examples=150)
ways = st.one_of(
    st.just("iid"),
    st.floats(0.001, 1000).map(lambda alpha: f"dirichlet:{alpha!r}"),
    st.integers(1, 3).map(lambda shards: f"shards:{shards}"),
)


@fixed
@given(
    way=ways,
    sizes=st.lists(st.integers(3, 30), min_size=1, max_size=12),
    classes=st.integers(1, 12),
    spare=st.integers(0, 40),
    skew=st.floats(0.05, 5),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_deal_is_disjoint_exact_and_repeatable(
    way: str, sizes: list[int], classes: int, spare: int, skew: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    total = sum(sizes) + spare
    labels = rng.choice(classes, size=total, p=rng.dirichlet(np.full(classes, skew)))
    parts = split(parse(way), labels, np.array(sizes), seed)
    assert [len(part) for part in parts] == sizes
    everything = np.concatenate(list(parts))
    assert len(np.unique(everything)) == sum(sizes)
    assert everything.min() >= 0
    assert everything.max() < total
    again = split(parse(way), labels, np.array(sizes), seed)
    assert all((one == other).all() for one, other in zip(parts, again, strict=True))


@pytest.mark.parametrize("way", ["iid", "dirichlet:0.5", "shards:2"])
def test_another_seed_deals_otherwise(way: str) -> None:
    labels, sizes = np.arange(1000) % 10, np.full(10, 50)
    one, other = (split(parse(way), labels, sizes, seed) for seed in (0, 1))
    assert (np.asarray(one) != np.asarray(other)).mean() > 0.5


def test_iid_is_a_random_choice() -> None:
    """With 200 deals each record's number of appearances is binomial; 7 sigma is a false alarm below 1e-9."""
    hits = np.zeros(100)
    for seed in range(200):
        hits[np.asarray(split(parse("iid"), np.zeros(100, int), np.array([20, 20]), seed)).ravel()] += 1
    sigma = np.sqrt(200 * 0.4 * 0.6)
    assert np.abs(hits - 80).max() < 7 * sigma


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0, 10.0])
def test_dirichlet_has_the_variance_of_its_concentration(alpha: float) -> None:
    """Dir(alpha, …, alpha) over c classes: a share has variance (1/c)(1−1/c)/(c·alpha+1), and a multinomial of m adds
    its own. Plenty of records are left over, so no class runs out."""
    classes, clients, m = 5, 4000, 20
    labels = np.repeat(np.arange(classes), clients * m)
    parts = np.asarray(split(parse(f"dirichlet:{alpha}"), labels, np.full(clients, m), seed=3))
    counts = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
    share = 1 / classes
    expected = (
        m * share * (1 - share) * (m + classes * alpha) / (1 + classes * alpha)
    )  # Dirichlet-multinomial
    deviations = (counts - m * share) ** 2
    error = deviations.std() / np.sqrt(
        clients
    )  # c − 1 free columns of `clients` rows: this overstates the error
    assert abs(deviations.mean() - expected) < 6 * error
    assert abs(counts.mean() - m * share) < 1e-9


def test_dirichlet_when_every_record_is_dealt() -> None:
    """Classes must run out; the deal is still exact and still skewed, for first and last clients alike."""
    labels = np.repeat(np.arange(10), 600)
    parts = np.asarray(split(parse("dirichlet:0.1"), labels, np.full(100, 60), seed=0))
    largest = np.array([np.bincount(labels[part]).max() for part in parts]) / 60
    assert len(np.unique(parts)) == 6000
    assert largest.mean() > 0.5
    assert largest[:50].mean() == pytest.approx(largest[50:].mean(), abs=0.15)


def test_dirichlet_follows_unbalanced_classes() -> None:
    labels = np.repeat([0, 1], [9000, 1000])
    parts = np.asarray(split(parse("dirichlet:1"), labels, np.full(500, 10), seed=0))
    assert labels[parts].mean() == pytest.approx(0.1, abs=0.07)


@fixed
@given(shards=st.integers(1, 5), clients=st.integers(1, 20), seed=st.integers(0, 1000))
def test_shards_are_runs_of_the_sorted_records(shards: int, clients: int, seed: int) -> None:
    """With distinct labels a client's records, sorted, are S runs of consecutive labels."""
    m = 7 * shards
    labels = np.random.default_rng(seed).permutation(clients * m)
    for part in split(parse(f"shards:{shards}"), labels, np.full(clients, m), seed):
        runs = 1 + (np.diff(np.sort(labels[part])) > 1).sum()
        assert runs <= shards  # two of a client's runs may touch


def test_shards_of_a_size_give_few_classes() -> None:
    labels = np.repeat(np.arange(10), 100)
    parts = np.asarray(split(parse("shards:2"), labels, np.full(50, 20), seed=0))
    classes = np.array([len(np.unique(labels[part])) for part in parts])
    assert classes.max() <= 2  # runs of 10 never cross a class of 100


@pytest.mark.parametrize("way", ["dirichlet:0.3", "shards:2"])
def test_records_within_a_client_are_mixed(way: str) -> None:
    labels = np.repeat(np.arange(10), 100)
    parts = np.asarray(split(parse(way), labels, np.full(10, 100), seed=0))
    changes = [(np.diff(labels[part]) != 0).sum() for part in parts]
    assert np.mean(changes) > 15  # sorted by class there would be at most 9


def test_a_hundred_thousand_clients() -> None:
    labels = np.arange(300_000) % 10
    for way in ("iid", "dirichlet:0.1", "shards:2"):
        parts = np.asarray(split(parse(way), labels, np.full(100_000, 3), seed=0))
        assert len(np.unique(parts)) == 300_000


@pytest.mark.parametrize("text", ["iid", "dirichlet:0.3", "shards:2", "dirichlet:10"])
def test_parse_and_print_are_inverse(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "IID", "iid:1", "dirichlet", "dirichlet:", "dirichlet:0", "dirichlet:-1", "dirichlet:nan", "dirichlet:inf",
     "dirichlet:x", "shards", "shards:0", "shards:1.5", "shards:-2", "shards:x", "shards:inf", "pathological"],
)  # fmt: skip
def test_unknown_partitions_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^partition must be iid, dirichlet:ALPHA"):
        parse(text)


@pytest.mark.parametrize(
    ("clients", "samples", "sizes", "message"),
    [
        (0, 10, None, "clients must be between 1 and the 100 records"),
        (101, 1, None, "clients must be between 1 and the 100 records"),
        (10, 11, None, "samples must be between 1 and 10 for 10 clients"),
        (10, 0, None, "samples must be between 1 and 10"),
        (None, None, [], "sizes must be a list of whole numbers of at least 1"),
        (None, None, [5, 0], "sizes must be a list of whole numbers of at least 1"),
        (None, None, [1.5, 2.5], "sizes must be a list of whole numbers of at least 1"),
        (None, None, [60, 60], "sizes must be at most 100 records in all, got 120"),
        (3, None, [5, 5], "clients must be 2, the number of sizes given, got 3"),
    ],
)
def test_sizes_that_cannot_be_dealt(clients, samples, sizes, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        client_sizes(clients, samples, sizes, available=100)


def test_more_shards_than_records_are_refused() -> None:
    with pytest.raises(UsageError, match="shards of at most 3, the records of the smallest client"):
        split(parse("shards:4"), np.zeros(20, int), np.array([3, 10]), seed=0)


def test_dirichlet_of_numbers_is_refused() -> None:
    with pytest.raises(UsageError, match="when the target is a number"):
        split(parse("dirichlet:1"), np.linspace(0, 1, 20), np.array([3, 10]), seed=0)


@pytest.mark.parametrize("seed", [-1, 1.5, "0", True, 2**63])
def test_seeds_are_whole_numbers(seed: object) -> None:
    with pytest.raises(UsageError, match="seed must be"):
        partition.check_seed(seed)  # type: ignore[arg-type]


def test_repeated_clients_are_uniform_and_independent_of_one_another() -> None:
    draws = Repeated(clients=10_000, samples=10, pool=50, seed=1)[np.arange(10_000)]
    hits = np.bincount(draws.ravel(), minlength=50)
    assert np.abs(hits - 2000).max() < 7 * np.sqrt(2000)
    pairs = np.bincount(draws[:, 0] * 50 + draws[:, 1], minlength=2500)
    chi_square = ((pairs - 4.0) ** 2 / 4).sum()
    assert abs(chi_square - 2499) < 7 * np.sqrt(2 * 2499)


def test_repeated_gives_the_same_records_however_asked() -> None:
    many = Repeated(clients=1_000_000, samples=10, pool=60_000, seed=0)
    ids = np.array([999_999, 0, 123_456])
    assert (many[ids] == np.stack([many[int(i)] for i in ids])).all()
    assert (many[ids] != Repeated(1_000_000, 10, 60_000, seed=1)[ids]).any()
    for outside in (-1, 1_000_000):
        with pytest.raises(IndexError, match="0 to 999999"):
            many[outside]


@fixed
@given(sizes=st.lists(st.integers(2, 9), min_size=1, max_size=8), seed=st.integers(0, 100))
def test_what_is_held_out_and_kept_make_up_the_client(sizes: list[int], seed: int) -> None:
    parts = partition.cut(np.arange(sum(sizes)), np.array(sizes))
    kept, taken = partition.hold_out(parts, np.array(sizes) // 2, seed)
    for whole, rest, out in zip(parts, kept, taken, strict=True):
        assert len(out) == len(whole) // 2
        assert sorted([*rest, *out]) == list(whole)
