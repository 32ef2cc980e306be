"""Loss and accuracy after every aggregation: the kind of picture that figures 2 to 7 are.

The captions of figures 3 and 5 say training accuracy, the text says testing accuracy: solid lines are the former,
dotted companions the latter. (The caption of figure 7 says loss; the reference to it says performance, and its file
and place in the paper say accuracy.)
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
    """Accuracy of the broadcast model: training records drawn, test set dotted."""
    series: list[Series] = []
    for rank, (label, each) in enumerate(lines):
        x = tuple(range(1, each.rounds + 1))
        train = 100 * runs.values(each, "train_accuracy")
        test = 100 * runs.values(each, "test_accuracy")
        series.append(Series(label, x, train, rank, "train_accuracy_percent"))
        series.append(Series("", x, test, rank, "test_accuracy_percent", dotted=True))
    note = "Lines with markers: accuracy on the training records (the caption). Dotted: on the test set (the text)."
    return Picture(number, calibration, title, (Panel(tuple(series), ROUNDS, "accuracy (%)"),), note)
