"""Run the notebooks from a clean kernel and keep what they print and draw: python docs/run_notebooks.py [NAME ...]

CI runs them the same way and compares nothing but that they end well and draw something (`tests/e2e/test_notebooks.py`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).parent / "notebooks"
LIMIT = 1800
"""Seconds a cell may take; far more than any needs, so that a busy machine fails nothing."""


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook after all its cells were run in `folder`; CellExecutionError where one fails."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # `!nbafl` is the one beside this Python
    environment = {**os.environ, "PATH": tools, "COLUMNS": "110"}
    # Sockets in a folder: a port that was chosen for a kernel can be taken by others before the kernel listens on it.
    with tempfile.TemporaryDirectory(prefix="nbafl-", dir="/tmp") as sockets:
        client = NotebookClient(
            notebook,
            timeout=LIMIT,
            startup_timeout=LIMIT,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            config=Config({"ConnectionFileMixin": {"transport": "ipc", "ip": f"{sockets}/kernel"}}),
        )
        client.execute(env=environment)
    return notebook


def pictures(notebook: nbformat.NotebookNode) -> int:
    """How many pictures its cells drew."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


if __name__ == "__main__":
    for file in sorted(FOLDER.glob("*.ipynb")):
        if sys.argv[1:] and file.stem not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            nbformat.write(execute(file, Path(scratch)), file)
        print(file.name)
