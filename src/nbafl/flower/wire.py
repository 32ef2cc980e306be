"""What travels between server and clients, and how both sides read it without trusting it.

A model travels as Flower does it: an ArrayRecord of named arrays. What NbAFL works on is one vector of the
floating-point entries; whole-number arrays (counters of batch normalisation) stay as the server sent them, because
they cannot be clipped. Beside the arrays goes a ConfigRecord that says which plan, which round and which ticket
this is. Everything read from a peer is checked here first; `Malformed` says in one sentence what was wrong.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from nbafl.errors import NbaflError

ARRAYS, CONFIG, ANSWER = "arrays", "config", "nbafl"
PROTOCOL = 2
"""What messages mean: an upload is an offset from the broadcast (1: whole weights). Both sides must speak the same."""
PLAN, ROUND, TICKET, CLIENT, END, CHECK, SPEAKS = (
    "nbafl-plan",
    "nbafl-round",
    "nbafl-ticket",
    "nbafl-client",
    "nbafl-end",
    "nbafl-check",
    "nbafl-protocol",
)
OTHER_VERSION = "runs another version of nbafl, whose messages mean something else."
LARGEST = 1e6
"""No weight of a sane model is larger; a broadcast beyond it is not trained on."""
REFUSED, UNREADABLE, LOST = 900, 901, 902
"""Error codes: a client says no, its reply cannot be read, it went away. Flower's own are below 100."""
_HEADER = 1024  # bytes of a .npy header, at most


class Malformed(NbaflError):
    """A message that does not say what it should; it is rejected, logged and never used."""


@dataclass(frozen=True)
class Instruction:
    """What the server asks of one client in one round."""

    plan: str
    round: int
    ticket: str
    client: int

    def to_config(self) -> dict[str, int | str]:
        said: dict[str, int | str] = {PLAN: self.plan, ROUND: self.round, TICKET: self.ticket}
        return {**said, CLIENT: self.client, SPEAKS: PROTOCOL}

    def answered(self) -> ConfigRecord:
        """What an answer says of itself."""
        return ConfigRecord({PLAN: self.plan, ROUND: self.round, TICKET: self.ticket, SPEAKS: PROTOCOL})

    @classmethod
    def read(cls, content: RecordDict) -> Instruction:
        config = content.get(CONFIG)
        if not isinstance(config, ConfigRecord):
            raise Malformed(f"the message has no ConfigRecord {CONFIG!r}.")
        if config.get(SPEAKS) != PROTOCOL:
            raise Malformed(f"the server {OTHER_VERSION}")
        return cls(
            _field(config, PLAN, str),
            _field(config, ROUND, int),
            _field(config, TICKET, str),
            _field(config, CLIENT, int),
        )


@dataclass(frozen=True)
class Layout:
    """Names, shapes and kinds of the arrays of one model, in a fixed order."""

    entries: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Layout:
        layout = cls(tuple((name, tuple(value.shape), value.dtype) for name, value in arrays.items()))
        if layout.dimension == 0:
            raise Malformed("the model has no floating-point array.")
        return layout

    @property
    def floats(self) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        """The entries that make up the vector."""
        return [entry for entry in self.entries if entry[2].kind == "f"]

    @property
    def dimension(self) -> int:
        """d: how many numbers are clipped and noised."""
        return sum(math.prod(shape) for _, shape, _ in self.floats)

    def check_precision(self) -> None:
        """An upload must keep its place on the grid of all clients, for which 16 bits are too few."""
        for name, _, kind in self.floats:
            if kind.itemsize < np.dtype(np.float32).itemsize:
                raise Malformed(f"array {name!r} is {kind}; uploads need at least float32.")

    @property
    def largest_bytes(self) -> int:
        """Bytes these arrays take as they travel, at most."""
        return sum(math.prod(shape) * kind.itemsize + _HEADER for _, shape, kind in self.entries)

    def read(self, record: Any) -> dict[str, np.ndarray]:
        """The arrays of a record that must have exactly this layout."""
        if not isinstance(record, ArrayRecord):
            raise Malformed(f"the message has no ArrayRecord {ARRAYS!r}.")
        names = {name for name, _, _ in self.entries}
        if set(record.keys()) != names:
            raise Malformed(f"the arrays are {sorted(record.keys())[:4]}, not {sorted(names)[:4]}.")
        return {name: _decode(name, record[name], shape, dtype) for name, shape, dtype in self.entries}

    def vector(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The floating-point entries as one float64 vector."""
        return np.concatenate([arrays[name].astype(np.float64).ravel() for name, _, _ in self.floats])

    def arrays(self, vector: np.ndarray, fixed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays again, the other entries taken from `fixed`."""
        result, start = dict(fixed), 0
        for name, shape, dtype in self.floats:
            size = math.prod(shape)
            result[name] = vector[start : start + size].astype(dtype).reshape(shape)
            start += size
        return {name: result[name] for name, _, _ in self.entries}


def read_any(record: Any) -> dict[str, np.ndarray]:
    """The arrays of a record whose layout is not known beforehand (somebody else's model)."""
    if not isinstance(record, ArrayRecord) or not len(record):
        raise Malformed(f"the message has no ArrayRecord {ARRAYS!r}.")
    arrays = {}
    for name, array in record.items():
        try:
            dtype = np.dtype(array.dtype)
        except TypeError:
            raise Malformed(f"array {name!r} has the unknown type {array.dtype!r}.") from None
        arrays[name] = _decode(name, array, tuple(array.shape), dtype)
    return arrays


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Arrays as Flower sends them."""
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """sha256 of a model: what a client's answer belongs to."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        value = np.asarray(arrays[name], order="C")
        state.update(f"{name}|{value.dtype.str}|{value.shape}|".encode())
        state.update(value.tobytes())
    return state.hexdigest()


def check_broadcast(vector: np.ndarray) -> None:
    """A client never trains on a model with NaN, infinities or absurd weights."""
    if not np.isfinite(vector).all():
        raise Malformed("the broadcast model holds NaN or infinite weights.")
    if np.abs(vector).max() > LARGEST:
        raise Malformed(f"the broadcast model holds weights above {LARGEST:g}.")


def answer(instruction: Instruction, arrays: Mapping[str, np.ndarray], message: Message) -> Message:
    """A client's reply: the arrays and what they answer, nothing else."""
    return Message(RecordDict({ARRAYS: to_record(arrays), ANSWER: instruction.answered()}), reply_to=message)


def check_answer(content: RecordDict, expected: Instruction) -> None:
    """A reply must carry this round's plan, number and ticket: a replay or a late answer does not."""
    config = content.get(ANSWER)
    if not isinstance(config, ConfigRecord):
        raise Malformed(f"the reply has no ConfigRecord {ANSWER!r}.")
    if config.get(SPEAKS) != PROTOCOL:
        raise Malformed(f"the client {OTHER_VERSION}")
    for name, kind, wanted in (
        (PLAN, str, expected.plan),
        (ROUND, int, expected.round),
        (TICKET, str, expected.ticket),
    ):
        found = _field(config, name, kind)
        if found != wanted:
            raise Malformed(f"the reply is for another {name.removeprefix('nbafl-')} than this one.")


def printable(text: str) -> str:
    """A stranger's sentence, short and without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:300])


def text_field(config: ConfigRecord, name: str) -> str:
    """A field of a message that must be text."""
    return str(_field(config, name, str))


def _field(config: ConfigRecord, name: str, kind: type) -> Any:
    value = config.get(name)
    if type(value) is not kind:
        raise Malformed(f"the field {name!r} must be {kind.__name__}, got {type(value).__name__}.")
    return value


def _decode(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """The values of one array, after its header and length were compared with what they must be."""
    if not isinstance(array, Array) or array.stype != "numpy.ndarray" or dtype.kind not in "fiub":
        raise Malformed(f"array {name!r} is not an array of plain numbers.")
    expected = math.prod(shape) * dtype.itemsize
    if not expected < len(array.data) <= expected + _HEADER:
        raise Malformed(f"array {name!r} has {len(array.data)} bytes where {expected} and a header belong.")
    stream = BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError
        found, transposed, kind = np.lib.format.read_array_header_1_0(stream)
    except Exception:  # the header is a Python literal written by a stranger: anything may go wrong in it
        raise Malformed(f"array {name!r} has an unreadable header.") from None
    body = array.data[stream.tell() :]
    if found != shape or kind != dtype or len(body) != expected:
        raise Malformed(f"array {name!r} is {kind} {found}, not {dtype} {shape}.")
    return np.frombuffer(body, dtype=dtype).reshape(shape, order="F" if transposed else "C")
