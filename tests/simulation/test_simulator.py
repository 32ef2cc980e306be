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
from nbafl.protocol import Training, client_batches, descend, flatten
from nbafl.rules import upload
from nbafl.simulation import Job, Simulator, build, simulate_batch
from nbafl.simulation.device_data.features import DenseFeatures
from nbafl.simulation.simulator import MEASURES


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


@pytest.mark.parametrize("engine", ["dual", "plain", "clients", "vmap"])
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


def test_a_model_is_tried_out_in_full_precision(digits: Federation) -> None:
    """In the TF32 that torch leaves on for convolutions, sums on a GPU look wrong and records would be taken one by one."""
    seen = []

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.backends.cudnn.allow_tf32)
            return super().forward(x.flatten(1))

    before = torch.backends.cudnn.allow_tf32
    Simulator(digits, Watched(784, 10), Job(Training(rule="gradient", steps=1), rounds=1), "cpu", tf32=True)
    assert before
    assert seen
    assert not any(seen)
    assert torch.backends.cudnn.allow_tf32 == before


@pytest.mark.parametrize("stopped", [2, 4])
def test_a_restored_run_keeps_adam_and_the_average_of_the_last_models(
    digits: Federation, stopped: int
) -> None:
    job = replace(NOISY, server_optimiser="adam", server_lr=0.02, server_average=3)
    whole, resumed = (simulator(digits, job, engine="dual", measure=()) for _ in range(2))
    path = []
    for number in range(1, job.rounds + 1):
        whole.step()
        path.append(whole.vector.clone())
        if number == stopped:
            resumed.restore({name: value.clone() for name, value in whole.state().items()})
    for _ in range(job.rounds - stopped):
        resumed.step()
    assert torch.equal(whole.vector, resumed.vector)
    final, again = flatten(whole.module()), flatten(resumed.module())
    assert torch.equal(final, again)
    assert torch.allclose(final, torch.stack(path[-3:]).mean(0), atol=1e-6)
    assert not torch.allclose(final, path[-1], atol=1e-4), "the mean is not the last broadcast"


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


@pytest.mark.parametrize("engine", ["dual", "plain", "clients", "vmap"])
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


@pytest.mark.parametrize("engine", ["dual", "plain", "clients", "vmap"])
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


def test_a_state_of_another_model_is_refused(digits: Federation) -> None:
    run = simulator(digits, Job(Training()))
    other = Simulator(digits, build("softmax", digits.shape, 10, 0), Job(Training()), "cpu")
    with pytest.raises(UsageError, match="203530 weights"):
        run.restore(other.state())


@pytest.mark.parametrize("batch", [None, 64])
@pytest.mark.parametrize("engine", ["dual", "plain", "clients", "vmap"])
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
        alone.append(upload(model, x, y, flatten(model), job.training, order))
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
        assert features.matrix.data_ptr() == run.shared.records.x.data_ptr()
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
