"""What goes into the evidence of a run: gathered from its folder, with nothing that was measured on training records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbafl.errors import DataError, Refused
from nbafl.evaluation import Evaluation
from nbafl.evidence import rounds
from nbafl.evidence.canonical import sha256
from nbafl.evidence.questions import answers
from nbafl.flower.roster import Roster
from nbafl.folders import answers as answered
from nbafl.folders import audits, files, runs
from nbafl.folders.facts import FILE as FACTS
from nbafl.folders.facts import Facts
from nbafl.folders.homes import HomeFolder
from nbafl.folders.runs import RunFolder
from nbafl.plan import Plan
from nbafl.privacy.versions import versions
from nbafl.report.front import five_lines

FORMAT = 1
FILES = (
    runs.PLAN, runs.MODEL, runs.PRIVACY, runs.METRICS, runs.SCHEMA, runs.SCORES, runs.ANSWERS, FACTS, audits.AUDIT,
)  # fmt: skip
"""Files of the run folder whose sha256 is kept."""
PUBLIC_SCORES = ("accuracy", "balanced_accuracy", "auc", "log_loss", "rmse", "mae", "r2")
SECTIONS = (
    "format", "made", "summary", "statement", "schema", "participants", "ledgers", "audit", "questions", "versions", "files",
    "plan", "facts", "rounds", "model",
)  # fmt: skip
CARD = (
    "sha256", "parameters", "frozen_parameters", "name", "task", "inputs", "outputs", "rounds", "test", "test_accuracy",
)  # fmt: skip
EXTRACT = ("client", "plan", "evaluation", "rows", "spent", "key", "signature")
"""Names in an extract of a ledger (`extracts.make`)."""


def run_of(path: Path) -> RunFolder:
    """A run folder, or the run inside the folder of a federation."""
    return RunFolder.load(folder_of(path))


def folder_of(path: Path) -> Path:
    """Where the files of a run lie: in its folder, or inside that of a federation."""
    inside = HomeFolder(path).run
    return inside if (inside / runs.PLAN).is_file() else path


def gather(run: RunFolder, ledgers: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """All sections. `ledgers`: the extracts that clients supplied (`nbafl ledger extract`)."""
    if audits.stands_alone(run.path):
        raise DataError(f"{str(run.path)!r} is the folder of an audit; evidence is about a finished run.")
    if not run.finished:
        raise Refused(f"the run {str(run.path)!r} is not finished: there is nothing to vouch for yet.")
    facts, happened = run.facts, rounds.shown(run.plan, answered.read(run.path, run.plan))
    card = _model_card(run, facts, sha256((run.path / runs.MODEL).read_bytes()))
    parts = {
        "plan": run.plan.model_dump(mode="json"),
        "facts": None if facts is None else asdict(facts),
        "rounds": happened,
        "model": card,
    }
    statement = statement_of(run.plan, facts, card, happened)
    _check_folder(run, statement)
    return {
        "format": FORMAT,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "summary": summary_of(run.plan, facts, statement),
        "statement": statement,
        "schema": _text(run.path / runs.SCHEMA),
        "participants": _participants(run, facts),
        "ledgers": list(ledgers),
        "audit": audits.read(run.path),
        "questions": answers(facts, statement),
        "versions": versions(),
        "files": _digests(run.path),
        **parts,
    }


@dataclass(frozen=True)
class Remade:
    """What a file's plan, facts and rounds give when everything is computed again; nothing in it is the file's own word."""

    plan: Plan
    facts: Facts | None
    statement: dict[str, Any]
    summary: list[list[str]]

    @property
    def federation(self) -> bool:
        """Whether it is about a federation of real parties."""
        return self.facts is not None and self.facts.where == "federation"

    @classmethod
    def of(cls, content: dict[str, Any]) -> Remade:
        plan = Plan(**content["plan"])
        facts = None if content["facts"] is None else Facts.of(content["facts"])
        statement = statement_of(plan, facts, content["model"], content["rounds"])
        return cls(plan, facts, statement, summary_of(plan, facts, statement))


def summary_of(plan: Plan, facts: Facts | None, statement: dict[str, Any]) -> list[list[str]]:
    """Label and sentence of each line at the top of the page: the five of a report, and what is taken on trust."""
    trust = on_trust(plan)
    lines = [list(line) for line in five_lines(plan, facts, statement)]
    return lines if trust is None else [*lines, ["Taken on trust", trust]]


def on_trust(plan: Plan) -> str | None:
    """Where an epsilon rests on numbers that nothing in the file shows; None where it does not."""
    runs = plan.continues or ()
    if not runs:
        return None
    before = "the run" if len(runs) == 1 else f"the {len(runs)} runs"
    return (
        f"What {before} before this one cost is the operator's word: every ε counts it in, and nothing in this file shows "
        "it. The evidence of those runs does."
    )


def statement_of(
    plan: Plan, facts: Facts | None, card: dict[str, Any], happened: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """The privacy statement, computed from what the evidence itself holds."""
    return plan.statement(
        card["sha256"],
        card["parameters"],
        simulated=facts is None or facts.where == "simulation",
        read_from_data=() if facts is None else facts.read_from_data,
        frozen_parameters=card.get("frozen_parameters", 0),
        rounds=rounds.read(happened),
        evaluation=Evaluation.of(facts),
    ).to_dict()


def _check_folder(run: RunFolder, statement: dict[str, Any]) -> None:
    """The folder's own statement must be about this plan and this model, and promise no more than holds."""
    kept = run.privacy
    for name, what in (("plan_digest", "plan.toml"), ("model_digest", "model.safetensors")):
        if kept.get(name) != statement[name]:
            raise Refused(f"{what} of {run.path.name!r} is not the one that its privacy statement is about.")
    for name, entry in statement["guarantee"].items():
        said, holds = kept.get("guarantee", {}).get(name, {}).get("epsilon"), entry["epsilon"]
        if (
            said is not None
            and (holds is None or said < holds * (1 - 1e-6))
            and not rounds.is_secret(run.plan)
        ):
            raise Refused(
                f"privacy.json of {run.path.name!r} says epsilon {said:.6g} against {name} at delta {entry['delta']:g}; "
                f"computed again it is {'infinite' if holds is None else format(holds, '.6g')}."
            )


def _model_card(run: RunFolder, facts: Facts | None, model: str) -> dict[str, Any]:
    """What the model is, what it was trained for and how good it is on test records."""
    scores = run.scores or {}
    tested = scores.get("measured_on") == "test records"
    return {
        "sha256": model,
        "parameters": run.privacy["model_parameters"],
        "frozen_parameters": run.privacy.get("frozen_parameters", 0),
        **known_of_model(run.plan, facts),
        "test": {name: scores[name] for name in PUBLIC_SCORES if name in scores} if tested else None,
        "test_accuracy": run.summary()["test_accuracy"],
    }


def known_of_model(plan: Plan, facts: Facts | None) -> dict[str, Any]:
    """What plan and facts say of the model; the run is finished."""
    return {
        "name": plan.model if facts is None else facts.model,
        "task": None if facts is None else facts.task,
        "inputs": None if facts is None else list(facts.shape),
        "outputs": None if facts is None else facts.outputs,
        "rounds": plan.rounds,
    }


def _participants(run: RunFolder, facts: Facts | None) -> dict[str, Any]:
    """Who took part: the roster of a federation, or the clients that a simulation made up."""
    home = HomeFolder(run.path.resolve().parent)
    if home.run == run.path.resolve() and home.roster_file.is_file():
        roster = Roster.load(home.roster_file)
        return {"roster": roster.digest(), "clients": [asdict(member) for member in roster.members]}
    return {"roster": None, "count": run.plan.clients, "clients": numbered(facts)}


def numbered(facts: Facts | None) -> list[dict[str, Any]]:
    """The clients that facts name, where no roster is at hand."""
    names = () if facts is None else facts.clients
    return [{"number": number, "name": name} for number, name in enumerate(names, 1)]


def _digests(folder: Path) -> dict[str, str]:
    found = {name: files.read_bytes(folder / name) for name in FILES}
    return {name: sha256(content) for name, content in found.items() if content is not None}


def _text(path: Path) -> str | None:
    content = files.read_bytes(path)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        raise files.damaged(path, "it is not text") from None
