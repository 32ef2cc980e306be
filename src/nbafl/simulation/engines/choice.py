"""Which engine trains a job: asked for by name, or the one whose arithmetic is cheapest.

The cost of an engine is counted in multiplications per client and round. Nothing is timed, so the choice, and with it
the last bits of a result, never depends on how busy the machine is.
"""

from __future__ import annotations

import logging
import pkgutil
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from nbafl import rules
from nbafl.errors import UsageError
from nbafl.protocol.losses import BUILT_IN
from nbafl.rules.base import LOCAL_STEPS, Rule
from nbafl.simulation import ranks
from nbafl.simulation.cores import Cores
from nbafl.simulation.device_data.records import distinct
from nbafl.simulation.device_data.shared import NetworkData, SharedData
from nbafl.simulation.engines.base import Engine
from nbafl.simulation.engines.clients import ClientsEngine
from nbafl.simulation.engines.dealt import Laned, Shared
from nbafl.simulation.engines.dual import DualEngine
from nbafl.simulation.engines.graphed import GraphedDualEngine
from nbafl.simulation.engines.plain import PlainEngine
from nbafl.simulation.engines.vmap import VmapEngine
from nbafl.simulation.job import Job
from nbafl.simulation.scoring.evaluators import ModuleScorer, NetworkScorer
from nbafl.simulation.scoring.metrics import Scorer

log = logging.getLogger("nbafl")

ENGINES = ("auto", "dual", "plain", "clients", "vmap")
GRAM_BYTES = 4 * 2**30
"""Without being asked to, nobody fills more memory than this with the Gram matrices of one round."""
UPDATE = 25
"""What changing one weight costs in a plain step, in multiplications: a few passes over the weights."""

LAUNCHES = 4e9
"""What a GPU could have multiplied while the host launches the kernels of one client's step."""


@dataclass(frozen=True)
class Choice:
    """Everything an engine can be made from."""

    shared: SharedData
    model: nn.Module
    job: Job
    cores: Cores
    exact_norms: bool


def choose(name: str, choice: Choice) -> tuple[Engine, Scorer]:
    """The engine for a job, dealt to cores and ranks, and what evaluates its model."""
    engine, scorer = _made(name, choice)
    records = choice.shared.records
    if records.device.type == "cuda":
        return (Shared(engine) if ranks.count() > 1 else engine), scorer
    return (engine if engine.lanes else Laned(engine, choice.cores, records.sizes)), scorer


def _made(name: str, choice: Choice) -> tuple[Engine, Scorer]:
    if name not in ENGINES:
        raise UsageError("engine", name, "one of " + ", ".join(ENGINES))
    training = choice.job.training
    rule = rules.find(training.rule)
    fast = choice.shared.fast if training.loss in BUILT_IN else None
    if fast is None and name in ("dual", "plain"):
        allowed = (
            "auto, clients or vmap for this model or loss: the fast engines train nn.Sequential models of nn.Linear layers "
            "with built-in losses"
        )
        raise UsageError("engine", name, allowed)
    if rule.engine != LOCAL_STEPS:
        return _of_the_rule(name, choice, rule)
    if name in ("vmap", "clients"):
        return {"vmap": _vmap, "clients": _clients}[name](choice)
    if fast is None:
        return _vmap_or_clients(choice) if choice.shared.records.device.type == "cuda" else _clients(choice)
    if name == "auto":
        name = cheapest(choice, fast)
    return {"dual": _dual, "plain": _plain}[name](choice, fast)


def _of_the_rule(name: str, choice: Choice, rule: Rule) -> tuple[Engine, Scorer]:
    """The one engine of a rule that has its own."""
    if name != "auto":
        raise UsageError("engine", name, f"auto under sensitivity {rule.name}, which has one engine")
    shared, training = choice.shared, choice.job.training
    engine: Engine = pkgutil.resolve_name(rule.engine)(
        shared.records, choice.model, training, choice.job.seed, choice.cores
    )
    if shared.fast is None or training.loss not in BUILT_IN:
        return engine, ModuleScorer(shared.records, choice.model, training.loss)
    return engine, _network_scorer(choice, shared.fast, None)


def cheapest(choice: Choice, fast: NetworkData) -> str:
    """`dual` or `plain` by their arithmetic."""
    costs = multiplications(choice, fast)
    return min(costs, key=lambda name: costs[name])


def multiplications(choice: Choice, fast: NetworkData) -> dict[str, float]:
    """Multiplications of a round per participant in the first layer, weighted by client size, for each engine."""
    shared, training = choice.shared, choice.job.training
    first = fast.network.first
    sizes = distinct(shared.records.sizes).astype(np.float64)
    batch = sizes if training.batch is None else np.minimum(training.batch, sizes)
    steps, weights = training.steps, first.inputs * first.outputs
    product = fast.price * weights
    grams = (steps - 1) * batch * sizes + choice.exact_norms * sizes**2
    dual = 2 * sizes * product + grams * first.outputs
    whole = batch == sizes
    plain = steps * (2 * batch * np.where(whole, product, weights) + UPDATE * weights)
    if shared.records.device.type == "cuda":
        plain += steps * LAUNCHES
    participants = choice.job.per_round or shared.records.data.clients
    held = torch.finfo(shared.records.dtype).bits // 8 * np.mean(sizes**2) * participants
    return {"dual": float("inf") if held > GRAM_BYTES else float(dual.mean()), "plain": float(plain.mean())}


def _dual(choice: Choice, fast: NetworkData) -> tuple[Engine, Scorer]:
    shared, job = choice.shared, choice.job
    engine = DualEngine(fast.network, fast.roster, choice.cores, job.training, job.seed, choice.exact_norms)
    if shared.records.device.type == "cuda":
        return GraphedDualEngine(engine, shared.recordings), _network_scorer(choice, fast, None)
    return engine, _network_scorer(choice, fast, engine)


def _plain(choice: Choice, fast: NetworkData) -> tuple[Engine, Scorer]:
    job, features = choice.job, fast.roster.features
    engine = PlainEngine(fast.network, choice.shared.records, features, choice.cores, job.training, job.seed)
    return engine, _network_scorer(choice, fast, None)


def _clients(choice: Choice) -> tuple[Engine, Scorer]:
    records, job = choice.shared.records, choice.job
    engine = ClientsEngine(records, choice.model, job.training, job.seed, choice.cores)
    return engine, ModuleScorer(records, choice.model, job.training.loss)


def _vmap_or_clients(choice: Choice) -> tuple[Engine, Scorer]:
    try:
        return _vmap(choice)
    except UsageError as error:
        made = _clients(choice)  # which says no itself where the model is at fault
        log.warning("Clients train one after another, which is slow on a GPU: %s", error)
        return made


def _vmap(choice: Choice) -> tuple[Engine, Scorer]:
    job = choice.job
    engine = VmapEngine(choice.shared.records, choice.model, job.training, job.seed)
    return engine, ModuleScorer(choice.shared.records, choice.model, job.training.loss)


def _network_scorer(choice: Choice, fast: NetworkData, dual: DualEngine | None) -> NetworkScorer:
    everyone = choice.job.per_round in (None, choice.shared.records.data.clients)
    ahead = dual.ahead if dual is not None and everyone else None
    loss = choice.job.training.loss
    return NetworkScorer(choice.model, fast.network, fast.roster, fast.test, choice.cores, loss, ahead)
