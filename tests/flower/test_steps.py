"""Steps of secure aggregation on the wire: as large as the plan's model needs, and read without trusting them."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from free_ports import free_port

from nbafl.flower import certificates, frames, keys, steps, wire
from nbafl.flower.hub import Hub
from nbafl.flower.node import Connection, stay
from nbafl.flower.wire import Instruction, Malformed
from nbafl.secure import primitives, sizes
from nbafl.secure.terms import Terms

ASKED = Instruction("0" * 64, 1, "t", 0)
WIDE = 400_000
"""Coordinates at five bytes each: 400 KB more than the model itself."""


def message(content: RecordDict) -> Message:
    made = Message(content, dst_node_id=1, message_type=MessageType.TRAIN)
    made.metadata.__dict__["_message_id"] = "m"
    return made


def wide_terms(clients: int = 3) -> Terms:
    signing = tuple(primitives.verifying_key(secrets.token_bytes(32)) for _ in range(clients))
    return Terms(b"p" * 32, b"r" * 32, signing, 0, clients, 1, WIDE, 5)


def test_an_upload_of_five_bytes_a_coordinate_passes_the_door(tmp_path: Path) -> None:
    """The model has four bytes a coordinate: a door made for models answered 413 to wide uploads of 262,144 and more."""
    port = free_port()
    made = certificates.make_certificates(["127.0.0.1"], tmp_path / "tls")
    private, public = keys.make_client_key("a", tmp_path)
    terms = wide_terms()
    upload = secrets.token_bytes(sizes.largest_answer(terms))
    assert len(upload) > 5 * WIDE
    model = {"weight": np.zeros(WIDE, dtype=np.float32)}
    layout = wire.Layout.of(model)
    question = steps.question("train", secrets.token_bytes(sizes.largest_request(terms)), ASKED)
    question[wire.ARRAYS] = wire.to_record(model)
    with Hub("127.0.0.1", port, made, [keys.read_public_key(public)], sizes.largest_answer(terms)) as hub:
        room = layout.largest_bytes + sizes.largest_request(terms)
        line = Connection(f"127.0.0.1:{port}", made.authority, keys.read_private_key(private), room)
        asked = message(question)

        def handle(received: Message) -> Message:
            assert steps.read(received.content)[0] == "train"
            return steps.answer(ASKED, upload, received)

        done: list[bool] = []
        client = threading.Thread(target=stay, args=(line, handle, lambda: done.append(True) or True, 60.0))
        client.start()
        while not hub.postbox.online():
            assert client.is_alive()
        (reply,) = hub.exchange.send_and_receive([asked], timeout=60)
        client.join(60)
    assert steps.read_answer(reply, ASKED) == upload
    assert done == [True]


@pytest.mark.parametrize(
    "record",
    [
        None,
        ConfigRecord({steps.BODY: b"x"}),
        ArrayRecord({"other": Array("uint8", (1,), "nbafl.bytes", b"x")}),
        ArrayRecord({steps.BODY: Array("uint8", (2,), "nbafl.bytes", b"x")}),
        ArrayRecord({steps.BODY: Array("uint8", (1,), "numpy.ndarray", b"x")}),
        ArrayRecord({name: Array("uint8", (1,), "nbafl.bytes", b"x") for name in (steps.BODY, "more")}),
    ],
)
def test_bytes_that_are_not_there_are_one_sentence(record: ConfigRecord | ArrayRecord | None) -> None:
    content = RecordDict({wire.CONFIG: ConfigRecord({**ASKED.to_config(), steps.STEP: "open"})})
    if record is not None:
        content[steps.BODY] = record
    with pytest.raises(Malformed, match="no bytes under"):
        steps.read(content)


def test_an_answer_is_the_same_after_the_wire_and_belongs_to_one_ticket() -> None:
    asked = message(steps.question("agree", b"abc", ASKED))
    reply = frames.decode_reply(frames.encode(steps.answer(ASKED, b"", asked)), asked)
    assert steps.read_answer(reply, ASKED) == b""
    with pytest.raises(Malformed, match="another ticket"):
        steps.read_answer(reply, Instruction(ASKED.plan, 1, "u", 0))
    seen = steps.without_bytes(asked)
    assert set(seen.content) == {wire.CONFIG}
    assert seen.metadata.message_id == asked.metadata.message_id
