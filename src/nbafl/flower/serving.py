"""`nbafl.serve`: run the server of a real federation, over TLS, with registered clients only.

Everything lies in one folder, the home. Called again after a crash, it goes on with the run in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nbafl import tracking
from nbafl.errors import NbaflError, UsageError
from nbafl.evaluation import Evaluation
from nbafl.flower.certificates import expiry
from nbafl.flower.client import parameters
from nbafl.flower.home import Home, prepare
from nbafl.flower.hub import Hub
from nbafl.flower.inspection import Facts, file_hash, model_hash
from nbafl.flower.local_data import Local, has_schema, make_schema, server_data, written_schema
from nbafl.flower.monitor import Monitor, Progress, endpoint
from nbafl.flower.open_round import TooFew
from nbafl.flower.operations import Drained, Operations, change, obey
from nbafl.flower.roster import Roster
from nbafl.flower.secure_member import terms_of
from nbafl.flower.secure_server import SecureServer
from nbafl.flower.server import NotReady, Server
from nbafl.flower.wire import Layout
from nbafl.folders import homes, runs
from nbafl.folders.runs import folder_of, locked
from nbafl.plan import Plan
from nbafl.run import checkpoint, facts
from nbafl.run.loop import train
from nbafl.run.plan_data import found_dimension, schema_facts
from nbafl.run.result import Run
from nbafl.run.scores import score_test
from nbafl.run.starting import start_from
from nbafl.secure import sizes
from nbafl.simulation.models import build
from nbafl.simulation.scoring.metrics import RoundMetrics
from nbafl.tracking import Callback

log = logging.getLogger("nbafl")

FINISHED = "finished"
WARNING = 14
"""Days before the end of the certificate from which on people are told."""
OnRound = Callable[[RoundMetrics, Sequence[str]], None]
"""Told of each finished round, and of the names of those who were drawn but did not answer."""


SECURE = "secure"
"""Where a run folder keeps what a server of secure aggregation must still know after a crash."""


def serve(
    home: str | Path | Home = "federation",
    plan: Plan | None = None,
    *,
    roster: Roster | str | Path | None = None,
    names: Sequence[str] = (),
    host: str = "0.0.0.0",
    port: int = 8443,
    wait: float = 600.0,
    timeout: float = 600.0,
    min_answers: int | None = None,
    monitor_at: tuple[str, int] | None = None,
    on_listening: Callable[[Home], None] | None = None,
    on_round: OnRound | None = None,
    progress: Progress | None = None,
    callbacks: Sequence[str | Callback] = (),
) -> Run:
    """Wait for the clients, make the rounds, leave a run folder; `Refused` when too few clients answer.

    `home` is opened, or made from `plan`, `roster` and `names` (host names for the certificate). `wait`: seconds until
    clients are connected; `timeout`: seconds a round may take; `min_answers`: half of those drawn unless given.
    `monitor_at`: address and port for health, readiness and metrics [none]. `progress` is kept up to date, with the
    epsilon spent so far. `callbacks`: trackers by name, or objects of your own (`nbafl.Callback`), told of every round.
    """
    listening = tracking.find(callbacks)
    opened = home if isinstance(home, Home) else prepare(Path(home), plan, list(names), _roster(roster, plan))
    members = opened.roster()
    agreed = Evaluation.load(opened.evaluation_file) if opened.evaluation_file.is_file() else None
    test = server_data(opened.plan, without_test=agreed is not None)
    model = build(opened.plan.model, test.shape, test.outputs, opened.plan.seed)
    resume = (opened.run / runs.PLAN).is_file()
    if not checkpoint.kept(opened.run):
        model = _started(opened.plan, model)
    run = Run(folder_of(opened.plan, opened.run, resume), opened.plan)
    farewell = run.finished and not Operations.read(opened.path).goodbye
    if run.finished and not farewell:
        raise UsageError("home", str(opened.path), "a folder whose run is not finished yet; start a new one")
    largest = _largest_answer(opened, members, Layout.of(parameters(model)))
    with (
        locked(run.path),
        Hub(host, port, opened.certificates, members.connection_keys, largest) as hub,
    ):
        server: Server = _kind_of_server(opened, members, run)(
            opened.plan,
            model,
            hub,
            test=(test.x, test.y) if agreed is None else None,
            task=test.task,
            classes=test.classes,
            timeout=timeout,
            wait=wait,
            min_answers=min_answers,
            answers=run.path / runs.ANSWERS,
            facts=lambda done: _facts(opened, members, server.layout, done),
            before_round=obey(opened.path, members),
        )
        server.strategy.names, server.evaluation = members.names, agreed
        server.progress = progress or server.progress
        monitor = Monitor(
            opened.plan,
            members,
            hub,
            server.progress,
            expiry(opened.certificates.certificate).timestamp(),
            opened.status_file,
        )
        hub.facts = lambda: _facts(opened, members, server.layout, server.round)
        _warn_of_expiry(monitor.expires)
        with monitor, _watched(monitor, monitor_at):
            if on_listening:
                on_listening(opened)
            if farewell:  # killed between the last round and the goodbye: the clients still wait for it
                server.round = opened.plan.rounds
                server.count_rounds()
                server.say_goodbye(FINISHED)
            else:
                _make_rounds(run, server, members, test, resume, on_round, listening)
            change(opened.path, goodbye=True)
        return run


def _started(plan: Plan, model: nn.Module) -> nn.Module:
    """The model with the plan's starting weights; what never travels must be what every client's own factory makes."""
    if plan.init is None:
        return model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    travels = set(parameters(model))
    for name, value in start_from(plan, model).state_dict().items():
        if name not in travels and not torch.equal(value, before[name]):
            allowed = f"a file whose frozen {name!r} is the factory's own: frozen weights do not travel to the clients"
            raise UsageError("init", plan.init, allowed)
    return model


def _warn_of_expiry(expires: float) -> None:
    days = (expires - time.time()) / 86400
    if days < WARNING:
        log.warning(
            "the server's certificate ends in %.1f days; renew it: nbafl keys renew HOME", max(0.0, days)
        )


def _kind_of_server(home: Home, members: Roster, run: Run) -> Callable[..., Server]:
    """The server that the plan's aggregation asks for."""
    if home.plan.secure_sums() is None:
        return Server
    return partial(SecureServer, roster=members, folder=run.path / SECURE)


def _largest_answer(home: Home, members: Roster, layout: Layout) -> int:
    """Bytes of the largest answer that a client of this plan has to give."""
    if home.plan.secure_sums() is None:
        return layout.largest_bytes
    return sizes.largest_answer(terms_of(home.plan, members))


def _watched(monitor: Monitor, place: tuple[str, int] | None) -> AbstractContextManager[object]:
    return nullcontext() if place is None else endpoint(*place, monitor)


def _make_rounds(
    run: Run, server: Server, members: Roster, test: Local, resume: bool, on_round: OnRound | None,
    callbacks: Sequence[Callback],
) -> Run:  # fmt: skip
    """All rounds; however they end, the clients are told."""
    plan = run.plan
    schema = make_schema(plan) if has_schema(plan) else None
    made = facts.of_federation(
        plan, tuple(members.names), test.task, test.given_shape, test.outputs, schema, server.evaluation
    )
    if resume and server.evaluation is not None:
        keep_agreed(run, made)

    def show(metrics: RoundMetrics) -> None:
        last = server.strategy.last
        if on_round:
            on_round(metrics, [members.names[client] for client in sorted(last.missing)] if last else [])

    fingerprints = _fingerprints(server, plan)
    server.keep = partial(checkpoint.write, run, server, fingerprints[0])
    try:
        train(
            run, server, fingerprints, resume, show, facts=made, schema=schema,
            score=None if server.evaluation else lambda trained: score_test(trained, (test.x, test.y), test.task, schema),
            callbacks=callbacks,
        )  # fmt: skip
        server.say_goodbye(FINISHED)
    except Drained:
        raise  # the clients wait for the next start
    except NbaflError as error:
        told = error.told if isinstance(error, (TooFew, NotReady)) else "the server's own log says why"
        server.say_goodbye(f"stopped: {told}")
        raise
    return run


def keep_agreed(run: Run, made: facts.Facts) -> None:
    """Scores may be agreed on after a run began; what its statement is made from says so before one is asked for."""
    known = run.facts or made
    if known.evaluation not in (None, made.evaluation):
        raise UsageError("evaluate-every", made.evaluation, f"{known.evaluation}, as this run began with")
    replace(known, evaluation=made.evaluation).save(run.path)


def _facts(home: Home, roster: Roster, layout: Layout, rounds_done: int) -> Facts:
    """What this server says of its federation, for clients to check."""
    return Facts(
        home.plan.digest(),
        roster.digest(),
        model_hash(layout),
        file_hash(home.handout / homes.SCHEMA),
        time.time(),
        expiry(home.certificates.certificate).timestamp(),
        rounds_done,
    )


def plan_for(fields: dict[str, Any], roster: Roster | None) -> Plan | None:
    """The plan asked for, if any; a schema.toml beside the data says task and person, a roster clients and records."""
    raw = fields.get("features", "raw") == "raw"
    fields = {**schema_facts(written_schema(fields), raw), **fields}
    if roster is not None:
        equal = len(set(roster.sizes)) == 1
        sizes = {"samples": roster.sizes[0]} if equal else {"sizes": roster.sizes}
        fields = {"clients": len(roster.sizes), **sizes, **fields}
    return Plan(**{**fields, **found_dimension(fields, lambda: _seen(fields))}) if fields else None


def _seen(fields: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """Shape of a record and number of outputs, from the schema or the server's test set."""
    known = server_data(Plan(**{**fields, "aggregation": "plain"}), without_test=True)
    return known.shape, known.outputs


def roster_from(place: str | Path, fields: dict[str, Any]) -> Roster:
    """The roster in a file or a folder of key files; key files that do not tell their records have the plan's."""
    return Roster.found(Path(place), int(fields.get("samples", Plan.model_fields["samples"].default)))


def _roster(given: Roster | str | Path | None, plan: Plan | None) -> Roster | None:
    if given is None or isinstance(given, Roster):
        return given
    return roster_from(given, {"samples": plan.samples} if plan else {})


def _fingerprints(server: Server, plan: Plan) -> tuple[str, ...]:
    """Plan and shape of the model: what a checkpoint must fit."""
    shapes = json.dumps([[name, list(value.shape)] for name, value in server.module().named_parameters()])
    return tuple(hashlib.sha256((name + shapes).encode()).hexdigest() for name in plan.digests())
