"""Plan files: a plan as TOML, each field under a comment that says what it is.

A file says with which version's defaults it was written. One without a version was written for 0.1.0: what it leaves out
is what 0.1.0 would have taken, and that is said.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbafl import toml_file
from nbafl.errors import DataError
from nbafl.fields import PlanFields, table
from nbafl.presets import FIRST_RELEASE

log = logging.getLogger("nbafl")
VERSION = 2
FOLLOWS = ("local_steps", "clients")
"""Defaults of 0.1.0 that followed from other fields, as they still do: steps from the rule, clients from sizes."""


def written(plan: PlanFields) -> str:
    """The text of a plan file."""
    lines = ["# An nbafl plan. Use it with: nbafl run --config FILE", f"version = {VERSION}", ""]
    for name, field in table().items():
        value = getattr(plan, name)
        lines.append(f"# {field.sentence}")
        lines.append(f"# {name} is unset" if value is None else f"{name} = {_toml_value(value)}")
    return "\n".join(lines) + "\n"


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the fields a plan file gives, the defaults of 0.1.0 for those it leaves out where it has no version)."""
    content = toml_file.read(path, "config file")
    version = content.pop("version", None)
    if version is None:
        return content, _first_release(content, path)
    if version != VERSION:
        raise DataError(
            f"config file {str(path)!r} has version {version!r}; this nbafl reads version {VERSION}."
        )
    return content, {}


def _first_release(content: dict[str, Any], path: str | Path) -> dict[str, Any]:
    left = {
        name: value
        for name, value in FIRST_RELEASE.items()
        if name not in content and name not in FOLLOWS and value is not None
    }
    changed = [name for name, value in left.items() if value != table()[name].default]
    if changed:
        log.warning(
            "%s has no version key: what it leaves out keeps the defaults of nbafl 0.1.0 (%s).",
            path,
            ", ".join(f"{name} {left[name]}" for name in changed),
        )
    return left


def _toml_value(value: object) -> str:
    """A value as TOML: JSON, but for tables."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(name)} = {_toml_value(each)}" for name, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
