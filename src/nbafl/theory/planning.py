"""What `nbafl plan --bounds` adds to a plan: the value of both formulas, the best T and K, and their curves.

Three forms stand side by side: `printed` (the paper's theorems with average constants), `repaired` (a bound, with the
worst constants met) and `empirical` (the planner). A form without a value carries the reason. Best T is found at the
plan's own K, best K at the plan's own T.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nbafl.data.federation import Federation
from nbafl.durable import write_text
from nbafl.errors import DataError, UsageError
from nbafl.plan import Plan
from nbafl.rules.proximal import CONVEX_MODELS
from nbafl.run import federation_of, seen_by_the_model
from nbafl.simulation.models import build
from nbafl.theory.assumptions import Evaluation, TheoremSetting
from nbafl.theory.bounds import LocalSolver, printed, repaired
from nbafl.theory.constants import NOT_COVERED, MeasuredConstants, measure
from nbafl.theory.optimum import Optimum, minimise, whole_numbers
from nbafl.theory.planner import Pilot, pilot_rounds, predict, run_pilot
from nbafl.theory.rehearsal import Rehearsal, affordable, rehearse

BOUNDS = ("printed", "repaired")
FORMS = ("printed", "repaired", "empirical")
MOST_ROUNDS = 2000
REACH = 20
"""The planner looks at most so many times further than its pilot went."""
EPSILON_MOVES = (0.5, 1.0, 2.0)

TRUSTED = 3
"""A pilot's curve is continued to so many times its length, not further."""

Form = Callable[[Plan], Evaluation]


@dataclass(frozen=True)
class Knowledge:
    """Everything a pilot found out about a federation: constants and curve. Saved as one JSON file."""

    constants: MeasuredConstants
    pilot: Pilot

    def save(self, path: str | Path) -> None:
        write_text(path, json.dumps({**asdict(self), "note": NOT_COVERED}, indent=2) + "\n")

    @staticmethod
    def load(path: str | Path) -> Knowledge:
        """Read what `save` wrote; anything else is refused in one sentence."""
        try:
            found = TypeAdapter(Knowledge).validate_json(Path(path).read_bytes())
            found.constants.average()
        except OSError as error:
            raise DataError(f"constants file {str(path)!r} cannot be read: {error.strerror}.") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise DataError(
                f"constants file {str(path)!r} does not hold a pilot: {where}: {first['msg']}."
            ) from None
        except UsageError as error:
            raise DataError(f"constants file {str(path)!r} does not hold a pilot: {error}") from None
        return found


def explore(plan: Plan, federation: Federation | None = None, rounds: int | None = None) -> Knowledge:
    """Run the pilot of a plan: a few rounds (or so many) without its noise, on the data it names."""
    if plan.server_optimiser != "sgd":
        allowed = "sgd where a pilot is asked for: under adam added loss does not follow from the noise alone"
        raise UsageError("server_optimiser", plan.server_optimiser, allowed)
    federation = seen_by_the_model(plan, federation or federation_of(plan))
    model = build(plan.model, federation.shape, federation.outputs, plan.seed, federation.tokens)
    training = plan.training(federation.task, federation.class_names)
    return Knowledge(
        measure(federation, model, training, seed=plan.seed),
        run_pilot(
            federation,
            model,
            training,
            per_round=plan.drawn,
            rounds=rounds or pilot_rounds(plan.server_momentum),
            seed=plan.seed,
            weights=plan.weighting,
            server_momentum=plan.server_momentum,
        ),
    )


def plan_bounds(
    plan: Plan, constants: Knowledge | str | Path | None = None, federation: Federation | None = None
) -> dict[str, Any]:
    """The keys that `nbafl plan --bounds` adds: bound, best, reasons, curves, constants and premises.

    `constants` is what an earlier pilot found, or the file to keep it in: read if it exists, else measured and saved.
    """
    knowledge = _knowledge(plan, constants, federation)
    forms = _forms(knowledge, plan)
    optima = {name: _optima(name, form, plan, knowledge) for name, form in forms.items()}
    here = {name: _at(form, plan) for name, form in forms.items()}
    seen = None if constants is not None and federation is None else _rehearsed(plan, federation)
    if seen is not None and not seen.certain:
        here["empirical"] = Evaluation.refused(
            f"the planner does not know: rehearsals ended at losses of {seen.loss:.3g} give or take {seen.loss_spread:.2g}, "
            "so the draw of the noise decides"
        )
    elif seen is not None:
        here["empirical"] = Evaluation(seen.loss)
    elif plan.rounds > TRUSTED * len(knowledge.pilot.losses):
        here["empirical"] = Evaluation.refused(
            f"the planner does not know: {len(knowledge.pilot.losses)} rounds of a pilot say too little about "
            f"{plan.rounds}, and a rehearsal of the whole plan is too long or was not possible without its data"
        )
    return {
        "bound": {
            **{name: here[name].value for name in BOUNDS},
            "reason": {name: here[name].reason for name in BOUNDS},
        },
        "best": {name: _best(optima[name]) for name in FORMS},
        "reasons": {name: _reason(here[name], *optima[name]) for name in FORMS},
        "predicted_loss": here["empirical"].value,
        "predicted_accuracy": None if seen is None else seen.accuracy,
        "rehearsal": None if seen is None else asdict(seen),
        "curves": {
            "rounds": {name: optima[name][0].as_json() for name in FORMS},
            "per_round": {name: optima[name][1].as_json() for name in FORMS},
            "epsilon": _moves(forms, plan, knowledge),
        },
        "constants": asdict(knowledge.constants),
        "pilot_note": NOT_COVERED,
    }


def _rehearsed(plan: Plan, federation: Federation | None) -> Rehearsal | None:
    """A rehearsal of the whole plan where that takes seconds."""
    federation = seen_by_the_model(plan, federation or federation_of(plan))
    model = build(plan.model, federation.shape, federation.outputs, plan.seed, federation.tokens)
    return rehearse(plan, federation, model) if affordable(plan, federation, model) else None


def _knowledge(
    plan: Plan, constants: Knowledge | str | Path | None, federation: Federation | None
) -> Knowledge:
    if isinstance(constants, Knowledge):
        return constants
    if constants is not None and Path(constants).exists():
        return Knowledge.load(constants)
    found = explore(plan, federation)
    if constants is not None:
        found.save(constants)
    return found


def setting_of(plan: Plan) -> TheoremSetting:
    """What the theorems know of a plan."""
    return TheoremSetting(
        clients=plan.clients,
        per_round=plan.drawn,
        rounds=plan.rounds,
        exposures=plan.exposures,
        samples=int(plan.client_sizes.min()),
        epsilon=plan.training_epsilon,
        delta=plan.delta,
        mu=plan.mu,
    )


def broken_premise(plan: Plan, pilot: Pilot) -> str | None:
    """The first premise of the repaired bound that this plan is known to break."""
    if plan.rule.no_convergence_bound:
        return plan.rule.no_convergence_bound
    if pilot.clipped > 0:
        return f"clipping binds: up to {pilot.clipped:.0%} of a pilot round's uploads were shortened by C = {plan.clip:g}"
    if plan.batch is not None:
        return "clients train on minibatches, and the bound is for full-batch steps"
    if plan.tolerance is not None:
        return "the bound covers exact solutions and plain steps, not a solve to a tolerance"
    if plan.server_momentum or plan.server_optimiser != "sgd":
        return "the server uses momentum or Adam, and the bound is for plain averaging"
    if plan.server_average > 1:
        return "the final model is a mean of broadcasts, and the bound is for the last one"
    if plan.drawn < plan.clients and len(set(plan.client_sizes.tolist())) > 1:
        return "drawing K of N clients of different sizes is not covered"
    return None


def _forms(knowledge: Knowledge, original: Plan) -> dict[str, Form]:
    """The three forms as functions of a plan that differs from the pilot's in epsilon, T or K only."""
    average, worst = knowledge.constants.average(), knowledge.constants.worst()
    prediction = predict(knowledge.pilot)
    broken = broken_premise(original, knowledge.pilot)
    solver = LocalSolver.gradient_descent(
        original.local_steps, original.lr, original.mu, worst.rho, original.model in CONVEX_MODELS
    )

    @cache
    def sigma_aggregate(plan: Plan) -> float:
        return plan.noise_scales().aggregate(plan.release())

    def repaired_form(plan: Plan) -> Evaluation:
        if broken is not None:
            return Evaluation.refused(broken)
        return repaired(setting_of(plan), worst, sigma_aggregate(plan), knowledge.pilot.dimension, solver)

    def empirical_form(plan: Plan) -> Evaluation:
        return Evaluation(prediction(plan.rounds, plan.drawn, sigma_aggregate(plan)))

    return {
        "printed": lambda plan: printed(setting_of(plan), average),
        "repaired": repaired_form,
        "empirical": empirical_form,
    }


def vary(plan: Plan, **changed: Any) -> Plan:
    """The same plan with other numbers, checked anew; L never exceeds T."""
    fields = {**plan.model_dump(), **changed}
    fields["exposures"] = min(plan.exposures, fields["rounds"])
    return Plan(**fields)


def _optima(name: str, form: Form, plan: Plan, knowledge: Knowledge) -> tuple[Optimum, Optimum]:
    """Best T at the plan's K, and best K at the plan's T."""
    rounds = whole_numbers(_furthest(name, knowledge), dense=12, growth=1.2)
    clients = whole_numbers(plan.clients, dense=60)
    return (
        minimise("T", lambda number: _at(form, plan, rounds=number), rounds),
        minimise("K", lambda number: _at(form, plan, per_round=number), clients),
    )


def _furthest(name: str, knowledge: Knowledge) -> int:
    """The largest T looked at."""
    return REACH * len(knowledge.pilot.losses) if name == "empirical" else MOST_ROUNDS


def _at(form: Form, plan: Plan, **changed: Any) -> Evaluation:
    """A form at other numbers; an invalid plan has no value there."""
    try:
        return form(vary(plan, **changed))
    except UsageError as error:
        return Evaluation.refused(str(error))


def _best(optima: tuple[Optimum, Optimum]) -> dict[str, int | None] | None:
    over_rounds, over_clients = optima
    if over_rounds.at is None and over_clients.at is None:
        return None
    return {"rounds": over_rounds.at, "per_round": over_clients.at}


def _reason(here: Evaluation, over_rounds: Optimum, over_clients: Optimum) -> str | None:
    """Everything that keeps a form from having a value here, a best T or a best K; each sentence once."""
    if here.value is None and over_rounds.at is None and over_clients.at is None:
        return here.reason
    found = [here.reason, over_rounds.reason, over_clients.reason]
    return "; ".join(dict.fromkeys(reason for reason in found if reason)) or None


def _moves(forms: Mapping[str, Form], plan: Plan, knowledge: Knowledge) -> list[dict[str, Any]]:
    """How the best T moves when epsilon does."""

    def best_rounds(name: str, epsilon: float) -> int | None:
        candidates = whole_numbers(_furthest(name, knowledge), dense=8, growth=1.3)
        return minimise(
            "T", lambda rounds: _at(forms[name], plan, epsilon=epsilon, rounds=rounds), candidates
        ).at

    epsilons = [plan.epsilon * factor for factor in EPSILON_MOVES]
    return [
        {"epsilon": epsilon, "best_rounds": {name: best_rounds(name, epsilon) for name in forms}}
        for epsilon in epsilons
    ]
