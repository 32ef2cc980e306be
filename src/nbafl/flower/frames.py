"""A Flower message as one block of bytes: a small header, then the arrays as they are.

    4 bytes   length of the header
    header    the message in Flower's protobuf, its arrays emptied
    8 bytes   length of an array, then the array; for each array in the order of the header

What a peer sends can unfold to many times its size in memory (protobuf objects of two bytes each); here only the
header is parsed, and it is short. Arrays are cut out of the block without looking at them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto

from nbafl.flower.wire import Malformed

HEADER = 2**18
"""Bytes a header may have, in either direction."""


def encode(message: Message) -> bytes:
    """The message as one block."""
    return b"".join(_parts(message))


def decode(block: bytes) -> Message:
    """The message of a block; `Malformed` when it is none."""
    view = memoryview(block)
    try:
        (length,) = struct.unpack_from(">I", view)
        if length > HEADER:
            raise Malformed(f"its header has {length} bytes, more than {HEADER}.")
        proto = MessageProto.FromString(view[4 : 4 + length].tobytes())
        place = _fill(proto, view, 4 + length)
        if place != len(view) or proto.HasField("content") == proto.HasField("error"):
            raise Malformed("it does not end where it should.")
        return message_from_proto(proto)
    except Malformed:
        raise
    except Exception as error:  # whatever a stranger's bytes may provoke
        raise Malformed(f"it cannot be read ({type(error).__name__}).") from None


def decode_reply(block: bytes, question: Message) -> Message:
    """A client's reply. Who sent it is known from its connection, not from what it says of itself."""
    found = decode(block)
    return _reply(found.content if found.has_content() else found.error, question)


def _reply(said: RecordDict | Error, question: Message) -> Message:
    if isinstance(said, Error):
        return Message(said, reply_to=question)
    return Message(said, reply_to=question)


def _parts(message: Message) -> Iterator[bytes]:
    proto = message_to_proto(_emptied(message))
    header = proto.SerializeToString()
    if len(header) > HEADER:
        raise Malformed(f"the message has a header of {len(header)} bytes, more than {HEADER}.")
    yield struct.pack(">I", len(header))
    yield header
    for array in _arrays(message):
        yield struct.pack(">Q", len(array.data))
        yield array.data


def _arrays(message: Message) -> Iterator[Array]:
    if message.has_content():
        for record in message.content.array_records.values():
            yield from record.values()


def _emptied(message: Message) -> Message:
    """The same message with arrays of no bytes."""
    if message.has_error():
        return message
    content = RecordDict()
    for name, record in message.content.items():
        if isinstance(record, ArrayRecord):
            record = ArrayRecord(
                {key: Array(value.dtype, value.shape, value.stype, b"") for key, value in record.items()}
            )
        content[name] = record
    return Message(content, metadata=message.metadata)  # type: ignore[call-overload]


def _fill(proto: MessageProto, view: memoryview, place: int) -> int:
    """Put the arrays back into the header; where the block goes on after them."""
    for item in proto.content.items:
        for entry in item.array_record.items if item.HasField("array_record") else ():
            (size,) = struct.unpack_from(">Q", view, place)
            place += 8
            if entry.value.data or size > len(view) - place:
                raise Malformed("an array is longer than the message.")
            entry.value.data = view[place : place + size].tobytes()
            place += size
    return place
