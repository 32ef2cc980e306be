"""The bench: its floor counts what the engines really multiply, and its measurement holds together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nbafl.errors import UsageError
from nbafl.protocol import Training
from nbafl.simulation import Simulator, build
from nbafl.simulation.device_data import features
from nbafl.simulation.engines import choice, gram
from nbafl.simulation.workloads import WORKLOADS, Workload, find, flops, measure, used_inputs, work_of

TINY = Workload("tiny", "a few digits", 6, 40, None, "mlp", Training(steps=3, clip=1e6), 2, 4, 2)


@pytest.mark.parametrize("engine", ["dual", "plain"])
@pytest.mark.parametrize(
    ("steps", "batch", "model"), [(3, None, "mlp"), (6, 10, "mlp"), (2, None, "softmax")]
)
def test_the_floor_counts_the_products_of_a_round(
    engine: str, steps: int, batch: int | None, model: str
) -> None:
    """Against torch's own count of a round with dense features (float64), in which every product is a real one."""
    workload = replace(TINY, model=model, training=Training(steps=steps, batch=batch, clip=1e6))
    federation = workload.federation()
    start = build(model, federation.shape, 10, 0).double()
    run = Simulator(federation, start, workload.job(), "cpu", engine, measure=(), threads=1)
    run.step()  # Gram matrices are made once and are not part of a round
    with FlopCounterMode(display=False) as counted:
        run.step()
    expected = flops(workload, engine, federation)
    allowance = 0.02 if model == "mlp" else 0.05
    assert counted.get_total_flops() == pytest.approx(expected, rel=allowance)


@pytest.mark.parametrize(
    ("engine", "per_round", "samples", "batch"),
    [
        ("plain", None, 40, None),
        ("plain", None, 40, 10),  # minibatches are gathered dense
        ("dual", None, 40, None),
        ("dual", 3, 40, None),
        ("dual", 3, 4, None),  # too small for sparse products of their own
    ],
)
def test_the_work_counts_what_is_really_multiplied(
    engine: str, per_round: int | None, samples: int, batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse products as they are called, dense ones by torch's own count, in a round of float32 digits."""
    workload = replace(
        TINY,
        clients=12,
        samples=samples,
        per_round=per_round,
        training=Training(steps=3, batch=batch, clip=1e6),
    )
    federation = workload.federation()
    model = build("mlp", federation.shape, 10, 0)
    run = Simulator(federation, model, workload.job(), "cpu", engine, measure=(), threads=1)
    if per_round:  # Gram matrices are no part of a round: everyone's are at hand
        monkeypatch.setattr(gram, "WORTH_KEEPING", 0)
        run.shared.fast.roster._grams.of(np.arange(12))
    else:
        run.step()
    made, bags = [], features._bags

    def counted(column: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        made.append(2 * len(column) * others[-1].shape[1])
        return bags(column, *others)

    monkeypatch.setattr(features, "_bags", counted)
    with FlopCounterMode(display=False) as dense:
        run.step()
    work = work_of(workload, run)
    assert sum(made) == pytest.approx(work.sparse, rel=0.1)  # drawn clients may be darker than most
    # gathered rows keep the columns that are zero everywhere, which the count leaves out
    spare = 785 / (used_inputs(federation.x) + 1) if work.sparse == 0 else 1.0
    assert 0.98 * work.dense <= dense.get_total_flops() <= 1.02 * spare * work.dense


def test_a_measurement_holds_together() -> None:
    found = measure(TINY, "cpu")
    assert found.ratio_to_floor == pytest.approx(found.seconds_per_round / found.floor_seconds)
    assert found.floor_seconds == pytest.approx(found.floor_gflop / found.gflops)
    assert found.sparse_gflops is not None
    least = found.work_dense_gflop / found.gflops + found.work_sparse_gflop / found.sparse_gflops
    assert found.work_floor_seconds == pytest.approx(least)
    assert found.ratio_to_work_floor == pytest.approx(found.seconds_per_round / least)
    assert 0 < found.work_dense_gflop < found.work_dense_gflop + found.work_sparse_gflop < found.floor_gflop
    assert found.floor_seconds > 0
    assert found.startup_seconds >= 0  # what it took beyond a round, which on a busy machine may be nothing
    assert 100 < found.memory_mb < 100_000
    assert 0 < found.test_accuracy < 1
    fields = {
        "workload",
        "seconds_per_round",
        "floor_seconds",
        "ratio_to_floor",
        "startup_seconds",
        "memory_mb",
    }
    assert fields <= found.to_dict().keys()


def test_the_workloads_are_those_of_the_contract() -> None:
    assert list(WORKLOADS) == ["W1", "W2", "W3", "W4"]
    assert find("w4").clients == 1_000_000
    with pytest.raises(UsageError, match="workload"):
        find("W5")
    for workload in WORKLOADS.values():
        assert workload.training.clip == 20.0
        assert workload.job().sigma_uplink == 0.001


def test_inputs_that_are_always_zero_are_not_counted() -> None:
    x = torch.zeros(5000, 2, 3)
    x[4500, 1, 2] = 1
    x[0, 0, 0] = -1
    assert used_inputs(x.numpy()) == 2


@pytest.mark.parametrize("per_round", [None, 4, 3])
def test_gram_matrices_that_would_fill_memory_are_not_chosen(
    per_round: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everyone's, also when everyone is asked for by number, and those of a round's drawn clients."""
    workload = replace(TINY, clients=4, samples=50, per_round=per_round)
    federation, model = workload.federation(), build("mlp", (1, 28, 28), 10, 0)
    assert Simulator(federation, model, workload.job(), "cpu", measure=()).engine.name == "dual"
    monkeypatch.setattr(choice, "GRAM_BYTES", 3 * 50 * 50 * 4 - 1)
    assert Simulator(federation, model, workload.job(), "cpu", measure=()).engine.name == "plain"


@pytest.mark.parametrize(
    ("samples", "steps", "batch", "dtype", "chosen"),
    [
        (1200, 5, None, torch.float32, "plain"),  # W1: sparse products with the weights beat Gram matrices
        (1200, 5, None, torch.float64, "dual"),  # dense ones do not
        (60, 3, 20, torch.float32, "dual"),  # W2
        (100, 20, None, torch.float32, "dual"),  # W3
        (3000, 50, None, torch.float64, "plain"),
    ],
)
def test_the_cheaper_engine_is_chosen(
    samples: int, steps: int, batch: int | None, dtype: torch.dtype, chosen: str
) -> None:
    workload = replace(
        TINY, clients=2, samples=samples, training=Training(steps=steps, batch=batch, clip=20.0)
    )
    federation = workload.federation()
    model = build("mlp", federation.shape, 10, 0).to(dtype)
    assert Simulator(federation, model, workload.job(), "cpu", measure=()).engine.name == chosen
