"""One client of a secure aggregation as a state machine: open, prepare, train, agree, unmask.

Every method takes a request, checks it, makes what has to be kept durable, and only then returns the bytes that may
leave. Asked the same again it gives the same bytes; asked for anything that would be a second upload, a second
signature or a second kind of share, it refuses. A refusal (`Declined`) quotes nothing but the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nbafl.errors import Refused
from nbafl.privacy.ledger import Declined
from nbafl.secure import masks, primitives, shamir
from nbafl.secure.messages import (
    AGREEMENT,
    BEFORE,
    HEADER,
    NAME,
    OPEN,
    REVEAL,
    UPLOAD,
    AgreeRequest,
    Context,
    Prepared,
    Signed,
    TrainRequest,
    UnmaskRequest,
    read,
    read_names,
    reveal_body,
    signed,
    verify,
)
from nbafl.secure.primitives import Broken, digest, join, number, split
from nbafl.secure.state import Charge, Secrets, State, Store
from nbafl.secure.terms import Terms

Encode = Callable[[bytes], np.ndarray]
"""Trains and encodes: from c to the words z_i = round(q u / gamma) + n_i; called once all checks are passed."""


class OutOfRun(Declined):
    """This client's state was lost or put back: it can take part again in a new run only."""


class Client:
    """One client: its number, its signing key, and where its state is kept."""

    def __init__(self, terms: Terms, who: int, signing_key: bytes, store: Store) -> None:
        self.terms, self.number, self.store = terms, who, store
        self._signing_key = signing_key
        if who not in terms.numbers or primitives.verifying_key(signing_key) != terms.keys[who - 1]:
            raise Refused(f"the signing key of this client is not the roster's key of client {who}.")

    def name(self, challenge: bytes) -> bytes:
        """Who this is, for a server that knows its connections by other names; changes nothing, tells nothing else."""
        body = (challenge, self.terms.agreement)
        return signed(NAME, self.number, BEFORE, body, self._signing_key).encode()

    # --- open: once a run -----------------------------------------------------------------------------------

    def open(self) -> bytes:
        """A fresh channel key, signed over the terms; the same one until a run was made of it."""
        state, secrets = self._load(lost_is_fine=True)
        if secrets.open and secrets.channel:
            return secrets.open
        channel = primitives.fresh_secret()
        body = (self.terms.agreement, primitives.public_key(channel))
        opened = signed(OPEN, self.number, BEFORE, body, self._signing_key).encode()
        self._save(state, replace(secrets, open=opened, channel=channel))
        return opened

    def join(self, opens: Sequence[bytes]) -> bytes:
        """Begin the run that all N opens make; erases the channel secret. Returns the run's name, their hash."""
        run = digest(b"run", *opens)
        state, secrets = self._load(lost_is_fine=True)
        if state.run == run:
            return run
        if not secrets.channel or secrets.open not in opens:
            raise OutOfRun(
                "this run was not made from this client's own open: the client is excluded from the run."
            )
        chain = self._chain(run, read_opens(opens, self.terms), secrets)
        kept = Secrets(run=run, round=state.round, chain=chain)
        self._save(State(steps=state.steps, run=run, round=state.round), kept)
        return run

    def _chain(self, run: bytes, channels: dict[int, bytes], secrets: Secrets) -> dict[int, bytes]:
        """The first key of the chain with every other client."""
        chain = {}
        for other, channel in channels.items():
            if other == self.number:
                continue
            try:
                shared = primitives.shared_secret(secrets.channel, channel)
            except Broken:
                raise Declined(f"the channel key of client {other} is of low order.") from None
            pair = masks.pair_context(self.number, channels[self.number], other, channel)
            chain[other] = primitives.derive(shared, b"chain", run, *pair)
        return chain

    # --- prepare: once a round ------------------------------------------------------------------------------

    def prepare(self, round: int) -> bytes:
        """Fresh mask key and seed of a round: a signed header, and for each other client its sealed shares of both."""
        state, secrets = self._in_run()
        if round == state.round and state.prepared:
            return state.prepared
        if not state.round < round <= self.terms.last_round:
            raise Declined(
                f"round {round} cannot be prepared: rounds only go up, from {state.round} to {self.terms.last_round}."
            )
        secrets = stepped(secrets, round)
        mask, seed = primitives.fresh_secret(), primitives.fresh_secret()
        mask_shares, seed_shares = self._shares(mask), self._shares(seed)
        context, body = Context(state.run, round), (primitives.public_key(mask), masks.seed_hash(seed))
        header = signed(HEADER, self.number, context, body, self._signing_key).encode()
        sealed = {
            holder: primitives.seal(
                seal_key(secrets.chain[holder], self.number, holder),
                join(mask_shares[holder], seed_shares[holder]),
                digest(header),
            )
            for holder in secrets.chain
        }
        prepared = Prepared(header, sealed).encode()
        own = {self.number: mask_shares[self.number]}, {self.number: seed_shares[self.number]}
        self._save(
            _following(state, round, prepared),
            replace(secrets, round=round, mask=mask, seed=seed, mask_shares=own[0], seed_shares=own[1]),
        )
        return prepared

    def _shares(self, secret: bytes) -> dict[int, bytes]:
        return shamir.share(secret, self.terms.threshold, self.terms.numbers)

    # --- train: one c a round, ever -------------------------------------------------------------------------

    def train(self, request: TrainRequest, encode: Encode) -> bytes:
        """The masked upload; row, c, upload and opened shares are on disk, own secrets gone, before it leaves."""
        state, secrets = self._in_run()
        headers = self._listed(request, state)
        commitment = request.commitment(state.run)
        if state.commitment:
            if state.commitment != commitment:
                raise Declined(f"round {request.round} was already answered under another list or broadcast.")
            return self.store.upload(request.round, commitment)
        if not (secrets.mask and secrets.seed):
            raise Declined(
                f"the secrets of round {request.round} are gone: this client waits for the next round."
            )
        pairs = self._pair_keys(request.round, headers, commitment, state, secrets)
        self.store.check(request.round, commitment)
        words = encode(commitment)
        upload = masks.masked(
            self.number, words, masks.self_key(secrets.seed, commitment), pairs, self.terms.width
        )
        context = Context(state.run, request.round)
        message = signed(UPLOAD, self.number, context, (commitment, upload), self._signing_key).encode()
        after = replace(
            state, commitment=commitment, listed=tuple(headers), earlier_reveal=b"", earlier_opened=b""
        )
        self._save(
            after, self._after_upload(request, headers, secrets), Charge(request.round, commitment, message)
        )
        return message

    def _listed(self, request: TrainRequest, state: State) -> dict[int, Signed]:
        """The headers of a list: signed for this run and round, each name once and in order, its own, M at least."""
        if request.round != state.round or not state.prepared:
            raise Declined(f"round {request.round} is not the one this client prepared.")
        context = Context(state.run, request.round)
        found = [read(header, HEADER, context, self.terms) for header in request.headers]
        listed = {header.number: header for header in found}
        if list(listed) != sorted(listed) or len(listed) != len(found):
            raise Declined("the list must hold each name once, in order.")
        if len(request.sealed) != len(found):
            raise Declined("the list must come with one sealed pair of shares for each name.")
        if len(found) < self.terms.fewest:
            raise Declined(f"the list holds {len(found)} names; this plan needs {self.terms.fewest}.")
        own = split(state.prepared)[0]
        if self.number not in listed or own not in request.headers:
            raise Declined("this client's own header is not on the list.")
        return listed

    def _pair_keys(
        self, round: int, headers: dict[int, Signed], commitment: bytes, state: State, secrets: Secrets
    ) -> dict[int, bytes]:
        """s_ij of every other name; a key of low order is named and refused."""
        keys, own = {}, headers[self.number].body[0]
        for other, header in headers.items():
            if other == self.number:
                continue
            try:
                shared = primitives.shared_secret(secrets.mask, header.body[0])
            except Broken:
                raise Declined(f"the mask key of client {other} is of low order.") from None
            pair = masks.pair_context(self.number, own, other, header.body[0])
            keys[other] = masks.pair_key(shared, state.run, round, commitment, pair)
        return keys

    def _after_upload(self, request: TrainRequest, headers: dict[int, Signed], secrets: Secrets) -> Secrets:
        """Own secrets erased, the shares that open kept, the chain one step on."""
        mask_shares, seed_shares = dict(secrets.mask_shares), dict(secrets.seed_shares)
        for dealer, header, sealed in zip(headers, request.headers, request.sealed, strict=True):
            if dealer == self.number:
                continue
            try:
                key = seal_key(secrets.chain[dealer], dealer, self.number)
                shares = split(primitives.unseal(key, sealed, digest(header)))
            except Broken:
                continue  # a bad share is left out
            if [len(share) for share in shares] == [shamir.SHARE, shamir.SHARE]:
                mask_shares[dealer], seed_shares[dealer] = shares
        kept = replace(secrets, mask=b"", seed=b"", mask_shares=mask_shares, seed_shares=seed_shares)
        return stepped(kept, request.round + 1)

    # --- agree: one set a round -----------------------------------------------------------------------------

    def agree(self, request: AgreeRequest) -> bytes:
        """Sign (c, U) if this client's upload under c is to be in the sum and M uploads are."""
        state, secrets = self._in_run()
        self._check_set(request.round, request.commitment, request.members, state)
        if self.number not in read_names(request.members, self.terms):
            raise Declined("a client signs only a set that it is in.")
        if state.agreed:
            if state.members != request.members:
                raise Declined(f"another set of round {request.round} was already signed.")
            return state.agreed
        context, body = Context(state.run, request.round), (request.commitment, request.members)
        agreed = signed(AGREEMENT, self.number, context, body, self._signing_key).encode()
        self._save(replace(state, agreed=agreed, members=request.members), secrets)
        return agreed

    def _check_set(self, round: int, commitment: bytes, members: bytes, state: State) -> None:
        if round != state.round or not state.commitment or state.commitment != commitment:
            raise Declined(f"this client made no upload of round {round} under this list and broadcast.")
        found = read_names(members, self.terms)
        if not set(found) <= set(state.listed) or len(found) < self.terms.fewest:
            raise Declined(f"a sum must be over at least {self.terms.fewest} names of the list.")

    # --- unmask: one kind of share of each name -------------------------------------------------------------

    def unmask(self, request: UnmaskRequest) -> bytes:
        """Shares of b_j for the set that t clients signed, of the mask secret for the rest; the others are erased."""
        state, secrets = self._in_run()
        if state.earlier_reveal and request.round == state.earlier_round:
            if request.members != state.earlier_opened:
                raise Declined(f"another set of round {request.round} was already opened.")
            return state.earlier_reveal
        self._check_set(request.round, request.commitment, request.members, state)
        self._check_certificate(request, state)
        if state.reveal:
            if state.opened != request.members:
                raise Declined(f"another set of round {request.round} was already opened.")
            return state.reveal
        members = set(read_names(request.members, self.terms))
        shares = [
            (secrets.seed_shares if dealer in members else secrets.mask_shares).get(dealer, b"")
            for dealer in state.listed
        ]
        body = reveal_body(request.commitment, request.members, shares)
        reveal = signed(
            REVEAL, self.number, Context(state.run, request.round), body, self._signing_key
        ).encode()
        self._save(
            replace(state, opened=request.members, reveal=reveal),
            replace(secrets, mask_shares={}, seed_shares={}),
        )
        return reveal

    def _check_certificate(self, request: UnmaskRequest, state: State) -> None:
        """Signatures of t different names of the roster on exactly this (c, U)."""
        context, body = Context(state.run, request.round), (request.commitment, request.members)
        for who, signature in request.certificate:
            verify(Signed(who, body, signature), AGREEMENT, context, self.terms)
        if len({who for who, _ in request.certificate}) < self.terms.threshold:
            raise Declined(f"a set is opened once {self.terms.threshold} different clients signed it.")

    # --- what is kept ---------------------------------------------------------------------------------------

    def _load(self, lost_is_fine: bool = False) -> tuple[State, Secrets]:
        """State and secrets as they fit together; see `state` for what happens where they do not."""
        stored_state, stored_secrets = self.store.load()
        state = State.decode(stored_state) if stored_state else State()
        secrets = Secrets.decode(stored_secrets) if stored_secrets else Secrets()
        if state.steps == secrets.steps:
            return state, secrets
        newest = max(state.round, secrets.round)
        if secrets.steps == state.steps + 1:
            closed = replace(secrets, steps=state.steps, mask=b"", seed=b"", mask_shares={}, seed_shares={})
            return State(steps=state.steps, run=secrets.run, round=newest), replace(closed, round=newest)
        if lost_is_fine:
            return State(steps=state.steps, round=newest), Secrets(steps=state.steps, round=newest)
        raise OutOfRun(
            "the state of this client was lost or restored from a copy: it is excluded from the run."
        )

    def _in_run(self) -> tuple[State, Secrets]:
        state, secrets = self._load()
        if not state.run or state.run != secrets.run:
            raise OutOfRun("this client is not in a run: it lost its state, or the run has not begun.")
        return state, secrets

    def _save(self, state: State, secrets: Secrets, charge: Charge | None = None) -> None:
        steps = state.steps + 1
        after = replace(state, steps=steps).encode(), replace(secrets, steps=steps).encode()
        self.store.save(state.steps, *after, charge)


def read_opens(opens: Sequence[bytes], terms: Terms) -> dict[int, bytes]:
    """Channel keys by number: all N opens in order, each signed over these very terms."""
    found = [read(each, OPEN, BEFORE, terms) for each in opens]
    if [each.number for each in found] != list(terms.numbers):
        raise Declined(f"a run needs the opens of all {terms.clients} clients of the roster, in order.")
    for each in found:
        if each.body[0] != terms.agreement:
            raise Declined(f"client {each.number} opened under another roster or plan.")
    return {each.number: each.body[1] for each in found}


def seal_key(chain: bytes, sender: int, holder: int) -> bytes:
    """The key of this round's shares from one client to another."""
    return primitives.derive(chain, b"seal", number(sender), number(holder))


def stepped(secrets: Secrets, round: int) -> Secrets:
    """The chain at a later round, missed rounds included: key r = HKDF(key r-1), and earlier keys are gone."""
    chain = dict(secrets.chain)
    for _ in range(secrets.chain_round, round):
        chain = {other: primitives.derive(key, b"step") for other, key in chain.items()}
    return replace(secrets, chain_round=max(round, secrets.chain_round), chain=chain)


def _following(state: State, round: int, prepared: bytes) -> State:
    """The state of a fresh round; a reveal just made may still have to be sent again."""
    return State(
        steps=state.steps,
        run=state.run,
        round=round,
        prepared=prepared,
        earlier_round=state.round if state.reveal else 0,
        earlier_opened=state.opened,
        earlier_reveal=state.reveal,
    )
