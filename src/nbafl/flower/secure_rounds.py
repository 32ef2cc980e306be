"""The server's side of secure aggregation over Flower: three exchanges a round, and a mean at the end or a lost round.

`train` asks for masked uploads, `agree` for signatures on who is in the sum, `unmask` for the shares that open it; the
prepares of the next round come with the last. Before the first round all clients open, and whoever missed a prepare is
asked for one. A lost round leaves the model as it was and is gone: its rows are paid, and it cannot be asked again.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.serverapp import Grid

from nbafl.durable import write_bytes
from nbafl.errors import NbaflError, Refused
from nbafl.flower import steps, wire
from nbafl.flower.roster import Roster
from nbafl.flower.secure_member import AGREE, OPEN, PREPARE, TRAIN, UNMASK, terms_of
from nbafl.flower.wire import Instruction, Layout
from nbafl.plan import Plan
from nbafl.secure import encoding
from nbafl.secure.primitives import Broken, join, split
from nbafl.secure.server import Opened, Round, RoundLost, Server
from nbafl.secure.terms import Terms

log = logging.getLogger("nbafl")
Nodes = Callable[[], Mapping[int, int]]
"""Flower's node of each client number (1..N) that is connected now."""
TAIL = 12.0


class FolderShelf:
    """`secure.server.Shelf`: one file for each name, whole or not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> bytes | None:
        file = self.folder / name
        return file.read_bytes() if file.is_file() else None

    def put(self, name: str, content: bytes) -> None:
        write_bytes(self.folder / name, content)


@dataclass
class SecureMean:
    """What a round gave: the mean of those in the sum, and who they are."""

    vector: np.ndarray
    members: list[int]


@dataclass
class SecureRounds:
    """Rounds of secure aggregation with whoever is connected."""

    plan: Plan
    roster: Roster
    folder: Path
    grid: Grid
    nodes: Nodes
    timeout: float = 600.0
    wait: float = 600.0
    grace: float = 5.0
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    """What the clients' training is told, beside the model."""
    missing: dict[int, str] = field(default_factory=dict)
    """Why clients (numbers) are not in the last sum."""

    kind: ClassVar[str] = MessageType.TRAIN

    def __post_init__(self) -> None:
        self.server = Server(self._terms(), FolderShelf(self.folder))
        self.prepared: dict[int, bytes] = {}

    def mean(self, number: int, arrays: ArrayRecord, layout: Layout) -> SecureMean:
        """One round; `RoundLost` when its sum cannot be opened, `Refused` when too few clients are there at all."""
        self.missing = {}
        self._open(number)
        if not self.server.begun(number):
            self._prepare(number)
        received = layout.read(arrays)
        running = self.server.begin(number, bytes.fromhex(wire.digest(received)), self.prepared)
        self.prepared = {}
        try:
            if not running.summed:
                self._take(running, TRAIN, running.listed, arrays)
            agree = running.agree_request()
            if not running.certified:
                self._take(running, AGREE, running.members or (), None, agree.encode())
            unmask = running.unmask_request()
            self._take(running, UNMASK, running.members or (), None, unmask.encode())
            opened = running.open()
        except RoundLost as lost:
            self.server.leave_out(lost.blamed)
            raise
        for listed in self.plan_numbers - set(opened.members):
            self.missing.setdefault(listed, "no answer in time")
        return self._decoded(opened, layout.vector(received))

    def _terms(self) -> Terms:
        return terms_of(self.plan, self.roster)

    @property
    def plan_numbers(self) -> set[int]:
        return set(self.server.terms.numbers)

    # --- before a round -------------------------------------------------------------------------------------

    def _open(self, number: int) -> None:
        """All N clients open once; until they did nothing has begun, and nothing is spent."""
        deadline = time.monotonic() + self.wait
        asked: set[int] = set()
        while self.server.opens is None:
            waiting = set(self.nodes()) - asked
            for who, said in self._ask(OPEN, number, dict.fromkeys(waiting, b"")).items():
                self._noted(who, self.server.add_open, said)
                asked.add(who)
            if self.server.opens is None and time.monotonic() > deadline:
                raise Refused(
                    f"{len(asked)} of {self.plan.clients} clients opened after {self.wait:g} s; a run needs them all."
                )
            time.sleep(0.1)

    def _prepare(self, number: int) -> None:
        """Prepares of this round: those that came with the last round's shares, and of whoever else is there."""
        deadline, grace = time.monotonic() + self.wait, time.monotonic() + self.grace
        refused: set[int] = set()
        self.prepared = {who: said for who, said in self.prepared.items() if self._fits(who, said, number)}
        while True:
            connected = set(self.nodes())
            more = connected - set(self.prepared) - refused
            said = self._ask(PREPARE, number, {each: join(*(self.server.opens or ())) for each in more})
            self.prepared |= {who: text for who, text in said.items() if self._fits(who, text, number)}
            refused |= more - set(self.prepared)
            if self._ready(connected, refused, number, time.monotonic() > grace):
                return
            if time.monotonic() > deadline:
                raise Refused(
                    f"{len(connected)} of {self.plan.clients} clients were connected {self.wait:g} s after round "
                    f"{number} could begin; at least {self.server.terms.fewest} must be."
                )
            time.sleep(0.2)

    def _ready(self, connected: set[int], refused: set[int], number: int, patient: bool) -> bool:
        """Whether a list can be made: everybody was heard, or M are prepared and the others had their time."""
        fewest, ready = self.server.terms.fewest, set(self.prepared) & connected
        heard = len(self.prepared.keys() | refused) == self.plan.clients
        if len(ready) >= fewest:
            return heard or patient
        if patient and len(connected) >= fewest and connected <= ready | refused:
            raise RoundLost(
                f"only {len(ready)} clients prepared round {number}; the other connected clients refused."
            )
        return False

    def _fits(self, who: int, said: bytes, number: int) -> bool:
        return self._noted(who, self.server.read_prepared, said, number)

    # --- exchanges ------------------------------------------------------------------------------------------

    def _take(
        self, running: Round, step: str, whom: Iterable[int], arrays: ArrayRecord | None, body: bytes = b""
    ) -> None:
        """One exchange of a round: ask, and let the round check what comes."""
        bodies = {each: running.train_request(each).encode() if step == TRAIN else body for each in whom}
        for who, said in self._ask(step, running.context.round, bodies, arrays).items():
            if step == UNMASK:
                self._noted(who, self._revealed, running, who, said)
            else:
                add = running.add_upload if step == TRAIN else running.add_agreement
                self._noted(who, add, said)

    def _revealed(self, running: Round, who: int, said: bytes) -> None:
        parts = split(said)
        if len(parts) != 2:
            raise Broken("a reveal and a prepare belong together")
        running.add_reveal(parts[0])
        if parts[1]:
            self.prepared[who] = parts[1]

    def _ask(
        self, step: str, number: int, bodies: Mapping[int, bytes], arrays: ArrayRecord | None = None
    ) -> dict[int, bytes]:
        """Each client's bytes; who says no, nothing or nonsense is noted under `missing`."""
        nodes, sent, messages = self.nodes(), {}, []
        for who, body in bodies.items():
            if who not in nodes:
                self.missing[who] = "not connected"
                continue
            instruction = Instruction(self.plan.digest(), number, secrets.token_hex(16), who - 1)
            content = steps.question(step, body, instruction, self.train_config if step == TRAIN else None)
            if arrays is not None:
                content[wire.ARRAYS] = arrays
            sent[nodes[who]] = instruction
            messages.append(Message(content, dst_node_id=nodes[who], message_type=self.kind))
        said: dict[int, bytes] = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout) if messages else ():
            asked = sent.get(reply.metadata.src_node_id)
            if asked is not None:
                self._noted(asked.client + 1, self._heard, said, reply, asked)
        return said

    def _heard(self, said: dict[int, bytes], reply: Message, asked: Instruction) -> None:
        said[asked.client + 1] = steps.read_answer(reply, asked)

    def _noted(self, who: int, act: Callable[..., object], *arguments: object) -> bool:
        """Do something with what a client said; what is wrong with it is its own fault and noted."""
        try:
            act(*arguments)
        except (NbaflError, Broken) as error:
            self.missing[who] = str(error)
            log.warning("client %d: %s", who, error)
            return False
        self.missing.pop(who, None)
        return True

    # --- the sum --------------------------------------------------------------------------------------------

    def _decoded(self, opened: Opened, start: np.ndarray) -> SecureMean:
        """The weighted mean of the uploads in the sum; a sum that no honest uploads can give is lost."""
        sums, limit = self.plan.secure_sums(), self.plan.rule.reach(self.plan)
        assert sums is not None
        q = sums.sums.weights[np.array(opened.members) - 1]
        offset = encoding.to_integers(opened.words, sums.grid.width) * (sums.grid.step / q.sum())
        noise = sums.grid.spread * sums.grid.step * math.sqrt(len(q)) / q.sum()
        rounding = len(q) * sums.grid.step * math.sqrt(len(offset)) / q.sum()
        most = limit.radius + noise * (math.sqrt(len(offset)) + TAIL) + rounding
        norm = float(np.linalg.norm(offset))
        if norm > most:
            raise RoundLost(
                f"the sum's norm {norm:.4g} is above {most:.4g}, more than honest uploads allow: a client "
                "sent a bad upload, and it is not known which."
            )
        if opened.liars:
            log.warning("clients %s sent wrong shares; they were left out.", sorted(opened.liars))
        return SecureMean(offset + limit.centre(start), [each - 1 for each in opened.members])
