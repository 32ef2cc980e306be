"""A record's gradient is a function of that record alone, whatever the model keeps or mixes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.protocol import Training, flatten, record_gradients, unflatten
from nbafl.protocol.independence import answers_alone, fresh, ready_to_train
from nbafl.rules import upload
from nbafl.simulation import Job, Simulator, simulate_batch

SHAPE, CLASSES = (6,), 3


class RunningMean(nn.Module):
    """Keeps a running mean of its records as a plain attribute, and takes it off the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(*SHAPE, CLASSES)
        self.mean = torch.zeros(SHAPE)

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean.to(x.dtype) + 0.1 * x.detach().mean(0)
        return self.layer(x - self.mean)


class Counter(nn.Module):
    """Answers every call a little louder."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(*SHAPE, CLASSES), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.calls * self.layer(x)


class Mixing(nn.Module):
    """Takes the mean of the batch off each record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(*SHAPE, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


def federation(records: int = 8) -> Federation:
    random = np.random.default_rng(0)
    parts = [
        (random.normal(size=(records, *SHAPE)).astype(np.float32), random.integers(CLASSES, size=records))
        for _ in range(2)
    ]
    return Federation.from_arrays(parts, outputs=CLASSES)


def test_a_running_mean_does_not_carry_a_record_into_the_others_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The issue's own model: replaced in round 1, record 0 moved uploads by several times 2 eta G/m."""
    monkeypatch.setattr(record_gradients, "CHUNK_BYTES", 1)  # a chunk a record: memory would be passed on
    training = Training(rule="gradient", steps=1, lr=0.5, record_clip=0.5)
    torch.manual_seed(1)
    layer, (x, y) = RunningMean().double().layer, (torch.randn(10, *SHAPE).double(), torch.randint(3, (10,)))
    other = x.clone()
    other[0] = 1e4
    bound = 2 * 0.5 * 0.5 / 10

    def uploads(records: Tensor) -> list[Tensor]:
        model = RunningMean().double()
        model.layer = layer
        return [upload(model, records, y, flatten(model), training) for _ in range(3)]

    moved = [float((a - b).norm()) for a, b in zip(uploads(x), uploads(other), strict=True)]
    assert 0 < max(moved) <= bound * (1 + 1e-9)


def test_the_records_beside_a_record_do_not_enter_its_gradient() -> None:
    """In a batch of its own the model sees no other record: each is taken as a batch of one."""
    training = Training(rule="gradient", steps=1, lr=1.0, record_clip=0.5)
    torch.manual_seed(2)
    model, x, y = Mixing().double(), torch.randn(5, *SHAPE).double(), torch.randint(3, (5,))
    start = flatten(model)
    alone = sum(start - upload(model, x[i : i + 1], y[i : i + 1], start, training) for i in range(5)) / 5
    torch.testing.assert_close(start - upload(model, x, y, start, training), alone)


@pytest.mark.parametrize("rule", ["gradient", "paper", "client"])
@pytest.mark.parametrize(
    ("model", "complaint"),
    [(RunningMean, "remembers nothing"), (Counter, "remembers nothing"), (Mixing, "each record alone")],
)
def test_models_that_remember_or_mix_are_refused(model: type[nn.Module], complaint: str, rule: str) -> None:
    with pytest.raises(UsageError, match=f"model .*{complaint}"):
        Simulator(federation(), model(), Job(Training(rule=rule, steps=1), rounds=1), "cpu")


class Dropping(nn.Module):
    """Dropout as a layer, as a function, in attention and between recurrent layers; and noise of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer, self.drop = kind, nn.Linear(6, CLASSES), nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(2, 1, dropout=0.5, batch_first=True)
        self.recurrent = nn.GRU(2, 2, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        pairs = x.unflatten(1, (3, 2))
        if self.kind == "function":
            x = functional.dropout(x, 0.5, self.training)
        elif self.kind == "attention":
            x = self.attention(pairs, pairs, pairs)[0].flatten(1)
        elif self.kind == "product":
            x = functional.scaled_dot_product_attention(pairs, pairs, pairs, None, 0.5).flatten(1)
        elif self.kind == "recurrent":
            x = self.recurrent(pairs)[0].flatten(1)
        elif self.kind == "noise":
            x = x + 0.1 * torch.randn_like(x)
        return self.layer(self.drop(x))


@pytest.mark.parametrize("kind", ["layer", "function", "attention", "product", "recurrent", "noise"])
def test_dropout_and_noise_are_not_taken_for_memory(kind: str) -> None:
    model = Dropping(kind)
    before = torch.random.get_rng_state()
    assert ready_to_train(model, SHAPE).training
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_model_that_fails_in_training_mode_is_told_in_a_sentence() -> None:
    class Shy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(*SHAPE, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                raise KeyError("secret.csv")
            return self.layer(x)

    with pytest.raises(UsageError, match=r"answers such records in training mode; it failed: KeyError"):
        Simulator(federation(), Shy(), Job(Training(rule="gradient", steps=1), rounds=1), "cpu")


def test_dropout_under_gradient_is_the_same_alone_and_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs side by side must not draw from each other's stream, nor seed torch's generator for anyone else."""
    monkeypatch.setattr("nbafl.simulation.batch.cores", lambda: 3)
    data, model = federation(60), Dropping("layer")
    jobs = [Job(Training(rule="gradient", steps=1), rounds=6, seed=seed) for seed in range(6)]
    before = torch.random.get_rng_state()
    batched = simulate_batch(data, model, jobs, "cpu", measure={"train"})
    assert torch.equal(before, torch.random.get_rng_state())
    for job, metrics in zip(jobs, batched, strict=True):
        run = Simulator(data, model, job, "cpu", measure={"train"})
        assert [m.train_loss for m in metrics] == [run.step().train_loss for _ in range(6)]


class MixingMany(Mixing):
    """Takes the mean of the batch off each record where there are more than two: `ready_to_train` does not notice."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if len(x) > 2 else self.layer(x)


class Sequences(nn.Module):
    """torch has no rule for vmap here."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last, self.drop = nn.LSTM(1, 5), nn.Linear(5, CLASSES), nn.Dropout(0.9)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.last(self.layers(x.T[..., None])[0][-1]))


@pytest.mark.parametrize("make", [RunningMean, Counter, Mixing, MixingMany, Sequences])
def test_each_record_is_answered_as_if_it_were_the_only_one(make: type[nn.Module]) -> None:
    """One record moved a client's sum of scores by 200, where 1 is what the noise is made for."""
    torch.manual_seed(1)
    model, x = make().train(), torch.randn(1500, *SHAPE)
    weights = unflatten(flatten(model), model)
    found = answers_alone(model, weights, x)
    for row in (0, 1, 1023, 1024, 1499):
        with torch.no_grad():
            alone = fresh(model).eval()(x[row : row + 1])[0]
        torch.testing.assert_close(found[row], alone)
    crafted = x.clone()
    crafted[0] = 1e6
    torch.testing.assert_close(answers_alone(model, weights, crafted)[1:], found[1:], rtol=0, atol=0)
