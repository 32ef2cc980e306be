"""What may stand in an evidence file: sections and names that `content` writes, and nothing beside them.

An operator who signs could otherwise add a row of their own to the page, which a check would then call verified. What
follows from plan and facts is compared; what is left (scores on test records, digests) is of its kind.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

from nbafl.evidence.canonical import sha256
from nbafl.evidence.comparison import Finding, differences, is_number
from nbafl.evidence.content import (
    CARD,
    EXTRACT,
    FILES,
    PUBLIC_SCORES,
    SECTIONS,
    Remade,
    known_of_model,
    numbered,
)
from nbafl.folders.facts import Facts
from nbafl.folders.runs import SCHEMA

_DIGEST = re.compile("[0-9a-f]{64}")


def problems(content: dict[str, Any], made: Remade, words: bool) -> Iterator[Finding]:
    """What does not belong into a file about this plan; `words`: whether this version of nbafl wrote it."""
    yield from _strangers("content", content, SECTIONS)
    if words:
        yield from differences(content["plan"], made.plan.model_dump(mode="json"), "plan")
    if content["facts"] is not None:
        yield from _strangers("facts", content["facts"], (each.name for each in dataclasses.fields(Facts)))
        if content["facts"]["where"] not in ("simulation", "federation"):
            yield Finding("facts.where", "is neither simulation nor federation")
    yield from _model(content["model"], made)
    yield from _files(content)
    yield from _participants(content["participants"], made)
    yield from _ledgers(content["ledgers"])


def _strangers(place: str, found: Iterable[str], allowed: Iterable[str]) -> Iterator[Finding]:
    for name in sorted(set(found) - set(allowed)):
        yield Finding(place, f"has no room for {name[:40]!r}")


def _model(card: dict[str, Any], made: Remade) -> Iterator[Finding]:
    yield from _strangers("model", card, CARD)
    for name, value in known_of_model(made.plan, made.facts).items():
        yield from differences(card[name], value, f"model.{name}")
    for name, least in (("parameters", 1), ("frozen_parameters", 0)):
        if type(card[name]) is not int or card[name] < least:
            yield Finding(f"model.{name}", "is not a number of parameters")
    scores = card["test"] or {}
    yield from _strangers("model.test", scores, PUBLIC_SCORES)
    for name, value in (*scores.items(), ("test_accuracy", card["test_accuracy"])):
        if value is not None and not is_number(value):
            yield Finding(f"model.{name}", "is not a number")


def _files(content: dict[str, Any]) -> Iterator[Finding]:
    found, schema = content["files"], content["schema"]
    yield from _strangers("files", found, FILES)
    for name, value in found.items():
        if not _DIGEST.fullmatch(value):
            yield Finding(f"files.{name[:40]}", "is not a sha256")
    if found.get(SCHEMA) != (None if schema is None else sha256(schema.encode())):
        yield Finding("schema", "is not the one whose digest the file gives")
    facts = content["facts"] or {"read_from_data": True}  # the first release kept none
    if schema is not None and not tomllib.loads(schema).get("public") and not facts["read_from_data"]:
        yield Finding("facts.read_from_data", "is empty, though the schema is not declared public")


def _participants(said: dict[str, Any], made: Remade) -> Iterator[Finding]:
    if said["roster"] is None:
        expected = {"roster": None, "count": made.plan.clients, "clients": numbered(made.facts)}
        if said["count"] == made.plan.clients:  # another count is found by the check of participants
            yield from differences(said, expected, "participants")
        return
    yield from _strangers("participants", said, ("roster", "clients"))
    if not made.federation:
        yield Finding("participants", "have the roster of a federation, and this was a simulation")


def _ledgers(extracts: list[dict[str, Any]]) -> Iterator[Finding]:
    names = [each["client"] for each in extracts]
    for each in extracts:
        yield from _strangers(f"ledger of {each['client']}", each, EXTRACT)
    if len(set(names)) < len(names):
        yield Finding("ledgers", "hold two extracts of one client")
