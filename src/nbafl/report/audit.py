"""An audit for a person: a page of its own in the audit's folder, and the same as a part of a run's report."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from nbafl import fields
from nbafl.durable import write_text
from nbafl.folders import audits
from nbafl.plan import Plan
from nbafl.report.pages import environment


def write_audit(folder: Path, plan: Plan, found: dict[str, Any]) -> Path:
    """Write audit.html into the folder of an audit."""
    page = environment().get_template("audit.html")
    path = folder / audits.AUDIT_REPORT
    text = page.render(
        name=folder.resolve().name,
        **part(folder, plan, found),
        assumptions=plan.assumptions(),
        fields=[(name, getattr(plan, name)) for name in fields.table()],
        digest=plan.digest(),
    )
    write_text(path, text)
    return path


def part(folder: Path, plan: Plan, found: dict[str, Any] | None) -> dict[str, Any]:
    """What the templates say of an audit; nothing where there is none."""
    if found is None:
        return {"audit": None}
    return {
        "audit": found,
        "unit": f"one {plan.sensitivity_of().unit}",
        "audit_pictures": [
            (about, _embedded(folder / name))
            for name, about in audits.PICTURES.items()
            if (folder / name).is_file()
        ],
    }


def _embedded(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
