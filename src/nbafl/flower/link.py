"""Flower's SuperLink inside the server's own process: TLS, node authentication, and nothing else reachable.

Flower's `flower-superlink` serves three APIs on one port: Fleet (for clients), Control (start runs, register keys;
open to anybody who can reach the port unless an identity provider is set up) and Runtime (for apps). Here only Fleet
is let through; keys are registered and messages exchanged in memory, so no second process exists that could outlive
this one. The module stands on internals of flwr 1.41 and refuses to start with another version.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, SubStatus
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app

from nbafl.errors import NbaflError
from nbafl.flower.grid import LinkGrid
from nbafl.flower.keys import Certificates
from nbafl.flower.quiet import check_flower

log = logging.getLogger("nbafl")


class Link:
    """A running SuperLink with one run on it; `grid` talks to the clients."""

    def __init__(
        self,
        host: str,
        port: int,
        certificates: Certificates,
        clients: Sequence[ec.EllipticCurvePublicKey],
        largest_message: int,
    ) -> None:
        check_flower()
        config = _config(host, port, certificates)
        app = create_app(config, SuperLinkLifespan)
        state = app.state.linkstate_factory.state()
        self.nodes = {
            state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key_to_bytes(key), 0): number
            for number, key in enumerate(clients)
        }
        run_id = state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        only_replies(state, largest_message)
        self._state, self._task = state, state.get_run_info(run_ids=[run_id])[0].primary_task_id
        self.grid = LinkGrid(state, run_id, largest_message)
        guarded = only_fleet(app, largest_message)
        self._server = uvicorn.Server(
            uvicorn.Config(
                guarded,
                host=host,
                port=port,
                ssl_certfile=str(certificates.certificate),
                ssl_keyfile=str(certificates.key),
                log_level="error",
                access_log=False,
                lifespan="on",
                ws="none",
                timeout_graceful_shutdown=1,
            )
        )
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, name="superlink", daemon=True),
            threading.Thread(target=self._beat, name="task-heartbeat", daemon=True),
        ]

    def __enter__(self) -> Link:
        self._state.claim_task(self._task)
        self._state.activate_task(self._task)
        for thread in self._threads:
            thread.start()
        while not self._server.started:
            if not self._threads[0].is_alive():
                host, port = self._server.config.host, self._server.config.port
                raise NbaflError(f"cannot listen on {host}:{port}: is another server running there?")
            time.sleep(0.05)
        TaskIdentity.run_id, TaskIdentity.task_id = self.grid.run_id, self._task
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._state.finish_task(self._task, sub_status=SubStatus.COMPLETED, details="")
        self._server.should_exit = True
        self._threads[0].join(timeout=5)

    def _serve(self) -> None:
        try:
            self._server.run()
        except SystemExit:  # uvicorn's way to say that the port is taken
            log.debug("the SuperLink did not start")

    def _beat(self) -> None:
        """A run whose task is silent counts as failed; this process is its task."""
        while not self._stop.wait(5):
            self._state.acknowledge_task_heartbeat(self._task)


Asgi = Callable[[dict[str, Any], Callable[..., Any], Callable[..., Any]], Any]


def only_fleet(app: Asgi, largest: int) -> Asgi:
    """Let requests to the Fleet API of a known, sane length through; everything else does not exist here."""

    async def guard(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] == "http":
            status = _refused(scope, largest)
            if status:
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        elif scope["type"] != "lifespan":
            return
        await app(scope, receive, send)

    return guard


def only_replies(state: Any, largest: int) -> None:
    """Clients answer, they do not ask, and an answer has a size.

    Flower stores whatever a client pushes: a message that names the server as its sender would reach another client as
    the server's instruction, and parts without end would fill the memory.
    """
    announce, store = state.store_message_and_object_tree, state.store_object
    received: dict[str, int] = {}

    def announce_reply(message: Message, tree: ObjectTree, session: str) -> tuple[bool, list[str]]:
        if not message.metadata.reply_to_message_id:
            log.warning("a client pushed something that is no answer: it was dropped.")
            return False, []
        return announce(message, tree, session)

    def store_part(run_id: int, session: str, part: str, content: bytes) -> bool:
        received[session] = received.get(session, 0) + len(content)
        return bool(session) and received[session] <= 2 * largest and store(run_id, session, part, content)

    state.store_message_and_object_tree, state.store_object = announce_reply, store_part


def _refused(scope: dict[str, Any], largest: int) -> int | None:
    if not scope["path"].startswith("/v1/fleet/"):
        return 404
    length = dict(scope["headers"]).get(b"content-length", b"")
    if not length.isdigit():
        return 411
    return 413 if int(length) > largest else None


def _config(host: str, port: int, certificates: Certificates) -> SuperLinkLifespanConfig:
    return SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host=host,
        port=port,
        insecure=False,
        certificates=None,
        superexec_auth_secret=secrets.token_bytes(32),
        authn_plugin=NoOpControlAuthnPlugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type="grpc-rere",
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=str(certificates.authority),
        ssl_certfile=str(certificates.certificate),
        ssl_keyfile=str(certificates.key),
        database=FLWR_IN_MEMORY_DB_NAME,
        isolation="process",
        runtime_dependency_install=False,
    )
