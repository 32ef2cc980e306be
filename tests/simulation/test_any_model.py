"""Every kind of model trains under every rule that knows it: against clients one by one, and as a table in the docs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.zoo import CLASSES, SHAPE, ZOO, records
from torch import nn

from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.protocol import Training, aggregate, client_batches, flatten
from nbafl.protocol.record_gradients import RecordGradients
from nbafl.rules import upload
from nbafl.simulation import Job, Simulator
from nbafl.simulation.engines.convolutions import WeightBatched

SIZES = [6, 9, 6]
RULES = {
    "paper": Training(rule="paper", steps=3, lr=0.1, mu=0.3, batch=4, clip=3.0),
    "client": Training(rule="client", steps=2, lr=0.1, mu=0.0, clip=0.05),
    "gradient": Training(rule="gradient", steps=1, lr=0.5, record_clip=0.5),
}
DOCS = Path(__file__).parents[2] / "docs" / "models.md"


def federation() -> Federation:
    x, y = records(sum(SIZES), 5)
    ends = np.cumsum([0, *SIZES])
    parts = [(x[a:b].numpy(), y[a:b].numpy()) for a, b in pairwise(ends)]
    return Federation.from_arrays(parts, outputs=CLASSES)


def model_of(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(2)
    return ZOO[name]().to(dtype)


def reference(model: nn.Module, training: Training) -> torch.Tensor:
    data, uploads = federation(), []
    for client in range(len(SIZES)):
        x, y = (torch.from_numpy(part) for part in data.client(client))
        order = None if training.rule == "gradient" else client_batches(0, 1, client, len(y), training)
        uploads.append(upload(model.train(), x, y, flatten(model), training, order))
    return aggregate(torch.stack(uploads), np.array(SIZES, dtype=float))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [name for name in ZOO if name != "dropout"])
def test_a_round_is_the_average_of_the_reference_uploads(name: str, rule: str) -> None:
    engines = ["auto"] if rule == "gradient" or name == "MLP" else ["auto", "vmap"]
    for engine in engines:
        if engine == "vmap" and name == "control flow":
            with pytest.raises(UsageError, match="engine clients runs any"):
                Simulator(federation(), model_of(name), Job(RULES[rule], rounds=1), "cpu", engine)
            continue
        run = Simulator(federation(), model_of(name), Job(RULES[rule], rounds=1), "cpu", engine, measure=())
        run.step()
        expected = reference(model_of(name), RULES[rule])
        assert float((run.vector - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_double_and_bfloat16_weights_train(rule: str, dtype: torch.dtype) -> None:
    """bfloat16 weights are trained in a float32 vector: a step smaller than their last digit still counts."""
    for name in ("MLP", "CNN with GroupNorm", "GRU"):
        run = Simulator(federation(), model_of(name, dtype), Job(RULES[rule], rounds=3), "cpu")
        losses = [run.step().train_loss for _ in range(3)]
        assert run.vector.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert np.isfinite(losses).all()
        assert next(run.module().parameters()).dtype == dtype


def test_dropout_is_a_function_of_the_client_not_of_the_lane() -> None:
    jobs = Job(RULES["client"], rounds=2, seed=3)
    one, two = (
        Simulator(federation(), model_of("dropout"), jobs, "cpu", threads=threads) for threads in (1, 3)
    )
    for _ in range(2):
        one.step()
        two.step()
    assert torch.equal(one.vector, two.vector)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("stride", "dilation", "padding"), [(1, 1, 0), (2, 1, 1), (3, 2, 2), (1, 1, 4)])
def test_convolutions_of_many_clients_are_theirs_one_by_one(
    groups: int, stride: int, dilation: int, padding: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 4, 11, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 6, 4 // groups, 3, 2, dtype=torch.float64, requires_grad=True)

    def one(image: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        with WeightBatched():
            return nn.functional.conv2d(image, own, None, stride, padding, dilation, groups)

    found = torch.vmap(one)(x, weight)
    both = zip(x, weight, strict=True)
    true = torch.stack([nn.functional.conv2d(i, w, None, stride, padding, dilation, groups) for i, w in both])
    slope = torch.randn_like(true)
    torch.testing.assert_close(found, true)
    for ours, theirs in zip(
        torch.autograd.grad(found, (x, weight), slope),
        torch.autograd.grad(true, (x, weight), slope),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_table_of_models_in_the_docs_is_what_trains() -> None:
    """Each line: the model, its engine under `paper` and `client`, and its way to per-record gradients."""
    lines = []
    for name in ZOO:
        run = Simulator(federation(), model_of(name), Job(RULES["client"], rounds=1), "cpu", measure=())
        assert np.isfinite(run.step().broadcast_norm)
        way = RecordGradients(model_of(name).train(), SHAPE, "cross_entropy").way
        lines.append(f"| {name} | {run.engine.name} | {way} |")
    missing = [line for line in lines if line not in DOCS.read_text()]
    assert not missing, "docs/models.md lacks:\n" + "\n".join(lines)
