"""The file itself: a page for people with the content inside as one line of JSON, and a signature at its end.

    <!doctype html> … the page …
    <script type="application/json" id="nbafl-evidence">
    {"audit":…}                         one line, canonical
    </script></body></html>
    <!-- nbafl-evidence-signature
    {"key":…,"manifest":…,"signature":…}
    -->

The manifest holds a sha256 for the page and for each section of the content; the signature is over the manifest. So a
changed section is known by its name, and nothing has to be rendered to check it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbafl.errors import DataError, Refused
from nbafl.evidence import page
from nbafl.evidence.canonical import canonical, digest, sha256
from nbafl.folders.files import read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

OPEN = '<script type="application/json" id="nbafl-evidence">\n'
CLOSE = "\n</script></body></html>\n<!-- nbafl-evidence-signature\n"
END = "\n-->\n"


@dataclass(frozen=True)
class Sealed:
    """A file taken apart, not yet believed."""

    page: str
    content: dict[str, Any]
    content_text: str
    seal: dict[str, Any]


def seal(content: dict[str, Any], key: Ed25519PrivateKey) -> str:
    """The whole file."""
    from nbafl.evidence import signatures

    content = json.loads(canonical(content))  # as it will be read: names in one order
    shown = page.render(content)
    manifest = manifest_of(shown, content)
    signed = {
        "key": signatures.public_half(key),
        "manifest": manifest,
        "signature": signatures.sign(key, signatures.EVIDENCE, canonical(manifest)),
    }
    return shown + OPEN + canonical(content) + CLOSE + canonical(signed) + END


def manifest_of(shown: str, content: dict[str, Any]) -> dict[str, Any]:
    """What is signed: a digest for the page and one for each section."""
    return {
        "page": sha256(shown.encode()),
        "sections": {name: digest(value) for name, value in content.items()},
    }


def open_file(path: Path) -> Sealed:
    """Take a file apart. One that is not evidence at all is bad usage; one whose parts were changed fails the check."""
    raw = read_bytes(path)
    if raw is None:
        raise DataError(f"evidence {str(path)!r} does not exist.")
    if not any(mark.strip().encode() in raw for mark in (OPEN, CLOSE)):
        raise DataError(f"{str(path)!r} is not an evidence file of nbafl.")
    try:
        return take_apart(raw.decode())
    except (ValueError, RecursionError):
        raise Refused(f"{str(path)!r} is not evidence as nbafl writes it: its frame was changed.") from None


def take_apart(text: str) -> Sealed:
    """The parts of a file; ValueError where something stands before, after or between them."""
    shown, inner = text.split(OPEN)
    inside, sealed = inner.split(CLOSE)
    body, after = sealed.split(END)
    content, signed = json.loads(inside), json.loads(body)
    if after or not isinstance(content, dict) or not isinstance(signed, dict):
        raise ValueError("not the parts of an evidence file")
    return Sealed(shown, content, inside, signed)
