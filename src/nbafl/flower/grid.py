"""Messages in and out of the SuperLink in this process, read so that no client can hang or crash the server.

Flower's own grid waits up to two hours for the parts of an announced reply, and an unreadable part ends the run.
Here a reply counts once all its parts are there, a client that was restarted in the middle of a round is asked
again, and what cannot be put together becomes an error reply of that client alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.app.message import remove_content_from_message
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

UNREADABLE, LOST = 901, 902
"""Error codes of a reply that could not be put together, and of a client that went away."""
PARTS = 10_000
"""No honest reply consists of more objects than this."""


@dataclass
class Asked:
    """One client's open question in a round."""

    message: Message
    node: int
    lost_since: float | None = None

    def failed(self, code: int, reason: str) -> Message:
        """An error in this client's name."""
        return Message(Error(code=code, reason=reason), reply_to=self.message)


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
            online = {info.node_id: info for info in self.get_nodes()}
            for asked in list(open_questions):
                reply = self._look(asked, online.get(asked.node))
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
        headers = [header for number in message_ids if (header := self._announced(number)) is not None]
        return [whole for header in headers if (whole := self._inflate(header)) is not None]

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
            link = type(
                self.state
            )  # its own methods: those of the object are for clients, see `link.only_replies`
            _, missing = link.store_message_and_object_tree(self.state, header, tree, session)
            objects = get_all_nested_objects(message)
            for part in missing:
                link.store_object(self.state, self.run_id, session, part, objects[part].deflate())
        return number

    def _forget(self, message: Message) -> None:
        number = message.metadata.message_id
        self.state.delete_messages(message_ins_ids={number})
        self.state.object_store.delete(number)

    def _announced(self, number: str) -> Message | None:
        """The header of the reply to a message. Flower's own look-up reports one that answered and left as lost."""
        with self.state.lock:
            reply = self.state.message_ins_id_to_message_res_id.get(number)
            return self.state.message_res_store.get(reply)

    def _look(self, asked: Asked, info: NodeInfo | None) -> Message | None:
        """The reply if it is whole, an error if there will be none, None while there is hope."""
        header = self._announced(asked.message.metadata.message_id)
        if header is not None:
            whole = self._whole(asked, header)
            if whole is not None:
                return whole
        if info is None:
            asked.lost_since = asked.lost_since or time.monotonic()
            if time.monotonic() - asked.lost_since > self.grace:
                return asked.failed(LOST, "its connection was lost.")
        elif asked.lost_since is not None or _restarted(asked, info):
            self._ask_again(asked)
        return None

    def _ask_again(self, asked: Asked) -> None:
        """Flower hands a message out once only: a client that was killed needs a new one."""
        self._forget(asked.message)
        content, group = asked.message.content, asked.message.metadata.group_id
        asked.message = Message(
            content, dst_node_id=asked.node, message_type=MessageType.TRAIN, group_id=group
        )
        asked.lost_since = None
        self._push(asked.message)

    def _whole(self, asked: Asked, header: Message) -> Message | None:
        """The reply put together; None while parts are missing, an error of this client when it cannot be."""
        if header.has_error():
            return header
        try:
            return self._inflate(header)
        except Exception as error:
            return asked.failed(UNREADABLE, f"its reply could not be put together ({type(error).__name__}).")

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


def _restarted(asked: Asked, info: NodeInfo) -> bool:
    """Whether the client signed on anew after it was asked."""
    activated = datetime.fromisoformat(info.last_activated_at).timestamp()
    return activated > asked.message.metadata.created_at


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
