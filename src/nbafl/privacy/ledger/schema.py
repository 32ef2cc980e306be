"""The tables of a ledger, how its file is opened, and how a file of the first release becomes one of this.

`rows` is the record itself, append-only and chained. The other tables follow from it and are checked against it by
`Ledger.verify`: they keep every sum at hand, so that no release has to read all rows. `uploads` holds the bytes of the
round a plan is in. Other modules may keep tables of their own in the same file (`Ledger.transaction`).
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from nbafl.errors import DataError
from nbafl.privacy.ledger.chain import COLUMNS, SECOND_RELEASE

VERSION = 2
_FIRST = tuple(name for name in COLUMNS if name not in SECOND_RELEASE)

_ROWS = """
CREATE TABLE IF NOT EXISTS rows (
    number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, plan TEXT NOT NULL,
    round INTEGER NOT NULL, broadcast TEXT NOT NULL, upload TEXT NOT NULL, cost REAL NOT NULL,
    cost_upload REAL NOT NULL, note TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL,
    unit TEXT NOT NULL DEFAULT '', adjacency TEXT NOT NULL DEFAULT '', rounding REAL NOT NULL DEFAULT 0,
    charges TEXT NOT NULL DEFAULT '')
"""
_FOLLOWING = (
    """CREATE TABLE IF NOT EXISTS uploads (
    plan TEXT NOT NULL, round INTEGER NOT NULL, broadcast TEXT NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (plan, round, broadcast))""",
    """CREATE TABLE IF NOT EXISTS plans (
    plan TEXT PRIMARY KEY, answers INTEGER NOT NULL, round INTEGER NOT NULL, adversary TEXT NOT NULL,
    rounding REAL NOT NULL, resends INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE IF NOT EXISTS charged (
    plan TEXT NOT NULL, kind TEXT NOT NULL, account TEXT NOT NULL, cost REAL, uploads REAL,
    conditional INTEGER NOT NULL, PRIMARY KEY (plan, kind, account))""",
    """CREATE TABLE IF NOT EXISTS limits (account TEXT PRIMARY KEY, content TEXT NOT NULL)""",
)


def connect(path: Path, must_exist: bool) -> sqlite3.Connection:
    """Open a ledger's file, or make one; somebody else's database is left as it is."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    try:
        _check(connection, path, must_exist)
        connection.execute("PRAGMA synchronous=FULL")
        _turn_to_wal(connection)
    except sqlite3.Error as error:
        connection.close()
        raise DataError(f"ledger {str(path)!r} is not a readable ledger: {error}.") from None
    except DataError:
        connection.close()
        raise
    return connection


def copy(path: Path, to: Path) -> dict[int, str]:
    """Another file with the same content; the hash of every row in it. Nothing is written to the original."""
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as original,
            closing(sqlite3.connect(to)) as made,
        ):
            _check(original, path, must_exist=True)
            original.backup(made)
            return dict(made.execute("SELECT number, hash FROM rows").fetchall())
    except sqlite3.Error as error:
        raise DataError(f"ledger {str(path)!r} is not a readable ledger: {error}.") from None


def build(connection: sqlite3.Connection) -> bool:
    """Make the tables that are missing, within the caller's transaction; True where the file was a first release's."""
    old = _columns(connection) == _FIRST
    if old:
        for name in SECOND_RELEASE:
            kind = "REAL NOT NULL DEFAULT 0" if name == "rounding" else "TEXT NOT NULL DEFAULT ''"
            connection.execute(f"ALTER TABLE rows ADD COLUMN {name} {kind}")
        connection.execute("ALTER TABLE uploads RENAME TO uploads_of_the_first_release")
    connection.execute(_ROWS)
    for statement in _FOLLOWING:
        connection.execute(statement)
    if old:
        connection.execute("INSERT INTO uploads SELECT * FROM uploads_of_the_first_release")
        connection.execute("DROP TABLE uploads_of_the_first_release")
    connection.execute(f"PRAGMA user_version={VERSION}")
    return old


def _columns(connection: sqlite3.Connection) -> tuple[str, ...]:
    return tuple(column[1] for column in connection.execute("PRAGMA table_info(rows)"))


def _check(connection: sqlite3.Connection, path: Path, must_exist: bool) -> None:
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    known = {_FIRST: 0, COLUMNS: VERSION}
    if (tables or must_exist) and known.get(_columns(connection)) != version:
        raise DataError(f"{str(path)!r} is not a ledger of this version of nbafl; it was left as it is.")


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
