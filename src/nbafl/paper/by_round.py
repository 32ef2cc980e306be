"""Loss and accuracy after every aggregation: the kind of picture that figures 2 to 7 are.

The captions of figures 3 and 5 say training accuracy, the text says testing accuracy. Drawn is the accuracy on the
training records; the legend gives the test accuracy after the last round, the CSV file both in every round, and the
verdicts rest on the test set. (The caption of figure 7 says loss; its place in the paper says accuracy.)
"""

from __future__ import annotations

from collections.abc import Sequence

from nbafl.paper.pictures import Panel, Picture, Series
from nbafl.paper.runs import Runs, Wanted

ROUNDS = "aggregation (round t)"
Line = tuple[str, Wanted]


def loss_picture(runs: Runs, number: int, calibration: str, title: str, lines: Sequence[Line]) -> Picture:
    """Training loss of the broadcast model on all clients' records."""
    series = tuple(
        Series(label, tuple(range(1, each.rounds + 1)), runs.values(each, "train_loss"), rank, "train_loss")
        for rank, (label, each) in enumerate(lines)
    )
    return Picture(
        number, calibration, title, (Panel(series, ROUNDS, "training loss (cross-entropy, nats)"),)
    )


def accuracy_picture(runs: Runs, number: int, calibration: str, title: str, lines: Sequence[Line]) -> Picture:
    """Accuracy of the broadcast model on the training records, and in the legend on the test set."""
    series: list[Series] = []
    for rank, (label, each) in enumerate(lines):
        x = tuple(range(1, each.rounds + 1))
        train = 100 * runs.values(each, "train_accuracy")
        test = 100 * runs.values(each, "test_accuracy")
        named = f"{label} (test set: {test[:, -1].mean():.1f} %)"
        series.append(Series(named, x, train, rank, "train_accuracy_percent"))
        series.append(Series(label, x, test, rank, "test_accuracy_percent", hidden=True))
    panel = Panel(tuple(series), ROUNDS, "accuracy on the training records (%)")
    return Picture(number, calibration, title, (panel,))
