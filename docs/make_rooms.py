"""Write the picture of layers and the table of rooms in docs/architecture.md from the imports of the code.

    python docs/make_rooms.py

A room's job is written by hand and kept. All imports count, those inside functions too; only those for the type checker
do not exist when the code runs.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
ENTRANCES = {"__init__", "__main__"}
"""`nbafl` itself hands names out, and `python -m nbafl` is the command line."""
LAYERS = re.compile(r"```layers\n.*?```", re.DOTALL)
TABLE = re.compile(r"(\| room \| job \| imports of ours \| of others \|\n[| -]+\n)(.*?)\n\n", re.DOTALL)
UNKNOWN = "what is it for?"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in (ROOT / "src" / "nbafl").rglob("*.py")}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


@cache
def imports(module: str) -> frozenset[str]:
    """Every module that this one imports, at once or later."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inner if len(inner) == len(node.names) else inner | {node.module}
    return frozenset(found - {module})


@cache
def rooms_known_to() -> dict[str, set[str]]:
    """For each room the other rooms it imports."""
    known: dict[str, set[str]] = {}
    for module in MODULES:
        ours = {room(each) for each in imports(module) if each in MODULES}
        known.setdefault(room(module), set()).update(ours - {room(module), "__init__"})
    return {name: found for name, found in known.items() if name not in ENTRANCES}


def outside(name: str) -> set[str]:
    """The packages of others that a room imports."""
    found = {each.split(".")[0] for module in MODULES if room(module) == name for each in imports(module)}
    return found - set(sys.stdlib_module_names) - {"nbafl", "__future__"}


@cache
def height(name: str) -> int:
    """A room stands one line above the highest room it imports."""
    return 1 + max(map(height, rooms_known_to()[name]), default=-1)


def renewed(text: str) -> str:
    """The page with its layers and its table as the code is now."""
    known = rooms_known_to()
    order = [*TopologicalSorter(known).static_order()]  # raises CycleError with the circle in it
    levels = [sorted(name for name in known if height(name) == level) for level in range(len(order))]
    drawn = "\n".join(", ".join(line) for line in reversed(levels) if line)
    found = TABLE.search(text)
    assert found is not None
    jobs = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", found[2], re.MULTILINE))
    rows = "\n".join(_row(name, jobs.get(name, UNKNOWN)) for line in levels for name in line)
    text = TABLE.sub(lambda match: f"{match[1]}{rows}\n\n", text)
    return LAYERS.sub(lambda _: f"```layers\n{drawn}\n```", text)


def _row(name: str, job: str) -> str:
    ours = ", ".join(f"`{each}`" for each in sorted(rooms_known_to()[name])) or "–"
    return f"| `{name}` | {job} | {ours} | {', '.join(sorted(outside(name))) or '–'} |"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
