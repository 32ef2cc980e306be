"""A hundred thousand malformed uploads and broadcasts: none is used, none crashes, memory stays as it is.

    .venv/bin/python benchmarks/federation_fuzz.py [--count 100000] [--seed 0] [--json]

Structure-aware: each starts as what an honest party would send and is made wrong in one way (a number, a shape, a
kind, a name, a header, a plan, a round, a ticket, a fact, the framing of the block). Uploads go the server's way from
the block to the vector (`frames`, `Inbox`); broadcasts a client's way from the block to its reply (`frames`,
`Client.handle`), with its ledger looked at. The same over TLS, a thousand of them: tests/e2e/test_federation_fuzz.py.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "e2e"))
import numpy as np
import test_federation_fuzz as honest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from nbafl.flower import frames, wire
from nbafl.flower.client import Client, parameters
from nbafl.flower.inbox import Inbox
from nbafl.flower.release import Releaser
from nbafl.flower.wire import Instruction, Layout, Malformed
from nbafl.privacy.ledger import Ledger, Limits

PLAN = honest.PLAN


def memory_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def reframed(block: bytes, chance: random.Random) -> bytes:
    """The same bytes in a frame that does not fit."""
    (length,) = struct.unpack_from(">I", block)
    wrong = chance.choice([length + 1, length - 1, 0, 2**31, chance.randrange(2**32)])
    kinds = [
        block[: chance.randrange(len(block))],
        block + chance.randbytes(chance.randrange(1, 50)),
        struct.pack(">I", wrong if wrong != length else 0) + block[4:],
        chance.randbytes(chance.randrange(200)),
        block[: 4 + length] + struct.pack(">Q", chance.choice([2**63, 10**6, 0])) + block[12 + length :],
        struct.pack(">I", 2**17) + b"\x12\x02\x0a\x00" * 2**15,  # a header of many empty records
    ]
    return chance.choice(kinds)


class Uploads:
    """The server's side: from a block to a vector that may be averaged."""

    def __init__(self) -> None:
        start = {name: value.copy() for name, value in parameters(honest.model()).items()}
        self.start, self.inbox = start, Inbox(PLAN, Layout.of(start), start)
        self.instruction = Instruction(PLAN.digest(), 3, "7" * 32, 5)
        content = RecordDict({wire.ARRAYS: wire.to_record(start), wire.CONFIG: ConfigRecord({})})
        self.question = Message(content, dst_node_id=6, message_type=MessageType.TRAIN)

    def attack(self, chance: random.Random) -> bool:
        """Whether a malformed upload was used."""
        config = dict(self.instruction.answered())
        arrays = {name: value.copy() for name, value in self.start.items()}
        if chance.random() < 0.6:
            content = chance.choice(honest.KINDS)(arrays, config, chance)
            block = frames.encode(Message(content, reply_to=self.question))
        else:
            whole = frames.encode(Message(honest.content(arrays, config), reply_to=self.question))
            block = reframed(whole, chance)
        try:
            self.inbox.read(frames.decode_reply(block, self.question), self.instruction)
        except Malformed:
            return False
        return True


class Broadcasts:
    """A client's side: from a block to its reply, with its ledger."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(folder / "ledger.sqlite", anchors=folder / "anchors")
        self.ledger.set_limits(Limits(1e6, 1e-2))
        self.client = Client(Releaser(PLAN, self.ledger), honest.model(), *honest.data(0))
        self.start = {name: value.copy() for name, value in parameters(honest.model()).items()}

    def message(self, chance: random.Random) -> Message:
        good = Instruction(
            PLAN.digest(), 1 + chance.randrange(PLAN.rounds), "8" * 32, chance.randrange(2)
        ).to_config()
        arrays = {name: value.copy() for name, value in self.start.items()}
        kind = chance.randrange(4)
        if kind == 0:
            name = chance.choice(sorted(good))
            good[name] = chance.choice([None, -1, 2**40, "", "x" * 64, 0.5, b"\xff", [1], True])  # type: ignore[assignment]
            good = {key: value for key, value in good.items() if value is not None}
            if type(good.get(name)) is int:  # a number that is none of the plan's
                good[name] = 10**9
            elif name == wire.TICKET and type(good.get(name)) is str:  # any text is a ticket
                del good[name]
        elif kind == 1:
            changed = chance.choice(honest.KINDS[:3] + honest.KINDS[5:12])(arrays, {}, chance)
            return Message(RecordDict({**changed, wire.CONFIG: ConfigRecord(good)}), 1, MessageType.TRAIN)
        elif kind == 2:
            for name in arrays:
                arrays[name].flat[0] = chance.choice([np.nan, np.inf, 1e7, -1e30])
        else:
            facts = {
                wire.CHECK: 1,
                wire.CLIENT: chance.choice([0, -5, 10**6, "x"]),
                "nbafl-fact-plan": "f" * 64,
            }
            return Message(RecordDict({wire.CONFIG: ConfigRecord(facts)}), 1, MessageType.QUERY)
        content = RecordDict({wire.ARRAYS: wire.to_record(arrays), wire.CONFIG: ConfigRecord(good)})
        return Message(
            content, 1, chance.choice([MessageType.TRAIN] * 9 + [MessageType.EVALUATE, "query", "train.x"])
        )

    def attack(self, chance: random.Random) -> bool:
        """Whether a malformed broadcast was answered with anything but a refusal."""
        message = self.message(chance)
        block = frames.encode(message)
        if chance.random() < 0.3:
            block = reframed(block, chance)
        try:
            found = frames.decode(block)
        except Malformed:
            return False
        reply = self.client.handle(found)
        return reply is None or not reply.has_error()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.getLogger("nbafl").setLevel(logging.CRITICAL)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    chance, used, memory = random.Random(options.seed), Counter(), []
    with tempfile.TemporaryDirectory(prefix="nbafl-fuzz-") as folder:
        targets = {"uploads": Uploads(), "broadcasts": Broadcasts(Path(folder))}
        started = time.monotonic()
        for number in range(options.count):
            name = ("uploads", "broadcasts")[number % 2]
            used[name] += targets[name].attack(chance)
            if number % max(1, options.count // 20) == 0:
                memory.append(memory_mb())
        releases = targets["broadcasts"].ledger.spent().releases
    found = {
        "count": options.count,
        "used": {name: used[name] for name in targets},
        "releases": releases,
        "memory_mb_after_5_percent": memory[min(1, len(memory) - 1)],
        "memory_mb_at_the_end": memory[-1],
        "seconds": time.monotonic() - started,
    }
    print(json.dumps(found, indent=2))
    sys.exit(int(any(used.values()) or releases))


if __name__ == "__main__":
    main()
