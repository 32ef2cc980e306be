"""What people do with run folders: write on them, rename them, put them away, throw them away.

A folder that some process works on is left alone. What is thrown away is first moved out of sight in one step, so that no
half-deleted run is ever listed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from nbafl.errors import Refused, UsageError
from nbafl.folders import labels
from nbafl.folders.labels import Label
from nbafl.studio.launcher import NAME
from nbafl.studio.run_folders import Entry

KEPT = ("running", "federation")


def relabel(entry: Entry, note: str, tags: str) -> None:
    """Write a note and tags on a folder."""
    labels.write(entry.path, Label(note.strip(), labels.tags_of(tags), entry.label.archived))


def archive(entry: Entry, away: bool) -> None:
    """Put a folder away, or take it out again; it stays where it is on disk."""
    labels.write(entry.path, Label(entry.label.note, entry.label.tags, away))


def rename(entry: Entry, name: str, root: Path) -> str:
    """Give a run another name; returns the name it is listed by."""
    _at_rest(entry, "renamed")
    if not NAME.fullmatch(name):
        raise UsageError("name", name, "letters, digits, dots, dashes and underscores, at most 80 of them")
    target = entry.path.with_name(name)
    if target.exists():
        raise UsageError("name", name, "one that no other run has")
    entry.path.rename(target)
    return str(target.relative_to(root))


def delete(entry: Entry) -> None:
    """Remove a folder for good."""
    _at_rest(entry, "deleted")
    hidden = entry.path.with_name(f".deleted-{entry.path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    entry.path.rename(hidden)
    shutil.rmtree(hidden)


def _at_rest(entry: Entry, what: str) -> None:
    if entry.state in KEPT:
        why = "a process works on it" if entry.state == "running" else "it is a federation's home"
        raise Refused(f"{entry.name!r} cannot be {what} here: {why}.")
