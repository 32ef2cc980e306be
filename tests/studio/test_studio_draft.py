"""A draft, its link and its command line are the same plan."""

from __future__ import annotations

import json
import shlex
from urllib.parse import parse_qsl

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.cli import run_command
from nbafl.errors import UsageError
from nbafl.fields import table
from nbafl.plan import Plan
from nbafl.presets import PRESETS
from nbafl.protocol.proximal import bounded
from nbafl.studio import fields
from nbafl.studio.draft import Draft, Unfit

PLANS = st.fixed_dictionaries(
    {},
    optional={
        "epsilon": st.floats(0.01, 500),
        "delta": st.floats(1e-9, 0.1),
        "clients": st.integers(5, 60),
        "per_round": st.integers(1, 5),
        "rounds": st.integers(4, 40),
        "exposures": st.integers(1, 4),
        "samples": st.integers(1, 2000),
        "clip": st.floats(0.01, 50),
        "calibration": st.sampled_from(["paper", "separate", "exact"]),
        "adversary": st.sampled_from(["broadcast", "targeted", "curious-server", "colluders:2"]),
        "sensitivity": st.sampled_from(["paper", "client", "gradient"]),
        "model": st.sampled_from(["mlp", "softmax"]),
        "noise": st.booleans(),
        "seed": st.integers(0, 1000),
    },
)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(fields=PLANS)
def test_a_link_brings_the_same_plan_back(fields: dict) -> None:
    plan = Plan(**fields)
    draft = Draft.from_plan(plan)
    if plan.per_round == plan.clients:  # K = N is shown as what it is: everyone
        plan = Plan(**{**fields, "per_round": None})
    assert draft.plan() == plan
    assert Draft.from_query(dict(parse_qsl(draft.query()))).plan() == plan


@pytest.mark.parametrize(
    "fields", [{}, PRESETS["paper"], {"sensitivity": "client", "epsilon": 8.0, "delta": 1e-5}]
)
def test_the_command_line_gives_the_numbers_of_the_draft(fields: dict, capsys: pytest.CaptureFixture) -> None:
    draft = Draft.from_plan(Plan(**fields))
    words = shlex.split(draft.command("plan"))
    assert words[:2] == ["nbafl", "plan"]
    assert run_command([*words[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(draft.plan().summary()))


def test_noise_that_is_off_is_an_option_without_a_value() -> None:
    draft = Draft()
    draft.put("noise", "false")
    assert draft.command() == "nbafl run --no-noise"


def test_a_value_back_at_its_default_is_not_in_the_link() -> None:
    draft = Draft()
    draft.put("epsilon", "8")
    draft.put("epsilon", "1")
    draft.put("batch", "")
    assert draft.query() == ""
    assert draft.plan() == Plan()


def test_nonsense_stays_an_error_at_its_field_until_it_is_changed() -> None:
    draft = Draft()
    draft.put("epsilon", "lots")
    draft.put("clients", "20")
    with pytest.raises(Unfit, match="epsilon must be a number, got 'lots'") as refusal:
        draft.plan()
    assert refusal.value.field == "epsilon"
    draft.put("epsilon", "3")
    assert draft.plan() == Plan(epsilon=3, clients=20)


def test_impossible_values_are_refused_by_the_plan_itself() -> None:
    draft = Draft()
    draft.put("delta", "2")
    with pytest.raises(UsageError, match="delta") as refusal:
        draft.plan()
    assert refusal.value.field == "delta"


def test_k_and_l_follow_n_and_t_and_come_back() -> None:
    draft = Draft.from_plan(Plan(clients=50, per_round=30, rounds=20, exposures=8))
    draft.put("clients", "10")
    draft.put("rounds", "5")
    assert draft.plan() == Plan(clients=10, rounds=5, exposures=5)
    draft.put("clients", "50")
    draft.put("rounds", "20")
    assert draft.plan() == Plan(clients=50, per_round=30, rounds=20, exposures=8)


@pytest.mark.parametrize(("name", "value"), [("per_round", "51"), ("exposures", "5000"), ("per_round", "0")])
def test_k_above_n_and_l_above_t_are_refused_when_asked_for(name: str, value: str) -> None:
    draft = Draft()
    draft.put(name, value)
    with pytest.raises(Unfit, match=name):
        draft.plan()


def test_a_sensitivity_model_brings_what_it_needs_and_says_so() -> None:
    draft = Draft()
    draft.put("model", "mlp")
    draft.put("sensitivity", "proximal")
    assert "softmax" in (draft.settle() or "")
    proposed = draft.plan().feature_norm
    assert bounded(torch.ones(1, 3), proposed).norm() <= proposed * (
        1 + 1e-6
    )  # R = 1 leaves no room for features
    draft.put("local_steps", "4")
    draft.put("sensitivity", "gradient")
    assert "local steps to 1" in (draft.settle() or "")
    assert draft.plan().local_steps == 1
    draft.put("sensitivity", "client")
    draft.put("adjacency", "drop")
    assert draft.settle() is None
    draft.put("sensitivity", "paper")
    assert "neighbours" in (draft.settle() or "")
    assert draft.plan().adjacency == "replace"


@pytest.mark.parametrize(("name", "value"), [("clients", "99999999"), ("rounds", "100000000")])
def test_sizes_that_no_machine_can_hold_are_refused_at_once(name: str, value: str) -> None:
    draft = Draft()
    draft.put(name, value)
    with pytest.raises(UsageError, match=f"{name} must be at most"):
        draft.plan()


def test_every_field_of_a_plan_has_its_place_on_the_page() -> None:
    folded = [each.name for inside in fields.FOLDED.values() for each in inside]
    front = [each.name for each in (*fields.SLIDERS, *fields.CHOICES)]
    assert sorted(folded + front) == sorted(table())
    assert fields.options(table()["task"])[""] == "as the data say"
    assert fields.options(table()["noise"]) == {"true": "On", "false": "Off"}
    assert fields.options(table()["server_momentum"]) == {}


def test_a_link_with_nonsense_opens_with_a_sentence() -> None:
    draft = Draft.from_query({"epsilon": "-", "utm_source": "mail"})
    assert set(draft.errors) == {"epsilon"}
