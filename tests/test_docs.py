"""The documentation is held to what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nbafl.plan import Plan

ROOT = Path(__file__).parent.parent


def test_the_reference_names_every_field_of_a_plan():
    text = (ROOT / "docs" / "reference.md").read_text()
    for name in Plan.model_fields:
        assert re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize(
    ("page", "prints"), [("README.md", "report.html"), ("docs/howto-data.md", "'delta': 1e-05")]
)
def test_python_in_the_docs_runs_as_written(tmp_path, page, prints):
    snippet = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL).group(1)
    outcome = subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert prints in outcome.stdout


def test_links_between_documents_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
