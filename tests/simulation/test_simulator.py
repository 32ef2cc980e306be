"""Rounds, noise, metrics, resume, batches and populations."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.protocol import Training, client_batches, descend, flatten, train_locally
from nbafl.simulation import Job, Simulator, build, simulate_batch
from nbafl.simulation.features import DenseFeatures
from nbafl.simulation.simulator import MEASURES


@pytest.fixture(scope="module")
def digits() -> Federation:
    return Federation.mnist(clients=12, samples=30, seed=1)


@pytest.fixture(scope="module")
def ragged() -> Federation:
    return Federation.mnist(sizes=[5, 40, 17, 40, 3, 29], seed=2, local_test=1)


def simulator(federation: Federation, job: Job, **options: object) -> Simulator:
    return Simulator(
        federation, build("mlp", federation.shape, federation.outputs, job.seed), job, "cpu", **options
    )


NOISY = Job(
    Training(steps=3, batch=8),
    rounds=6,
    per_round=5,
    sigma_uplink=0.01,
    sigma_downlink=0.003,
    server_momentum=0.5,
    seed=4,
)


@pytest.mark.parametrize("engine", ["dual", "plain", "vmap"])
def test_a_restored_run_goes_on_bit_for_bit(digits: Federation, engine: str) -> None:
    whole = simulator(digits, NOISY, engine=engine)
    for _ in range(3):
        whole.step()
    state = {name: value.clone() for name, value in whole.state().items()}
    rest = [whole.step() for _ in range(3)]
    resumed = simulator(digits, NOISY, engine=engine)
    resumed.restore(state)
    assert resumed.round == 3
    again = [resumed.step() for _ in range(3)]
    assert torch.equal(whole.vector, resumed.vector)
    assert [(m.round, m.train_loss, m.test_accuracy) for m in rest] == [
        (m.round, m.train_loss, m.test_accuracy) for m in again
    ]


@pytest.mark.parametrize("batch", [None, 8])
def test_a_restored_run_meets_unequal_clients_in_other_teams(batch: int | None) -> None:
    """What is kept of a client must not depend on with whom it was first met."""
    federation = Federation.mnist(sizes=[5, 40, 17, 40, 3, 29, 33, 21, 60, 11] * 3, seed=2)
    job = Job(Training(steps=3, batch=batch), rounds=10, per_round=6, seed=4)
    whole, resumed = (simulator(federation, job, engine="dual", measure=()) for _ in range(2))
    for _ in range(5):
        whole.step()
    resumed.restore(whole.state())
    for _ in range(5):
        whole.step()
        resumed.step()
    assert torch.equal(whole.vector, resumed.vector)


def test_evaluating_more_often_changes_nothing(digits: Federation) -> None:
    """The dual engine starts a round from what an evaluation left behind; the bits must be the same."""
    full = Job(Training(), rounds=4)
    often, never = simulator(digits, full), simulator(digits, full, measure=())
    for _ in range(4):
        often.step()
        never.step()
    torch.testing.assert_close(often.vector, never.vector, rtol=1e-6, atol=1e-8)
    seldom = simulator(digits, Job(Training(), rounds=4, eval_every=3))
    metrics = [seldom.step() for _ in range(4)]
    assert torch.equal(often.vector, seldom.vector)
    assert [m.train_loss is not None for m in metrics] == [False, False, True, True]


def test_the_number_of_threads_changes_nothing(digits: Federation) -> None:
    for engine in ("dual", "plain"):
        one, three = (simulator(digits, NOISY, engine=engine, threads=threads) for threads in (1, 3))
        for _ in range(2):
            assert one.step().train_loss == three.step().train_loss
        assert torch.equal(one.vector, three.vector)


def test_batched_runs_equal_single_runs(digits: Federation, ragged: Federation) -> None:
    jobs = [
        NOISY,
        Job(Training(), rounds=3, seed=1),
        Job(Training(rule="client", clip=0.1), rounds=2, sigma_uplink=0.1),
    ]
    federations = [digits, ragged, digits]
    models = [build("mlp", (1, 28, 28), 10, job.seed) for job in jobs]
    seen = []
    batched = simulate_batch(
        federations, models, jobs, "cpu", on_round=lambda number, m: seen.append((number, m.round))
    )
    for federation, model, job, metrics in zip(federations, models, jobs, batched, strict=True):
        alone = Simulator(federation, model, job, "cpu")
        singles = [alone.step() for _ in range(job.rounds)]
        strip = [{**m.to_dict(), "seconds": 0} for m in metrics]
        assert strip == [{**m.to_dict(), "seconds": 0} for m in singles]
    assert sorted(seen) == sorted((n, r + 1) for n, job in enumerate(jobs) for r in range(job.rounds))


def test_a_batch_takes_one_model_for_all_or_one_each(digits: Federation) -> None:
    jobs = [Job(Training(), rounds=1, seed=seed) for seed in range(3)]
    model = build("softmax", digits.shape, 10, 0)
    assert len(simulate_batch(digits, model, jobs, "cpu", measure=())) == 3
    with pytest.raises(UsageError, match="models"):
        simulate_batch(digits, [model, model], jobs, "cpu")


@pytest.mark.parametrize("engine", ["dual", "plain", "vmap"])
@pytest.mark.parametrize("name", ["digits", "ragged"])
def test_metrics_are_those_of_the_broadcast_model(
    engine: str, name: str, request: pytest.FixtureRequest
) -> None:
    federation = request.getfixturevalue(name)
    run = simulator(federation, Job(Training(), rounds=2), engine=engine)
    run.step()
    metrics = run.step()
    model = run.module()
    everyone = np.concatenate(list(federation.records()))
    with torch.no_grad():
        output = model(torch.as_tensor(federation.x[everyone]))
        target = torch.as_tensor(federation.y[everyone])
        test = model(torch.as_tensor(federation.test[0])), torch.as_tensor(federation.test[1])
    assert metrics.train_loss == pytest.approx(float(nn.functional.cross_entropy(output, target)), rel=1e-5)
    assert metrics.train_accuracy == pytest.approx(
        float((output.argmax(1) == target).double().mean()), abs=1e-9
    )
    assert metrics.test_loss == pytest.approx(float(nn.functional.cross_entropy(*test)), rel=1e-5)
    assert metrics.test_accuracy == pytest.approx(
        float((test[0].argmax(1) == test[1]).double().mean()), abs=1e-3
    )
    own = []
    for index in federation.local_records():
        with torch.no_grad():
            right = model(torch.as_tensor(federation.x[index])).argmax(1) == torch.as_tensor(
                federation.y[index]
            )
        own.append(float(right.double().mean()))
    assert metrics.mean_client_accuracy == pytest.approx(np.mean(own), abs=0.02)
    assert metrics.worst_client_accuracy == pytest.approx(min(own), abs=0.05)
    assert metrics.broadcast_norm == pytest.approx(float(run.vector.double().norm()), rel=1e-6)


@pytest.mark.parametrize("engine", ["dual", "plain", "vmap"])
@pytest.mark.parametrize("measure", [MEASURES, frozenset({"test"})])
@pytest.mark.parametrize(("rule", "batch"), [("paper", None), ("client", None), ("paper", 8)])
def test_how_many_were_clipped_is_exact(
    digits: Federation, engine: str, measure: frozenset, rule: str, batch: int | None
) -> None:
    """Also where the dual engine rules clipping out by a bound instead of computing norms."""
    free = Training(rule=rule, batch=batch, clip=1e6, mu=0.0, steps=3)
    start = build("mlp", digits.shape, 10, 0)
    norms = []
    for client in range(digits.clients):
        x, y = (torch.as_tensor(part) for part in digits.client(client))
        order = client_batches(0, 1, client, len(y), free)
        moved = descend(start, x, y, flatten(start), free, order).double()
        norms.append(float((moved if rule == "paper" else moved - flatten(start)).norm()))
    norms = sorted(norms)
    for bound in (norms[0] / 2, (norms[5] + norms[6]) / 2, norms[-1] * 1.0005, norms[-1] * 3):
        run = simulator(digits, Job(replace(free, clip=bound), rounds=1), engine=engine, measure=measure)
        metrics = run.step()
        assert metrics.clipped_fraction == sum(norm > bound for norm in norms) / len(norms)
        if metrics.upload_norm is not None:
            assert metrics.upload_norm == pytest.approx(np.minimum(norms, bound).mean(), rel=1e-4)
        assert (metrics.upload_norm is not None) or "norms" not in measure


def test_the_noise_of_a_round_has_the_planned_scale(digits: Federation) -> None:
    """Noisy minus noiseless broadcast, against sqrt(sum p_i^2 sigma_i^2 + sigma_D^2); false alarm below 1e-6."""
    sigma = tuple(np.linspace(0.01, 0.05, 12))
    training = Training(steps=1)
    noisy = simulator(digits, Job(training, rounds=1, sigma_uplink=sigma, sigma_downlink=0.002), measure=())
    quiet = simulator(digits, Job(training, rounds=1), measure=())
    noisy.step()
    quiet.step()
    noise = (noisy.vector - quiet.vector).double()
    expected = math.sqrt(np.sum((np.array(sigma) / 12) ** 2) + 0.002**2)
    count = len(noise)
    assert abs(float(noise.square().mean()) / expected**2 - 1) < 5 * math.sqrt(2 / count)
    assert abs(float(noise.mean())) < 5 * expected / math.sqrt(count)


def test_a_regression_has_loss_and_no_accuracy() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=6)
    clients = []
    for size in (20, 31, 8):
        x = rng.normal(size=(size, 6)).astype(np.float32)
        clients.append((x, (x @ truth).astype(np.float32)))
    federation = Federation.from_arrays(clients, test=clients[0])
    job = Job(Training(steps=20, lr=0.05, mu=0.0, loss="squared", clip=100.0), rounds=20)
    model = build("softmax", federation.shape, federation.outputs, 0)
    run = Simulator(federation, model, job, "cpu")
    metrics = [run.step() for _ in range(20)]
    assert metrics[-1].test_loss < 0.01 * metrics[0].test_loss
    assert metrics[-1].train_accuracy is None
    assert metrics[-1].worst_client_accuracy is None
    with pytest.raises(UsageError, match="loss"):
        Simulator(federation, model, Job(Training()), "cpu")


class Convolution(nn.Module):
    """A user's own model: convolution, dropout and group normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Conv2d(1, 4, 5, stride=3)
        self.norm = nn.GroupNorm(2, 4)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.filters(x))).flatten(1)))


def test_a_users_own_module_trains_and_repeats(ragged: Federation) -> None:
    job = Job(Training(steps=5, lr=0.3, mu=0.0, clip=100.0), rounds=8)
    torch.manual_seed(0)
    model = Convolution()
    runs = [Simulator(ragged, model, job, "cpu") for _ in range(2)]
    assert runs[0].engine.name == "vmap"
    metrics = [[run.step() for _ in range(8)] for run in runs]
    assert torch.equal(runs[0].vector, runs[1].vector)
    assert metrics[0][-1].train_loss < 0.7 * metrics[0][0].train_loss
    with pytest.raises(UsageError, match="engine"):
        Simulator(ragged, model, job, "cpu", engine="dual")


def test_batched_runs_with_dropout_equal_single_runs(ragged: Federation) -> None:
    """Dropout draws from torch's one global generator, which runs in parallel must not share."""
    jobs = [Job(Training(clip=100.0), rounds=2, seed=seed) for seed in range(3)]
    torch.manual_seed(0)
    model = Convolution()
    before = torch.random.get_rng_state()
    batched = simulate_batch(ragged, model, jobs, "cpu", measure={"train"})
    for job, metrics in zip(jobs, batched, strict=True):
        alone = Simulator(ragged, model, job, "cpu", measure={"train"})
        assert [m.train_loss for m in metrics] == [alone.step().train_loss for _ in range(2)]
    assert torch.equal(before, torch.random.get_rng_state())


class Buffered(nn.Module):
    """A linear model with a buffer that scales, or counts the passes made in training."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.layer, self.counts = nn.Linear(784, 10), counts
        self.register_buffer("number", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.counts and self.training:
            self.number += 1
        return self.layer(x.flatten(1) * self.number)


@pytest.mark.parametrize("rule", ["paper", "gradient"])
def test_layers_with_running_statistics_are_refused(ragged: Federation, rule: str) -> None:
    job = Job(Training(rule=rule, steps=1), rounds=2)
    for norm in (nn.BatchNorm1d(8), nn.BatchNorm1d(8, track_running_stats=False)):
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), norm, nn.Linear(8, 10))
        with pytest.raises(UsageError, match="GroupNorm"):
            Simulator(ragged, model, job, "cpu")
    with pytest.raises(UsageError, match="buffer 'number'"):
        Simulator(ragged, Buffered(counts=True), job, "cpu")
    run = Simulator(ragged, Buffered(counts=False), job, "cpu")
    assert run.step().train_loss > run.step().train_loss


def test_dropout_is_on_in_training_under_every_rule(digits: Federation) -> None:
    """Dropout of everything leaves a gradient of zero; evaluated without dropout, the model still answers."""
    for rule in ("paper", "gradient"):
        model = nn.Sequential(nn.Flatten(), nn.Dropout(1.0), nn.Linear(784, 10, bias=False))
        run = Simulator(digits, model, Job(Training(rule=rule, steps=1), rounds=1), "cpu")
        run.step()
        torch.testing.assert_close(run.vector, flatten(model))


def test_a_state_of_another_model_is_refused(digits: Federation) -> None:
    run = simulator(digits, Job(Training()))
    other = Simulator(digits, build("softmax", digits.shape, 10, 0), Job(Training()), "cpu")
    with pytest.raises(UsageError, match="203530 weights"):
        run.restore(other.state())


@pytest.mark.parametrize("batch", [None, 64])
@pytest.mark.parametrize("engine", ["dual", "plain", "vmap"])
def test_a_client_of_one_record_beside_one_of_thousands(engine: str, batch: int | None) -> None:
    """Both weigh the same here; nobody is padded to the other, and each is trained as if alone."""
    federation = Federation.mnist(sizes=[1, 3000, 1, 2], seed=3)
    model = build("softmax", federation.shape, 10, 0)
    job = Job(Training(steps=3, batch=batch, clip=1.0), rounds=1, weights="uniform")
    run = Simulator(federation, model, job, "cpu", engine, measure=())
    run.step()
    alone = []
    for client in range(4):
        x, y = (torch.as_tensor(part) for part in federation.client(client))
        order = client_batches(0, 1, client, len(y), job.training)
        alone.append(train_locally(model, x, y, flatten(model), job.training, order))
    torch.testing.assert_close(run.vector, torch.stack(alone).mean(0), rtol=1e-4, atol=1e-6)


def test_a_population_costs_what_its_participants_cost() -> None:
    """From twenty thousand clients to a billion the same path: no copy of anybody's features, no Gram matrix kept."""
    job = Job(Training(steps=2), rounds=2, per_round=20, sigma_uplink=0.001)
    for clients in (2 * 10**4, 10**6, 10**9):
        federation = Federation.population(clients=clients, samples=4)
        run = Simulator(federation, build("softmax", (1, 28, 28), 10, 0), job, "cpu")
        metrics = [run.step() for _ in range(2)]
        assert metrics[-1].participants == 20
        assert metrics[-1].train_loss is not None
        features = run.engine.roster.features
        assert isinstance(features, DenseFeatures)
        assert features.matrix.data_ptr() == run.setting.records.x.data_ptr()
        assert run.engine.roster._grams is None


def test_a_job_goes_through_json(digits: Federation) -> None:
    job = Job(Training(batch=4), sigma_uplink=tuple([0.1] * 12), per_round=3)
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    for bad, field in [
        ({"rounds": 0}, "rounds"),
        ({"per_round": 0}, "per_round"),
        ({"sigma_uplink": -1.0}, "sigma_uplink"),
        ({"sigma_downlink": float("inf")}, "sigma_downlink"),
        ({"weights": "equal"}, "weights"),
        ({"server_momentum": 1.0}, "server_momentum"),
        ({"eval_every": 0}, "eval_every"),
    ]:
        with pytest.raises(UsageError, match=field):
            Job(Training(), **bad)
    for bad in ({"per_round": 13}, {"sigma_uplink": (0.1, 0.2)}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            simulator(digits, Job(Training(), **bad))
    for options, field in [({"engine": "fast"}, "engine"), ({"measure": ("speed",)}, "measure")]:
        with pytest.raises(UsageError, match=field):
            simulator(digits, Job(Training()), **options)


def test_models_by_name(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flatten(build("mlp", (1, 28, 28), 10, 0)).numel() == 203_530
    assert torch.equal(flatten(build("mlp", (4,), 2, 7)), flatten(build("mlp", (4,), 2, 7)))
    assert not torch.equal(flatten(build("mlp", (4,), 2, 7)), flatten(build("mlp", (4,), 2, 8)))
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n"
        "def tiny(shape, outputs):\n"
        "    return nn.Linear(shape[0], outputs)\n"
        "def nothing(shape, outputs):\n"
        "    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    assert isinstance(build("my_models:tiny", (4,), 2, 0), nn.Linear)
    for name in ("my_models:missing", "my_models:nothing", "no_such_module:x", "resnet"):
        with pytest.raises(UsageError, match="model"):
            build(name, (4,), 2, 0)
