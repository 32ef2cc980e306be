"""The report: complete, self-contained, and honest about what its numbers rest on."""

from __future__ import annotations

import re

import numpy as np
import pytest

import nbafl
from nbafl.report.html import render


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    numbers = np.random.default_rng(0)
    clients = [(numbers.random((12, 4)).astype(np.float32), numbers.integers(2, size=12)) for _ in range(3)]
    plan = nbafl.Plan(clients=3, samples=12, rounds=3, model="softmax", target="<script>alert(1)</script>")
    federation = nbafl.Federation.from_arrays(clients=clients, test=clients[0], outputs=2)
    return nbafl.simulate(plan, federation, out=tmp_path_factory.mktemp("report") / "run")


def test_every_picture_statement_and_field_is_there(run):
    page = render(run)
    for title in (
        "Loss by round",
        "Accuracy by round",
        "Spread between clients",
        "Uploads that were clipped",
    ):
        assert title in page
    assert page.count("<svg") == 5
    for sentence in run.privacy["sentences"][:3]:
        assert sentence.split(":")[0] in page
    for field in type(run.plan).model_fields:
        assert f'<th scope="row">{field}</th>' in page
    for adversary in ("broadcast", "targeted", "eavesdropper", "curious-server"):
        assert f'<th scope="row">{adversary}</th>' in page


def test_every_picture_is_told_in_words(run):
    page = render(run)
    told = re.findall(r'<svg role="img" aria-label="([^"]*)"', page)
    assert len(told) == 5
    first, last = run.metrics[0]["train_loss"], run.metrics[-1]["train_loss"]
    assert f"training records: {first:.3g} in round 1, {last:.3g} in round 3" in told[0]


def test_a_claim_that_is_not_kept_is_not_shown_as_if_it_were(run, tmp_path):
    kept = render(run)
    assert "Not kept" not in kept
    numbers = np.random.default_rng(0)
    clients = [(numbers.random((12, 4)).astype(np.float32), numbers.integers(2, size=12)) for _ in range(3)]
    federation = nbafl.Federation.from_arrays(clients=clients, test=clients[0], outputs=2)
    for field, said in (
        ({"calibration": "paper"}, "Not kept: this noise is worth epsilon"),
        ({"noise": False}, '<td class="n">∞</td>'),
    ):
        plan = nbafl.Plan(clients=3, samples=12, rounds=1, model="softmax", **field)
        page = render(nbafl.simulate(plan, federation, out=tmp_path / next(iter(field))))
        assert said in page


def test_nothing_is_loaded_from_a_network(run):
    page = render(run)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert "@import" not in page
    assert "<script" not in page


def test_an_epsilon_never_stands_alone(run):
    page = render(run)
    card = page[page.index("epsilon claimed") :][:400]
    for word in ("delta", "eavesdropper", "record", "if 2C/m holds"):
        assert word in card
