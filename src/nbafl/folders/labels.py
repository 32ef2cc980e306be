"""label.json: what people wrote on a run folder: a note, tags, and whether it is put away. No run reads it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from nbafl.errors import NbaflError, UsageError
from nbafl.folders import files

FILE = "label.json"
LONGEST_NOTE, MOST_TAGS = 4000, 12
TAG = re.compile(r"[^\s,]{1,40}")


@dataclass(frozen=True)
class Label:
    """What is written on a folder."""

    note: str = ""
    tags: tuple[str, ...] = ()
    archived: bool = False

    def __post_init__(self) -> None:
        if len(self.note) > LONGEST_NOTE:
            raise UsageError("note", f"{len(self.note)} characters", f"at most {LONGEST_NOTE} characters")
        for tag in self.tags:
            if not TAG.fullmatch(tag):
                raise UsageError("tags", tag, "words of at most 40 characters, separated by commas or spaces")
        if len(self.tags) > MOST_TAGS:
            raise UsageError("tags", len(self.tags), f"at most {MOST_TAGS} of them")


def read(folder: Path) -> Label:
    """The label of a folder; an empty one where there is none, or where somebody wrote something else there."""
    try:
        found = files.read_object(folder / FILE) or {}
        tags = tuple(str(tag) for tag in found.get("tags", ()))
        return Label(str(found.get("note", "")), tags, bool(found.get("archived", False)))
    except (NbaflError, TypeError):  # a label is never a reason not to show a run
        return Label()


def write(folder: Path, label: Label) -> None:
    """Put a label on a folder."""
    files.write_json(folder / FILE, asdict(label))


def tags_of(text: str) -> tuple[str, ...]:
    """Tags as a person types them."""
    return tuple(dict.fromkeys(text.replace(",", " ").split()))
