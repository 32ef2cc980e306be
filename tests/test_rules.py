"""One object per rule, one row per adversary: a fifth rule and one more adversary, each in one file, are known everywhere.

The files below are what another package would install: a module, and an entry point that names it. Nothing else changes.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nbafl import rules
from nbafl.fields import table
from nbafl.privacy import adversary

RULE = '''
"""`toy`: clients upload the sign-free mean of their records' clipped gradients, as `client` does, under another name."""

from types import MappingProxyType

from nbafl import rules
from nbafl.privacy import sensitivity
from nbafl.rules import Reach, Rule


class Toy(Rule):
    name = "toy"
    title = "Toy"
    short = "a toy that halves what it clips"
    unit = "client"
    weighting = "uniform"
    uses = frozenset({"clip"})
    pair = "nbafl.audit.pairs:whole_client"
    problems = MappingProxyType({"replace": "a toy client, turned around"})

    def sensitivity(self, plan):
        import dataclasses

        return dataclasses.replace(sensitivity.client(plan.clip, plan.clients), model=self.name)

    def reach(self, training):
        return Reach(True, training.clip)

    def upload(self, model, x, y, start, training, order=None):
        from nbafl.protocol import clip, descend

        return start + clip(descend(model, x, y, start, training, order) - start, training.clip)


rules.register(Toy())
'''
ADVERSARY = '''
"""`neighbour`: sees one upload of the target and every broadcast, and is told so everywhere."""

from nbafl.privacy.adversary import Adversary, register

register(
    Adversary(
        "nosy-neighbour",
        "Nosy neighbour",
        "broadcasts, L uploads next door",
        "every broadcast, and the uploads next door in up to L rounds",
        uploads="exposed",
        standard=True,
    )
)
'''
TOY = ("--sensitivity", "toy", "--clip", "1", "--adversary", "nosy-neighbour")
SMALL = (
    "--clients",
    "4",
    "--samples",
    "20",
    "--rounds",
    "2",
    "--model",
    "softmax",
    "--features",
    "raw",
    "--epsilon",
    "8",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """An environment in which a package with both files is installed."""
    home = tmp_path_factory.mktemp("site")
    (home / "toy_rule.py").write_text(RULE)
    (home / "toy_adversary.py").write_text(ADVERSARY)
    about = home / "toys-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[nbafl.plugins]\nrule = toy_rule\nadversary = toy_adversary\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(home), os.environ.get("PYTHONPATH", "")])}


def said(installed: dict[str, str], cwd: Path, *arguments: str) -> str:
    outcome = subprocess.run(
        [sys.executable, "-m", "nbafl.cli", *arguments],
        env=installed,
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_the_command_line_knows_both(installed, tmp_path):
    short, whole = (
        " ".join(said(installed, tmp_path, "plan", each).split()) for each in ("--help", "--help-all")
    )
    assert ", toy" in short
    assert "toy (a toy that halves what it clips)" in whole
    assert "nosy-neighbour" in short
    assert "nosy-neighbour" in whole


def test_a_plan_is_made_of_both(installed, tmp_path):
    summary = json.loads(said(installed, tmp_path, "plan", "--json", *TOY, *SMALL))
    assert summary["guarantee"]["nosy_neighbour"]["epsilon"] == pytest.approx(8, rel=1e-6)
    assert summary["claimed"]["unit"] == "client"
    assert any("the uploads next door in one round" in line for line in summary["assumptions"])
    table = said(installed, tmp_path, "plan", *TOY, *SMALL)
    assert "nosy-neighbour" in table
    assert "next door" in table


def test_a_run_trains_both_and_its_statement_and_report_name_them(installed, tmp_path):
    said(installed, tmp_path, "run", "--json", "--out", "here", *TOY, *SMALL)
    statement = json.loads((tmp_path / "here" / "privacy.json").read_text())
    assert statement["sensitivity"]["model"] == "toy"
    assert statement["adversary"]["name"] == "nosy-neighbour"
    assert "Adversary: nosy-neighbour, who sees every broadcast, and the uploads next door" in " ".join(
        statement["sentences"]
    )
    assert "nosy-neighbour" in (tmp_path / "here" / "report.html").read_text()


def test_an_audit_attacks_both(installed, tmp_path):
    found = json.loads(
        said(installed, tmp_path, "audit", "--json", "--no-pictures", "--trials", "1000", *TOY, *SMALL)
    )
    assert found["problem"] == "a toy client, turned around"
    assert "nosy_neighbour" in found["attacks"]
    assert found["verdict"] == "consistent"


STUDIO = """
from nbafl.plan import Plan
from nbafl.studio import bars, cards
from nbafl.studio.answer import answer
from nbafl.studio.draft import Draft
from nbafl.studio.fields import CHOICES

offered = {field.name: field.entry.choices() for field in CHOICES}
print(offered["sensitivity"]["toy"], offered["adversary"]["nosy-neighbour"])
draft = Draft()
for name, value in (("sensitivity", "toy"), ("adversary", "nosy-neighbour"), ("clip", "1")):
    draft.put(name, value)
reply = answer(draft.plan())
print(cards.headline(reply), bars.draw(reply), draft.command())
"""


def test_the_studio_offers_both(installed, tmp_path):
    outcome = subprocess.run(
        [sys.executable, "-c", STUDIO], env=installed, cwd=tmp_path, capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stderr
    for words in (
        "Toy: a toy that halves what it clips",
        "Nosy neighbour: sees broadcasts, L uploads next door",
        "noise made for this one",
        "--sensitivity toy",
    ):
        assert words in outcome.stdout


def test_a_plugin_that_cannot_be_loaded_is_told_and_left_out(installed, tmp_path):
    (tmp_path / "broken.py").write_text("raise ValueError('no')")
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[nbafl.plugins]\nbroken = broken\n")
    path = os.pathsep.join([str(tmp_path), installed["PYTHONPATH"]])
    outcome = subprocess.run(
        [sys.executable, "-m", "nbafl.cli", "plan", "--json", *TOY, *SMALL],
        env={**installed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0
    assert outcome.stderr == "the plugin 'broken' (broken) cannot be loaded: no\n"


ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "nbafl").rglob("*.py"))
OF_A_RULE = ("sensitivity", "rule", "model")
"""Names under which code holds the name of a rule: plan.sensitivity, training.rule, sensitivity.model."""


def _holds_a_rule(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in OF_A_RULE
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return node.slice.value in OF_A_RULE
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        return node.args[0].value in OF_A_RULE  # draft.value("sensitivity"), fields.get("sensitivity")
    return False


def _strings(node: ast.AST) -> set[str]:
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def compared_with_a_rule(source: str, names: set[str]) -> list[int]:
    """Lines that compare the name of a rule with a string, by ==, in, or match."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(_holds_a_rule, sides)) and any(_strings(side) & names for side in sides):
                found.append(node.lineno)
        if isinstance(node, ast.Match) and _holds_a_rule(node.subject):
            found.append(node.lineno)
    return found


def test_no_rules_name_is_compared_with_a_string_outside_rules():
    names = {rule.name for rule in rules.table()}
    for planted in ('plan.sensitivity == "client"', 'x = 1 if training.rule in ("paper", "client") else 2'):
        assert compared_with_a_rule(planted, names) == [1]
    assert compared_with_a_rule("match plan.sensitivity:\n    case 'paper':\n        pass", names) == [1]
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if path.parent.name != "rules"
        for line in compared_with_a_rule(path.read_text(encoding="utf-8"), names)
    }
    assert not found


def test_no_description_of_a_field_an_adversary_or_a_rule_exists_twice():
    """Not in the sources; what people read is made from the tables."""
    told = [
        *(field.about for field in table().values()),
        *(words for each in adversary.table() for words in (each.short, each.view)),
        *(words for rule in rules.table() for words in (rule.short, *rule.problems.values())),
    ]
    text = [constant for path in SOURCES for constant in _joined(path.read_text(encoding="utf-8"))]
    assert _twice(told, text) == []
    field = table()["epsilon"].about
    assert _twice(told, [*text, f"the {field}, planted"]) == [field]


def _twice(told: list[str], text: list[str]) -> list[str]:
    return [
        words
        for words in told
        if sum(words == each or (len(words) > 30 and words in each) for each in text) > 1
    ]


def _joined(source: str) -> list[str]:
    return [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_looking_at_a_plan_loads_no_torch():
    code = (
        "import sys, nbafl; nbafl.Plan().summary(); nbafl.Plan().to_toml(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
