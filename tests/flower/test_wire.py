"""Reading what a peer sent: exact where it is right, one sentence where it is not."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbafl.flower import wire
from nbafl.flower.wire import Instruction, Layout, Malformed

KINDS = st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_])
MODELS = st.dictionaries(
    st.text("abc.", min_size=1, max_size=5),
    KINDS.flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=3, max_side=4))),
    min_size=1,
    max_size=5,
)
MODEL = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.array(7)}


@settings(derandomize=True, max_examples=100, deadline=None)
@given(MODELS)
def test_a_model_survives_the_wire(model: dict[str, np.ndarray]) -> None:
    if all(value.dtype.kind != "f" for value in model.values()):
        with pytest.raises(Malformed, match="no floating-point array"):
            Layout.of(model)
        return
    layout, record = Layout.of(model), wire.to_record(model)
    for found in (layout.read(record), wire.read_any(record)):
        for name, value in model.items():
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)
    assert wire.digest(model) == wire.digest(layout.read(record))
    again = layout.arrays(layout.vector(model), model)
    assert wire.digest(again) == wire.digest(model)


def test_arrays_in_fortran_order_are_read_as_they_are() -> None:
    value = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    record = ArrayRecord({"weight": Array(value), "count": Array(np.array(7))})
    np.testing.assert_array_equal(Layout.of(MODEL).read(record)["weight"], value)


def test_the_digest_sees_every_name_shape_kind_and_value() -> None:
    variants = [
        MODEL,
        {**MODEL, "count": np.array(8)},
        {"other": MODEL["weight"], "count": MODEL["count"]},
        {**MODEL, "weight": MODEL["weight"].reshape(3, 2)},
        {**MODEL, "weight": MODEL["weight"].view(np.int32)},
    ]
    assert len({wire.digest(model) for model in variants}) == len(variants)


def broken(**changes: object) -> Array:
    good = Array(MODEL["weight"])
    fields = {"dtype": good.dtype, "shape": good.shape, "stype": good.stype, "data": good.data}
    return Array(**{**fields, **changes})  # type: ignore[arg-type]


GOOD = Array(MODEL["weight"]).data


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (broken(data=GOOD[:-1]), "not float32"),
        (broken(data=GOOD + b"x"), "not float32"),
        (broken(data=b""), "0 bytes"),
        (broken(data=bytes(24)), "24 bytes"),
        (broken(data=b"\x93NUMPY" + bytes(200)), "unreadable header"),
        (broken(data=GOOD.replace(b"(2, 3)", b"(9, 9)")), "not float32"),
        (broken(data=GOOD.replace(b"(2, 3)", b"(2, -)")), "unreadable header"),
        (broken(data=GOOD.replace(b"<f4", b"<i4")), "is int32"),
        (broken(data=GOOD.replace(b"'<f4'", b"'|O' ")), "not float32"),
        (broken(data=GOOD + bytes(10_000)), "bytes where"),
        (broken(stype="pickle"), "plain numbers"),
        (Array(MODEL["weight"].astype(np.float64)), "is float64"),
        (Array(MODEL["weight"].reshape(3, 2)), r"float32 \(3, 2\), not"),
    ],
)
def test_a_broken_array_is_one_sentence(array: Array, complaint: str) -> None:
    record = ArrayRecord({"weight": array, "count": Array(MODEL["count"])})
    with pytest.raises(Malformed, match=complaint):
        Layout.of(MODEL).read(record)


@pytest.mark.parametrize(
    "record",
    [
        None,
        ConfigRecord({"a": 1}),
        ArrayRecord({"weight": Array(MODEL["weight"])}),
        ArrayRecord({**{name: Array(value) for name, value in MODEL.items()}, "extra": Array(np.zeros(1))}),
    ],
)
def test_missing_and_extra_arrays_are_refused(record: object) -> None:
    with pytest.raises(Malformed):
        Layout.of(MODEL).read(record)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e7])
def test_an_absurd_broadcast_is_not_trained_on(value: float) -> None:
    with pytest.raises(Malformed, match="broadcast model holds"):
        wire.check_broadcast(np.array([0.0, value]))


ASKED = Instruction("digest", 3, "ticket", 1)


def test_an_instruction_is_read_back() -> None:
    config = ConfigRecord({"lr": 0.1, **ASKED.to_config()})
    assert Instruction.read(RecordDict({"config": config})) == ASKED


@pytest.mark.parametrize(
    "config",
    [{**ASKED.to_config(), "nbafl-round": "3"}, {**ASKED.to_config(), "nbafl-plan": 5}],
)
def test_a_wrong_instruction_is_refused(config: dict[str, int | str]) -> None:
    with pytest.raises(Malformed, match="must be"):
        Instruction.read(RecordDict({"config": ConfigRecord(config)}))
    with pytest.raises(Malformed, match="no ConfigRecord"):
        Instruction.read(RecordDict({}))


@pytest.mark.parametrize("spoken", [{}, {"nbafl-protocol": wire.PROTOCOL - 1}, {"nbafl-protocol": "2"}])
def test_a_peer_whose_messages_mean_something_else_is_not_understood(spoken: dict[str, int | str]) -> None:
    """Before uploads were offsets they were whole weights of the same shape: nothing else tells the two apart."""
    others = {name: value for name, value in ASKED.to_config().items() if name != "nbafl-protocol"}
    config = ConfigRecord({**others, **spoken})
    with pytest.raises(Malformed, match="the server runs another version"):
        Instruction.read(RecordDict({"config": config}))
    with pytest.raises(Malformed, match="the client runs another version"):
        wire.check_answer(RecordDict({"nbafl": config}), ASKED)


@pytest.mark.parametrize(
    "wrong", [{"nbafl-round": 2}, {"nbafl-ticket": "old"}, {"nbafl-plan": "other"}, {"nbafl-round": "3"}]
)
def test_replays_and_late_answers_are_refused(wrong: dict[str, int | str]) -> None:
    good = dict(ASKED.answered())
    wire.check_answer(RecordDict({"nbafl": ConfigRecord(good)}), ASKED)
    with pytest.raises(Malformed):
        wire.check_answer(RecordDict({"nbafl": ConfigRecord({**good, **wrong})}), ASKED)
    with pytest.raises(Malformed, match="no ConfigRecord"):
        wire.check_answer(RecordDict({}), ASKED)
