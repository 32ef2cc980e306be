"""Trying something out on a ledger and keeping none of it: the ledger's own file is read, and nothing is written to it.

Not even what every ordinary opening writes: a ledger of the first release stays one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nbafl.errors import Refused
from nbafl.privacy import anchor
from nbafl.privacy.ledger import schema
from nbafl.privacy.ledger.book import Ledger


@contextmanager
def rehearsal(path: Path) -> Iterator[Ledger]:
    """A copy of the ledger at `path`, or a new one where there is none; it is gone after the block.

    The copy is verified, and held against the anchor of the original, so that whatever would stop a release stops this
    too.
    """
    with TemporaryDirectory(prefix="nbafl-check-") as scratch:
        copy, anchors, known = Path(scratch) / path.name, Path(scratch) / "anchors", path.is_file()
        if known:
            hashes = schema.copy(path, copy)
            first, last = hashes.get(0, ""), max(hashes, default=0)
            anchor.check(anchor.default_folder(), path.absolute(), first, last, hashes.get)
        else:
            anchor.check_nothing_was_here(anchor.default_folder(), path.absolute())
        ledger = _opened(copy, anchors, path) if known else Ledger(copy, anchors)
        try:
            yield ledger
        finally:
            ledger.close()


def _opened(copy: Path, anchors: Path, original: Path) -> Ledger:
    """The copy, verified; what is wrong with it is told of the file that its owner knows."""
    try:
        ledger = Ledger(copy, anchors, adopt=True)
        try:
            ledger.verify()
        except BaseException:
            ledger.close()
            raise
    except Refused as error:
        raise Refused(str(error).replace(repr(str(copy)), repr(str(original.absolute())))) from None
    return ledger
