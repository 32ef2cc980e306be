"""Numbers as people read them: few digits, never a bound made smaller than it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.privacy.badges import percent
from nbafl.studio.wording import duration, listed, short


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (50.0, "50"), (171.6438, "171.6"), (0.0310611526, "0.03106"), (323918.1, "323,918"), (5189935.58, "5.19×10⁶"),
        (1e-5, "10⁻⁵"), (6.12e-6, "6.12×10⁻⁶"), (0, "0"), (None, "∞"), ([0.1, 0.2], "0.1 – 0.2"), ([0.3, 0.3], "0.3"),
    ],
)  # fmt: skip
def test_numbers_in_short(value: object, text: str) -> None:
    assert short(value) == text


@settings(derandomize=True, max_examples=300)
@given(share=st.floats(0.5, 1, exclude_max=True))
def test_a_probability_is_never_shown_smaller_than_it_is_nor_as_certain(share: float) -> None:
    shown = percent(share)
    assert shown != "100%"
    if shown != "all but 100%":
        assert float(shown[:-1]) / 100 >= share - 1e-12
        assert float(shown[:-1]) < 100


def test_probabilities() -> None:
    assert percent(1.0) == "100%"
    assert percent(0.5) == "50.0%"
    assert percent(0.99996997) == "99.997%"
    assert percent(1 - 1e-14) == "all but 100%"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "less than a second"), (5.4, "5 s"), (65, "1 min 5 s"), (1800, "30 min"), (4000, "1 h 6 min")],
)
def test_times(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_lists() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
