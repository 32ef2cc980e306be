"""W5 and W6 of `nbafl bench`: models that are no chain of linear layers, beside what anybody would write by hand.

W5 is FedAvg: 10 clients of 60 digits take part, one epoch in batches of 20 (100 clients on a GPU), beside a plain torch loop
over clients. W6 is per-record clipping of 1,000 digits (6,000 on a GPU), beside the plain gradient of the same batch, which
clips nothing, and beside Opacus, where it is installed. Measured turn by turn, so that all see the same machine.
"""

from __future__ import annotations

import copy
import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nbafl.data.federation import Federation
from nbafl.protocol import Training, clip, draw, flatten, load
from nbafl.simulation.engines.one_step import OneStepEngine
from nbafl.simulation.job import Job
from nbafl.simulation.simulator import Simulator, pick_device, precision

TURNS = 5
CLIENTS, SAMPLES, PER_ROUND, SIGMA = 200, 60, 10, 0.001
LOCAL = Training(rule="client", steps=3, lr=0.1, mu=0.0, batch=20, clip=20.0)
"""W5: who trains, and how; on a GPU ten times as many take part."""


def small_cnn() -> nn.Module:
    """Two 5×5 convolutions of 16 and 32 channels."""
    first = [nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 10))


def mcmahan_cnn() -> nn.Module:
    """The CNN of McMahan et al. (2017), 1.66 million weights."""
    first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))


class RowsGRU(nn.Module):
    """Reads a digit row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(28, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x[:, 0])[0][:, -1])


class RowsTransformer(nn.Module):
    """Two encoder layers over the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(28, 64), nn.Parameter(0.02 * torch.randn(28, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x[:, 0]) + self.place).mean(1))


class LowRank(nn.Module):
    """A frozen linear layer with a trained product of two thin ones beside it (LoRA)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 8) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def lora() -> nn.Module:
    """Frozen layers of 1,024 units with adapters of rank 8."""
    return nn.Sequential(
        nn.Flatten(), LowRank(784, 1024), nn.ReLU(), LowRank(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


FEDAVG = {"small CNN": small_cnn, "McMahan CNN": mcmahan_cnn}
CLIPPED = {**FEDAVG, "GRU": RowsGRU, "transformer": RowsTransformer, "LoRA": lora}
WORKLOADS = {
    "W5": "FedAvg of CNNs: clients of 60 digits, one epoch in batches of 20",
    "W6": "per-record clipping of a batch of digits",
}


@dataclass(frozen=True)
class ModelTime:
    """One model: seconds of ours and of the others, medians of the same turns."""

    model: str
    seconds: float
    others: dict[str, float | None]
    """None for one that fails on this model."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(name: str, device: str = "auto", tf32: bool = False) -> list[ModelTime]:
    """All models of a workload."""
    chosen = pick_device(device)
    with precision(tf32):
        if name == "W5":
            return [_fedavg(model, make, chosen, tf32) for model, make in FEDAVG.items()]
        return [_clipped(model, make, chosen, tf32) for model, make in CLIPPED.items()]


def _fedavg(name: str, make: Callable[[], nn.Module], device: torch.device, tf32: bool) -> ModelTime:
    per_round = 10 * PER_ROUND if device.type == "cuda" else PER_ROUND
    federation = Federation.mnist(clients=CLIENTS, samples=SAMPLES, seed=0)
    job = Job(LOCAL, 10**6, per_round, SIGMA)
    torch.manual_seed(0)
    model = make()
    simulator = Simulator(federation, model, job, device, measure=(), tf32=tf32)
    naive = copy.deepcopy(model).to(device)
    data = [tuple(torch.from_numpy(part).to(device) for part in federation.client(c)) for c in range(CLIENTS)]

    def loop() -> None:
        _naive_round(naive, data, draw(0, simulator.round, CLIENTS, per_round).tolist(), job.training)

    return _turns(name, simulator.step, {"naive torch loop": loop}, device)


def _naive_round(model: nn.Module, data: list[Any], clients: list[int], training: Training) -> None:
    """FedAvg as anybody writes it: one client after another, torch's own optimiser."""
    start = flatten(model)
    total = torch.zeros_like(start)
    for client in clients:
        load(start, model)
        optimiser, (x, y) = torch.optim.SGD(model.parameters(), training.lr), data[client]
        for rows in torch.randperm(len(x), device=x.device).split(training.batch or len(x)):
            optimiser.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
        total += start + clip(flatten(model) - start, training.clip)
    load(total / len(clients) + SIGMA * torch.randn_like(start), model)


def _clipped(name: str, make: Callable[[], nn.Module], device: torch.device, tf32: bool) -> ModelTime:
    count = 6000 if device.type == "cuda" else 1000
    federation = Federation.mnist(clients=1, samples=count, seed=0)
    torch.manual_seed(0)
    model = make().to(device).train()
    training = Training(rule="gradient", steps=1, record_clip=1.0)
    simulator = Simulator(federation, model, Job(training, 10**6), device, measure=(), tf32=tf32)
    assert isinstance(simulator.engine, OneStepEngine)
    x, y = simulator.shared.records.x[:count], simulator.shared.records.y[:count]
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def plain() -> None:
        torch.autograd.grad(functional.cross_entropy(model(x), y), own)

    others: dict[str, Callable[[], None] | None] = {"plain gradient": plain}
    for kind in ("hooks", "ghost"):
        others[f"Opacus {kind}"] = _opacus(copy.deepcopy(model), x, y, kind)
    return _turns(name, simulator.step, others, device)


def _opacus(model: nn.Module, x: Tensor, y: Tensor, kind: str) -> Callable[[], None] | None:
    """One clipped gradient of the batch in Opacus; None where it is not installed or refuses the model."""
    try:
        samples, optimisers, losses, validators = (
            importlib.import_module(f"opacus.{part}")
            for part in ("grad_sample", "optimizers", "utils.fast_gradient_clipping_utils", "validators")
        )
        if validators.ModuleValidator.validate(model, strict=False):
            return None
        options: dict[str, Any] = {
            "noise_multiplier": 0.0,
            "max_grad_norm": 1.0,
            "expected_batch_size": len(x),
        }
        if kind == "hooks":
            wrapped = samples.GradSampleModule(model)
            optimiser = optimisers.DPOptimizer(torch.optim.SGD(wrapped.parameters(), 0.0), **options)

            def step() -> None:
                optimiser.zero_grad()
                functional.cross_entropy(wrapped(x), y).backward()
                optimiser.step()

            return step
        ghost = samples.GradSampleModuleFastGradientClipping(
            model, max_grad_norm=1.0, use_ghost_clipping=True
        )
        fast = optimisers.DPOptimizerFastGradientClipping(torch.optim.SGD(ghost.parameters(), 0.0), **options)
        criterion = losses.DPLossFastGradientClipping(
            ghost, fast, nn.CrossEntropyLoss(reduction="mean"), "mean"
        )

        def quick() -> None:
            fast.zero_grad()
            criterion(ghost(x), y).backward()
            fast.step()

        return quick
    except Exception:  # a peer that is not there, or that cannot
        return None


def _timed(work: Callable[[], object], device: torch.device) -> float:
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def _turns(
    name: str,
    ours: Callable[[], object],
    others: dict[str, Callable[[], None] | None],
    device: torch.device,
) -> ModelTime:
    """Each in turn, TURNS times; the median of each.

    In a turn everybody works twice and the second time counts: caches, and threads that still spin, are then one's own.
    """
    runs: dict[str, Callable[[], object] | None] = {"": ours, **others}
    seconds: dict[str, list[float]] = {}
    for who in [each for _ in range(TURNS) for each in runs]:
        work = runs[who]
        if work is None:
            continue
        try:
            _timed(work, device)
            seconds.setdefault(who, []).append(_timed(work, device))
        except Exception:  # a peer that cannot train this model is left out, ours is not
            if not who:
                raise
            runs[who] = None
    found = {who: statistics.median(seconds[who]) if runs[who] else None for who in runs}
    mine = found.pop("")
    assert mine is not None
    return ModelTime(name, mine, found)
