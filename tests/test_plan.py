"""The Plan: what it refuses, what it derives, and that it survives being written down."""

from __future__ import annotations

import itertools
import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.paper_setting import Plan

import nbafl.plan
from nbafl import aggregation
from nbafl.errors import NbaflError, UsageError
from nbafl.fields import table
from nbafl.presets import PRESETS
from nbafl.privacy import adversary

IMPOSSIBLE = [
    ({"epsilon": 0}, "epsilon"),
    ({"epsilon": -1}, "epsilon"),
    ({"epsilon": math.nan}, "epsilon"),
    ({"epsilon": math.inf}, "epsilon"),
    ({"epsilon": 1e10}, "epsilon"),
    ({"delta": 0}, "delta"),
    ({"delta": 1e-310}, "delta"),
    ({"delta": 1}, "delta"),
    ({"clients": 0}, "clients"),
    ({"rounds": 0}, "rounds"),
    ({"per_round": 0}, "per_round"),
    ({"clients": 10, "per_round": 11}, "per_round"),
    ({"rounds": 5, "exposures": 6}, "exposures"),
    ({"exposures": 0}, "exposures"),
    ({"exposures": 10**20}, "exposures"),
    ({"clip": 0}, "clip"),
    ({"record_clip": 0}, "record_clip"),
    ({"record_clip": 1e-308}, "record_clip"),
    ({"samples": 0}, "samples"),
    ({"sizes": (5, 0)}, "sizes"),
    ({"clients": 3, "sizes": (5, 5)}, "sizes"),
    ({"adversary": "nobody"}, "adversary"),
    ({"adversary": "colluders:x"}, "adversary"),
    ({"clients": 4, "adversary": "colluders:4"}, "adversary"),
    ({"clients": 4, "adversary": "curious-server:4"}, "adversary"),
    ({"calibration": "magic"}, "calibration"),
    ({"sensitivity": "none"}, "sensitivity"),
    ({"adjacency": "drop"}, "adjacency"),
    ({"sensitivity": "gradient", "local_steps": 2}, "local_steps"),
    ({"sensitivity": "gradient", "batch": 10}, "batch"),
    ({"sensitivity": "proximal"}, "model"),
    ({"sensitivity": "proximal", "model": "softmax"}, "feature_norm"),
    ({"sensitivity": "proximal", "model": "softmax", "feature_norm": 1.5, "mu": 0, "tolerance": 1e-3}, "mu"),
    ({"sensitivity": "proximal", "model": "softmax", "feature_norm": 1.5, "lr": 100.0}, "lr"),
    ({"sensitivity": "proximal", "model": "softmax", "feature_norm": 1.0}, "feature_norm"),
    ({"sensitivity": "proximal", "model": "softmax", "feature_norm": 1e308}, "feature_norm"),
    ({"clients": 99_999_999}, "clients"),
    ({"rounds": 100_000_000}, "rounds"),
    ({"clients": 10**400}, "clients"),
    ({"samples": 10**400}, "samples"),
    ({"seed": -1}, "seed"),
    ({"lr": "fast"}, "lr must be a valid number"),
    ({"lr": math.inf}, "lr must be a finite number"),
    ({"clents": 50}, "clents"),
    (
        {"continues": [{"plan": "a", "model": "b", "rounds": 3, "cost": {}}]},
        "continues.0.exposures must be given",
    ),
    ({"continues": [dict.fromkeys(("plan", "model", "rounds", "exposures", "cost", "more"))]}, "continues.0"),
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


def test_a_plan_that_says_nothing_holds_and_is_the_private_preset():
    plan = nbafl.plan.Plan()
    assert plan == nbafl.plan.Plan(**PRESETS["private"])
    assert (plan.epsilon, plan.delta, plan.sensitivity) == (1.0, 1e-5, "gradient")
    assert not plan.rule.conditional
    assert nbafl.plan.Plan(dataset="a/folder").features == "raw"


def test_a_plan_file_of_the_first_release_keeps_its_defaults(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text("epsilon = 8.0\n")
    assert nbafl.plan.Plan.from_toml(path) == Plan(epsilon=8.0)
    path.write_text("version = 2\nepsilon = 8.0\n")
    assert nbafl.plan.Plan.from_toml(path) == nbafl.plan.Plan(epsilon=8.0)


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


@pytest.mark.parametrize(
    "other",
    [{"device": "cpu"}, {"engine": "vmap"}, {"eval_every": 7}, {"dataset": "a/folder"}, {"test": "t.csv"}],
)
def test_the_digest_covers_the_promise_and_not_how_it_is_computed(other):
    plan, changed = Plan(), Plan(**other)
    assert plan.digest() == changed.digest()
    assert plan != changed
    assert plan.legacy_digest() != changed.legacy_digest()


PROMISED = [
    name for name, field in table().items() if field.entry.promise and name not in aggregation.FIELDS
]  # these count only where sums are masked


@pytest.mark.parametrize("name", PROMISED)
def test_the_digest_covers_every_field_of_the_promise(name):
    plan = Plan()
    altered = plan.model_copy(update={name: f"not {getattr(plan, name)}"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic notices that this is no plan
        assert altered.digest() != plan.digest()


def test_every_field_is_documented_and_stands_in_the_toml():
    text = Plan().to_toml()
    for name, field in table().items():
        assert field.about
        assert field.entry.label
        assert f"# {field.sentence}\n" in text
        assert name in text


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plans)
def test_the_summary_is_json_and_exact_calibration_keeps_its_claim(fields):
    plan = Plan(**fields)
    summary = plan.summary()
    json.dumps(summary, allow_nan=False)
    if plan.noise and plan.calibration == "exact":
        key = adversary.parse(plan.adversary).key
        assert summary["guarantee"][key]["epsilon"] == pytest.approx(plan.epsilon, rel=1e-6)


def test_a_fellow_client_is_priced_like_everybody_else():
    """Issue 10.6: with N=2, T=40 and a plan of epsilon 8 the other hospital gets about 12."""
    plan = Plan(clients=2, rounds=40, epsilon=8, delta=1e-5)
    guarantee = plan.summary()["guarantee"]
    assert guarantee["eavesdropper"]["epsilon"] == pytest.approx(8, rel=1e-6)
    assert guarantee["colluders_1"]["epsilon"] == pytest.approx(12, rel=0.05)
    assert "against colluders:1" in " ".join(plan.statement("0" * 64, 1).sentences())


@pytest.mark.filterwarnings(
    "error",
    # What the garbage collector finds of earlier tests while this one runs is not the plan's word.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize(("clients", "accomplices"), [(50, 50), (50, 999), (3, 5)])
def test_more_colluders_than_clients_are_the_adversarys_fault_without_a_warning(clients, accomplices):
    """The settings that were left out are fitted first: that must not fail in another field's name."""
    with pytest.raises(UsageError, match=r"^adversary must be one with fewer accomplices"):
        nbafl.plan.Plan(clients=clients, sensitivity="gradient", adversary=f"colluders:{accomplices}")


def test_a_client_alone_has_no_fellow():
    plan = Plan(clients=1)
    assert plan.summary()["guarantee"]["colluders_1"]["epsilon"] is None
    assert "colluders" not in " ".join(plan.statement("0" * 64, 1).sentences())


def test_accomplices_of_a_server_that_sees_every_upload_change_nothing():
    alone, helped = (Plan(adversary=name) for name in ("curious-server", "curious-server:3"))
    assert alone.summary()["noise"] == helped.summary()["noise"]
    assert helped.guarantees()["curious_server_3"] == alone.guarantees()["curious_server"]


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


def test_delta_is_held_against_the_largest_client() -> None:
    """Releasing one of m records outright is (0, 1/m)-private: the client with most records decides."""
    warned = Plan(sizes=(50, 1000), sensitivity="gradient", delta=0.005).warnings()
    assert any("delta 0.005 is not below 1/m = 0.001 of the largest client" in each for each in warned)
    quiet = Plan(sizes=(50, 1000), sensitivity="gradient", delta=5e-4).warnings()
    assert not any("1/m" in each for each in quiet)


def test_a_statement_names_metrics_that_are_not_covered() -> None:
    told = Plan(sensitivity="gradient").statement("0" * 64, 1).to_dict()["not_covered"]
    assert any("clipped and their norm before noise" in each for each in told)
