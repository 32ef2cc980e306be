"""What a client has released, in a file that it owns and that outlives every crash.

A release is written here, and synced to disk, BEFORE the upload leaves: a crash can over-count but never
under-count. The check against the owner's limits and the new row are one transaction (BEGIN IMMEDIATE), so
two processes cannot both spend the last release. Rows are chained by hash, so a changed, dropped or moved row
shows. The bytes of the last upload of each plan are kept: sending them again tells nobody anything new and is
free, while fresh noise around the same weights would be a second release.

A row carries two prices in mu^2, which add up over rounds and plans (`gaussian`). `cost_upload` is
(Delta/sigma)^2, what somebody learns who sees every upload of this client (a curious server; trusts nobody).
`cost` is what the plan's own adversary learns (`Adversary.cost`; trusts the others to add their noise). The
limit is on the second, because that is what the plan promises; `spent` reports both.

A database file can be copied back from yesterday. Against that an anchor (number and hash of the last row,
identity of the file) is kept outside the ledger's folder, see `anchor`. Whoever restores both, or the whole
machine, is not detected: docs/threat-model.md says what to do about it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from nbafl.errors import DataError, Refused, UsageError
from nbafl.privacy import anchor
from nbafl.privacy.gaussian import check_delta, check_epsilon, gdp_epsilon

TOLERANCE = 1e-6
"""Relative slack of the epsilon check: an exactly calibrated plan meets its claim to the last digits."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rows (
    number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, plan TEXT NOT NULL,
    round INTEGER NOT NULL, broadcast TEXT NOT NULL, upload TEXT NOT NULL, cost REAL NOT NULL,
    cost_upload REAL NOT NULL, note TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS uploads (
    plan TEXT PRIMARY KEY, round INTEGER NOT NULL, broadcast TEXT NOT NULL, content BLOB NOT NULL);
"""


class Declined(Refused):
    """A no that may be told to whoever asked: it quotes the request, the plan and the owner's limits, nothing else."""


class BudgetSpent(Declined):
    """The next release would pass one of the owner's limits."""


@dataclass(frozen=True)
class Limits:
    """The owner's own bounds over everything this ledger ever records."""

    epsilon: float
    delta: float
    releases: int | None = None

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        if self.releases is not None and self.releases < 1:
            raise UsageError("releases", self.releases, "at least 1, or unset for no limit")

    def stricter(self, other: Limits) -> Limits:
        """The smaller of each."""
        counts = [count for count in (self.releases, other.releases) if count is not None]
        return Limits(
            min(self.epsilon, other.epsilon), min(self.delta, other.delta), min(counts) if counts else None
        )


@dataclass(frozen=True)
class Request:
    """What a server asks for: one round of one plan, starting from one broadcast."""

    plan: str
    round: int
    broadcast: str


@dataclass(frozen=True)
class Price:
    """What answering costs: mu^2 of one upload alone, and against the plan's adversary after r answers."""

    upload: float
    after: Callable[[int], float]
    most: int
    """T: the plan never asks for more answers than it has rounds."""
    adversary: str


@dataclass(frozen=True)
class Row:
    """One line of the ledger."""

    number: int
    time: float
    kind: str
    plan: str
    round: int
    broadcast: str
    upload: str
    cost: float
    cost_upload: float
    note: str
    previous: str
    hash: str

    def expected_hash(self) -> str:
        """sha256 over everything else in the row, the hash of the row before it included."""
        content = asdict(self)
        del content["hash"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Spent:
    """The sum of the ledger, as epsilons at `delta`."""

    releases: int
    resends: int
    delta: float
    epsilon: float
    """Against the adversaries the plans name (`adversaries`)."""
    epsilon_curious_server: float
    adversaries: tuple[str, ...]


class Ledger:
    """An append-only record with limits. Open it once per process; every call is its own transaction."""

    def __init__(
        self,
        path: str | Path,
        anchors: str | Path | None = None,
        adopt: bool = False,
        must_exist: bool = False,
    ) -> None:
        """`adopt` declares that the file was moved here on purpose; the chain says so from then on."""
        self.path = Path(path).absolute()
        self.anchors = Path(anchors) if anchors is not None else anchor.default_folder()
        if must_exist and not self.path.is_file():
            raise DataError(f"ledger {str(self.path)!r} does not exist.")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = self._connect(must_exist)
        with self._transaction():
            if self._count() == 0:
                self._append("opened", note=os.urandom(16).hex())
            anchor.check(self.anchors, self.path, self.rows(), moved=adopt)
            if adopt:
                self._append("adopted", note=str(self.path))

    def close(self) -> None:
        self._connection.close()

    # --- limits ------------------------------------------------------------------------------------------

    @property
    def limits(self) -> Limits | None:
        """The newest limits, or None while nobody has set any."""
        found = self._execute("SELECT note FROM rows WHERE kind = 'limit' ORDER BY number DESC LIMIT 1")
        return Limits(**json.loads(found[0][0])) if found else None

    def set_limits(self, limits: Limits, loosen: bool = False) -> Limits:
        """Set or tighten the limits; going back on them needs `loosen`, and stays visible in the chain."""
        with self._transaction():
            current = self.limits
            wanted = limits if current is None or loosen else limits.stricter(current)
            if wanted != current:
                self._append("limit", note=json.dumps(asdict(wanted), sort_keys=True))
        return wanted

    def agree(self, epsilon: float | None, delta: float | None, releases: int | None, plan: Limits) -> Limits:
        """What the owner asked for where it is stricter; the plan's own claim only if there are no limits yet."""
        base = self.limits or plan
        return self.set_limits(
            Limits(
                base.epsilon if epsilon is None else epsilon,
                base.delta if delta is None else delta,
                base.releases if releases is None else releases,
            )
        )

    # --- releases ----------------------------------------------------------------------------------------

    def check(self, request: Request, price: Price) -> None:
        """Refuse now what `record` would refuse later, before any training is done."""
        self._next_cost(request, price)

    def stored(self, request: Request) -> bytes | None:
        """The upload already made for this very request, if any; handing it out again is free and noted."""
        with self._transaction():
            found = self._execute(
                "SELECT content FROM uploads WHERE plan = ? AND round = ? AND broadcast = ?",
                (request.plan, request.round, request.broadcast),
            )
            if not found:
                return None
            content = bytes(found[0][0])
            self._append("resend", request, upload=_digest(content))
        return content

    def record(self, request: Request, content: bytes, price: Price) -> Row:
        """Charge a release and keep its bytes, or refuse; once this returns, the upload may leave."""
        with self._transaction():
            cost = self._next_cost(request, price)
            row = self._append(
                "release",
                request,
                upload=_digest(content),
                cost=cost,
                cost_upload=float(price.upload),
                note=price.adversary,
            )
            self._execute(
                "INSERT OR REPLACE INTO uploads VALUES (?, ?, ?, ?)",
                (request.plan, request.round, request.broadcast, content),
            )
        return row

    def affordable(self, plan: str, price: Price) -> int:
        """How many more answers to this plan the limits allow."""
        limits, rows = self.limits, [row for row in self.rows() if row.kind == "release"]
        if limits is None:
            return 0
        mine = [row for row in rows if row.plan == plan]
        made, charged = len(mine), sum(row.cost for row in mine)
        others = sum(row.cost for row in rows) - charged
        most = price.most - made
        if limits.releases is not None:
            most = min(most, limits.releases - len(rows))
        delta = limits.delta

        def epsilon_after(more: int) -> float:
            return gdp_epsilon(math.sqrt(others + max(charged, price.after(made + more))), delta)

        # It grows with every answer, so the last affordable one is found by halving.
        return bisect_right(range(1, max(0, most) + 1), limits.epsilon * (1 + TOLERANCE), key=epsilon_after)

    def spent(self, delta: float | None = None) -> Spent:
        """What everything recorded so far is worth together."""
        limits = self.limits
        delta = delta if delta is not None else (limits.delta if limits else 1e-5)
        releases = [row for row in self.rows() if row.kind == "release"]
        return Spent(
            releases=len(releases),
            resends=sum(row.kind == "resend" for row in self.rows()),
            delta=delta,
            epsilon=gdp_epsilon(math.sqrt(sum(row.cost for row in releases)), delta),
            epsilon_curious_server=gdp_epsilon(math.sqrt(sum(row.cost_upload for row in releases)), delta),
            adversaries=tuple(sorted({row.note for row in releases})),
        )

    # --- reading -----------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Every row, oldest first."""
        return [Row(*found) for found in self._execute("SELECT * FROM rows ORDER BY number")]

    def verify(self) -> int:
        """Walk the chain; returns the number of rows, refuses at the first that does not fit."""
        with self._transaction():  # else another process could move the anchor on between two looks
            previous, rows = "", self.rows()
            for place, row in enumerate(rows):
                if row.number != place or row.previous != previous or row.hash != row.expected_hash():
                    raise Refused(
                        f"ledger {str(self.path)!r} was tampered with: row {place} does not fit the chain."
                    )
                previous = row.hash
            self._verify_uploads(rows)
            anchor.check(self.anchors, self.path, rows)
        return len(rows)

    # --- inside ------------------------------------------------------------------------------------------

    def _connect(self, must_exist: bool) -> sqlite3.Connection:
        os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            self._check_schema(connection, must_exist)
            connection.execute("PRAGMA synchronous=FULL")
            _turn_to_wal(connection)
            connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            connection.close()
            raise DataError(f"ledger {str(self.path)!r} is not a readable ledger: {error}.") from None
        except DataError:
            connection.close()
            raise
        return connection

    def _check_schema(self, connection: sqlite3.Connection, must_exist: bool) -> None:
        """Somebody else's database, or a ledger of another version, is left as it is."""
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        columns = [column[1] for column in connection.execute("PRAGMA table_info(rows)")]
        if (tables or must_exist) and columns != [field.name for field in fields(Row)]:
            raise DataError(
                f"{str(self.path)!r} is not a ledger of this version of nbafl; it was left as it is."
            )

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Every statement goes through here: a full disk or a damaged file is one sentence, and nothing leaves."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise Refused(f"ledger {str(self.path)!r} cannot be read or written: {error}.") from None

    def _next_cost(self, request: Request, price: Price) -> float:
        """mu^2 that one more answer adds; refuses when it would pass a limit."""
        limits = self.limits
        if limits is None:
            raise Declined("this ledger has no limits yet: set them before the first release.")
        rows = [row for row in self.rows() if row.kind == "release"]
        answers = [row for row in rows if row.plan == request.plan]
        if answers and request.round < answers[-1].round:
            raise Declined(
                f"round {request.round} is over: round {answers[-1].round} of this plan was already answered."
            )
        if len(answers) >= price.most:
            raise BudgetSpent(
                f"the plan has {price.most} rounds, and {len(answers)} releases were already made for it."
            )
        if limits.releases is not None and len(rows) >= limits.releases:
            raise BudgetSpent(
                f"the budget is spent: {len(rows)} releases of at most {limits.releases} were made."
            )
        total = float(price.after(len(answers) + 1))
        if not (0 <= total < math.inf and math.isfinite(price.upload)):
            raise Declined(f"this release cannot be accounted for: its price is {total!r}.")
        # What all answers cost together is what is charged: those made while L was smaller are made up for.
        cost = max(0.0, total - sum(row.cost for row in answers))
        epsilon = gdp_epsilon(math.sqrt(sum(row.cost for row in rows) + cost), limits.delta)
        if epsilon > limits.epsilon * (1 + TOLERANCE):
            raise BudgetSpent(
                f"the budget is spent: release {len(rows) + 1} would bring epsilon to {epsilon:.6g} at delta "
                f"{limits.delta:g} against {price.adversary}, above this client's limit {limits.epsilon:g}."
            )
        return cost

    def _count(self) -> int:
        return int(self._execute("SELECT COUNT(*) FROM rows")[0][0])

    def _append(
        self,
        kind: str,
        request: Request | None = None,
        upload: str = "",
        cost: float = 0.0,
        cost_upload: float = 0.0,
        note: str = "",
    ) -> Row:
        request = request or Request("", 0, "")
        last = self._execute("SELECT number, hash FROM rows ORDER BY number DESC LIMIT 1")
        number, previous = (last[0][0] + 1, last[0][1]) if last else (0, "")
        asked = (kind, request.plan, request.round, request.broadcast)
        row = Row(number, time.time(), *asked, upload, cost, cost_upload, note, previous, hash="")
        row = replace(row, hash=row.expected_hash())
        marks = ", ".join("?" * len(fields(Row)))
        self._execute(f"INSERT INTO rows VALUES ({marks})", tuple(asdict(row).values()))
        return row

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, alone on the file from the first read on; the anchor follows the commit."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            rows = self.rows()
            self._execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk has rolled it back already
                self._execute("ROLLBACK")
            raise
        anchor.write(self.anchors, self.path, rows)

    def _verify_uploads(self, rows: list[Row]) -> None:
        """The stored bytes are those the last release of their plan was made of."""
        last = {row.plan: row.upload for row in rows if row.kind == "release"}
        for plan, content in self._execute("SELECT plan, content FROM uploads"):
            if last.get(plan) != _digest(bytes(content)):
                raise Refused(
                    f"ledger {str(self.path)!r} was tampered with: a stored upload is not the recorded one."
                )


def _turn_to_wal(connection: sqlite3.Connection) -> None:
    """Write-ahead logging; while another process turns the same file, SQLite does not wait by itself."""
    for attempt in range(100):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if attempt == 99:
                raise
            time.sleep(0.05)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def as_json(ledger: Ledger) -> dict[str, Any]:
    """Everything but the stored bytes, for `nbafl ledger export`."""
    limits = ledger.limits
    return {
        "path": str(ledger.path),
        "limits": asdict(limits) if limits else None,
        "spent": asdict(ledger.spent()),
        "rows": [asdict(row) for row in ledger.rows()],
    }
