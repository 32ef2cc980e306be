"""The ledger: an append-only record with limits, in an SQLite file that its owner keeps.

The check against the owner's limits and the new row are one transaction (BEGIN IMMEDIATE), so two processes cannot
both spend the last release. The bytes of every upload of the round a plan is in are kept: sending them again tells
nobody anything new and is free, while fresh noise around the same weights would be a second release.

A database file can be copied back from yesterday. Against that an anchor (number and hash of the last row, identity of
the file) is kept outside the ledger's folder, see `anchor`. Whoever restores both, or the whole machine, is not
detected: docs/threat-model.md says what to do about it.
"""

from __future__ import annotations

import functools
import math
import os
import sqlite3
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from nbafl.errors import DataError, Refused
from nbafl.privacy import anchor
from nbafl.privacy.ledger import budget, chain, schema, sums
from nbafl.privacy.ledger.budget import TOLERANCE, Declined, Limits, Price, Spent, Sum
from nbafl.privacy.ledger.chain import Charged, Request, Row
from nbafl.privacy.units import Account

DELTA = 1e-5
"""At which sums are shown where the owner has set no limit."""


class Ledger:
    """Open it once per process; every call is its own transaction, or part of the caller's (`transaction`)."""

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
        self._lock, self._depth = threading.RLock(), 0
        self._connection = schema.connect(self.path, must_exist)
        try:
            with self.transaction():
                self._open(adopt)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    # --- limits ------------------------------------------------------------------------------------------

    def limits(self) -> list[Limits]:
        """The owner's limits, one for each account that has any; one without an account binds in every plan's own."""
        return sums.limits(self.execute)

    def limits_of(self, account: Account) -> Limits | None:
        """What binds a plan that protects this account, or None while nothing does."""
        binding = [each for each in self.limits() if each.account in (account, None)]
        if not binding:
            return None
        first, *rest = binding
        return first.stricter(rest[0] if rest else None)

    def set_limits(self, limits: Limits, loosen: bool = False) -> Limits:
        """Set or tighten the limits of one account; going back on them needs `loosen`, and stays visible in the chain."""
        with self.transaction():
            current = next((each for each in self.limits() if each.account == limits.account), None)
            wanted = limits if loosen else limits.stricter(current)
            if wanted != current:
                self._append("limit", note=sums.note_of(wanted))
        return wanted

    # --- releases ----------------------------------------------------------------------------------------

    def check(self, request: Request, price: Price) -> None:
        """Refuse now what `record` would refuse later, before any training is done."""
        self._next_charges(request, price)

    def stored(self, request: Request) -> bytes | None:
        """The upload already made for this very request, if any; handing it out again is free and counted."""
        with self.transaction():
            found = self.execute(
                "SELECT content FROM uploads WHERE plan = ? AND round = ? AND broadcast = ?",
                (request.plan, request.round, request.broadcast),
            )
            if not found:
                return None
            self.execute("UPDATE plans SET resends = resends + 1 WHERE plan = ?", (request.plan,))
        return bytes(found[0][0])

    def record(self, request: Request, content: bytes, price: Price) -> Row:
        """Charge a release and keep its bytes, or refuse; once the transaction ended, the upload may leave."""
        with self.transaction():
            charges = self._next_charges(request, price)
            own = charges[price.account]
            row = self._append(
                sums.RELEASE,
                request,
                upload=chain.digest(content),
                cost=own.cost or 0.0,
                cost_upload=own.uploads or 0.0,
                note=price.adversary,
                account=price.account,
                rounding=float(price.rounding),
                charges=charges,
            )
            # Bytes of earlier rounds are never asked for again; those of this round may be, whatever came between.
            self.execute("DELETE FROM uploads WHERE plan = ? AND round < ?", (request.plan, request.round))
            self.execute(
                "INSERT INTO uploads VALUES (?, ?, ?, ?)",
                (request.plan, request.round, request.broadcast, content),
            )
        return row

    def mark(self, request: Request, note: str) -> Row:
        """A row without a price: the chain, and with it the anchor, moves on. For state kept beside the rows."""
        with self.transaction():
            return self._append("mark", request, note=note)

    def affordable(self, plan: str, price: Price) -> int:
        """How many more answers to this plan the limits allow."""
        answers, _ = sums.of_plan(self.execute, plan)
        limits, made = self.limits(), sums.releases(self.execute)[0]
        counts = [each.releases - made for each in limits if each.releases is not None]
        most = max(0, min([price.most - answers, *counts]))
        if not any(each.account in (price.account, None) for each in limits):
            return 0
        for limit in limits:
            account = limit.account or price.account
            standing = sums.standing(self.execute, account, plan)
            if standing.unknown:
                return 0
            used = functools.partial(budget.share_used, limit, standing, price, account, answers)
            # It grows with every answer, so the last affordable one is found by halving.
            most = bisect_right(range(1, most + 1), 1 + TOLERANCE, key=used)
        return most

    def against(self, plan: str, adversary: str) -> str:
        """Whom an epsilon over all plans is about once `plan`, against `adversary`, is one of them."""
        return budget.together({**sums.adversaries(self.execute), plan: adversary})

    def spent(self, delta: float | None = None) -> Spent:
        """What everything recorded so far is worth, in each account at the delta of its limit unless one is given."""
        made, resent = sums.releases(self.execute)
        return Spent(made, resent, tuple(self._sum(account, delta) for account in Account))

    def _sum(self, account: Account, delta: float | None) -> Sum:
        limits = self.limits_of(account)
        at = delta if delta is not None else (limits.delta if limits else DELTA)
        standing = sums.standing(self.execute, account)
        known = not standing.unknown
        return Sum(
            account=account,
            unit=account.unit,
            adjacency=account.adjacency,
            delta=at,
            epsilon=standing.epsilon(at, 0.0) if known else None,
            epsilon_uploads=standing.epsilon_uploads(at, 0.0) if known else None,
            conditional=sums.conditional(self.execute, account),
            adversaries=standing.adversaries,
            unknown=standing.unknown,
        )

    # --- ledgers of the first release --------------------------------------------------------------------

    def of_first_release(self) -> dict[str, list[Row]]:
        """Releases that were written without a unit, by plan."""
        found: dict[str, list[Row]] = {}
        for row in self.rows():
            if row.kind == sums.RELEASE and not row.charges:
                found.setdefault(row.plan, []).append(row)
        return found

    def convert(self, plan: str, account: Account, charges: Mapping[Account, Charged]) -> Row:
        """State what the first release's rows of a plan cost each account, now that the plan is at hand."""
        with self.transaction():
            rows = self.of_first_release().get(plan, [])
            if not rows:
                raise DataError(
                    f"ledger {str(self.path)!r} holds no releases of plan {plan[:16]} without a unit."
                )
            recorded, computed = sum(row.cost for row in rows), charges[account].cost
            if computed is None or not math.isclose(recorded, computed, rel_tol=1e-6):
                raise DataError(
                    f"plan {plan[:16]} does not give the costs on the ledger ({computed!r} where {recorded!r} was charged)."
                )
            return self._append(
                sums.CONVERTED,
                Request(plan, 0, ""),
                account=account,
                charges=dict(charges),
                note="plan supplied",
            )

    def _convert_unknown(self) -> None:
        """Without its plan a release counts in the dearest unit.

        For a record that is a client left out, where the record itself may move the upload twice as far: 4 times the
        cost. For a person or a client it may be a record plan over any number of records: no bound is known.
        """
        for plan, rows in self.of_first_release().items():
            cost, uploads = 4 * sum(row.cost for row in rows), 4 * sum(row.cost_upload for row in rows)
            charges = {account: Charged(None, None, True) for account in Account}
            charges[Account.RECORD] = Charged(cost, uploads, True)
            self._append(sums.CONVERTED, Request(plan, 0, ""), charges=charges, note="plan not at hand")

    # --- reading -----------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Every row, oldest first."""
        names = ", ".join(chain.COLUMNS)
        return [Row(*found) for found in self.execute(f"SELECT {names} FROM rows ORDER BY number")]

    def verify(self) -> int:
        """Walk the chain and add up again; returns the number of rows, refuses at the first thing that does not fit."""
        with self.transaction():  # else another process could move the anchor on between two looks
            rows = self.rows()
            self._verify_chain(rows)
            table = sums.differing(self.execute, rows)
            if table is not None:
                self._refuse_tampering(f"the table {table} does not follow from the rows")
            self._verify_uploads(rows)
            self._check_anchor()
        return len(rows)

    # --- transactions ------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, alone on the file from the first read on; the anchor follows the outermost commit.

        Calls of the ledger inside are part of it, and so is whatever the caller does with `execute` to tables of its
        own: either all of it is on disk afterwards, or none.
        """
        with self._lock:
            if self._depth == 0:
                self.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    self.execute("COMMIT")
            except BaseException:
                if (
                    self._depth == 1 and self._connection.in_transaction
                ):  # a full disk has rolled it back already
                    self.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1
            if self._depth == 0:
                first, last = self._hash_of(0), self._last()
                if first is not None and last is not None:
                    anchor.write(self.anchors, self.path, first, *last)

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Every statement goes through here: a full disk or a damaged file is one sentence, and nothing leaves."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise Refused(f"ledger {str(self.path)!r} cannot be read or written: {error}.") from None

    # --- inside ------------------------------------------------------------------------------------------

    def _open(self, adopt: bool) -> None:
        try:
            old = schema.build(self._connection)
        except sqlite3.Error as error:
            raise Refused(f"ledger {str(self.path)!r} cannot be read or written: {error}.") from None
        if self._last() is None:
            self._append("opened", note=os.urandom(16).hex())
        self._check_anchor(adopt)
        if old:
            rows = self.rows()
            self._verify_chain(rows)
            for row in rows:
                sums.add(self.execute, row)
            self._convert_unknown()
        if adopt:
            self._append("adopted", note=str(self.path))

    def _next_charges(self, request: Request, price: Price) -> dict[Account, Charged]:
        """mu^2 that one more answer adds to each account; refuses when it would pass a limit."""
        limits = self.limits()
        if not any(each.account in (price.account, None) for each in limits):
            raise Declined(
                f"this client's ledger has no limit for a {price.account.unit} ({price.account.change}) yet: nothing is "
                "released before one is set."
            )
        answers, last = sums.of_plan(self.execute, request.plan)
        if answers and request.round < last:
            raise Declined(f"round {request.round} is over: round {last} of this plan was already answered.")
        budget.check_counts(price, answers, sums.releases(self.execute)[0], limits)
        budget.check_price(price, answers + 1)
        for limit in limits:
            account = limit.account or price.account
            standing = sums.standing(self.execute, account, request.plan)
            budget.check_limit(limit, account, standing, price, answers + 1)
        charges = {}
        for account, charge in price.charges.items():
            # What all answers cost together is what is charged: those made while L was smaller are made up for.
            mine = sums.standing(self.execute, account, request.plan).mine
            cost = max(0.0, float(charge.after(answers + 1)) - mine)
            charges[account] = Charged.of(cost, float(charge.upload), charge.conditional)
        return charges

    def _last(self) -> tuple[int, str] | None:
        found = self.execute("SELECT number, hash FROM rows ORDER BY number DESC LIMIT 1")
        return (int(found[0][0]), str(found[0][1])) if found else None

    def _hash_of(self, number: int) -> str | None:
        found = self.execute("SELECT hash FROM rows WHERE number = ?", (number,))
        return str(found[0][0]) if found else None

    def _check_anchor(self, moved: bool = False) -> None:
        first, last = self._hash_of(0), self._last()
        if first is None or last is None:
            self._refuse_tampering("row 0 does not fit the chain")
        else:
            anchor.check(self.anchors, self.path, first, last[0], self._hash_of, moved)

    def _append(
        self,
        kind: str,
        request: Request | None = None,
        *,
        upload: str = "",
        cost: float = 0.0,
        cost_upload: float = 0.0,
        note: str = "",
        account: Account | None = None,
        rounding: float = 0.0,
        charges: Mapping[Account, Charged] | None = None,
    ) -> Row:
        request, last = request or Request("", 0, ""), self._last()
        number, previous = (last[0] + 1, last[1]) if last else (0, "")
        row = Row(
            number=number,
            time=time.time(),
            kind=kind,
            plan=request.plan,
            round=request.round,
            broadcast=request.broadcast,
            upload=upload,
            cost=cost,
            cost_upload=cost_upload,
            note=note,
            previous=previous,
            hash="",
            unit=account.unit if account else "",
            adjacency=account.adjacency if account else "",
            rounding=rounding,
            charges=chain.encoded(dict(charges)) if charges else "",
        ).sealed()
        marks = ", ".join("?" * len(chain.COLUMNS))
        self.execute(f"INSERT INTO rows ({', '.join(chain.COLUMNS)}) VALUES ({marks})", astuple(row))
        sums.add(self.execute, row)
        return row

    def _verify_chain(self, rows: list[Row]) -> None:
        place = next(chain.broken(rows), None)
        if place is not None:
            self._refuse_tampering(f"row {place} does not fit the chain")

    def _verify_uploads(self, rows: list[Row]) -> None:
        """The stored bytes are those that a recorded release was made of."""
        made = {(row.plan, row.round, row.broadcast, row.upload) for row in rows if row.kind == sums.RELEASE}
        for plan, round, broadcast, content in self.execute("SELECT * FROM uploads"):
            if (plan, round, broadcast, chain.digest(bytes(content))) not in made:
                self._refuse_tampering("a stored upload is not the recorded one")

    def _refuse_tampering(self, finding: str) -> None:
        raise Refused(f"ledger {str(self.path)!r} was tampered with: {finding}.")


def as_json(ledger: Ledger) -> dict[str, Any]:
    """Everything but the stored bytes, for `nbafl ledger export`."""
    return {
        "path": str(ledger.path),
        "limits": [asdict(limits) for limits in ledger.limits()],
        "spent": asdict(ledger.spent()),
        "rows": [asdict(row) for row in ledger.rows()],
    }
