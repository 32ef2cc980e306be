"""Messages as bytes: the same after the wire, and anything else is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from nbafl.flower import frames
from nbafl.flower.wire import Malformed


def test_a_message_is_the_same_after_the_wire() -> None:
    generator = np.random.default_rng(0)
    arrays = ArrayRecord({f"w{n}": Array(generator.standard_normal((n, 3))) for n in range(4)})
    config = ConfigRecord({"i": 1, "f": 0.5, "s": "é", "b": b"\x00\xff", "l": [1, 2]})
    sent = Message(RecordDict({"arrays": arrays, "config": config}), 1, MessageType.TRAIN, group_id="7")
    found = frames.decode(frames.encode(sent))
    assert found.content == sent.content
    assert found.metadata.message_type == MessageType.TRAIN
    assert found.metadata.group_id == "7"


def test_what_is_no_message_is_one_sentence() -> None:
    whole = frames.encode(Message(RecordDict({"a": ArrayRecord({"w": Array(np.zeros(9))})}), 1, "train"))
    length = struct.unpack_from(">I", whole)[0]
    expanding = b"\x12\x02\x0a\x00" * 2**17  # hundreds of thousands of empty records
    broken = [
        b"",
        whole[:3],
        whole[:-1],
        whole + b"x",
        struct.pack(">I", 2**31) + whole[4:],
        whole[: 4 + length] + struct.pack(">Q", 2**60) + whole[12 + length :],
        struct.pack(">I", len(expanding)) + expanding,
        struct.pack(">I", 0),
    ]
    for block in broken:
        with pytest.raises(Malformed):
            frames.decode(block)
