"""The Plan: what it refuses, what it derives, and that it survives being written down."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.errors import NbaflError, UsageError
from nbafl.plan import Plan

IMPOSSIBLE = [
    ({"epsilon": 0}, "epsilon"),
    ({"epsilon": -1}, "epsilon"),
    ({"epsilon": math.nan}, "epsilon"),
    ({"epsilon": math.inf}, "epsilon"),
    ({"delta": 0}, "delta"),
    ({"delta": 1}, "delta"),
    ({"clients": 0}, "clients"),
    ({"rounds": 0}, "rounds"),
    ({"per_round": 0}, "per_round"),
    ({"clients": 10, "per_round": 11}, "per_round"),
    ({"rounds": 5, "exposures": 6}, "exposures"),
    ({"exposures": 0}, "exposures"),
    ({"clip": 0}, "clip"),
    ({"samples": 0}, "samples"),
    ({"sizes": (5, 0)}, "sizes"),
    ({"clients": 3, "sizes": (5, 5)}, "sizes"),
    ({"adversary": "nobody"}, "adversary"),
    ({"adversary": "colluders:x"}, "adversary"),
    ({"calibration": "magic"}, "calibration"),
    ({"sensitivity": "none"}, "sensitivity"),
    ({"adjacency": "drop"}, "adjacency"),
    ({"sensitivity": "gradient", "local_steps": 2}, "local_steps"),
    ({"sensitivity": "gradient", "batch": 10}, "batch"),
    ({"sensitivity": "proximal"}, "model"),
    ({"sensitivity": "proximal", "model": "softmax"}, "feature_norm"),
    ({"sensitivity": "proximal", "model": "softmax", "feature_norm": 1.5, "mu": 0, "tolerance": 1e-3}, "mu"),
    ({"sensitivity": "proximal", "model": "softmax", "feature_norm": 1.5, "lr": 100.0}, "lr"),
    ({"seed": -1}, "seed"),
    ({"lr": "fast"}, "lr"),
    ({"clents": 50}, "clents"),
]


@pytest.mark.parametrize(("fields", "named"), IMPOSSIBLE, ids=lambda value: str(value))
def test_what_cannot_be_is_refused_in_one_sentence_that_names_the_field(fields, named):
    with pytest.raises(UsageError) as refusal:
        Plan(**fields)
    sentence = str(refusal.value)
    assert named in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_the_papers_sensitivity_is_labelled_and_never_refused():
    summary = Plan(sensitivity="paper", local_steps=50, batch=3).summary()
    assert summary["conditional"] is True
    conditional, honest = summary["guarantee"], summary["unconditional"]
    for name in conditional:
        assert honest[name]["epsilon"] > conditional[name]["epsilon"]
    assert any("conditional" in warning for warning in summary["warnings"])


@pytest.mark.parametrize(
    "fields",
    [
        {"sensitivity": "gradient"},
        {"sensitivity": "client", "adjacency": "drop"},
        {"sensitivity": "proximal", "model": "softmax", "feature_norm": 1.5, "tolerance": 1e-3},
        {"sensitivity": "proximal", "model": "softmax", "feature_norm": 1.5, "mu": 0.1},
    ],
)
def test_a_proven_sensitivity_is_not_conditional(fields):
    summary = Plan(**fields).summary()
    assert summary["conditional"] is False
    assert summary["unconditional"] == summary["guarantee"]


def test_gradient_sensitivity_takes_one_local_step_by_default():
    assert Plan(sensitivity="gradient").local_steps == 1


def test_without_noise_nothing_is_guaranteed():
    summary = Plan(noise=False).summary()
    assert all(entry["epsilon"] is None for entry in summary["guarantee"].values())
    assert summary["noise"]["sigma_aggregate"] == 0
    assert summary["claimed"]["epsilon"] is None
    assert any("nothing is guaranteed" in warning for warning in summary["warnings"])


def test_unequal_clients_get_their_own_noise_and_the_claim_still_holds():
    plan = Plan(sizes=(50, 100, 400), epsilon=5.0, delta=1e-3)
    summary = plan.summary()
    assert len(summary["noise"]["sigma_uplink"]) == 3
    assert summary["guarantee"]["eavesdropper"]["epsilon"] == pytest.approx(5.0, rel=1e-6)
    assert summary["sensitivity"]["downlink"] == pytest.approx(2 * plan.clip / 550)


def test_weights_are_equal_where_a_whole_client_is_protected():
    plan = Plan(sizes=(10, 90), sensitivity="client")
    assert np.allclose(plan.client_weights, 0.5)
    assert np.allclose(Plan(sizes=(10, 90)).client_weights, [0.1, 0.9])


plans = st.fixed_dictionaries(
    {
        "clients": st.integers(2, 200),
        "rounds": st.integers(2, 200),
        "samples": st.integers(1, 500),
        "epsilon": st.floats(0.01, 200),
        "delta": st.floats(1e-9, 0.5),
        "calibration": st.sampled_from(["paper", "separate", "exact"]),
        "adversary": st.sampled_from(["eavesdropper", "targeted", "broadcast", "curious-server"]),
        "clip": st.floats(0.1, 100),
        "mu": st.floats(0, 10),
        "target": st.one_of(st.none(), st.text(min_size=1, max_size=8)),
        "noise": st.booleans(),
        "seed": st.integers(0, 1000),
    }
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plans)
def test_toml_brings_a_plan_back_whole(tmp_path_factory, fields):
    plan = Plan(**fields)
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_text(plan.to_toml(), encoding="utf-8")
    again = Plan.from_toml(path)
    assert again == plan
    assert again.digest() == plan.digest()


def test_the_digest_tells_plans_apart():
    assert Plan(epsilon=1).digest() != Plan(epsilon=2).digest()


def test_every_field_is_documented_and_stands_in_the_toml():
    text = Plan().to_toml()
    for name, field in Plan.model_fields.items():
        assert field.description
        assert f"# {field.description}" in text
        assert name in text


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plans)
def test_the_summary_is_json_and_exact_calibration_keeps_its_claim(fields):
    plan = Plan(**fields)
    summary = plan.summary()
    json.dumps(summary, allow_nan=False)
    if plan.noise and plan.calibration == "exact":
        key = plan.adversary.replace("-", "_")
        assert summary["guarantee"][key]["epsilon"] == pytest.approx(plan.epsilon, rel=1e-6)


def test_epsilon_so_far_grows_to_the_claim():
    plan = Plan(epsilon=8, delta=1e-3, rounds=10)
    spent = [plan.epsilon_after(done) for done in range(11)]
    assert spent[0] == 0
    assert all(before < after for before, after in itertools.pairwise(spent))
    assert spent[-1] == pytest.approx(8, rel=1e-6)


@pytest.mark.parametrize(
    ("content", "said"),
    [("epsilon = ", "not valid TOML"), ("epsilon = -3", "epsilon"), ("colour = 'red'", "colour")],
)
def test_a_bad_plan_file_is_one_sentence(tmp_path, content, said):
    path = tmp_path / "plan.toml"
    path.write_text(content)
    with pytest.raises(NbaflError, match=said):
        Plan.from_toml(path)


def test_a_missing_plan_file_is_one_sentence(tmp_path):
    with pytest.raises(NbaflError, match="does not exist"):
        Plan.from_toml(tmp_path / "none.toml")
