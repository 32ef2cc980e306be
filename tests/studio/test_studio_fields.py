"""Sliders stop where they should, and what a field shows is what it reads back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.paper_setting import Plan

from nbafl.errors import UsageError
from nbafl.field_entries import COARSE
from nbafl.studio.fields import CHOICES, FOLDED, SLIDERS, Scale, options, parse, show

SCALES = [Scale.of(each) for each in SLIDERS]


@pytest.mark.parametrize("scale", SCALES, ids=[each.name for each in SLIDERS])
def test_every_stop_of_a_slider_is_found_again(scale: Scale) -> None:
    stops = list(scale.stops)
    assert stops == sorted(set(stops))
    assert scale.low <= stops[0]
    assert stops[-1] <= scale.high
    assert [scale.position(scale.value(position)) for position in range(len(stops))] == list(
        range(len(stops))
    )


@pytest.mark.parametrize("each", SLIDERS, ids=[each.name for each in SLIDERS])
def test_the_default_of_a_field_is_a_stop_of_its_slider(each) -> None:
    scale = Scale.of(each)
    if each.default is not None:
        assert scale.value(scale.position(each.default)) == each.default


@settings(derandomize=True, max_examples=200)
@given(value=st.floats(1e-9, 1e6))
def test_a_slider_stands_at_the_nearest_stop(value: float) -> None:
    scale = Scale(1e-8, 0.1, whole=False, digits=COARSE)
    at = scale.value(scale.position(value))
    assert abs(at - value) == min(abs(stop - value) for stop in scale.stops)


@settings(derandomize=True, max_examples=300)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_shown_is_the_number_read(value: float) -> None:
    assert parse("epsilon", show(value)) == value


@settings(derandomize=True, max_examples=100)
@given(value=st.integers(-(10**12), 10**12))
def test_a_whole_number_shown_is_the_number_read(value: int) -> None:
    assert parse("clients", show(value)) == value


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("epsilon", "abc", "a number"),
        ("epsilon", "nan", "a finite number"),
        ("epsilon", "1e999", "a finite number"),
        ("clients", "3.5", "a whole number"),
        ("clients", "12 monkeys", "a whole number"),
        ("sizes", "3,x", "a whole number"),
        ("noise", "perhaps", "true or false"),
    ],
)
def test_nonsense_is_refused_in_a_sentence_that_names_the_field(name: str, text: str, allowed: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(name, text)
    assert name in str(refusal.value)
    assert allowed in str(refusal.value)


def test_other_kinds_of_fields_are_read() -> None:
    assert parse("sizes", "3, 4") == (3, 4)
    assert parse("noise", "false") is False
    assert parse("adversary", " curious-server ") == "curious-server"
    assert parse("batch", "  ") is None
    assert show((3, 4)) == "3,4"
    assert show(1e-5) == "1e-5"
    assert show(None) == ""
    assert math.isclose(parse("delta", "1e-5"), 1e-5)


def test_every_choice_is_a_value_that_a_plan_takes() -> None:
    for choice in (*CHOICES, *(each for inside in FOLDED.values() for each in inside)):
        for option in options(choice):
            value = parse(choice.name, f"{option}:1" if option == "colluders" else option)
            fields = {choice.name: value}
            if value == "proximal":
                fields |= {"model": "softmax", "feature_norm": 1.5}
            if value == "drop":
                fields |= {"sensitivity": "client"}
            assert getattr(Plan(**fields), choice.name) == value
