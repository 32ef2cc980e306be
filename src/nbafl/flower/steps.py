"""A step of secure aggregation as a Flower message: its name beside the instruction, its bytes as an array of their own.

Arrays travel as they are and may be as large as both sides agreed (`frames`); whatever else a message holds is short.
A masked upload has four or five bytes a coordinate, so a step's bytes cannot be part of the rest.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from nbafl.flower.wire import ANSWER, CONFIG, Instruction, Malformed, check_answer, printable, text_field

STEP, BODY = "nbafl-step", "nbafl-body"
"""Which step of a round a message is, and the record with the bytes that it or its answer carries."""
_BYTES = "nbafl.bytes"


def question(
    name: str, body: bytes, instruction: Instruction, more: ConfigRecord | None = None
) -> RecordDict:
    """What the server asks of one client; `more` is for the app that trains."""
    config = ConfigRecord({**(more or {}), **instruction.to_config(), STEP: name})
    return RecordDict({CONFIG: config, BODY: _packed(body)})


def read(content: RecordDict) -> tuple[str, bytes]:
    """The step and its bytes."""
    config = content.get(CONFIG)
    if not isinstance(config, ConfigRecord):
        raise Malformed(f"the message has no ConfigRecord {CONFIG!r}.")
    return text_field(config, STEP), _unpacked(content)


def uploads(content: RecordDict) -> bool:
    """Whether the answer to a message is an upload, and not another step of secure aggregation."""
    config = content.get(CONFIG)
    return not isinstance(config, ConfigRecord) or config.get(STEP, "train") == "train"


def without_bytes(message: Message) -> Message:
    """The message as an app that knows nothing of secure aggregation should see it."""
    if BODY not in message.content:
        return message
    kept = {name: record for name, record in message.content.items() if name != BODY}
    return Message(RecordDict(kept), metadata=message.metadata)  # type: ignore[call-overload]


def answer(instruction: Instruction, body: bytes, message: Message) -> Message:
    """A client's answer to a step: bytes, and what they answer."""
    return Message(RecordDict({ANSWER: instruction.answered(), BODY: _packed(body)}), reply_to=message)


def read_answer(reply: Message, expected: Instruction) -> bytes:
    """The bytes of an answer to a step; a refusal, an error or an answer to something else is `Malformed`."""
    if reply.has_error():
        raise Malformed(printable(reply.error.reason or "no reason given"))
    check_answer(reply.content, expected)
    return _unpacked(reply.content)


def _packed(body: bytes) -> ArrayRecord:
    return ArrayRecord({BODY: Array("uint8", (len(body),), _BYTES, body)})


def _unpacked(content: RecordDict) -> bytes:
    record = content.get(BODY)
    array = record.get(BODY) if isinstance(record, ArrayRecord) and len(record) == 1 else None
    if array is None or array.stype != _BYTES or tuple(array.shape) != (len(array.data),):
        raise Malformed(f"the message has no bytes under {BODY!r}.")
    return bytes(array.data)
