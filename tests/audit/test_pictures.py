"""The pictures show what they say: a digit comes back without noise, and not under strong noise."""

from __future__ import annotations

import numpy as np
import torch

from nbafl.audit import pictures


def likeness(ratio: float) -> float:
    """Mean correlation between records and what an attacker reads back from noisy uploads."""
    x, y = pictures._digits()
    found = []
    for row in range(pictures.DIGITS):
        records, classes = x[: pictures.RECORDS].clone(), y[: pictures.RECORDS].clone()
        records[0], classes[0] = x[pictures.RECORDS + row], y[pictures.RECORDS + row]
        image = pictures.read_back(records, classes, ratio, seed=row)
        found.append(float(torch.corrcoef(torch.stack([image, records[0].flatten()]))[0, 1]))
    return float(np.mean(found))


def test_a_record_is_read_back_exactly_without_noise_and_fades_with_it() -> None:
    clear, paper, strong = likeness(0.0), likeness(1 / 16), likeness(1 / 0.25)
    assert clear > 0.999
    assert 0.3 < paper < clear
    assert strong < 0.15


def test_membership_is_plain_without_noise_and_a_coin_toss_under_strong_noise() -> None:
    absent, present = pictures.membership_scores(0.0, seed=0)
    assert np.allclose(absent, -1, atol=1e-3)
    assert np.allclose(present, 1, atol=1e-3)
    absent, present = pictures.membership_scores(4.0, seed=0)
    assert 0.4 < (np.mean(absent < 0) + np.mean(present >= 0)) / 2 < 0.65
