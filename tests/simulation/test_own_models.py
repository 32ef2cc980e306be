"""Models of a user's own in a simulation: what is trained, what is refused, and that layouts change nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.protocol import Training, client_batches, descend, flatten
from nbafl.simulation import Job, Simulator, build, simulate_batch


def simulator(federation: Federation, job: Job, **options: object) -> Simulator:
    return Simulator(
        federation, build("mlp", federation.shape, federation.outputs, job.seed), job, "cpu", **options
    )


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
    assert runs[0].engine.name == "clients"
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


class Viewing(nn.Module):
    """A network whose `view` asks for channels that come first in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(1, 3, 5, stride=4), nn.Linear(108, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.convolution(x).relu().view(len(x), -1))


@pytest.mark.parametrize(
    ("make", "layout"),
    [
        (lambda: nn.Sequential(nn.Conv2d(1, 3, 5, stride=4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 10)),
         torch.channels_last),
        (Viewing, torch.contiguous_format),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rule", ["paper", "client"])
def test_client_by_client_equals_the_reference_however_images_lie(
    digits: Federation, make: object, layout: torch.memory_format, rule: str
) -> None:
    torch.manual_seed(0)
    model, clip = make(), 0.05  # type: ignore[operator]
    job = Job(Training(rule=rule, steps=3, batch=8, clip=clip, mu=0.1), rounds=1, seed=4)
    running = Simulator(digits, model, job, "cpu", engine="clients", measure=())
    assert running.engine._layout == layout
    start, total = flatten(model), torch.zeros_like(flatten(model))
    for client in range(digits.clients):
        x, y = (torch.from_numpy(part) for part in digits.client(client))
        order = client_batches(4, 1, client, len(x), job.training)
        moved = descend(model, x, y, start, job.training, order) - (start if rule == "client" else 0)
        total += moved * min(1.0, clip / float(moved.norm())) / digits.clients
    measured = running.step()
    assert torch.allclose(running.vector, total + (start if rule == "client" else 0), atol=2e-6)
    assert measured.clipped_fraction == 1.0
