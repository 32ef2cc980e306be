"""Holding an evidence file against itself: every check names the place that does not fit.

Signature and digests show what was changed after signing. Against an operator who signs something wrong, all that can be
computed is computed again from the plan and the rounds in the file: noise, every epsilon, the attacker's best test, the
summary and the answers, and the chains of ledgers that clients signed themselves. That the plan was followed, and that
the model came out of it, rests on the operator's and the clients' word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from nbafl import __version__
from nbafl.errors import NbaflError
from nbafl.evaluation import Evaluation
from nbafl.evidence import attacks, extracts, parts, rounds, signatures, wording
from nbafl.evidence.canonical import canonical, sha256
from nbafl.evidence.comparison import Finding, differences
from nbafl.evidence.content import FORMAT, Remade, folder_of, on_trust
from nbafl.evidence.sealed import Sealed, manifest_of, open_file, take_apart
from nbafl.flower.roster import Member, Roster
from nbafl.folders.facts import Facts
from nbafl.folders.files import read_bytes
from nbafl.folders.runs import MODEL, PLAN
from nbafl.plan import Plan

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, TemplateError)


@dataclass(frozen=True)
class Verdict:
    """What a check of a file found."""

    findings: tuple[Finding, ...]
    key: str
    """Of whoever signed, in base64."""
    summary: tuple[tuple[str, str], ...]
    """The lines at the top of the page, made again from plan and rounds; none where something does not fit."""
    beside: Path | None
    """The run folder whose files were held against the digests too."""
    on_trust: str | None
    """What no number in the file shows, as a sentence."""
    other_version: str | None
    """The version of nbafl that made the file, where it is not this one: then words and page are not made again."""

    @property
    def holds(self) -> bool:
        return not self.findings


def verify(path: Path, key: str | None = None, run: Path | None = None) -> Verdict:
    """Check a file. `key`: the signer's public key in base64; `run`: a run's folder, or a federation's, to check as well.

    A run folder that the file lies in is taken for its own.
    """
    sealed = open_file(path)
    beside = folder_of(run) if run is not None else _folder_around(path)
    return _verdict(sealed, key, beside)


def verify_text(text: str) -> tuple[Finding, ...]:
    """What does not fit in a file that is about to be written."""
    return _verdict(take_apart(text), None, None).findings


def _verdict(sealed: Sealed, key: str | None, beside: Path | None) -> Verdict:
    made_by = wording.version_of(sealed.content)
    again = functools.cache(lambda: Remade.of(sealed.content))
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("signature", lambda: _signature(sealed, key)),
        ("digests", lambda: _digests(sealed)),
        ("evidence", lambda: _recomputed(sealed, again, words=made_by == __version__)),
    ]
    if beside is not None:
        checks.append(("files", lambda: _files(sealed.content, beside)))
    findings = tuple(dict.fromkeys(finding for place, check in checks for finding in _guarded(place, check)))
    return Verdict(
        findings,
        str(sealed.seal.get("key")),
        () if findings else tuple((label, line) for label, line in again().summary),
        beside,
        None if findings else on_trust(again().plan),
        None if made_by == __version__ else made_by or "unknown",
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


def _recomputed(sealed: Sealed, again: Callable[[], Remade], words: bool) -> Iterator[Finding]:
    content = sealed.content
    if content["format"] != FORMAT:
        yield Finding("format", f"is {content['format']}, this version of nbafl reads {FORMAT}")
        return
    datetime.fromisoformat(content["made"])  # not a sentence
    made = again()
    yield from parts.problems(content, made, words)
    yield from rounds.problems(content["rounds"], made.plan, made.facts)
    yield from differences(content["statement"], made.statement, "statement", words)
    yield from wording.versions(content)
    if words:
        yield from wording.problems(content, sealed.page, made)
    for name, check in (("participants", _participants), ("ledgers", _ledgers), ("audit", attacks.problems)):
        yield from _guarded(name, functools.partial(check, content, made.plan))


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
