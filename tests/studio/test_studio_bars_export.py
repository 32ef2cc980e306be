"""The bars taken along: every digit of the plan's numbers, and what they are about."""

from __future__ import annotations

import csv
import io
from xml.etree import ElementTree

import pytest
from tests.paper_setting import Plan

from nbafl.studio.answer import answer
from nbafl.studio.bars_export import as_csv, as_svg
from nbafl.studio.wording import short

PLANS = [
    Plan(sensitivity="paper", epsilon=60),
    Plan(sensitivity="gradient", calibration="exact", epsilon=1, delta=1e-5, samples=1200),
    Plan(sensitivity="client", calibration="exact", adversary="colluders:3", epsilon=8, delta=1e-6),
    Plan(noise=False),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.sensitivity}-{plan.noise}")
def test_the_table_has_the_numbers_of_the_plan_with_delta_and_unit(plan: Plan) -> None:
    found, summary = list(csv.DictReader(io.StringIO(as_csv(answer(plan))))), plan.summary()
    kinds = {"guarantee": "this plan", "unconditional": "this plan, from clipping alone"}
    for kind, label in kinds.items():
        rows = [
            row for row in found if (row["series"] == kinds["unconditional"]) == (kind == "unconditional")
        ]
        shown = {row["adversary"]: float(row["epsilon"]) for row in rows if row["series"].startswith(label)}
        assert bool(shown) == (kind == "guarantee" or summary["conditional"])
        for who in plan.adversaries() if shown else ():
            told = summary[kind][who.key]["epsilon"]
            assert shown[who.name] == (float("inf") if told is None else told)
    assert {(float(row["delta"]), row["unit"]) for row in found} == {(plan.delta, summary["claimed"]["unit"])}
    assert all(each in found[0]["assumptions"] for each in summary["assumptions"])


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.sensitivity}-{plan.noise}")
def test_the_picture_is_sound_and_says_what_it_is_about(plan: Plan) -> None:
    root = ElementTree.fromstring(as_svg(answer(plan)))
    words = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    told = " ".join(words)
    for who in plan.adversaries():
        assert who.heading in words
        assert f"sees {who.short}" in told
        assert short(plan.summary()["guarantee"][who.key]["epsilon"]) in words
    assert f"ε at δ = {short(plan.delta)}, per {plan.summary()['claimed']['unit']}" in told
    assert all(each in told for each in plan.summary()["assumptions"])
    assert all(len(each) <= 50 for each in words if each.startswith("sees ")), "the bars begin there"
    width = float(root.get("width") or 0)
    assert all(float(each.get("x") or 0) <= width for each in root.iter())
