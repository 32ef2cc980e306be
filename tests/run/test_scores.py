"""Measures of the final model against scikit-learn's, and what training notices about itself."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics
from tests.paper_setting import Plan

import nbafl
from nbafl.data.schema import Column, Schema
from nbafl.report.notices import accumulated_noise, notices
from nbafl.run.scores import classification, measures, regression


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_classification_agrees_with_scikit_learn(classes):
    rng = np.random.default_rng(classes)
    for _ in range(20):
        probabilities = rng.dirichlet(np.full(classes, 0.7), size=60).round(2) + 0.01  # rounding makes ties
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        y = np.concatenate([np.arange(classes), rng.integers(0, classes, 60 - classes)])
        found = classification(
            probabilities, y, np.full(classes, 1 / classes), [str(i) for i in range(classes)]
        )
        predicted = probabilities.argmax(axis=1)
        assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, predicted))
        assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, predicted))
        assert found["log_loss"] == pytest.approx(metrics.log_loss(y, probabilities))
        assert found["confusion"]["rows_are_truth"] == metrics.confusion_matrix(y, predicted).tolist()
        given = probabilities[:, 1] if classes == 2 else probabilities
        assert found["auc"] == pytest.approx(metrics.roc_auc_score(y, given, multi_class="ovr"))
        assert list(found["recall"].values()) == pytest.approx(
            metrics.recall_score(y, predicted, average=None)
        )


def test_regression_agrees_with_scikit_learn_and_speaks_the_targets_unit():
    rng = np.random.default_rng(0)
    y, predicted = rng.normal(size=50), rng.normal(size=50)
    found = regression(predicted, y, 0.5)
    assert found["r2"] == pytest.approx(metrics.r2_score(y, predicted))
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(y, predicted))
    assert found["rmse"] == pytest.approx(metrics.mean_squared_error(y, predicted) ** 0.5)
    schema = Schema("t", "regression", (Column("u", "number"),), None, (0.0, 200.0))
    told = measures(
        np.array([[0.0], [1.0]]), np.array([0.5, 1.0]), np.array([0.0, 0.0]), "regression", None, schema
    )
    assert told["mae"] == pytest.approx(25.0)
    assert told["constant"]["prediction"] == 100.0


def test_a_class_that_is_not_there_and_one_that_is_never_found():
    found = classification(
        np.tile([0.9, 0.06, 0.04], (4, 1)), np.array([0, 0, 0, 1]), np.array([0.7, 0.2, 0.1]), "abc"
    )
    assert found["recall"] == {"a": 1.0, "b": 0.0, "c": None}
    assert found["balanced_accuracy"] == 0.5
    assert any("never finds 'b'" in each for each in notices([], found, 0.0))


def test_with_class_weights_balance_counts_and_not_accuracy():
    scores = {"accuracy": 0.8, "balanced_accuracy": 0.7, "recall": {"a": 0.8, "b": 0.6}}
    scores["constant"] = {"prediction": "a", "accuracy": 0.9, "balanced_accuracy": 0.5}
    rising = [{"round": r, "test_loss": 0.3 + 0.1 * r, "broadcast_norm": 9.0} for r in range(1, 9)]
    said = notices(rising, scores, 0.1)
    assert len(said) == 2
    assert "accuracy 80.0% against 90.0%" in said[0]
    assert notices(rising, scores, 0.1, weighted=True) == []
    worse = {**scores, "balanced_accuracy": 0.4}
    assert "balanced accuracy 40.0% against 50.0%" in notices(rising, worse, 0.1, weighted=True)[0]


def test_two_numbers_that_differ_look_different():
    close = {"accuracy": 0.96552, "constant": {"prediction": "no", "accuracy": 0.96618}, "recall": {}}
    assert "accuracy 96.55% against 96.62%" in notices([], close, 0.0)[0]
    close = {"rmse": 2.00004, "constant": {"prediction": 1.0, "rmse": 2.00003}}
    assert "error 2.00004 against 2.00003" in notices([], close, 0.0)[0]
    least = {"accuracy": 1 - 2**-53, "constant": {"prediction": "no", "accuracy": 1.0}, "recall": {}}
    assert "accuracy 99.99999999999999% against 100.00000000000000%" in notices([], least, 0.0)[0]


def test_training_notices_what_goes_wrong():
    worse = {"accuracy": 0.4, "constant": {"prediction": "well", "accuracy": 0.6}, "recall": {}}
    assert "worse than always answering 'well'" in notices([], worse, 0.0)[0]
    losses = [1.0, 0.6, 0.5, 0.55, 0.6, 0.7]
    lines = [{"round": i + 1, "train_loss": loss, "broadcast_norm": 5.0} for i, loss in enumerate(losses)]
    assert "training loss has been rising since round 3" in notices(lines, None, 0.0)[0]
    assert notices(lines[:3], None, 0.0) == []
    assert "noise in the model is longer" in notices(lines[:3], None, 4.0)[0]
    assert notices(lines[:3], None, 3.0) == []


def test_long_noise_is_told_only_where_it_does_harm():
    constant = {"prediction": "1", "accuracy": 0.11, "balanced_accuracy": 0.1}
    right = {"accuracy": 0.984, "balanced_accuracy": 0.98, "constant": constant, "recall": {}}
    poor = {**right, "accuracy": 0.5, "balanced_accuracy": 0.5}
    steady = [{"round": r, "test_loss": 1 / r, "broadcast_norm": 5.0} for r in range(1, 9)]
    assert notices(steady, right, 4.0) == []
    assert notices(steady, right, 4.0, weighted=True) == []
    assert ["noise in the model is longer" in each for each in notices(steady, poor, 4.0)] == [True]
    assert ["noise in the model is longer" in each for each in notices(steady, poor, 4.0, weighted=True)] == [
        True
    ]
    rising = [{**line, "test_loss": 0.1 * line["round"]} for line in steady]
    said = notices(rising, right, 4.0)
    assert "loss has been rising" in said[0]
    assert "noise in the model is longer" in said[1]
    number = {"rmse": 7.0, "constant": {"prediction": 3.0, "rmse": 10.0}}
    assert notices(steady, number, 4.0) == []
    assert "noise in the model is longer" in notices(steady, {**number, "rmse": 9.0}, 4.0)[0]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_accumulated_noise_is_what_the_servers_steps_add_up_to(momentum):
    rng = np.random.default_rng(1)
    rounds, parameters = 12, 20_000
    model, velocity, lengths = np.zeros(parameters), np.zeros(parameters), []
    for _ in range(rounds):
        velocity = momentum * velocity + 0.3 * rng.normal(size=parameters)
        model = model + velocity
        lengths.append(np.linalg.norm(model))
    assert accumulated_noise(0.3, parameters, rounds, momentum) == pytest.approx(lengths, rel=0.05)


def test_a_run_is_scored_beside_the_constant_and_names_its_worst_client(tmp_path):
    rng = np.random.default_rng(0)
    clients = []
    for shift in (0.0, 3.0):
        x = rng.normal(size=(80, 3)).astype(np.float32)
        clients.append((x, (x[:, 0] > shift).astype(int)))
    federation = nbafl.Federation.from_arrays(clients, names=["good", "odd"])
    plan = Plan(clients=2, samples=80, rounds=5, noise=False, model="softmax")
    scores = nbafl.simulate(plan, federation, out=tmp_path / "run").scores
    assert scores["measured_on"] == "training records"
    assert scores["worst_client"]["name"] in ("good", "odd")
    assert {"auc", "balanced_accuracy", "recall", "confusion", "calibration"} <= scores.keys()
    assert scores["constant"]["accuracy"] >= 0.5
