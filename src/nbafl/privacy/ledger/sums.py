"""The sums that follow from a ledger's rows, kept in tables so that a release costs the same whatever came before it.

Every function adds one row's part; `recomputed` adds all of them up again from the rows, in the same order, so that
`verify` can compare to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from nbafl.privacy.ledger.budget import Limits, Standing
from nbafl.privacy.ledger.chain import Charged, Row
from nbafl.privacy.units import Account

Execute = Callable[..., list[Any]]

RELEASE, CONVERTED, RESEND, LIMIT = "release", "converted", "resend", "limit"
FOLLOWING = {
    "plans": "SELECT plan, answers, round, adversary, rounding FROM plans ORDER BY plan",
    "charged": "SELECT plan, kind, account, cost, uploads, conditional FROM charged ORDER BY plan, kind, account",
    "limits": "SELECT account, content FROM limits ORDER BY account",
}


def add(execute: Execute, row: Row) -> None:
    """Enter one row into the sums."""
    if row.kind == LIMIT:
        account = json.loads(row.note).get("account") or ""
        execute("INSERT OR REPLACE INTO limits VALUES (?, ?)", (account, row.note))
    elif row.kind == RELEASE:
        execute(
            "INSERT INTO plans (plan, answers, round, adversary, rounding) VALUES (?, 1, ?, ?, ?) "
            "ON CONFLICT (plan) DO UPDATE SET answers = answers + 1, round = excluded.round, "
            "adversary = excluded.adversary, rounding = rounding + excluded.rounding",
            (row.plan, row.round, row.note, row.rounding),
        )
        for account, charged in row.charged().items():
            _add_charge(execute, row.plan, account, charged)
    elif row.kind == CONVERTED:
        for account, charged in row.charged().items():
            execute("INSERT OR REPLACE INTO charged VALUES (?, ?, ?, ?, ?, ?)", _entry(row, account, charged))
    elif row.kind == RESEND:  # the first release wrote a row for each
        execute("UPDATE plans SET resends = resends + 1 WHERE plan = ?", (row.plan,))


def _add_charge(execute: Execute, plan: str, account: Account, charged: Charged) -> None:
    execute(
        "INSERT INTO charged VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (plan, kind, account) DO UPDATE SET "
        "cost = cost + excluded.cost, uploads = uploads + excluded.uploads, "
        "conditional = max(conditional, excluded.conditional)",
        (plan, RELEASE, account.value, charged.cost, charged.uploads, int(charged.conditional)),
    )


def _entry(row: Row, account: Account, charged: Charged) -> tuple[Any, ...]:
    return (row.plan, CONVERTED, account.value, charged.cost, charged.uploads, int(charged.conditional))


def of_plan(execute: Execute, plan: str) -> tuple[int, int]:
    """(answers given, last round answered)."""
    found = execute("SELECT answers, round FROM plans WHERE plan = ?", (plan,))
    return (int(found[0][0]), int(found[0][1])) if found else (0, 0)


def releases(execute: Execute) -> tuple[int, int]:
    """(releases, resends) over all plans."""
    found = execute("SELECT COALESCE(SUM(answers), 0), COALESCE(SUM(resends), 0) FROM plans")
    return int(found[0][0]), int(found[0][1])


def standing(execute: Execute, account: Account, plan: str = "") -> Standing:
    """One account as it stands for a plan that asks."""
    entries = execute("SELECT plan, cost, uploads FROM charged WHERE account = ?", (account.value,))
    (rounding,) = execute("SELECT COALESCE(SUM(rounding), 0) FROM plans")[0]
    return Standing(
        others=sum(cost for name, cost, _ in entries if name != plan and cost is not None),
        mine=sum(cost for name, cost, _ in entries if name == plan and cost is not None),
        uploads=sum(uploads for _, _, uploads in entries if uploads is not None),
        rounding=float(rounding),
        unknown=tuple(sorted({name for name, cost, uploads in entries if cost is None or uploads is None})),
        plan=plan,
        adversaries={name: looking for name, looking in adversaries(execute).items() if name != plan},
    )


def adversaries(execute: Execute) -> dict[str, str]:
    """Who is looking in each plan that was answered."""
    return dict(execute("SELECT plan, adversary FROM plans WHERE answers > 0 ORDER BY plan"))


def conditional(execute: Execute, account: Account) -> bool:
    """Whether some charge rests on a premise that nobody checked."""
    found = execute("SELECT MAX(conditional) FROM charged WHERE account = ?", (account.value,))
    return bool(found[0][0])


def limits(execute: Execute) -> list[Limits]:
    """The newest limits of each account; the one without an account first."""
    return [read_limits(content) for (content,) in execute("SELECT content FROM limits ORDER BY account")]


def read_limits(note: str) -> Limits:
    content = json.loads(note)
    account = content.pop("account", None)
    return Limits(**content, account=Account(account) if account else None)


def note_of(limits: Limits) -> str:
    """Limits as a row's note."""
    return json.dumps(asdict(limits), sort_keys=True)


def differing(execute: Execute, rows: Iterable[Row]) -> str | None:
    """The table that does not follow from the rows, if any; what is kept is left as it is."""
    kept = {name: execute(query) for name, query in FOLLOWING.items()}
    execute("SAVEPOINT recomputing")
    for name in FOLLOWING:
        execute(f"DELETE FROM {name}")
    for row in rows:
        add(execute, row)
    fresh = {name: execute(query) for name, query in FOLLOWING.items()}
    execute("ROLLBACK TO recomputing")
    execute("RELEASE recomputing")
    return next((name for name in FOLLOWING if kept[name] != fresh[name]), None)
