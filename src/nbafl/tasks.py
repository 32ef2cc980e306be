"""What a target can be, and what follows for a model: the loss of a record and the number of outputs."""

from __future__ import annotations

CLASSIFICATION, BINARY, REGRESSION = "classification", "binary", "regression"
LOSSES = {CLASSIFICATION: "cross_entropy", BINARY: "logistic", REGRESSION: "squared"}
"""The loss of one record, by task: softmax regression's, logistic regression's with one output, the squared error."""
TASKS = tuple(sorted(LOSSES))


def outputs_of(task: str, classes: int) -> int:
    """How many numbers a model answers with: one per class; a single one for two classes told apart, or for a number."""
    return classes if task == CLASSIFICATION else 1


def classes_of(task: str, outputs: int) -> int:
    """How many classes such outputs tell apart; none where the target is a number."""
    return {CLASSIFICATION: outputs, BINARY: 2, REGRESSION: 0}[task]
