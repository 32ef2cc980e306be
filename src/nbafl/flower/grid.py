"""Messages in and out of the SuperLink in this process, read so that no client can hang or crash the server.

Flower's own grid waits up to two hours for the parts of an announced reply, and an unreadable part ends the run.
Here a reply counts once all its parts are there, a client that was restarted in the middle of a round is asked
again, and what cannot be put together becomes an error reply of that client alone.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run

log = logging.getLogger("nbafl")

UNREADABLE = 901
"""Error code of a reply that could not be put together."""
PARTS = 10_000
"""No honest reply consists of more objects than this."""


@dataclass
class Asked:
    """One client's open question in a round."""

    message: Message
    node: int
    reply: Message | None = None
    lost_since: float | None = None


class LinkGrid(Grid):
    """Flower's Grid over the LinkState of a SuperLink in this process."""

    def __init__(
        self, state: Any, run_id: int, largest_message: int, poll: float = 0.05, grace: float = 5.0
    ) -> None:
        """`grace`: seconds a client may be away in the middle of a round before it counts as lost."""
        self.state, self.run_id, self.largest = state, run_id, largest_message
        self.poll, self.grace = poll, grace

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Ask every client and collect what comes back until all answered or the time is over."""
        open_questions = [Asked(message, message.metadata.dst_node_id) for message in messages]
        for asked in open_questions:
            self._push(asked.message)
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        replies: list[Message] = []
        while open_questions and time.monotonic() < deadline:
            self._look(open_questions)
            for asked in list(open_questions):
                reply = self._finished(asked)
                if reply is not None:
                    replies.append(reply)
                    open_questions.remove(asked)
                    self._forget(asked.message)
            if open_questions:
                time.sleep(self.poll)
        for asked in open_questions:
            self._forget(asked.message)
        return replies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send without waiting."""
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that are complete by now."""
        found = self.state.get_message_res(message_ids=set(message_ids), run_id=self.run_id)
        return [whole for header in found if (whole := self._whole(header)) is not None]

    def get_node_ids(self) -> Iterable[int]:
        """Clients that are connected."""
        return self.state.get_nodes(self.run_id)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The same with what is known about them."""
        return self.state.get_node_info(node_ids=list(self.get_node_ids()))

    @property
    def run(self) -> Run:
        """The one run of this link."""
        return self.state.get_run_info(run_ids=[self.run_id])[0]

    def set_run(self, run: Run) -> None:
        """A link has one run, which it made itself."""
        if run.run_id != self.run_id:
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

    def _push(self, message: Message) -> str:
        with no_object_id_recompute():
            number = message.object_id
            message.metadata.__dict__["_message_id"] = number
            session = self.state.start_session(self.run_id)
            header, tree = remove_content_from_message(message), get_object_tree(message)
            _, missing = self.state.store_message_and_object_tree(header, tree, session)
            objects = get_all_nested_objects(message)
            for part in missing:
                self.state.store_object(self.run_id, session, part, objects[part].deflate())
        return number

    def _forget(self, message: Message) -> None:
        number = message.metadata.message_id
        self.state.delete_messages(message_ins_ids={number})
        self.state.object_store.delete(number)

    def _look(self, questions: list[Asked]) -> None:
        """Match announced replies to questions, and ask again where a client came back without its question."""
        waiting = {asked.message.metadata.message_id: asked for asked in questions if asked.reply is None}
        for header in self.state.get_message_res(message_ids=set(waiting), run_id=self.run_id):
            asked = waiting.get(header.metadata.reply_to_message_id)
            if asked is None:
                continue
            if header.has_error() and header.error.code == ErrorCode.NODE_UNAVAILABLE:
                asked.lost_since = asked.lost_since or time.monotonic()
                self._forget(asked.message)
            asked.reply = header
        online = {info.node_id: info for info in self.get_nodes()}
        for asked in questions:
            if asked.node in online and self._came_back(asked, online[asked.node]):
                self._ask_again(asked)

    def _came_back(self, asked: Asked, info: NodeInfo) -> bool:
        """Restarted after it was asked: Flower hands a question out once only."""
        activated = datetime.fromisoformat(info.last_activated_at).timestamp()
        return asked.lost_since is not None or activated > asked.message.metadata.created_at

    def _ask_again(self, asked: Asked) -> None:
        log.info("client %d came back: asking again.", asked.node)
        self._forget(asked.message)
        content, group = asked.message.content, asked.message.metadata.group_id
        asked.message = Message(
            content, dst_node_id=asked.node, message_type=MessageType.TRAIN, group_id=group
        )
        asked.reply = asked.lost_since = None
        self._push(asked.message)

    def _finished(self, asked: Asked) -> Message | None:
        if asked.reply is None:
            return None
        if asked.lost_since is not None and time.monotonic() - asked.lost_since < self.grace:
            return None
        return self._whole(asked.reply)

    def _whole(self, header: Message) -> Message | None:
        """The reply put together; None while parts are missing, an error of this client when it cannot be."""
        if header.has_error():
            return header
        try:
            return self._inflate(header)
        except Exception as error:
            log.warning("a reply could not be put together (%s).", type(error).__name__)
            reason = f"its reply could not be put together ({type(error).__name__})."
            broken = Message(Error(code=UNREADABLE, reason=reason), reply_to=header)
            broken.metadata.__dict__["_src_node_id"] = header.metadata.src_node_id
            return broken

    def _inflate(self, header: Message) -> Message | None:
        number, store = header.metadata.message_id, self.state.object_store
        parts = {tree.object_id for tree in iterate_object_tree(store.get_object_tree(number))}
        if len(parts) > PARTS:
            raise ValueError("too many parts")
        contents = {part: self.state.get_object(self.run_id, part) for part in parts}
        if any(content is None for content in contents.values()):
            raise ValueError("a part is gone")
        if not all(contents.values()):
            return None
        check_sizes(contents, self.largest)
        message = inflate_object_from_contents(number, contents)
        if not isinstance(message, Message):
            raise TypeError("not a message")
        # Who sent it is what the SuperLink verified, not what the content says.
        message.__dict__["_metadata"] = header.metadata
        store.delete(number)
        return message


def check_sizes(contents: dict[str, bytes], largest: int) -> None:
    """Refuse a reply that would unfold to more than `largest` bytes: an array may name one chunk many times."""
    total = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        total += len(content)
        if kind == "Array":
            body = content[content.index(b"\x00") + 1 :]
            total += sum(len(contents[children[chunk]]) for chunk in json.loads(body)["arraychunk_ids"])
        if total > 2 * largest:
            raise ValueError("too large")
