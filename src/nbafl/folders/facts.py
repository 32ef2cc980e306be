"""What a run was really made of: its data, its model and where it happened, kept beside the plan in facts.json.

A plan says what was meant; a run from Python may have been given other data and a model of its own. Reports, predictions
and `--resume` go by this file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nbafl.errors import DataError
from nbafl.folders import files

FILE = "facts.json"
FROM_PYTHON = "given from Python"
OF_CLIENTS = "the clients' own tables"
NAMED = 40
"""Clients listed by name; of more only the number is kept."""


@dataclass(frozen=True)
class Facts:
    """Plain values only: the file is read on machines without torch."""

    data: str
    """`mnist`, a folder, or `given from Python`."""
    model: str
    """A name that builds the model again, or `given from Python`."""
    where: str
    """`simulation` or `federation`."""
    started: str
    """Date of the first round, ISO."""
    task: str
    shape: tuple[int, ...]
    outputs: int
    records: int
    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()
    """Feature columns of tables."""
    target: str | None = None
    tokens: bool = False
    """Whether records are whole numbers, for a model that begins with an Embedding."""
    read_from_data: tuple[str, ...] = ()
    """What shaped the model and came from private records: no epsilon covers it."""
    evaluation: dict[str, Any] | None = None
    """What clients agreed on to measure the model with records of their own (`nbafl.evaluation.Evaluation`)."""

    def save(self, folder: Path) -> None:
        files.write_json(folder / FILE, asdict(self))

    @classmethod
    def of(cls, content: dict[str, Any]) -> Facts:
        """Facts from plain JSON."""
        content = {"evaluation": None, **content}  # a run before there was any
        return cls(**{each.name: _kept(content[each.name]) for each in fields(cls)})

    @classmethod
    def load(cls, folder: Path) -> Facts | None:
        """The facts of a run folder; None for one of the first release, which kept none."""
        content = files.read_object(folder / FILE)
        if content is None:
            return None
        try:
            return cls.of(content)
        except (KeyError, TypeError):
            raise DataError(
                f"{str(folder / FILE)!r} is damaged: it does not hold the facts of a run."
            ) from None


def _kept(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
