"""TOML files as people write them: read, or refused in one sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from nbafl.errors import DataError


def read(path: str | Path, what: str) -> dict[str, Any]:
    """The content of a file, not yet checked; `what` says in a refusal which file it is."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{what} {str(path)!r} does not exist.") from None
    except OSError as error:
        raise DataError(f"{what} {str(path)!r} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{what} {str(path)!r} is not valid TOML: {error}.") from None
