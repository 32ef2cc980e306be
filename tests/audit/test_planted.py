"""Ten planted mistakes, small ones that a programmer could make, are refuted at epsilon 1 and 8; sound mechanisms stand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.paper_setting import Plan
from torch import Tensor, nn

from nbafl import protocol, rules
from nbafl.audit.auditor import audit
from nbafl.audit.mechanism import Mechanism


def weaker(vector: Tensor, sigma: float | Tensor, generator: torch.Generator) -> Tensor:
    return protocol.add_noise(vector, 0.9 * sigma, generator)


class Again:
    """Noise of a round that is used again so many rounds later, in the fast game as on the real path."""

    def __init__(self, later: int) -> None:
        self.later = later
        self.kept: dict[tuple[Any, ...], list[Tensor]] = {}
        self.owner: dict[int, torch.Generator] = {}
        self.lock = threading.Lock()

    def generator(self, seed: int, round: int, stream: int | str) -> torch.Generator:
        """Of 2·later rounds the second half has the streams of the first."""
        if stream == "audit":  # a chunk of the fast game, not a round
            return protocol.generator(seed, round, stream)
        first = round % (2 * self.later) < self.later
        return protocol.generator(seed, round if first else round - self.later, stream)

    def add_noise(self, vector: Tensor, sigma: float | Tensor, generator: torch.Generator) -> Tensor:
        if vector.dim() == 1:
            return protocol.add_noise(vector, sigma, generator)
        with self.lock:
            self.owner[id(generator)] = generator  # alive, so that no other gets its number
            kept = self.kept.setdefault((id(generator), vector.dim()), [])
        again = len(kept) % (2 * self.later) >= self.later
        kept.append(kept[-self.later] if again else torch.randn(vector.shape, generator=generator))
        kept[: -self.later] = [torch.empty(0)] * (len(kept) - self.later)
        return vector + sigma * kept[-1]

    def mechanism(self) -> Mechanism:
        return Mechanism(generator=self.generator, add_noise=self.add_noise)


def skipping(record: int) -> Callable[..., Tensor]:
    """One record's gradient is not clipped."""

    def upload(model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: protocol.Training) -> Tensor:
        one = (x[record : record + 1], y[record : record + 1])
        loose = rules.upload(model, *one, start, replace(training, record_clip=1e9))
        held = rules.upload(model, *one, start, training)
        return rules.upload(model, x, y, start, training) + (loose - held) / len(x)

    return upload


def later_unclipped(
    model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: protocol.Training
) -> Tensor:
    """Clipping is off from round 2: only the first broadcast is zero, or as sure as `proximal` starts."""
    first = not bool(start[:-2].any())
    return rules.upload(
        model, x, y, start, training if first else replace(training, clip=1e9, record_clip=1e9)
    )


def opposite(vector: Tensor, sigma: float | Tensor, generator: torch.Generator) -> Tensor:
    """In the fast game's stack of clients every second one has the negative of its neighbour's noise."""
    noise = torch.randn(vector.shape, generator=generator, dtype=vector.dtype)
    if vector.dim() == 3:
        pairs = len(noise) // 2
        noise[1 : 2 * pairs : 2] = -noise[0 : 2 * pairs : 2]
    return vector + sigma * noise


class OppositeClients:
    """On the real path, too: an odd client draws from the stream of the one before it and takes the negative."""

    def __init__(self) -> None:
        self.turned: set[int] = set()
        self.alive: list[torch.Generator] = []

    def generator(self, seed: int, round: int, stream: int | str) -> torch.Generator:
        if not isinstance(stream, int):
            return protocol.generator(seed, round, stream)
        made = protocol.generator(seed, round, stream - stream % 2)
        self.alive.append(made)
        if stream % 2:
            self.turned.add(id(made))
        return made

    def add_noise(self, vector: Tensor, sigma: float | Tensor, generator: torch.Generator) -> Tensor:
        if vector.dim() > 1:
            return opposite(vector, sigma, generator)
        return protocol.add_noise(vector, -sigma if id(generator) in self.turned else sigma, generator)

    def mechanism(self) -> Mechanism:
        return Mechanism(generator=self.generator, add_noise=self.add_noise)


def shared_stream(seed: int, round: int, stream: int | str) -> torch.Generator:
    return protocol.generator(seed, round, "all" if isinstance(stream, int) else stream)


def shared(vector: Tensor, sigma: float | Tensor, generator: torch.Generator) -> Tensor:
    if vector.dim() < 3:
        return protocol.add_noise(vector, sigma, generator)
    return vector + sigma * torch.randn(vector.shape[1:], generator=generator, dtype=vector.dtype)


def constant(vector: Tensor, sigma: float | Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    return protocol.add_noise(vector, sigma, torch.Generator().manual_seed(0))


class SilentServer:
    """The server adds no noise."""

    def __init__(self) -> None:
        self.server: set[int] = set()
        self.alive: list[torch.Generator] = []

    def generator(self, seed: int, round: int, stream: int | str) -> torch.Generator:
        made = protocol.generator(seed, round, stream)
        self.alive.append(made)
        if stream == "server":
            self.server.add(id(made))
        return made

    def add_noise(self, vector: Tensor, sigma: float | Tensor, generator: torch.Generator) -> Tensor:
        if vector.dim() == 2 or id(generator) in self.server:
            return vector
        return protocol.add_noise(vector, sigma, generator)

    def mechanism(self) -> Mechanism:
        return Mechanism(generator=self.generator, add_noise=self.add_noise)


PLANTED: dict[str, Callable[[], Mechanism]] = {
    "noise x0.9": lambda: Mechanism(add_noise=weaker),
    "noise reused in the next round": lambda: Again(1).mechanism(),
    "noise reused two rounds later": lambda: Again(2).mechanism(),
    "clip skipped for record 0": lambda: Mechanism(upload=skipping(0)),
    "clip skipped for record 1": lambda: Mechanism(upload=skipping(1)),
    "anti-correlated clients": lambda: OppositeClients().mechanism(),
    "same noise for all clients": lambda: Mechanism(generator=shared_stream, add_noise=shared),
    "constant seed": lambda: Mechanism(add_noise=constant),
    "server noise missing": lambda: SilentServer().mechanism(),
    "clip off from round 2": lambda: Mechanism(upload=later_unclipped),
}

FEW = 1000
SOLVED = {
    "sensitivity": "proximal",
    "model": "softmax",
    "feature_norm": 3.0,
    "mu": 0.5,
    "lr": 0.3,
    "clip": 30.0,
    "tolerance": 1e-3,
}


def small(epsilon: float, **fields: Any) -> Plan:
    return Plan(**{"epsilon": epsilon, "clients": 6, "rounds": 6, "samples": 30, **fields})


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_refuted(name: str, epsilon: float) -> None:
    plan = small(epsilon, sensitivity="gradient")
    assert plan.noise_scales().sigma_downlink > 0  # else the server's noise could not be missing
    assert audit(plan, FEW, mechanism=PLANTED[name]()).refuted


@pytest.mark.parametrize("rule", ["paper", "client", "proximal"])
def test_mistakes_in_the_noise_are_refuted_under_every_rule(rule: str) -> None:
    fields = SOLVED if rule == "proximal" else {"sensitivity": rule}
    assert audit(small(8.0, **fields), FEW, mechanism=PLANTED["noise reused two rounds later"]()).refuted


@pytest.mark.parametrize("rule", ["paper", "client"])
def test_clipping_that_ends_after_the_first_round_is_refuted(rule: str) -> None:
    found = audit(small(8.0, sensitivity=rule), FEW, mechanism=Mechanism(upload=later_unclipped))
    assert "path: neighbours" in found.refuted_by


@pytest.mark.parametrize(
    "fields",
    [
        {"sensitivity": "paper"},
        {"sensitivity": "gradient", "adversary": "curious-server"},
        {"sensitivity": "client", "adjacency": "drop", "adversary": "broadcast"},
        {"sensitivity": "client", "per_round": 3},
        {"sensitivity": "gradient", "per_round": 3, "adversary": "targeted"},
        {"sensitivity": "gradient", "clients": None, "samples": None, "sizes": (5, 30, 30, 200, 7, 9)},
        {**SOLVED, "adversary": "colluders:2"},
        {"sensitivity": "gradient", "clients": 2, "rounds": 1, "samples": 1},
    ],
)
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_sound_mechanisms_stand(fields: dict[str, Any], epsilon: float) -> None:
    fields = {name: value for name, value in fields.items() if value is not None}
    plan = Plan(epsilon=epsilon, rounds=6, **fields) if "sizes" in fields else small(epsilon, **fields)
    found = audit(plan, FEW)
    assert found.refuted_by == []
    assert {look.name for look in found.looks} >= {"path: neighbours", "path: formula", "path: average"}


@pytest.mark.parametrize("record", [0, 17, 4999])
def test_a_record_that_is_not_clipped_is_found_among_thousands(record: int) -> None:
    """Clients of 5000 records: several rows are turned at once, so that every record is turned in some probe."""
    plan = small(8.0, sensitivity="gradient", samples=5000)
    assert "path: neighbours" in audit(plan, FEW, mechanism=Mechanism(upload=skipping(record))).refuted_by


def test_an_average_with_other_weights_is_refuted() -> None:
    def uneven(uploads: torch.Tensor, weights: Any) -> torch.Tensor:
        return protocol.aggregate(uploads, weights) * 1.5

    found = audit(small(8.0, sensitivity="gradient"), FEW, mechanism=Mechanism(aggregate=uneven))
    assert "path: average" in found.refuted_by


def test_the_json_lists_every_look_with_account_proof_and_error() -> None:
    found = audit(small(8.0, sensitivity="gradient"), FEW).to_dict()
    assert found["verdict"] == "consistent"
    assert found["refuted_by"] == []
    assert found["error"]["overall"] == pytest.approx(0.05)
    assert found["error"]["designed"] == pytest.approx(0.01)
    shares = sum(look["error"] for look in found["looks"])
    shares += sum(2 * attack["error_of_each_bound"] for attack in found["attacks"].values())
    assert shares == pytest.approx(0.01)
    for look in found["looks"]:
        assert look["proof"] <= look["account"]
