"""Holding an evidence file against itself: every check names the place that does not fit.

Signature and digests show what was changed after signing. Against an operator who signs something wrong, all that can be
computed is computed again from the plan and the rounds in the file: noise, every epsilon, the attacker's best test, the
summary and the answers, and the chains of ledgers that clients signed themselves. That the plan was followed, and that
the model came out of it, rests on the operator's and the clients' word.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from nbafl import __version__
from nbafl.errors import NbaflError
from nbafl.evaluation import Evaluation
from nbafl.evidence import extracts, page, rounds, signatures
from nbafl.evidence.canonical import canonical, sha256
from nbafl.evidence.content import FORMAT, statement_of
from nbafl.evidence.questions import answers
from nbafl.evidence.sealed import Sealed, manifest_of, open_file, take_apart
from nbafl.flower.roster import Member, Roster
from nbafl.folders.facts import Facts
from nbafl.folders.files import read_bytes
from nbafl.folders.runs import MODEL, PLAN
from nbafl.plan import Plan
from nbafl.report.front import five_lines

TOLERANCE = 1e-6
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, TemplateError)
OF_THE_MACHINE = ("versions", "sentences")
"""Parts of a statement that say what computed it; they are compared by digest, and as words below."""


@dataclass(frozen=True)
class Finding:
    """Something that does not fit, and where."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}."


@dataclass(frozen=True)
class Verdict:
    """What a check of a file found."""

    findings: tuple[Finding, ...]
    key: str
    """Of whoever signed, in base64."""
    content: dict[str, Any]
    beside: Path | None
    """The run folder whose files were held against the digests too."""
    other_version: str | None
    """The version of nbafl that made the file, where it is not this one: then words and page are not made again."""

    @property
    def holds(self) -> bool:
        return not self.findings


def verify(path: Path, key: str | None = None, run: Path | None = None) -> Verdict:
    """Check a file. `key`: the signer's public key in base64; `run`: a folder whose files are checked as well.

    A run folder that the file lies in is taken for its own.
    """
    sealed = open_file(path)
    beside = run if run is not None else _folder_around(path)
    return _verdict(sealed, key, beside)


def verify_text(text: str) -> tuple[Finding, ...]:
    """What does not fit in a file that is about to be written."""
    return _verdict(take_apart(text), None, None).findings


def _verdict(sealed: Sealed, key: str | None, beside: Path | None) -> Verdict:
    made_by = _version(sealed.content)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("signature", lambda: _signature(sealed, key)),
        ("digests", lambda: _digests(sealed)),
        ("evidence", lambda: _recomputed(sealed, words=made_by == __version__)),
    ]
    if beside is not None:
        checks.append(("files", lambda: _files(sealed.content, beside)))
    findings = [finding for place, check in checks for finding in _guarded(place, check)]
    return Verdict(
        tuple(dict.fromkeys(findings)),
        str(sealed.seal.get("key")),
        sealed.content,
        beside,
        None if made_by == __version__ else made_by,
    )


def _guarded(place: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A part that cannot even be read is a finding like any other."""
    try:
        yield from check()
    except NbaflError as error:
        yield Finding(place, str(error).rstrip("."))
    except UNREADABLE as error:
        yield Finding(place, f"is not as this format has it ({type(error).__name__}: {error})")


def _signature(sealed: Sealed, key: str | None) -> Iterator[Finding]:
    seal = sealed.seal
    if not signatures.fits(seal["key"], seal["signature"], signatures.EVIDENCE, canonical(seal["manifest"])):
        yield Finding("signature", "does not fit: the digests are not those that were signed")
    if key is not None and seal["key"] != key:
        yield Finding("signature", f"was made with the key {seal['key']}, not with the one you gave")


def _digests(sealed: Sealed) -> Iterator[Finding]:
    signed, found = sealed.seal["manifest"], manifest_of(sealed.page, sealed.content)
    if signed["page"] != found["page"]:
        yield Finding("page", "was changed after signing: do not go by what it shows")
    for name in sorted(signed["sections"].keys() | found["sections"].keys()):
        if signed["sections"].get(name) != found["sections"].get(name):
            yield Finding(name, "was changed after signing")
    if sealed.content_text != canonical(sealed.content):
        yield Finding("content", "is not in its one spelling: something in it may be hidden")


def _recomputed(sealed: Sealed, words: bool) -> Iterator[Finding]:
    content = sealed.content
    if content["format"] != FORMAT:
        yield Finding("format", f"is {content['format']}, this version of nbafl reads {FORMAT}")
        return
    plan = Plan(**content["plan"])
    facts = None if content["facts"] is None else Facts.of(content["facts"])
    statement = statement_of(plan, facts, content["model"], content["rounds"])
    yield from differences(content["statement"], statement, "statement", words)
    if words:
        yield from _words(content, plan, facts, statement)
        if sealed.page != page.render(content):
            yield Finding("page", "does not show what the content says: do not go by it")
    for name, check in (("participants", _participants), ("ledgers", _ledgers), ("audit", _audit)):
        yield from _guarded(name, functools.partial(check, content, plan))


def differences(said: Any, again: Any, place: str, words: bool) -> Iterator[Finding]:
    """Where two JSON values differ; numbers beyond rounding, texts only where `words` are to be compared."""
    if isinstance(again, dict) and isinstance(said, dict):
        for name in sorted(said.keys() | again.keys()):
            if name in OF_THE_MACHINE:
                continue
            if name not in said or name not in again:
                yield Finding(f"{place}.{name}", "is missing" if name in again else "does not belong there")
            else:
                yield from differences(said[name], again[name], f"{place}.{name}", words)
    elif isinstance(again, list) and isinstance(said, list) and len(said) == len(again):
        for number, (one, other) in enumerate(zip(said, again, strict=True)):
            yield from differences(one, other, f"{place}[{number}]", words)
    elif _number(said) and _number(again):
        if not math.isclose(said, again, rel_tol=TOLERANCE, abs_tol=1e-300):
            yield Finding(place, f"says {said:.8g}, computed again it is {again:.8g}")
    elif said != again and (words or not (isinstance(said, str) and isinstance(again, str))):
        yield Finding(place, f"says {_short(said)}, computed again it is {_short(again)}")


def _words(
    content: dict[str, Any], plan: Plan, facts: Facts | None, statement: dict[str, Any]
) -> Iterator[Finding]:
    """Sentences, summary and answers, made again by the same version of nbafl."""
    kept = [each for each in content["statement"]["sentences"] if not each.startswith("Computed with ")]
    made = [each for each in statement["sentences"] if not each.startswith("Computed with ")]
    yield from differences(kept, made, "statement.sentence", True)
    summary = [list(line) for line in five_lines(plan, facts, statement)]
    yield from differences(content["summary"], summary, "summary", True)
    asked = answers(facts, content["statement"])
    yield from differences(content["questions"], asked, "questions", True)


def _participants(content: dict[str, Any], plan: Plan) -> Iterator[Finding]:
    said = content["participants"]
    if said["roster"] is None:
        if said["count"] != plan.clients:
            yield Finding("participants", f"are {said['count']}, the plan has {plan.clients} clients")
        return
    roster = _roster(content)
    if roster.digest() != said["roster"]:
        yield Finding("participants", "do not give the digest of the roster")
    roster.check_plan(plan)


def _ledgers(content: dict[str, Any], plan: Plan) -> Iterator[Finding]:
    federation = content["participants"]["roster"] is not None
    evaluation = Evaluation.of(None if content["facts"] is None else Facts.of(content["facts"]))
    for extract in content["ledgers"]:
        place = f"ledger of {extract['client']}"
        number = None
        if federation:
            member = _roster(content).named(extract["client"])
            number = member.number
            if member.signing_key != extract["key"]:
                yield Finding(place, "is not signed with this client's key of the roster")
        for problem in extracts.problems(
            extract, plan, number, _heard(content, number), content["model"]["parameters"], evaluation
        ):
            yield Finding(place, problem)


def _heard(content: dict[str, Any], number: int | None) -> set[int] | None:
    """The rounds in which the server counted this client's answer, where they may be told."""
    if number is None or content["rounds"] is None:
        return None
    told = [each.answered for each in rounds.read(content["rounds"]) or ()]
    return {
        place for place, who in enumerate(told, 1) if not isinstance(who, int) and number - 1 in who.tolist()
    }


def _audit(content: dict[str, Any], plan: Plan) -> Iterator[Finding]:
    found = content["audit"]
    if found is None:
        return
    claimed = {"adversary": plan.adversary, "claimed_epsilon": plan.epsilon, "delta": plan.delta}
    for name, value in claimed.items():
        yield from differences(found[name], value, f"audit.{name}", True)
    if found["verdict"] == "refuted":
        yield Finding("audit", f"refutes the claim ({', '.join(found['refuted_by'])})")
    for name, attack in found["attacks"].items():
        accounted = attack["accounted_epsilon"]
        holds = content["statement"]["guarantee"].get(name, {}).get("epsilon")
        proved = [each for each in attack["proved_epsilon"].values() if each is not None]
        if accounted is not None and proved and max(proved) > accounted * (1 + TOLERANCE):
            yield Finding(
                f"audit.attacks.{name}", f"proves epsilon {max(proved):.6g}, accounted {accounted:.6g}"
            )
        if (
            holds is not None
            and proved
            and content["rounds"] is None
            and max(proved) > holds * (1 + TOLERANCE)
        ):
            yield Finding(
                f"audit.attacks.{name}", f"proves epsilon {max(proved):.6g}, the statement has {holds:.6g}"
            )


def _files(content: dict[str, Any], folder: Path) -> Iterator[Finding]:
    """The files of the run folder are those of the evidence; the model above all."""
    for name, expected in content["files"].items():
        found = read_bytes(folder / name)
        if found is None:
            yield Finding(name, f"is not in {str(folder)!r}")
        elif sha256(found) != expected:
            yield Finding(name, f"in {str(folder)!r} is not the one that was signed for")
    if content["files"].get(MODEL) != content["model"]["sha256"]:
        yield Finding("model.sha256", "is not that of the model's file")


def _roster(content: dict[str, Any]) -> Roster:
    return Roster(tuple(Member(**member) for member in content["participants"]["clients"]))


def _folder_around(path: Path) -> Path | None:
    folder = path.resolve().parent
    return folder if (folder / PLAN).is_file() and (folder / MODEL).is_file() else None


def _version(content: dict[str, Any]) -> str:
    versions = content.get("versions")
    return str(versions.get("nbafl")) if isinstance(versions, dict) else "unknown"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
