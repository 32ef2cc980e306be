"""The first screen of a report: five plain lines with the facts of this very run."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
from scipy.stats import norm
from tests.paper_setting import Plan

import nbafl
from nbafl.cli.run import three_lines
from nbafl.privacy import accounting, adversary
from nbafl.privacy.badges import percent
from nbafl.privacy.gaussian import gdp_mu
from nbafl.privacy.scope import Scope
from nbafl.report.front import five_lines
from nbafl.run.facts import of_federation


def run_of(tmp_path, **fields) -> nbafl.Run:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(30, 4)).astype(np.float32), rng.integers(0, 2, 30)) for _ in range(3)]
    federation = nbafl.Federation.from_arrays(clients, names=["north", "south", "west"])
    plan = Plan(
        **{"clients": 3, "samples": 30, "rounds": 3, "sensitivity": "gradient", "model": "softmax", **fields}
    )
    return nbafl.simulate(plan, federation, out=tmp_path / "run")


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_five_lines_say_who_what_against_whom_how_strongly_and_where(tmp_path, epsilon):
    run = run_of(tmp_path, epsilon=epsilon, delta=1e-5)
    lines = five_lines(run.plan, run.facts, run.privacy)
    assert [label for label, _ in lines] == ["Who", "Data", "Protected", "How strongly", "Where and when"]
    assert "3 clients (north, south, west)" in lines[0][1]
    assert "given from Python" in lines[1][1]
    # The best guess between two equally likely values is right with probability Phi(mu/2).
    best = norm.cdf(gdp_mu(epsilon, 1e-5) / 2)
    told = re.search(r"can be right ([0-9.]+)% of the time; a coin, 50%", lines[3][1])
    assert 0 <= float(told[1]) - 100 * best < 0.1  # a bound is never rounded down
    assert "simulation" in lines[4][1]
    assert not re.search("[δσμΔ√≤∞]|delta|sigma|L =", " ".join(line for _, line in lines))
    page = (run.path / "report.html").read_text()
    assert all(line.split(":")[0] in page for _, line in lines)
    assert page.index("Where and when") < page.index("<details>")
    assert "Gradients of records that were clipped" in page
    assert "Uploads that were clipped" not in page
    assert "<li>timing, message sizes" in page


def test_with_some_drawn_the_eavesdropper_is_not_called_one_who_hears_every_client():
    """N = 2000, K = 3, T = 1000, L = 1, claimed 1: one upload of each client, at any time, gives 1.188 at least."""
    fields = {"clients": 2000, "samples": 100, "rounds": 1000, "sensitivity": "gradient", "model": "softmax"}
    some = Plan(**fields, per_round=3, epsilon=1.0, delta=1e-5, adversary="eavesdropper")
    worth = accounting.epsilon_spent(some.release(), some.noise_scales(), adversary.EAVESDROPPER_SPREAD, 1e-5)
    assert worth > 1.188
    lines = dict(five_lines(some, None, some.statement("0" * 64, 10).to_dict()))
    assert "of each client" not in lines["Protected"].partition("against")[2]
    assert (
        "up to 1 upload of one client, and the others' uploads in up to 1 further round" in lines["Protected"]
    )
    spread = some.with_fields(adversary="eavesdropper-spread", rounds=5)
    lines = dict(five_lines(spread, None, spread.statement("0" * 64, 10).to_dict()))
    assert "up to 1 upload of each client, at times of its choice" in lines["Protected"]
    everyone = Plan(clients=3, rounds=5, exposures=2, epsilon=1.0, adversary="eavesdropper")
    lines = dict(five_lines(everyone, None, everyone.statement("0" * 64, 10).to_dict()))
    assert "up to 2 uploads of each client" in lines["Protected"]
    assert "of each client" not in adversary.EAVESDROPPER.short


def test_masked_uploads_are_not_called_seen():
    plan = Plan(
        clients=10, rounds=4, samples=50, sensitivity="gradient", lr=0.5, epsilon=4.0, delta=1e-5, model="softmax",
        features="raw", aggregation="secure", adversary="curious-server", min_answers=8,
    )  # fmt: skip
    lines = dict(five_lines(plan, None, plan.statement("0" * 64, 10).to_dict()))
    assert "uploads are masked, and only sums of at least 8 of them open" in lines["Protected"]


def test_a_federations_data_are_the_clients_own_tables():
    """It said "Tables of the clients' own tables"."""
    plan = Plan(
        clients=2, samples=30, dataset="hospital", target="ill", sensitivity="gradient", model="softmax"
    )
    made = of_federation(plan, ("north", "south"), "binary", (4,), 1, None)
    told = dict(five_lines(plan, made, plan.statement("0" * 64, 5, simulated=False).to_dict()))
    assert told["Data"].startswith("The clients' own tables; ")


@pytest.mark.parametrize(("folder", "told"), [("data/hospital", "hospital"), (".", "one folder")])
def test_tables_in_the_folder_where_it_was_started_are_of_a_folder_too(tmp_path, folder, told):
    """It said "Tables of ; from the columns"."""
    run = run_of(tmp_path)
    facts = dataclasses.replace(run.facts, data=folder)
    assert dict(five_lines(run.plan, facts, run.privacy))["Data"].startswith(f"Tables of {told}")


def test_without_noise_nothing_is_promised(tmp_path):
    run = run_of(tmp_path, noise=False)
    lines = dict(five_lines(run.plan, run.facts, run.privacy))
    assert lines["Protected"].startswith("Nothing")
    assert lines["How strongly"].startswith("Not at all")
    assert math.isclose(run.privacy["best_guess"] or 1.0, 1.0)


def test_a_federations_statement_has_no_seed_clause(tmp_path):
    plan = run_of(tmp_path).plan
    federated = plan.statement("0" * 64, 10, simulated=False).to_dict()
    assert not any("seed" in each for each in federated["not_covered"])
    assert any("seed" in each for each in plan.statement("0" * 64, 10).to_dict()["not_covered"])


def lines_of(plan: Plan) -> dict[str, str]:
    return dict(five_lines(plan, None, plan.statement("0" * 64, 10).to_dict()))


def test_a_client_left_out_is_asked_for_as_such():
    """At adjacency drop mu is of there or not there; which of two values a client had is twice as far apart."""
    fields = {
        "clients": 5,
        "samples": 40,
        "rounds": 3,
        "sensitivity": "client",
        "clip": 0.5,
        "epsilon": 2,
        "delta": 1e-5,
    }
    dropped = lines_of(Plan(**fields, adjacency="drop", adversary="curious-server"))
    best = norm.cdf(gdp_mu(2, 1e-5) / 2)
    assert (
        f"asked whether a client's data were there, the best guess can be right {percent(best)}"
        in dropped["How strongly"]
    )
    assert dropped["Protected"].startswith("The presence of each client's data")
    replaced = lines_of(Plan(**fields, adversary="curious-server"))
    assert "asked which of two possible clients was used" in replaced["How strongly"]
    assert replaced["Protected"].startswith("Each client with all of its records")


def test_persons_are_those_of_one_client():
    """Whoever is at two clients is two units, and is counted twice."""
    plan = Plan(
        clients=4, samples=10, rounds=3, sensitivity="gradient", model="softmax", person="patient", dataset="hospital",
        target="ill", epsilon=3.0, delta=1e-5,
    )  # fmt: skip
    told = lines_of(plan)
    assert told["Who"].endswith("on 40 persons, counted at each client.")
    assert told["Protected"].startswith("Each person of each client, with all of their rows there, against")


DRAWN = {
    "clients": 20,
    "per_round": 4,
    "samples": 40,
    "rounds": 5,
    "sensitivity": "client",
    "epsilon": 2,
    "delta": 1e-5,
}
MASKED = {"clients": 10, "rounds": 4, "samples": 50, "sensitivity": "gradient", "lr": 0.5, "epsilon": 4.0,
          "delta": 1e-5, "model": "softmax", "features": "raw", "aggregation": "secure"}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({**DRAWN, "adversary": "broadcast"}, "as long as it stays secret who is drawn"),
        ({**DRAWN, "adversary": "colluders:2"}, "as long as it stays secret who is drawn"),
        ({**MASKED, "adversary": "curious-server"}, "while no client works with the server"),
        ({**MASKED, "adversary": "curious-server:1"}, "while at most 1 client works with the server"),
        ({**MASKED, "adversary": "curious-server:2"}, "while at most 2 clients work with the server"),
        (
            {"clients": 3, "samples": 30, "sensitivity": "paper"},
            "as long as an unproved premise about what clients upload holds",
        ),
        ({**DRAWN, "adversary": "curious-server"}, None),
        ({**DRAWN, "adversary": "broadcast", "per_round": None}, None),
        ({"clients": 3, "samples": 30, "sensitivity": "gradient", "per_round": 2}, None),
    ],
)  # fmt: skip
def test_what_an_epsilon_stands_on_is_said_beside_whom_it_protects_against(fields, condition):
    plan = Plan(**fields)
    told, words = lines_of(plan)["Protected"], Scope.of(plan).words
    if condition is None:
        assert "as long as" not in told + words
        assert "while " not in told + words
        return
    assert told.endswith(f", {condition}.")
    assert not re.search("[δσμΔ√≤∞]|delta|sigma|L =|2C", told)
    assert words.endswith(", if 2C/m holds" if plan.rule.conditional else f", {condition}")


def test_a_scope_survives_the_way_to_a_file():
    for fields in (DRAWN, MASKED, {"clients": 3, "samples": 30, "sensitivity": "paper"}):
        scope = Scope.of(Plan(**fields))
        assert Scope.from_dict(scope.to_dict()) == scope


def test_the_lines_of_a_run_on_the_command_line_say_it_too(tmp_path):
    run = run_of(tmp_path, sensitivity="client", per_round=1, adversary="broadcast", epsilon=5.0, delta=1e-5)
    assert "as long as it stays secret who is drawn" in three_lines(run)[1]
    page = (run.path / "report.html").read_text()
    assert page.count("as long as it stays secret who is drawn") == 2


def test_noise_that_leaves_room_for_scores_is_not_said_to_be_made_for_all_of_epsilon(tmp_path):
    run = run_of(tmp_path, epsilon=3.0, delta=1e-5, reserve=0.5)
    page = (run.path / "report.html").read_text()
    (made,) = re.findall(r"Noise made for ε = ([0-9.]+) \(what the claim of 3 leaves", page)
    mu = gdp_mu(3.0, 1e-5)
    assert gdp_mu(float(made), 1e-5) == pytest.approx(mu / 2**0.5, rel=1e-4)
    plain = (run_of(tmp_path / "all", epsilon=3.0, delta=1e-5).path / "report.html").read_text()
    assert "Noise made for ε = 3 against" in plain
