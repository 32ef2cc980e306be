"""The words of an evidence file, made again: sentences, summary, answers, the page, and which versions made it.

Only the version that wrote a file can make its words again. Of a file of another version no word is believed: whoever
checks it is shown the summary made again, and told that the rest was not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from nbafl.evidence import page
from nbafl.evidence.comparison import Finding, differences
from nbafl.evidence.content import Remade
from nbafl.evidence.questions import answers

COMPUTED = "Computed with "
"""Begins the one sentence that differs from machine to machine."""
_NAME, _VERSION = re.compile("[A-Za-z][A-Za-z0-9_-]{0,39}"), re.compile("[0-9A-Za-z.+!_-]{1,40}")


def problems(content: dict[str, Any], shown: str, again: Remade) -> Iterator[Finding]:
    """What the version that wrote the file would have worded otherwise; `shown` is the page."""
    kept = _elsewhere(content["statement"]["sentences"], content["versions"])
    made = _elsewhere(again.statement["sentences"], again.statement["versions"])
    yield from differences(kept, made, "statement.sentence")
    yield from differences(content["summary"], again.summary, "summary")
    asked = answers(again.facts, content["statement"])
    yield from differences(content["questions"], asked, "questions")
    if shown != page.render(content):
        yield Finding("page", "does not show what the content says: do not go by it")


def version_of(content: dict[str, Any]) -> str | None:
    """The version of nbafl that a file says it was made by; None where it does not say."""
    versions = content.get("versions")
    found = versions.get("nbafl") if isinstance(versions, dict) else None
    return found if isinstance(found, str) and _VERSION.fullmatch(found) else None


def versions(content: dict[str, Any]) -> Iterator[Finding]:
    """Versions are versions and no sentences, and the file says one thing of them."""
    said = content["versions"]
    if version_of(content) is None:
        yield Finding("versions", "do not say which nbafl made this file")
    for name, version in said.items():
        if not _NAME.fullmatch(name) or not isinstance(version, str) or not _VERSION.fullmatch(version):
            yield Finding("versions", f"hold {name[:40]!r}, which is not the version of anything")
    if content["statement"]["versions"] != said:
        yield Finding("versions", "are not those of the statement")


def _elsewhere(sentences: list[str], versions: dict[str, str]) -> list[str]:
    """The sentences as any machine would have them: the one on versions, where it lists just these, is cut short."""
    return [COMPUTED if _lists(sentence, versions) else sentence for sentence in sentences]


def _lists(sentence: str, versions: dict[str, str]) -> bool:
    parts = sentence.removeprefix(COMPUTED).removesuffix(".").split(", ")
    listed = sorted(f"{name} {version}" for name, version in versions.items())
    return sentence.startswith(COMPUTED) and sorted(parts) == listed
