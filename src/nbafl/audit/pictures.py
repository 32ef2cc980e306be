"""What an attack means, as pictures: a digit read back from an upload, a guess who was there, the scores of the audit.

The first two show a client that holds MNIST digits and uploads one step of softmax regression with clipped gradients. The
attacker knows the broadcast and every record but one, and of that one the class. Noise is shown in proportion to
sensitivity, sigma_U/Delta_U, which is all that matters to such an attacker, so the pictures speak of the plan whatever
its own model and data are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nbafl import protocol, rules
from nbafl.audit.auditor import Audit
from nbafl.data import mnist
from nbafl.plan import Plan
from nbafl.privacy.adversary import parse
from nbafl.privacy.calibration import calibrate
from nbafl.privacy.gaussian import gdp_mu
from nbafl.simulation.models import build

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#666666"
DIGITS = 6
RECORDS = 100
GUESSES = 400
_TRAINING = protocol.Training(rule="gradient", steps=1, lr=1.0, record_clip=1.0)


def draw_all(found: Audit, folder: Path) -> list[Path]:
    """Write reconstruction.png, membership.png and scores.png into the folder."""
    pictures = {
        "reconstruction.png": reconstruction(found.plan),
        "membership.png": membership(found.plan),
        "scores.png": scores(found),
    }
    for name, figure in pictures.items():
        figure.savefig(folder / name, dpi=120)
    return [folder / name for name in pictures]


def reconstruction(plan: Plan) -> Figure:
    """A record read back from one upload: without noise, with the paper's, with the plan's."""
    columns: dict[str, float | None] = {"the record": None, "read from the upload,\nno noise": 0.0}
    columns.update(_noises(plan))
    digits = _digits()
    figure = Figure(figsize=(1.9 * len(columns), 1.35 * DIGITS + 1.2))
    axes = figure.subplots(DIGITS, len(columns))
    for row in range(DIGITS):
        x, y = digits[0].clone(), digits[1].clone()
        x[0], y[0] = digits[0][RECORDS + row], digits[1][RECORDS + row]
        for column, (title, ratio) in enumerate(columns.items()):
            image = x[0] if ratio is None else read_back(x, y, ratio, seed=plan.seed + row)
            axes[row, column].imshow(image.reshape(28, 28).clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1)
            axes[row, column].set_axis_off()
            if row == 0:
                axes[row, column].set_title(title, fontsize=9)
    figure.suptitle(
        f"What one upload shows of one record among {RECORDS},\nto someone who knows its class and the other {RECORDS - 1}",
        fontsize=11,
    )
    figure.tight_layout()
    return figure


def read_back(x: Tensor, y: Tensor, ratio: float, seed: int) -> Tensor:
    """The attacker's picture of record 0, from the client's noisy upload, the broadcast and the other records.

    The upload less the known part is the record's clipped gradient, a multiple of (p − y)(x, 1)ᵀ. The attacker knows p and
    the record's class, so it projects on p − y, and what is left is a multiple of x with noise.
    """
    model = _model()
    start = protocol.flatten(model)
    noisy = protocol.add_noise(
        rules.upload(model, x, y, start, _TRAINING),
        ratio * _sensitivity(len(x)),
        protocol.generator(seed, 0, "picture"),
    )
    known = (rules.upload(model, x[1:], y[1:], start, _TRAINING) - start) * ((len(x) - 1) / len(x))
    step = -(noisy - start - known)
    gradient = torch.cat([step[:-10].view(10, -1), step[-10:, None]], dim=1)
    # The first broadcast is zero, so p is the same for every x.
    slope = torch.softmax(start[-10:], 0) - torch.eye(10)[y[0]]
    image = (slope @ gradient)[:-1]
    if ratio > 0:  # pen strokes are wider than a pixel: a little blur takes out noise
        image = torch.nn.functional.avg_pool2d(image.view(1, 1, 28, 28), 3, stride=1, padding=1).flatten()
    return image / image.quantile(0.98)


def membership(plan: Plan) -> Figure:
    """Guessing whether a record was among the client's: the score in both cases, without noise and with it."""
    columns = {"no noise": 0.0} | _noises(plan)
    figure = Figure(figsize=(3.3 * len(columns), 3.2))
    axes = figure.subplots(1, len(columns), squeeze=False)
    for axis, (title, ratio) in zip(axes[0], columns.items(), strict=True):
        absent, present = membership_scores(ratio, plan.seed)
        right = (np.mean(absent < 0) + np.mean(present >= 0)) / 2
        bins = np.linspace(min(absent.min(), -1), max(present.max(), 1), 40).tolist()
        axis.hist(absent, bins, color=ORANGE, alpha=0.7, label="another record in its place")
        axis.hist(present, bins, color=BLUE, alpha=0.7, label="the record was there", histtype="stepfilled")
        axis.set_title(f"{title}\nguess right: {right:.0%}", fontsize=9)
        axis.set_xlabel("score (0: cannot say)")
        axis.set_yticks([])
    axes[0, 0].legend(fontsize=7, loc="upper center")
    figure.suptitle("Was this digit among the client's records? What one upload tells", fontsize=11)
    figure.tight_layout()
    return figure


def membership_scores(ratio: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of uploads without and with the record: ±1 when nothing hides it, spread by noise otherwise."""
    x, y = _digits()
    model = _model()
    start = protocol.flatten(model)
    members = slice(0, RECORDS)
    with_it, without = (x[members].clone(), y[members].clone()), (x[members].clone(), y[members].clone())
    without[0][0], without[1][0] = x[RECORDS], y[RECORDS]
    clean = [rules.upload(model, *data, start, _TRAINING) for data in (without, with_it)]
    difference = clean[1] - clean[0]
    middle = (clean[0] + clean[1]) / 2
    scores = []
    for number, upload in enumerate(clean):
        noisy = protocol.add_noise(
            upload.expand(GUESSES, -1),
            ratio * _sensitivity(RECORDS),
            protocol.generator(seed, number, "guess"),
        )
        scores.append(((noisy - middle) @ difference / (difference @ difference / 2)).numpy())
    return scores[0], scores[1]


def scores(found: Audit) -> Figure:
    """The attack's scores in both worlds, beside the distance that the claim allows between them."""
    plan, proof = found.plan, found.claim
    allowed = gdp_mu(plan.epsilon, plan.delta)
    figure = Figure(figsize=(6.4, 4.2))
    axis = figure.subplots()
    null, other = proof.outcomes.scores
    edges = np.linspace(min(null.min(), -allowed / 2 - 3), max(other.max(), allowed / 2 + 3), 120)
    one_way, other_way = _worlds(plan)
    highest = 0.0
    for name, color, values in ((one_way, ORANGE, null), (other_way, BLUE, other)):
        height, _, _ = axis.hist(values, edges.tolist(), density=True, color=color, alpha=0.6, label=name)
        highest = max(highest, float(np.max(height)))
    if plan.drawn == plan.clients:  # with K < N the scores of a claim that just holds are a mixture
        for side in (-1, 1):
            curve = np.exp(-((edges - side * allowed / 2) ** 2) / 2) / np.sqrt(2 * np.pi)
            label = f"furthest apart that epsilon {plan.epsilon:g}, delta {plan.delta:g} allows"
            axis.plot(edges, curve, color=GREY, linestyle="--", label=label if side < 0 else None)
    verdict = "refuted" if found.refuted else "consistent"
    axis.set_title(
        f"Claim of epsilon {plan.epsilon:g} {verdict}: {proof.epsilon:.4g} proved at delta {plan.delta:g},\n"
        f"against {proof.adversary}",
        fontsize=10,
    )
    unit = (
        "standard deviations of its noise"
        if proof.gaussian is not None
        else "logarithms of the likelihood ratio"
    )
    axis.set_xlabel(f"score of one run, in {unit}")
    axis.set_yticks([])
    axis.set_ylim(0, 1.5 * highest)
    axis.legend(fontsize=8, loc="upper center")
    figure.tight_layout()
    return figure


def _worlds(plan: Plan) -> tuple[str, str]:
    """What the two worlds differ by, for the legend."""
    if plan.adjacency == "drop":
        return "world 0: the client is not there", "world 1: the client is there"
    unit = plan.rule.unit
    return f"world 0: one {unit} this way", f"world 1: the same {unit} turned around"


def _noises(plan: Plan) -> dict[str, float]:
    """The paper's noise, the plan's (or the exact one) and that of epsilon 1, as sigma_U/Delta_U of the worst-off client."""
    release, named = plan.release(), parse(plan.adversary)
    names = {"paper": "the paper's noise", "separate": "separate noise", "exact": "exact noise"}
    shown = [
        ("paper", plan.epsilon),
        (plan.calibration if plan.calibration != "paper" else "exact", plan.training_epsilon),
    ]
    if plan.epsilon > 2:
        shown.append(("exact", 1.0))
    found = {}
    for rule, epsilon in shown:
        noise = calibrate(rule, release, epsilon, plan.delta, named)
        title = f"{names[rule]} for\nepsilon {epsilon:g}, delta {plan.delta:g},\n{plan.adversary}"
        found[title] = float(np.min(noise.sigma_uplink / release.uplink))
    return found


def _sensitivity(records: int) -> float:
    """2·eta·G/m."""
    return 2 * _TRAINING.lr * _TRAINING.record_clip / records


def _digits() -> tuple[Tensor, Tensor]:
    chosen = np.arange(RECORDS + DIGITS)
    digits = mnist.train()
    return torch.from_numpy(digits.pixels(chosen)), torch.from_numpy(digits.classes(chosen))


def _model() -> nn.Module:
    return build("softmax", (1, 28, 28), 10, seed=0)
