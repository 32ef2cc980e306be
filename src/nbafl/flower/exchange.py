"""Questions to clients and their answers, as Flower's Grid: what the strategy works with.

An answer that cannot be read becomes an error of that client alone; a client that was restarted in the middle of a
round finds its question again; one that stays away longer than `grace` counts as lost. When a round is over, every
question is withdrawn, and with it whatever a client sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from nbafl.flower import frames
from nbafl.flower.postbox import Postbox, Question
from nbafl.flower.wire import LOST, UNREADABLE, Malformed

LOOK = 0.5
"""Seconds between two looks at who is still there; answers wake the waiting at once."""


@dataclass
class Asked:
    """One client's open question in a round."""

    question: Question
    node: int
    lost_since: float | None = None

    def failed(self, code: int, reason: str) -> Message:
        """An error in this client's name."""
        return Message(Error(code=code, reason=reason), reply_to=self.question.message)


class HubExchange(Grid):
    """Flower's Grid over the postbox of this process."""

    def __init__(self, postbox: Postbox, grace: float = 5.0) -> None:
        """`grace`: seconds a client may be away in the middle of a round before it counts as lost."""
        self.postbox, self.grace = postbox, grace

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Ask every client and collect what comes back until all answered or the time is over."""
        open_questions = [self._ask(message) for message in messages]
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        replies: list[Message] = []
        try:
            while open_questions and time.monotonic() < deadline:
                found = {asked.node: reply for asked in open_questions if (reply := self._look(asked))}
                replies += found.values()
                for asked in [asked for asked in open_questions if asked.node in found]:
                    self.postbox.withdraw(asked.node, asked.question)
                    open_questions.remove(asked)
                self._wait(open_questions, deadline)
        finally:
            for asked in open_questions:
                self.postbox.withdraw(asked.node, asked.question)
        return replies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send without waiting."""
        return [self._ask(message).question.name for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to the given questions that are there by now."""
        wanted = set(message_ids)
        asked = [
            Asked(desk.question, node)
            for node, desk in self.postbox.desks.items()
            if desk.question is not None and desk.question.name in wanted
        ]
        return [reply for one in asked if one.question.answer is not None and (reply := self._read(one))]

    def get_node_ids(self) -> Iterable[int]:
        """Clients that are connected."""
        return sorted(self.postbox.online())

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The same in Flower's form."""
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    @property
    def run(self) -> Run:
        """The one run there is."""
        return Run.create_empty(1)

    def set_run(self, run: Run) -> None:
        """A hub has one run."""
        if run.run_id != self.run.run_id:
            raise ValueError("this grid belongs to another run")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Part of Flower's interface; the Message constructor does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    # --- inside ------------------------------------------------------------------------------------------

    def _ask(self, message: Message) -> Asked:
        node = message.metadata.dst_node_id
        return Asked(self.postbox.ask(node, message), node)

    def _look(self, asked: Asked) -> Message | None:
        """The reply, an error if there will be none, None while there is hope."""
        if asked.question.answer is not None:
            return self._read(asked)
        desk = self.postbox.desks[asked.node]
        if desk.revoked:
            return asked.failed(LOST, "it was revoked.")
        if desk.online():
            asked.lost_since = None
            return None
        asked.lost_since = asked.lost_since or time.monotonic()
        if time.monotonic() - asked.lost_since > self.grace:
            return asked.failed(LOST, "its connection was lost.")
        return None

    def _read(self, asked: Asked) -> Message:
        assert asked.question.answer is not None
        try:
            return frames.decode_reply(asked.question.answer, asked.question.message)
        except Malformed as error:
            return asked.failed(UNREADABLE, f"its reply could not be read: {error}")

    def _wait(self, open_questions: list[Asked], deadline: float) -> None:
        """Until an answer is there, or it is time to look who is left."""
        with self.postbox.changed:
            if open_questions and not any(asked.question.answer is not None for asked in open_questions):
                self.postbox.changed.wait(max(0.0, min(LOOK, deadline - time.monotonic())))
