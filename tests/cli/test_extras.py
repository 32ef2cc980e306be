"""What a verb needs: an extra that is not installed is named, and planning needs neither extras nor torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("flwr", "cryptography", "nicegui", "fastapi", "starlette"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from nbafl.cli import run_command
sys.exit(run_command(sys.argv[1:]))
"""


def _nbafl(tmp_path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("studio",), "studio"),
        (("keys", "make", "key"), "flower"),
        (("serve", "--prepare", "--home", "x"), "flower"),
    ],
)
def test_a_verb_without_its_extra_names_it(tmp_path, words, extra):
    outcome = _nbafl(tmp_path, *words)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("nbafl: This needs ")
    assert outcome.stderr.endswith(f"pip install 'nbafl[{extra}]'.\n")
    assert outcome.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_planning_needs_no_extra(tmp_path):
    assert _nbafl(tmp_path, "plan", "--json").returncode == 0


def test_planning_does_not_wait_for_torch(tmp_path):
    code = "import sys; from nbafl.cli import run_command; run_command(['plan']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True).returncode == 0
