"""docs/architecture.md is held to the code: which rooms there are, who imports whom, and never in a circle."""

from __future__ import annotations

import importlib.util
import itertools
import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
_spec = importlib.util.spec_from_file_location("make_rooms", ROOT / "docs" / "make_rooms.py")
make_rooms = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_rooms)


def test_picture_and_table_are_those_of_the_code() -> None:
    """No room imports one of its own line or of a higher one: the lines follow from the imports, or there is none."""
    assert make_rooms.renewed(PAGE) == PAGE, "run: python docs/make_rooms.py"
    assert make_rooms.UNKNOWN not in PAGE, "say in docs/architecture.md what the new room is for"


def test_no_module_imports_itself_in_the_end() -> None:
    modules = make_rooms.MODULES
    graph = {name: (make_rooms.imports(name) & modules.keys()) - {"nbafl"} for name in modules}
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle in it


def test_the_way_of_every_verb_names_files_that_are_there() -> None:
    ways = re.search(r"## The data's way, verb by verb\n(.*?)\n## ", PAGE, re.DOTALL)
    assert ways is not None
    verbs = set(re.findall(r"^\| `(\w+)` \|", ways[1], re.MULTILINE))
    commands = {path.stem for path in (ROOT / "src" / "nbafl" / "cli").glob("*.py")}
    assert verbs == commands - {"__init__", "__main__", "help", "lines", "options", "progress", "tables"}
    named = re.findall(r"`([\w/]+\.py)`", ways[1])
    assert len(named) > 40
    for file in named:
        assert (ROOT / "src" / "nbafl" / file).is_file(), file


EARLIER = {"run": 14, "serve": 9, "reproduce": 8, "slider": 14}
"""Changes of room in 0.1.0, and files for a slider."""


def test_a_reader_changes_rooms_less_often_than_in_the_first_release() -> None:
    ways = {
        verb: re.findall(r"`([\w/]+\.py)`", row)
        for verb, row in re.findall(r"^\| `(\w+)` \|(.*)", PAGE, re.MULTILINE)
    }
    counted = {verb: _changes(ways[verb]) for verb in ("run", "serve", "reproduce")}
    counted["slider"] = ways["studio"].index("studio/cards.py") + 1
    assert all(counted[name] < EARLIER[name] for name in EARLIER), counted
    told = re.search(
        r"changes rooms (\d+) times for `run`, (\d+) for `serve` and (\d+) for `reproduce`, and reads (\d+) files",
        PAGE,
    )
    assert told is not None
    assert [int(number) for number in told.groups()] == list(counted.values())


def _changes(files: list[str]) -> int:
    rooms = [file.split("/")[0].removesuffix(".py") for file in files]
    return sum(one != other for one, other in itertools.pairwise(rooms))
