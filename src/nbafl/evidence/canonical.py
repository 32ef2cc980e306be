"""One spelling for every JSON value, so that it can be signed and compared by its sha256."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """JSON with sorted names and no spaces; `<` is escaped, so that it may stand inside a page."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c")


def digest(value: Any) -> str:
    """sha256 of the canonical spelling."""
    return sha256(canonical(value).encode())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
