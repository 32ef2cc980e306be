"""Trying something out on a ledger and keeping none of it: the ledger's own file gets no row and no limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nbafl.privacy import anchor
from nbafl.privacy.ledger.book import Ledger


@contextmanager
def rehearsal(path: Path) -> Iterator[Ledger]:
    """A copy of the ledger at `path`, or a new one where there is none; it is gone after the block.

    The original is opened and verified first, with its anchor, so that whatever would stop a release stops this too.
    """
    with TemporaryDirectory(prefix="nbafl-check-") as scratch:
        copy, anchors = Path(scratch) / path.name, Path(scratch) / "anchors"
        known = path.is_file()
        if known:
            _copy(path, copy)
        else:
            anchor.check_nothing_was_here(anchor.default_folder(), path.absolute())
        ledger = Ledger(copy, anchors, adopt=known)
        try:
            yield ledger
        finally:
            ledger.close()


def _copy(path: Path, copy: Path) -> None:
    original = Ledger(path, must_exist=True)
    try:
        original.verify()
        original.execute("VACUUM INTO ?", (str(copy),))
    finally:
        original.close()
