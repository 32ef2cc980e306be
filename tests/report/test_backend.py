"""Pictures are drawn without pyplot: a reader's own choice of backend (a notebook's, say) stays as it was."""

from __future__ import annotations

from pathlib import Path

import nbafl


def test_no_room_touches_the_backend_of_whoever_imports_it() -> None:
    for path in Path(nbafl.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "matplotlib.use" not in text, path
        assert "pyplot" not in text, path
