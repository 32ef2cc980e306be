"""The Federation: what each constructor gives, and one clear sentence for everything it cannot use."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from nbafl import Federation
from nbafl.data import mnist
from nbafl.errors import DataError, UsageError

RNG = np.random.default_rng(0)


def pair(rows: int, features: int = 3, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    return RNG.normal(size=(rows, features)), np.arange(rows) % classes


def is_an_mnist_digit(federation: Federation, record: int) -> bool:
    pixels = np.rint(federation.x[record, 0] * 255).astype(np.uint8)
    found = np.flatnonzero((mnist.train().images == pixels).all(axis=(1, 2)))
    return bool((mnist.train().labels[found] == federation.y[record]).all() and len(found))


def test_mnist_defaults_to_the_papers_setting() -> None:
    federation = Federation.mnist()
    assert federation.clients == 50
    assert federation.sizes.tolist() == [100] * 50
    assert federation.shape == (1, 28, 28)
    assert (federation.task, federation.outputs) == ("classification", 10)
    assert federation.x.dtype == np.float32
    assert federation.y.dtype == np.int64
    assert federation.test is not None
    assert federation.test[0].shape == (10_000, 1, 28, 28)
    assert federation.local_test is None
    assert federation.names[3] == "client 4"
    assert is_an_mnist_digit(federation, 0)
    assert is_an_mnist_digit(federation, 4999)


def test_mnist_storage_lies_in_the_order_of_the_clients() -> None:
    federation = Federation.mnist(clients=7, samples=11)
    assert (federation.records() == np.arange(77).reshape(7, 11)).all()
    assert len(federation.x) == 77


def test_mnist_takes_different_records_with_every_seed_and_the_same_with_the_same() -> None:
    one, same, other = (Federation.mnist(clients=5, samples=20, seed=seed) for seed in (0, 0, 1))
    assert (one.x == same.x).all()
    assert (one.x != other.x).any()


def test_mnist_with_given_sizes() -> None:
    federation = Federation.mnist(sizes=[5, 50, 1], partition="dirichlet:0.5")
    assert federation.sizes.tolist() == [5, 50, 1]
    records = federation.records([2, 0])
    assert isinstance(records, list)
    assert [len(part) for part in records] == [1, 5]


def test_all_of_mnist_can_be_dealt_but_no_more() -> None:
    assert len(Federation.mnist(clients=50, samples=1200).x) == 60_000
    with pytest.raises(UsageError, match="samples must be between 1 and 1200 for 50 clients"):
        Federation.mnist(clients=50, samples=1201)


def test_mnist_refuses_no_clients() -> None:
    with pytest.raises(UsageError, match="clients must be between 1 and the 60000 records"):
        Federation.mnist(clients=0)


@pytest.mark.parametrize(("local_test", "held"), [(0.25, 5), (3, 3), (0.001, 1)])
def test_a_local_test_part_comes_out_of_the_clients_own_records(local_test: float, held: int) -> None:
    plain = Federation.mnist(clients=6, samples=20)
    federation = Federation.mnist(clients=6, samples=20, local_test=local_test)
    assert federation.sizes.tolist() == [20 - held] * 6
    assert np.shape(federation.local_records()) == (6, held)
    for client in range(6):
        own = [*federation.records([client])[0], *federation.local_records([client])[0]]
        assert sorted(federation.x[own].sum(axis=(1, 2, 3))) == sorted(
            plain.client(client)[0].sum(axis=(1, 2, 3))
        )
    assert (plain.local_records() == plain.records()).all()


@pytest.mark.parametrize("local_test", [-1, 1.5, 20, 0.99, float("nan")])
def test_a_local_test_part_must_leave_something(local_test: float) -> None:
    with pytest.raises(UsageError, match="local_test must be"):
        Federation.mnist(clients=6, samples=20, local_test=local_test)


def test_a_population_of_a_million_takes_memory_for_the_storage_only() -> None:
    mnist.train(), mnist.test()
    tracemalloc.start()
    federation = Federation.population(clients=1_000_000, samples=10)
    records = federation.records(np.arange(0, 1_000_000, 10_000))
    held = federation.sizes, federation.names
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.shape(records) == (100, 10)
    assert held[0].shape == (1_000_000,)
    assert held[1][999_999] == "client 1000000"
    assert peak < federation.x.nbytes + 2 * federation.test[0].nbytes  # type: ignore[index]
    assert (federation.records([5, 5])[0] == federation.train[5]).all()


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"samples": 0}, {"seed": -1}])
def test_a_population_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Federation.population(**wrong)


def test_holdout_takes_its_test_set_from_the_training_records() -> None:
    federation = Federation.mnist(clients=5, samples=100)
    held = federation.holdout(0.1, seed=3)
    assert held.sizes.tolist() == [90] * 5
    assert held.test is not None
    assert len(held.test[0]) == 50
    kept = {image.tobytes() for image in held.x[np.asarray(held.records()).ravel()]}
    out = {image.tobytes() for image in held.test[0]}
    assert kept | out == {image.tobytes() for image in federation.x}
    assert not kept & out
    again, other = federation.holdout(0.1, seed=3), federation.holdout(0.1, seed=4)
    assert (again.test[0] == held.test[0]).all()  # type: ignore[index]
    assert (other.test[0] != held.test[0]).any()  # type: ignore[index]


def test_holdout_of_unequal_clients_leaves_everyone_a_record() -> None:
    federation = Federation.from_arrays([pair(1), pair(2), pair(40)])
    held = federation.holdout(0.5)
    assert held.sizes.tolist() == [1, 1, 20]
    assert held.test is not None
    assert len(held.test[0]) == 21


def test_holdout_of_a_population_leaves_the_storage() -> None:
    held = Federation.population(clients=1000, samples=10).holdout(0.1)
    assert held.test is not None
    assert len(held.test[0]) == 6000
    assert len(held.x) == 54_000
    assert np.max(held.records()) < 54_000


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 0.001])
def test_holdout_must_take_something_and_leave_something(fraction: float) -> None:
    with pytest.raises(UsageError, match="holdout fraction must be"):
        Federation.from_arrays([pair(5), pair(6)]).holdout(fraction)


def test_partitioned_deals_a_data_set_of_ones_own() -> None:
    x, y = RNG.normal(size=(100, 2)), np.arange(100) % 4
    federation = Federation.partitioned(x, y, clients=4, partition="shards:1", test=(x[:9], y[:9]))
    assert federation.sizes.tolist() == [25] * 4
    assert [len(np.unique(federation.client(i)[1])) for i in range(4)] == [1] * 4
    assert sorted(federation.x[:, 0]) == sorted(x[:, 0].astype(np.float32))


def test_from_arrays_keeps_every_client() -> None:
    clients, test, local = [pair(4), pair(7)], pair(5), [pair(2), pair(3)]
    federation = Federation.from_arrays(clients, test=test, local_test=local, names=["north", "south"])
    for number, (x, y) in enumerate(clients):
        np.testing.assert_array_equal(federation.client(number)[0], x.astype(np.float32))
        np.testing.assert_array_equal(federation.client(number)[1], y)
    for number, (x, _) in enumerate(local):
        np.testing.assert_array_equal(
            federation.x[federation.local_records([number])[0]], x.astype(np.float32)
        )
    assert tuple(federation.names) == ("north", "south")
    assert federation.outputs == 2
    assert (
        repr(federation) == "Federation(2 clients of 4 to 7 records, shape (3,), classification, 2 outputs)"
    )


def test_targets_decide_the_task() -> None:
    x = RNG.normal(size=(4, 2))
    assert Federation.from_arrays([(x, [0, 1, 2, 3])]).outputs == 4
    assert Federation.from_arrays([(x, [True, False, True, True])]).task == "classification"
    numbers = Federation.from_arrays([(x, [0.0, 1.0, 2.0, 3.0])])
    assert (numbers.task, numbers.outputs, numbers.y.dtype) == ("regression", 1, np.float32)
    assert Federation.from_arrays([(x, [0.0, 1.0, 2.0, 3.0])], task="classification").y.dtype == np.int64
    assert Federation.from_arrays([(x, [0, 1, 2, 3])], task="regression").y.dtype == np.float32
    assert Federation.from_arrays([(x, [0, 0, 0, 0])]).outputs == 2
    assert Federation.from_arrays([(x, [0, 1, 0, 0])], outputs=10).outputs == 10


def _with(x: np.ndarray, row: int, value: float) -> np.ndarray:
    changed = x.copy()
    changed[row, 1] = value
    return changed


X, Y = pair(6)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((_with(X, 4, np.nan), Y), "The x of client 2 has a NaN or infinite value in row 4."),
        ((_with(X, 2, -np.inf), Y), "The x of client 2 has a NaN or infinite value in row 2."),
        ((_with(X, 3, 1e300), Y), "The x of client 2 has a NaN or infinite value in row 3."),
        ((X[:0], Y[:0]), "There are no records in client 2; every client needs at least one."),
        ((X, Y[:5]), "The x and y of client 2 differ in length: 6 and 5 records."),
        (
            (X[:, :2], Y),
            "The records of client 2 have shape (2,), those of client 1 (3,); all clients need the same.",
        ),
        ((X.astype(int), Y), "The x of client 2 has whole numbers, that of client 1 decimal ones"),
        ((X, Y.astype(float)), "The y of client 2 has decimal numbers, that of client 1 whole ones"),
        (
            (X, np.array([0, 1, 0, -1, 0, 1])),
            "The y of client 2 is -1 in row 3; a class must be a whole number",
        ),
        ((X, np.array(["a"] * 6)), "The y of client 2 must hold numbers, got <U1."),
        ((X.astype(complex), Y), "The x of client 2 must hold numbers, got complex128."),
        (
            (X[:, 0], Y),
            "The x of client 2 must have one row per record and at least one feature, got shape (6,).",
        ),
        ((X, np.eye(6, dtype=int)), "The y of client 2 must have one number per record, got shape (6, 6)."),
        (([[1, 2, 3], [1, 2]], [0, 1]), "The x of client 2 cannot be read as one array"),
        (X, "The data of client 2 must be a pair (x, y), got ndarray."),
    ],
)
def test_unusable_clients_are_named(second: Any, message: str) -> None:
    with pytest.raises(DataError) as refusal:
        Federation.from_arrays([(X, Y), second])
    assert str(refusal.value).startswith(message)
    assert str(refusal.value).endswith(".")


def test_labels_beyond_the_outputs_are_named() -> None:
    with pytest.raises(
        DataError, match="The y of the test set is 7 in row 1; with 3 outputs a class must be below 3"
    ):
        Federation.from_arrays([(X, Y)], test=(X[:2], np.array([0, 7])), outputs=3)
    with pytest.raises(
        DataError, match=r"The y of client 1 is 0\.5 in row 1; a class must be a whole number"
    ):
        Federation.from_arrays([(X[:2], [0.0, 0.5])], task="classification")


def test_a_nan_target_is_named() -> None:
    with pytest.raises(DataError, match="The y of client 1 has a NaN or infinite value in row 1"):
        Federation.from_arrays([(X[:2], [0.0, np.nan])])


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"names": ["one"]}, "names"),
        ({"local_test": [pair(2)]}, "local_test"),
        ({"task": "ranking"}, "task"),
        ({"outputs": 1}, "outputs"),
        ({"task": "regression", "outputs": 2}, "outputs"),
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError, match=f"^{field} must be"):
        Federation.from_arrays([(X, Y), (X, Y)], **arguments)


def test_a_federation_needs_clients() -> None:
    with pytest.raises(DataError, match="no clients"):
        Federation.from_arrays([])


class Squares(Dataset):
    """A map-style Dataset as users write them."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        if row >= 5:
            raise IndexError
        return torch.full((1, 2, 2), float(row)), row % 2


def test_from_datasets_takes_what_torch_takes() -> None:
    tensors = TensorDataset(torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 2, 0]))
    listed = [(np.ones((1, 2, 2), np.float32), 1), (np.zeros((1, 2, 2), np.float32), 0)]
    federation = Federation.from_datasets([tensors, Squares(), Subset(tensors, [2]), listed], test=Squares())
    assert federation.sizes.tolist() == [4, 5, 1, 2]
    assert federation.shape == (1, 2, 2)
    assert federation.outputs == 3
    np.testing.assert_array_equal(federation.client(0)[0], tensors.tensors[0].numpy())
    assert federation.client(1)[1].tolist() == [0, 1, 0, 1, 0]
    assert federation.client(1)[0][3, 0, 0, 0] == 3
    local = Federation.from_datasets([tensors, Squares()], local_test=[Squares(), tensors])
    assert [len(part) for part in local.local_records()] == [5, 4]


@pytest.mark.parametrize("data", [7, [1, 2], [(1, 2, 3)], [], [(np.ones(2), 0), (np.ones(3), 0)]])
def test_what_is_no_data_set_is_named(data: Any) -> None:
    with pytest.raises(DataError, match="client 2"):
        Federation.from_datasets([Squares(), data])
