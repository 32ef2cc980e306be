"""Secure aggregation for an existing Flower app: the server's side as a strategy.

    strategy = nbafl.flower.SecureNbAFL(plan, "roster.toml", "federation")
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=plan.rounds)

Flower's Strategy has one exchange of messages a round (`configure_train`, `aggregate_train`); secure aggregation has
three, so `start` makes the rounds itself, over the same grid. Flower's nodes carry numbers of their own: each is asked
who it is and signs the question with the key that the roster has of it.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid

from nbafl.errors import NbaflError, UsageError
from nbafl.flower import steps
from nbafl.flower.open_round import OpenRound
from nbafl.flower.roster import Roster
from nbafl.flower.secure_member import NAME, terms_of
from nbafl.flower.secure_rounds import SecureRounds
from nbafl.flower.strategy import NbAFL
from nbafl.flower.wire import Instruction
from nbafl.plan import Plan
from nbafl.secure.messages import read_name
from nbafl.secure.primitives import SECRET
from nbafl.secure.server import RoundLost

log = logging.getLogger("nbafl")

AGAIN = 30.0
"""Seconds until a node that did not say who it is is asked once more."""


class Introductions:
    """Which node is which client of the roster, by a signature on a fresh challenge."""

    def __init__(self, plan: Plan, roster: Roster, grid: Grid, timeout: float) -> None:
        self.plan, self.terms, self.grid, self.timeout = plan, terms_of(plan, roster), grid, timeout
        self._known: dict[int, int] = {}
        self._asked: dict[int, float] = {}

    def __call__(self) -> dict[int, int]:
        """Node of each client (1..N) that is connected; of two nodes with one key the one that came last."""
        online, now = set(self.grid.get_node_ids()), time.monotonic()
        new = [
            node
            for node in sorted(online - self._known.keys())
            if now - self._asked.get(node, -math.inf) > AGAIN
        ]
        if new:
            self._asked |= dict.fromkeys(new, now)
            self._ask(new)
        return {number: node for node, number in self._known.items() if node in online}

    def _ask(self, nodes: list[int]) -> None:
        asked = {
            node: (secrets.token_bytes(SECRET), Instruction(self.plan.digest(), 1, secrets.token_hex(16), 0))
            for node in nodes
        }
        messages = [
            Message(steps.question(NAME, *each), dst_node_id=node, message_type=MessageType.TRAIN)
            for node, each in asked.items()
        ]
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            node = reply.metadata.src_node_id
            if node not in asked:
                continue
            challenge, instruction = asked[node]
            try:
                said = steps.read_answer(reply, instruction)
                self._known[node] = read_name(said, challenge, self.terms)
            except NbaflError as error:
                log.warning("node %d is not a client of the roster: %s", node, error)


class SecureNbAFL(NbAFL):
    """Noising before aggregation where the server learns sums and nothing else."""

    aggregation = "secure"

    def __init__(
        self,
        plan: Plan | str | Path,
        roster: Roster | str | Path,
        folder: str | Path,
        *,
        wait: float = 600.0,
        grace: float = 5.0,
    ) -> None:
        """`roster`: the roster or its file; `folder`: what a server must still know after a crash, and its checkpoint.

        `wait`: seconds to wait for the clients to connect; `grace`: for one that was lost, in each later round.
        """
        place = Path(folder)
        super().__init__(plan, checkpoint=place / "checkpoint.safetensors", wait=wait, grace=grace)
        self.roster = roster if isinstance(roster, Roster) else Roster.load(roster)
        self.names = self.roster.names
        self._folder = place / "secure"
        self._rounds: SecureRounds | None = None
        terms_of(self.plan, self.roster)  # refuses a roster that does not fit the plan

    def make_round(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, timeout: float
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The next broadcast, and how many uploads are in the sum; a lost round leaves the model as it was."""
        self._learn_layout(arrays)
        rounds = self._with(grid, timeout)
        rounds.train_config = ConfigRecord({**config, "server-round": number})
        happened = self.last = OpenRound(number, list(range(self.plan.clients)))
        try:
            found = rounds.mean(number, arrays, self._layout_known)
        except RoundLost as lost:
            log.warning("round %d is lost; the model stays as it was: %s", number, lost)
            self._save(number, self._start)
        else:
            happened.answered = found.members
            arrays = self._step(number, found.vector)
        happened.missing = {who - 1: why for who, why in rounds.missing.items()}
        return arrays, MetricRecord({"answered": len(happened.answered)})

    def _with(self, grid: Grid, timeout: float) -> SecureRounds:
        """The rounds over this grid; made anew for another one."""
        if self._rounds is None or self._rounds.grid is not grid:
            nodes = Introductions(self.plan, self.roster, grid, timeout)
            self._rounds = SecureRounds(
                self.plan, self.roster, self._folder, grid, nodes, timeout, self.wait, self.grace
            )
        self._rounds.timeout = timeout
        return self._rounds

    def configure_train(self, *_: Any, **__: Any) -> Iterable[Message]:
        """One exchange is not enough."""
        raise UsageError(
            "strategy", type(self).__name__, "used by its own `start`: a round has three exchanges"
        )

    def aggregate_train(self, *_: Any, **__: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The same."""
        raise UsageError(
            "strategy", type(self).__name__, "used by its own `start`: a round has three exchanges"
        )
