"""Every engine on a GPU against the same rounds on the CPU; needs only torch and numpy, exits 1 if any differs.

    PYTHONPATH=src python3 benchmarks/gpu_check.py [cuda]

Each problem runs four rounds without noise (a recorded graph is made in the second and replayed from the third), then
one more on a fresh simulator that was restored from the fourth. A line says how far the weights are from the CPU's,
relative to their norm; what each client uploads is a small step from the broadcast, so the step itself is compared too.
Where float32 differs the problem runs again in float64: a unit whose input is zero but for rounding has another slope on
another device, and only there; anything else differs in float64 too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import nn

from nbafl.data.federation import Federation
from nbafl.protocol import Training, flatten
from nbafl.simulation import Job, Simulator, build, simulate_batch

ROUNDS = 4
TOLERANCE = {False: 1e-4, True: 1e-2}
"""Relative error of the weights in float32 and in TF32, whose products have ten bits."""
DOUBLE = 1e-12
EQUAL, RAGGED = (40,) * 12, (3, 17, 40, 40, 8, 1, 90)


@dataclass(frozen=True)
class Problem:
    """One small run."""

    engine: str
    model: str
    sizes: tuple[int, ...]
    job: Job
    tf32: bool = False
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        training = self.job.training
        kind = "TF32" if self.tf32 else str(self.dtype).removeprefix("torch.")
        sizes = "equal" if len(set(self.sizes)) == 1 else "unequal"
        return (
            f"{self.engine:5} {self.model:8} {sizes:7} {training.rule:8} batch={training.batch} mu={training.mu} "
            f"clip={training.clip} K={self.job.per_round} {kind}"
        )


class Convolution(nn.Module):
    """A model that only `vmap` trains."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.norm = nn.Conv2d(1, 4, 5, stride=3), nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.filters(x))).flatten(1))


def problems() -> Iterator[Problem]:
    """Rules, batches, clips that bind and that do not, everyone and some; the free ones of each engine, then the rest."""
    for engine in ("dual", "plain", "vmap"):
        for sizes in (EQUAL, RAGGED):
            for batch, per_round, rule, clip in [
                (None, None, "paper", 9.6),
                (7, None, "paper", 100.0),
                (7, 3, "paper", 9.6),
                (None, 3, "client", 0.05),
                (None, len(sizes), "client", 100.0),
            ]:
                training = Training(rule=rule, steps=4, batch=batch, clip=clip, mu=0.5)
                yield Problem(engine, "mlp", sizes, Job(training, ROUNDS + 1, per_round))
        some = Training(steps=4, batch=7, clip=9.6, mu=0.0)
        yield Problem(engine, "softmax", EQUAL, Job(some, ROUNDS + 1, 5, server_momentum=0.5))
        yield Problem(engine, "mlp", (1,), Job(some, ROUNDS + 1))
        yield Problem(engine, "mlp", RAGGED, Job(some, ROUNDS + 1, 3), dtype=torch.float64)
        yield Problem(engine, "mlp", RAGGED, Job(some, ROUNDS + 1, 3), tf32=True)
        yield Problem(engine, "mlp", EQUAL, Job(some, ROUNDS + 1), tf32=True)
    yield Problem("auto", "conv", RAGGED, Job(some, ROUNDS + 1, 3))
    yield Problem("auto", "conv", RAGGED, Job(some, ROUNDS + 1), tf32=True)
    step = Training(rule="gradient", steps=1, record_clip=0.5)
    yield Problem("auto", "mlp", RAGGED, Job(step, ROUNDS + 1, 3))
    yield Problem("auto", "conv", EQUAL, Job(step, ROUNDS + 1))
    solve = Training(rule="proximal", mu=0.5, clip=5.0, tolerance=1e-4, feature_norm=3.0)
    yield Problem("auto", "softmax", RAGGED, Job(solve, ROUNDS + 1, 3))


@cache
def digits(sizes: tuple[int, ...]) -> Federation:
    return replace(
        Federation.mnist(sizes=list(sizes), seed=1), test=None
    )  # the CPU would spend its time there


def model(problem: Problem, federation: Federation) -> nn.Module:
    torch.manual_seed(0)
    made = Convolution() if problem.model == "conv" else build(problem.model, federation.shape, 10, 0)
    return made.to(problem.dtype)


def differences(problem: Problem, device: str) -> dict[str, float]:
    """By what the two devices differ: weights and steps relative to their norms, metrics as they are."""
    federation = digits(problem.sizes)
    start = model(problem, federation)

    def fresh(where: str) -> Simulator:
        return Simulator(federation, start, problem.job, where, problem.engine, tf32=problem.tf32)

    cpu, gpu = fresh("cpu"), fresh(device)
    for _ in range(ROUNDS):
        cpu.step()
        gpu.step()
    again = fresh(device)
    again.restore(gpu.state())
    left, right, resumed = cpu.step(), gpu.step(), again.step()
    assert left.train_loss is not None
    assert right.train_loss is not None
    assert resumed.train_loss is not None
    expected, origin = cpu.vector, flatten(start)
    moved = (expected - origin).norm()
    return {
        "weights": float((gpu.vector.cpu() - expected).norm() / expected.norm()),
        "steps": float((gpu.vector.cpu() - expected).norm() / moved),
        "resumed": float((again.vector - gpu.vector).norm() / gpu.vector.norm()),
        "loss": abs(right.train_loss - left.train_loss) / left.train_loss,
        "clipped": abs((right.clipped_fraction or 0.0) - (left.clipped_fraction or 0.0)),
    }


def fails(problem: Problem, found: dict[str, float]) -> bool:
    allowed = DOUBLE if problem.dtype == torch.float64 else TOLERANCE[problem.tf32]
    # steps are shorter than weights, and TF32 sees three digits of them
    limits = {"weights": allowed, "steps": 10 * allowed, "resumed": allowed, "loss": 10 * allowed}
    limits["clipped"] = 1 / (problem.job.per_round or len(problem.sizes)) if problem.tf32 else 0.0
    return not all(found[name] <= limit for name, limit in limits.items())  # not a number fails too


def batch(device: str) -> float:
    """Runs that share a recording against the same runs alone: the largest difference of their last loss."""
    federation = digits(EQUAL)
    start = build("mlp", federation.shape, 10, 0)
    jobs = [Job(Training(), 4, sigma_uplink=0.01, seed=seed) for seed in range(4)]
    together = simulate_batch(federation, start, jobs, device)
    worst = 0.0
    for job, metrics in zip(jobs, together, strict=True):
        alone = Simulator(federation, start, job, device)
        last = [alone.step() for _ in range(4)][-1].train_loss
        worst = max(worst, abs(np.subtract(metrics[-1].train_loss, last)))
    return float(worst)


def check(device: str) -> int:
    """Prints a line for each problem; how many failed."""
    failed = 0
    for problem in problems():
        try:
            found = differences(problem, device)
            if fails(problem, found) and not problem.tf32 and problem.dtype == torch.float32:
                print(f"again in float64, as float32 differs by {found['weights']:.1e}:", flush=True)
                problem = replace(problem, dtype=torch.float64)
                found = differences(problem, device)
        except Exception as error:  # the other problems are still worth knowing
            failed += 1
            print(f"FAILED {problem}: {type(error).__name__}: {error}", flush=True)
            continue
        wrong = fails(problem, found)
        failed += wrong
        numbers = ", ".join(f"{name} {value:.1e}" for name, value in found.items())
        print(f"{'FAILED' if wrong else 'ok    '} {problem}: {numbers}", flush=True)
    worst = batch(device)
    failed += not worst <= TOLERANCE[False]
    print(
        f"{'ok    ' if worst <= TOLERANCE[False] else 'FAILED'} runs of a batch, alone: {worst:.1e}",
        flush=True,
    )
    print(f"{failed} failed" if failed else "All equal the CPU.", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(1 if check(sys.argv[1] if len(sys.argv) > 1 else "cuda") else 0)
