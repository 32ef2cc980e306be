"""The end of a federation: clients that are just restarting are told of it, those who left are not waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from free_ports import free_port

from nbafl import Plan
from nbafl.flower import certificates, keys, wire
from nbafl.flower.hub import Hub
from nbafl.flower.node import Connection, stay
from nbafl.flower.server import Server

PLAN = Plan(clients=2, samples=10, rounds=1, model="softmax", epsilon=8, adversary="curious-server")


class Parties:
    """A server and two registered clients that speak for themselves."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        made = certificates.make_certificates(["127.0.0.1"], folder / "tls")
        self.authority = made.authority
        self.private = [keys.make_client_key(name, folder)[0] for name in ("a", "b")]
        public = [keys.read_public_key(f"{path}.pub") for path in self.private]
        self.hub = Hub("127.0.0.1", port, made, public, 2**16)
        self.server = Server(PLAN, torch.nn.Linear(2, 2), self.hub, wait=60)

    def connect(self, client: int) -> Connection:
        return Connection(self.address, self.authority, keys.read_private_key(self.private[client]), 2**16)


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    made = Parties(tmp_path)
    with made.hub:
        yield made


def told(parties: Parties, client: int) -> list[str]:
    """Join as a client that only listens: what the server said at the end."""
    heard: list[str] = []

    def handle(message: Message) -> None:
        heard.append(str(message.content[wire.CONFIG][wire.END]))

    stay(parties.connect(client), handle, lambda: False, 60.0)
    return heard


def test_a_client_that_comes_back_after_the_last_round_is_told(parties: Parties) -> None:
    """CI saw a client killed and restarted as the server finished: it waited for a server that had gone."""
    with parties.connect(1).activated():
        pass  # this one leaves, with a word
    killed = parties.connect(0)
    killed._sign_on()
    parties.hub.postbox.left(
        parties.hub.postbox.desks[1], killed._token
    )  # without a word: its connection broke
    assert not parties.hub.postbox.online()
    ending = threading.Thread(target=parties.server.say_goodbye, args=("finished",))
    ending.start()
    time.sleep(0.2)  # the server is at the end; the client is restarting
    assert told(parties, 0) == ["finished"]
    ending.join(60)
    assert not ending.is_alive()


def test_only_clients_that_went_without_a_word_are_waited_for(parties: Parties) -> None:
    postbox = parties.hub.postbox
    assert postbox.returning(60) == {1, 2}  # a server that was restarted has seen nobody yet
    with parties.connect(0).activated():
        assert postbox.returning(60) == {2}
    assert postbox.returning(60) == {2}
    postbox.revoke(2)
    assert postbox.returning(60) == set()


def test_whoever_comes_twice_is_told_twice(parties: Parties) -> None:
    """A supervisor restarts a client that was told: it must not wait for its patience either."""
    ending = threading.Thread(target=parties.server.say_goodbye, args=("finished",))
    ending.start()
    assert told(parties, 0) == told(parties, 0) == ["finished"]
    assert told(parties, 1) == ["finished"]
    ending.join(60)
    assert not ending.is_alive()
