"""All engines compute the same round: each is held against rules.upload, one client at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nbafl.data.federation import Federation
from nbafl.protocol import Training, client_batches, flatten
from nbafl.protocol import draw as draw_participants
from nbafl.rules import upload
from nbafl.simulation import Job, Simulator, build
from nbafl.simulation.device_data.features import DenseBlock, DenseFeatures, SparseBlock, SparseFeatures
from nbafl.simulation.engines import vmap
from nbafl.simulation.engines.graphed import GraphedDualEngine, Recordings

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def random_federation(rng: np.random.Generator, sizes: list[int], task: str, zeros: float) -> Federation:
    """Clients of the given sizes; a share of the features is exactly zero, and two columns are zero for everyone."""
    clients = []
    for size in sizes:
        x = rng.normal(size=(size, 3, 4)).astype(np.float32) * (rng.random((size, 3, 4)) >= zeros)
        x[:, 0, :2] = 0
        y = rng.integers(0, 3, size) if task == "classification" else rng.normal(size=size)
        clients.append((x.astype(np.float32), y))
    return Federation.from_arrays(clients, outputs=3 if task == "classification" else None)


def network(hidden: list[int], activation: type[nn.Module], bias: bool, outputs: int) -> nn.Module:
    widths = [12, *hidden, outputs]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, units in pairwise(widths):
        layers += [nn.Linear(inputs, units, bias=bias), activation()]
    return nn.Sequential(*layers[:-1])


def reference(federation: Federation, model: nn.Module, job: Job, clients: np.ndarray) -> torch.Tensor:
    """One round by the reference path, client after client."""
    start = flatten(model)
    sizes = federation.sizes[clients].astype(float)
    weights = sizes / sizes.sum() if job.weights == "records" else np.full(len(clients), 1 / len(clients))
    total = torch.zeros_like(start)
    for client, weight in zip(clients, weights, strict=True):
        x, y = federation.client(int(client))
        order = client_batches(job.seed, 1, int(client), len(y), job.training)
        target = torch.as_tensor(y).to(start.dtype) if job.training.loss == "squared" else torch.as_tensor(y)
        total += weight * upload(
            model, torch.as_tensor(x).to(start.dtype), target, start, job.training, order
        )
    return total


def close(result: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    error = float((result - expected).norm() / expected.norm())
    assert error <= tolerance, f"relative error {error:.2e}"


@st.composite
def rounds(draw: st.DrawFn) -> dict:
    task = draw(st.sampled_from(["classification", "classification", "regression"]))
    sizes = draw(
        st.one_of(
            st.integers(1, 14).flatmap(lambda m: st.integers(1, 6).map(lambda n: [m] * n)),
            st.lists(st.integers(1, 20), min_size=1, max_size=7),
        )
    )
    return {
        "task": task,
        "sizes": sizes,
        "zeros": draw(st.sampled_from([0.0, 0.5, 0.9])),
        "hidden": draw(st.sampled_from([[], [7], [40], [6, 5], [33, 4, 6]])),
        "activation": draw(st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid])),
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from([torch.float32, torch.float64])),
        "job": Job(
            Training(
                rule=draw(st.sampled_from(["paper", "client"])),
                steps=draw(st.integers(1, 7)),
                lr=draw(st.sampled_from([0.02, 0.1, 0.3])),
                mu=draw(st.sampled_from([0.0, 0.01, 1.0, 4.0])),
                batch=draw(st.sampled_from([None, None, 1, 3, 5, 16])),
                clip=draw(st.sampled_from([0.01, 0.3, 2.0, 3.0, 5.0, 100.0])),
                loss="squared" if task == "regression" else "cross_entropy",
            ),
            rounds=1,
            per_round=draw(st.sampled_from([None, 1, len(sizes)])),
            weights=draw(st.sampled_from(["records", "uniform"])),
            seed=draw(st.integers(0, 10**6)),
        ),
        "measure": draw(st.sampled_from([(), ("train", "clients", "norms")])),
    }


@pytest.mark.parametrize("engine", ["dual", "plain", "clients", "vmap"])
@settings(max_examples=100, deadline=None, derandomize=True)
@given(setup=rounds())
def test_an_engine_equals_the_reference_path(engine: str, setup: dict) -> None:
    job, rng = setup["job"], np.random.default_rng(setup["job"].seed)
    federation = random_federation(rng, setup["sizes"], setup["task"], setup["zeros"])
    torch.manual_seed(job.seed)
    outputs = 3 if setup["task"] == "classification" else 1
    model = network(setup["hidden"], setup["activation"], setup["bias"], outputs).to(setup["dtype"])
    simulator = Simulator(federation, model, job, device="cpu", engine=engine, measure=setup["measure"])
    metrics = simulator.step()
    clients = draw_participants(job.seed, 1, len(setup["sizes"]), job.per_round or len(setup["sizes"]))
    close(simulator.vector, reference(federation, model, job, clients), TOLERANCE[setup["dtype"]])
    assert metrics.participants == len(clients)


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float32, SparseFeatures), (torch.float64, DenseFeatures)])
@pytest.mark.parametrize("batch", [None, 7])
def test_engines_agree_on_digits(dtype: torch.dtype, kind: type, batch: int | None) -> None:
    """Real records: sparse products in float32, dense ones without the columns that are always zero in float64."""
    federation = Federation.mnist(sizes=[30, 30, 12, 45], seed=5)
    job = Job(Training(steps=4, mu=0.5, clip=9.45, batch=batch), rounds=1)
    model = build("mlp", federation.shape, 10, 3).to(dtype)
    expected = reference(federation, model, job, np.arange(4))
    for engine in ("dual", "plain"):
        simulator = Simulator(federation, model, job, "cpu", engine)
        simulator.step()
        features = simulator.engine.roster.features if engine == "dual" else simulator.engine.features
        assert isinstance(features, kind)
        close(simulator.vector, expected, TOLERANCE[dtype])


class Doubled(nn.Sequential):
    """Looks like a chain of layers and is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Quiet(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 2


def in_disguise(kind: str) -> nn.Module:
    """Models that a glance takes for linear layers with activations between them."""
    first, last = nn.Linear(12, 12), nn.Linear(12, 3)
    if kind == "subclass of a container":
        return Doubled(nn.Flatten(), first, nn.Tanh(), last)
    if kind == "subclass of a layer":
        return nn.Sequential(nn.Flatten(), first, nn.Tanh(), Quiet(12, 3))
    if kind == "one layer twice":
        return nn.Sequential(nn.Flatten(), first, nn.Tanh(), first, nn.Tanh(), last)
    model = nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), last)
    if kind == "one weight twice":
        model[3].weight = first.weight
    elif kind == "hook on the container":
        model.register_forward_hook(lambda module, inputs, output: 3 * output)  # noqa: ARG005
    elif kind == "hook on an activation":
        model[2].register_forward_hook(lambda module, inputs, output: 3 * output)  # noqa: ARG005
    elif kind == "weights made of others":
        nn.utils.parametrizations.weight_norm(last)
    return model


@pytest.mark.parametrize("rule", ["paper", "gradient"])
@pytest.mark.parametrize(
    "kind",
    [
        "subclass of a container",
        "subclass of a layer",
        "one layer twice",
        "one weight twice",
        "hook on the container",
        "hook on an activation",
        "weights made of others",
    ],
)
def test_a_model_in_disguise_is_trained_as_what_it_is(kind: str, rule: str) -> None:
    """By the engine for any module, and under `gradient` through torch.func: against autograd on the model itself."""
    torch.manual_seed(3)
    model = in_disguise(kind)
    federation = random_federation(np.random.default_rng(1), [7], "classification", 0.5)
    job = Job(Training(rule=rule, steps=1, lr=0.5, mu=0.0, clip=1e6, record_clip=1e6), rounds=1)
    run = Simulator(federation, model, job, "cpu")
    assert run.engine.name == ("clients" if rule == "paper" else "one-step")
    run.step()
    x, y = (torch.as_tensor(part) for part in federation.client(0))
    loss = nn.functional.cross_entropy(model(x), y)
    gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(run.vector, flatten(model) - 0.5 * gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch", [None, 3])
def test_clients_larger_than_a_chunk_train_one_by_one(
    batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vmap, "CHUNK_BYTES", 1)
    federation = random_federation(np.random.default_rng(1), [5, 9, 4], "classification", 0.5)
    job = Job(Training(steps=3, batch=batch), rounds=1)
    model = network([6], nn.Tanh, True, 3)
    simulator = Simulator(federation, model, job, "cpu", "vmap")
    simulator.step()
    close(simulator.vector, reference(federation, model, job, np.arange(3)), 1e-5)


@pytest.mark.parametrize(("samples", "block"), [(4, DenseBlock), (20, SparseBlock)])
def test_drawn_clients_are_multiplied_alone_only_where_that_pays(samples: int, block: type) -> None:
    """Sparse products of single clients where they are large enough, one dense product of the team where not."""
    federation = Federation.mnist(clients=30, samples=samples, seed=5)
    job = Job(Training(steps=4, mu=0.5, clip=9.45), rounds=1, per_round=9)
    model = build("mlp", federation.shape, 10, 3)
    simulator = Simulator(federation, model, job, "cpu", "dual")
    simulator.step()
    clients = draw_participants(0, 1, 30, 9)
    roster = simulator.engine.roster
    assert isinstance(roster.features, SparseFeatures)
    assert isinstance(roster.teams(clients)[0].features, block)
    close(simulator.vector, reference(federation, model, job, clients), 1e-5)


@pytest.mark.parametrize(("per_round", "batch"), [(None, None), (None, 9), (3, None), (3, 9)])
def test_the_recorded_engine_does_what_the_dual_engine_does(per_round: int | None, batch: int | None) -> None:
    """What a GPU replays as a graph of kernels, run step by step here."""
    federation = Federation.mnist(clients=8, samples=20, seed=1)
    job = Job(Training(steps=4, batch=batch, clip=9.45), rounds=3, per_round=per_round, sigma_uplink=0.01)
    model = build("mlp", federation.shape, 10, 3)
    plain, recorded = (Simulator(federation, model, job, "cpu", "dual") for _ in range(2))
    recordings = Recordings()
    recorded.engine = GraphedDualEngine(recorded.engine, recordings)
    for _ in range(3):
        plain.step()
        recorded.step()
    close(recorded.vector, plain.vector, 1e-5)
    assert recordings._held
    assert all(recordings._held.values())
