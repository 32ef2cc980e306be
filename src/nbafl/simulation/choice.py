"""Which engine trains a job: asked for by name, or the one whose arithmetic is cheapest.

The cost of an engine is counted in multiplications per client and round. Nothing is timed, so the choice, and with it
the last bits of a result, never depends on how busy the machine is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from nbafl.errors import UsageError
from nbafl.simulation.crew import Crew
from nbafl.simulation.dual import DualEngine
from nbafl.simulation.engine import Engine
from nbafl.simulation.graphed import GraphedDualEngine
from nbafl.simulation.job import Job
from nbafl.simulation.metrics import Scorer
from nbafl.simulation.one_step import OneStepEngine
from nbafl.simulation.plain import PlainEngine
from nbafl.simulation.records import distinct
from nbafl.simulation.scoring import ModuleScorer, NetworkScorer
from nbafl.simulation.setting import Setting
from nbafl.simulation.solve import SolveEngine
from nbafl.simulation.vmap import VmapEngine

ENGINES = ("auto", "dual", "plain", "vmap")
GRAM_BYTES = 4 * 2**30
"""Without being asked to, nobody fills more memory than this with the Gram matrices of one round."""
UPDATE = 25
"""What changing one weight costs in a plain step, in multiplications: a few passes over the weights."""

LAUNCHES = 4e9
"""What a GPU could have multiplied while the host launches the kernels of one client's step."""


@dataclass(frozen=True)
class Choice:
    """Everything an engine can be made from."""

    setting: Setting
    model: nn.Module
    job: Job
    crew: Crew
    exact_norms: bool


Make = Callable[[Choice], tuple[Engine, Scorer]]


def choose(name: str, choice: Choice) -> tuple[Engine, Scorer]:
    """The engine for a job, and what evaluates its model."""
    if name not in ENGINES:
        raise UsageError("engine", name, "one of " + ", ".join(ENGINES))
    rule, network = choice.job.training.rule, choice.setting.network
    if rule not in RULES:
        raise UsageError("rule", rule, "one of " + ", ".join(RULES))
    if network is None and name in ("dual", "plain"):
        allowed = (
            "auto or vmap for this model: the fast engines train nn.Sequential models of nn.Linear layers"
        )
        raise UsageError("engine", name, allowed)
    return RULES[rule](name, choice)


def local_steps(name: str, choice: Choice) -> tuple[Engine, Scorer]:
    """Engines for the rules `paper` and `client`: S local steps, then clipping."""
    if name == "auto":
        name = cheapest(choice)
    return {"dual": _dual, "plain": _plain, "vmap": _vmap}[name](choice)


def of_the_rule(name: str, choice: Choice) -> tuple[Engine, Scorer]:
    """The one engine of a rule of proven sensitivity."""
    setting, training = choice.setting, choice.job.training
    if name != "auto":
        raise UsageError("engine", name, f"auto under sensitivity {training.rule}, which has one engine")
    scorer = (
        ModuleScorer(setting.records, choice.model, training.loss)
        if setting.network is None
        else _network_scorer(choice, None)
    )
    made = (setting.records, choice.model, training, choice.job.seed)
    if training.rule == "gradient":
        return OneStepEngine(*made, crew=choice.crew), scorer
    return SolveEngine(*made), scorer


RULES: dict[str, Callable[[str, Choice], tuple[Engine, Scorer]]] = {
    "paper": local_steps,
    "client": local_steps,
    "gradient": of_the_rule,
    "proximal": of_the_rule,
}
"""Which engines serve a rule; a rule with an engine of its own adds a line."""


def cheapest(choice: Choice) -> str:
    """`dual` or `plain` by their arithmetic; `vmap` for models that are no Network."""
    if choice.setting.network is None:
        return "vmap"
    costs = multiplications(choice)
    return min(costs, key=lambda name: costs[name])


def multiplications(choice: Choice) -> dict[str, float]:
    """Multiplications of a round per participant in the first layer, weighted by client size, for each engine."""
    setting, training = choice.setting, choice.job.training
    assert setting.network is not None
    first = setting.network.first
    sizes = distinct(setting.records.sizes).astype(np.float64)
    batch = sizes if training.batch is None else np.minimum(training.batch, sizes)
    steps, weights = training.steps, first.inputs * first.outputs
    product = setting.price * weights
    grams = (steps - 1) * batch * sizes + choice.exact_norms * sizes**2
    dual = 2 * sizes * product + grams * first.outputs
    whole = batch == sizes
    plain = steps * (2 * batch * np.where(whole, product, weights) + UPDATE * weights)
    if setting.records.device.type == "cuda":
        plain += steps * LAUNCHES
    participants = choice.job.per_round or setting.records.data.clients
    held = torch.finfo(setting.records.dtype).bits // 8 * np.mean(sizes**2) * participants
    return {"dual": float("inf") if held > GRAM_BYTES else float(dual.mean()), "plain": float(plain.mean())}


def _dual(choice: Choice) -> tuple[Engine, Scorer]:
    setting, job = choice.setting, choice.job
    assert setting.network is not None
    assert setting.roster is not None
    cuda = setting.records.device.type == "cuda"
    engine = (GraphedDualEngine if cuda else DualEngine)(
        setting.network, setting.roster, choice.crew, job.training, job.seed, choice.exact_norms
    )
    if isinstance(engine, GraphedDualEngine):
        engine.recordings = setting.recordings
    return engine, _network_scorer(choice, None if cuda else engine)


def _plain(choice: Choice) -> tuple[Engine, Scorer]:
    setting, job = choice.setting, choice.job
    assert setting.network is not None
    assert setting.roster is not None
    engine = PlainEngine(
        setting.network, setting.records, setting.roster.features, choice.crew, job.training, job.seed
    )
    return engine, _network_scorer(choice, None)


def _vmap(choice: Choice) -> tuple[Engine, Scorer]:
    job = choice.job
    engine = VmapEngine(choice.setting.records, choice.model, job.training, job.seed)
    return engine, ModuleScorer(choice.setting.records, choice.model, job.training.loss)


def _network_scorer(choice: Choice, dual: DualEngine | None) -> NetworkScorer:
    setting = choice.setting
    assert setting.network is not None
    assert setting.roster is not None
    everyone = choice.job.per_round in (None, setting.records.data.clients)
    ahead = dual.ahead if dual is not None and everyone else None
    return NetworkScorer(
        choice.model,
        setting.network,
        setting.roster,
        setting.test,
        choice.crew,
        choice.job.training.loss,
        ahead,
    )
