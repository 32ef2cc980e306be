"""The browser that tests use: one that is installed, or playwright's own. As a script: one line where there is none.

Set NBAFL_BROWSER to use another Chromium. Nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "microsoft-edge",
    "brave-browser",
)


def find() -> str | None:
    """Its path; None where there is none."""
    asked = os.environ.get("NBAFL_BROWSER")
    if asked:
        return shutil.which(asked)
    return next((path for name in NAMES if (path := shutil.which(name))), None) or _of_playwright()


def _of_playwright() -> str | None:
    """The one that `playwright install chromium` keeps, without starting playwright."""
    home = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright"
    found = sorted(Path(home).glob("chromium-*/chrome-linux*/chrome"))
    return str(found[-1]) if found else None


if __name__ == "__main__" and find() is None:
    sys.exit(
        "The browser tests need Chromium: install chromium or google-chrome, run `.venv/bin/playwright install "
        "chromium`, or leave them out with `make test-fast`."
    )
