"""The privacy statement says everything a claim needs, in JSON and in sentences, and never more than holds."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from scipy.stats import norm

from nbafl.privacy import accounting, adversary, sensitivity
from nbafl.privacy.adversary import Adversary
from nbafl.privacy.calibration import calibrate
from nbafl.privacy.gaussian import gdp_mu
from nbafl.privacy.release import Noise, Release
from nbafl.privacy.sensitivity import Sensitivity
from nbafl.privacy.statement import NOT_COVERED, Statement

CLIENTS, ROUNDS = 20, 10
MODELS = {
    "paper": sensitivity.paper(10, [100] * CLIENTS),
    "gradient": sensitivity.gradient(1.0, [100] * CLIENTS, 0.5),
    "client": sensitivity.client(1.0, CLIENTS),
    "dropped": sensitivity.client(1.0, CLIENTS, "drop"),
}


def statement(
    model: Sensitivity,
    rule: str = "exact",
    which: Adversary = adversary.EAVESDROPPER,
    epsilon: float | None = 2.0,
    per_round: int = CLIENTS,
    exposures: int = 1,
) -> Statement:
    release = Release(model, np.full(CLIENTS, 1 / CLIENTS), ROUNDS, per_round, exposures)
    noise = calibrate(rule, release, epsilon, 1e-3, which) if epsilon else Noise(np.zeros(CLIENTS), 0.0)
    guarantee = {
        each.key: accounting.epsilon_spent(release, noise, each, 1e-3) for each in adversary.standard()
    }
    return Statement(
        release, noise, epsilon, 1e-3, which, rule, guarantee, ("Noise is fresh.",), "1" * 64, "2" * 64, 7850
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("per_round", [CLIENTS, 5])
@pytest.mark.parametrize("which", [adversary.BROADCAST, adversary.EAVESDROPPER, adversary.colluders(2)])
def test_every_statement_is_complete(name: str, per_round: int, which: Adversary) -> None:
    made = statement(MODELS[name], which=which, per_round=per_round)
    content = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert content["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert content["delivers_claim"]
    assert content["unit"] == MODELS[name].unit
    assert content["adjacency"] == MODELS[name].adjacency
    assert content["adversary"] == {"name": which.name, "sees": which.sees}
    assert content["sensitivity"]["verified"] == (name != "paper")
    assert content["plan_digest"] == "1" * 64
    assert content["model_digest"] == "2" * 64
    assert content["assumptions"] == ["Noise is fresh."]
    assert {"nbafl", "dp-accounting", "numpy", "scipy", "python"} <= content["versions"].keys()
    text = " ".join(content["sentences"])
    for needed in (
        "epsilon = 2 ",
        "delta = 0.001",
        which.name,
        MODELS[name].premise,
        "Gaussian",
        "Not covered",
        *NOT_COVERED,
    ):
        assert needed in text
    assert ("NOT verified" in text) == (name == "paper")
    assert "NOT met" not in text


def test_every_epsilon_has_its_adversary_and_delta_in_the_same_sentence() -> None:
    for name in MODELS:
        for sentence in statement(MODELS[name], rule="paper").sentences():
            if "epsilon = " in sentence:
                assert "eavesdropper" in sentence
                assert "delta = " in sentence


def test_a_claim_that_does_not_hold_is_said_so() -> None:
    made = statement(MODELS["gradient"], rule="separate")
    assert not made.delivers
    assert made.holding > 2.5
    guarantee = next(sentence for sentence in made.sentences() if sentence.startswith("Guarantee"))
    assert f"epsilon = {made.holding:.6g} " in guarantee
    assert "The claim of epsilon = 2 (separate calibration) is NOT met." in guarantee


def test_without_noise_nothing_is_promised() -> None:
    made = statement(MODELS["client"], epsilon=None)
    content = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert content["epsilon"] is None
    assert content["claimed"]["epsilon"] is None
    assert content["guarantee"]["curious_server"] == {"epsilon": None, "delta": 1e-3}
    assert not content["delivers_claim"]
    assert all(each["true_positive_rate"] == 1 for each in content["attack"])
    assert any("no finite epsilon holds" in sentence for sentence in content["sentences"])
    assert not any("epsilon = " in sentence for sentence in content["sentences"])
    assert any("no noise at all" in sentence for sentence in content["sentences"])


def test_the_accountant_is_named_truthfully() -> None:
    assert "exact composition" in statement(MODELS["gradient"]).accountant()
    assert "no amplification" in statement(MODELS["gradient"], per_round=5).accountant()
    assert "secret draw" in statement(MODELS["client"], which=adversary.BROADCAST, per_round=5).accountant()
    assert "no amplification" in statement(MODELS["client"], per_round=5).accountant()


def test_the_meaning_of_epsilon_is_that_of_the_best_attack() -> None:
    made = statement(MODELS["gradient"])
    meaning = next(sentence for sentence in made.sentences() if sentence.startswith("That means"))
    assert (
        f"at most {math.exp(2):.3g} times what it would be if a record had been any other, plus 0.001."
        in meaning
    )
    # Said of beliefs it would be false: odds grow by more than e^ε with a chance of several times δ.
    mu = gdp_mu(2.0, 1e-3)
    assert norm.sf(2.0 / mu - mu / 2) > 5 * 1e-3
    assert "odds" not in meaning
    rates = {each["false_positive_rate"]: each["true_positive_rate"] for each in made.to_dict()["attack"]}
    detected = re.search(r"detects at most ([0-9.]+)%", meaning)
    assert detected is not None
    assert 0 <= float(detected[1]) - 100 * rates[0.01] <= 0.1  # "at most" is rounded up
    for false, true in rates.items():
        # (ε, δ) itself allows no more than this.
        assert false < true <= math.exp(2) * false + 1e-3


def test_the_meaning_follows_what_is_compared() -> None:
    def meaning(name: str) -> str:
        return next(each for each in statement(MODELS[name]).sentences() if each.startswith("That means"))

    assert "if a client had been any other" in meaning("client")
    assert "which of two values a client had" in meaning("client")
    assert "without a client's data" in meaning("dropped")
    assert "whether a client's data were there" in meaning("dropped")


def test_others_are_named_with_what_the_noise_gives_against_them() -> None:
    made = statement(MODELS["gradient"])
    others = next(each for each in made.sentences() if each.startswith("Against others"))
    for which in (adversary.BROADCAST, adversary.TARGETED, adversary.CURIOUS_SERVER):
        spent = accounting.epsilon_spent(made.release, made.noise, which, 1e-3)
        assert f"epsilon {spent:.6g} against {which.name}" in others
    assert "at delta = 0.001:" in others
    assert "eavesdropper" not in others
    assert "finite precision" not in others
    deployed = dataclasses.replace(made, simulated=False).sentences()
    assert any("finite precision takes is paid for against the adversary above" in each for each in deployed)
    among = statement(MODELS["gradient"], which=adversary.colluders(2)).sentences()
    assert not any("nothing against" in each for each in among), (
        "uploads carry noise against colluders as well"
    )


def test_a_secret_that_is_counted_on_is_named() -> None:
    secret = "who takes part in a round has to stay secret from it"
    for which in (adversary.BROADCAST, adversary.colluders(2)):
        assert secret in statement(MODELS["client"], which=which, per_round=5).sentences()[1]
        assert secret not in statement(MODELS["client"], which=which).sentences()[1]
        assert secret not in statement(MODELS["gradient"], which=which, per_round=5).sentences()[1]
    drawn = statement(MODELS["client"], per_round=5).sentences()
    assert secret not in drawn[1]
    assert any("against broadcast (who must not learn who takes part)" in each for each in drawn)


def test_a_seed_that_gives_the_noise_away_is_named() -> None:
    """A simulation's noise is a function of the plan's seed, of 31 bits and printed in plan.toml."""
    assert any(
        "seed of a simulation" in each for each in statement(MODELS["gradient"]).to_dict()["not_covered"]
    )


def test_exposures_appear_as_a_number() -> None:
    once = statement(MODELS["gradient"]).sentences()[1]
    thrice = statement(MODELS["gradient"], exposures=3).sentences()[1]
    assert "uploads in one round of its choice" in once
    assert "every other upload in one further round" in once
    assert "uploads in up to 3 rounds of its choice" in thrice
    assert " L " not in once + thrice


def test_unequal_noise_is_listed_and_an_adversary_outside_the_table_is_accounted() -> None:
    sizes = np.arange(1, CLIENTS + 1) * 10
    release = Release(sensitivity.gradient(1.0, sizes, 0.5), sizes / sizes.sum(), ROUNDS, CLIENTS, 1)
    which = adversary.EAVESDROPPER_SPREAD
    noise = calibrate("exact", release, 2.0, 1e-3, which)
    made = Statement(release, noise, 2.0, 1e-3, which, "exact", {}, (), "a", "b")
    content = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert content["epsilon"] == pytest.approx(2.0)
    assert content["mechanism"]["sigma_uplink"] == pytest.approx(list(noise.sigma_uplink))
    assert content["sensitivity"]["downlink"] == pytest.approx(0.5 * 2 / sizes.sum())
    assert content["model_parameters"] is None
