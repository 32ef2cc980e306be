"""Lengths of messages: what the sizes say is what clients and server send."""

from __future__ import annotations

import pytest
from parties import Party, terms_of

from nbafl.secure import sizes
from nbafl.secure.primitives import join


@pytest.mark.parametrize(
    ("clients", "accomplices", "fewest", "dimension", "width"),
    [(4, 1, 4, 3, 4), (5, 0, 4, 2000, 5), (7, 1, 6, 1, 5), (3, 0, 2, 700, 4)],
)
def test_the_largest_messages_are_as_large_as_said(
    clients: int, accomplices: int, fewest: int, dimension: int, width: int
) -> None:
    terms = terms_of(clients, accomplices, fewest, dimension=dimension, width=width)
    party = Party(terms)
    running = party.begin(1)
    answers, requests = [], [join(*(party.server.opens or ()))]
    for number, client in party.clients.items():
        requests.append(running.train_request(number).encode())
        answers += [client.prepare(1), party.upload(running, number)]
        running.add_upload(answers[-1])
    requests.append(running.agree_request().encode())
    for client in party.clients.values():
        answers.append(client.agree(running.agree_request()))
        running.add_agreement(answers[-1])
    requests.append(running.unmask_request().encode())
    for client in party.clients.values():
        answers.append(join(client.unmask(running.unmask_request()), client.prepare(2)))
    assert max(map(len, answers)) == sizes.largest_answer(terms)
    own = 102  # what a list holds for the receiver's own shares may be empty
    assert 0 <= sizes.largest_request(terms) - max(map(len, requests)) <= own
