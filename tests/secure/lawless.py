"""Random lawless servers with k accomplices, against the real client, with masks as symbols.

Each vector is a formal combination: one symbol for every encoded vector z that a client makes, one for every stream
PRG(key) it adds or subtracts. The server does what it likes: unequal lists and broadcasts, second questions, sets that
nobody is in, duplicate signatures, copied keys, replays, new runs. In the end everything it was given is put together:
which secrets do its shares open, which streams can it compute, and which combinations of its uploads are free of
streams it cannot? Only full sums of one list, with at least M - k honest clients, may be.

    python tests/secure/lawless.py 100000        # the long run, outside CI; prints what it found

X25519, Ed25519, AES and HKDF are replaced by stand-ins that keep who knows what and are fast (tests of the real ones
are in test_keys.py and test_messages.py); everything else is the code that runs in a federation.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from formal_sums import Row, free_of_masks
from parties import MemoryStore, fixed_key
from stand_ins import Stage

from nbafl.errors import Refused
from nbafl.secure import masks, messages, shamir
from nbafl.secure.client import Client
from nbafl.secure.messages import (
    AGREEMENT,
    BEFORE,
    HEADER,
    OPEN,
    AgreeRequest,
    Context,
    TrainRequest,
    UnmaskRequest,
)
from nbafl.secure.primitives import split
from nbafl.secure.state import Secrets
from nbafl.secure.terms import Terms


@dataclass
class Upload:
    owner: int
    commitment: bytes
    round: int
    row: Row


class LawlessServer:
    """One random server: what it does, and what it knows in the end."""

    def __init__(
        self, terms: Terms, accomplices: set[int], stage: Stage, kind: type[Client] = Client
    ) -> None:
        self.terms, self.accomplices, self.stage, self.random = terms, accomplices, stage, stage.random
        self.honest = {
            number: kind(terms, number, fixed_key(number), MemoryStore())
            for number in terms.numbers
            if number not in accomplices
        }
        self.secrets: set[bytes] = set()  # everything accomplices made themselves
        self.channels: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}
        self.opens: dict[int, list[bytes]] = {}
        self.runs: dict[int, tuple[bytes, tuple[bytes, ...]]] = {}
        self.headers: dict[int, list[bytes]] = {}
        self.sealed: dict[bytes, dict[int, bytes]] = {}
        self.shares: dict[tuple[bytes, str], dict[int, bytes]] = {}
        self.targets: dict[tuple[bytes, str], bytes] = {}
        self.uploads: dict[bytes, Upload] = {}
        self.lists: dict[bytes, TrainRequest] = {}
        self.signatures: dict[tuple[bytes, bytes], dict[int, bytes]] = {}
        self.past: list[tuple[str, int, Any]] = []

    # --- what it does ---------------------------------------------------------------------------------------

    def play(self, rounds: int) -> None:
        self._open()
        for round in range(1, rounds + 1):
            if self.random.random() < 0.07:
                self._open()
            self._prepare(round if self.random.random() < 0.93 else self.random.randint(1, rounds))
            for _ in range(self.random.choice((1, 1, 2, 3))):
                self._train(round)
                self._agree(round)
                self._unmask(round)
                if self.random.random() < 0.3:
                    self._repeat()

    def _open(self) -> None:
        """A run; sometimes two clients are told of different ones."""
        own = {number: client.open() for number, client in self.honest.items()}
        variants = []
        for _ in range(self.random.choice((1, 1, 1, 2))):
            opens = dict(own)
            for number in self.accomplices:
                channel = self.stage.fresh()
                self.secrets.add(channel)
                body = (self.terms.agreement, channel)
                opens[number] = messages.signed(OPEN, number, BEFORE, body, fixed_key(number)).encode()
            variants.append(tuple(opens[number] for number in self.terms.numbers))
        for number, client in self.honest.items():
            chosen = self.random.choice(variants)
            with suppress(Refused):
                self.runs[number] = client.join(chosen), chosen
        self.headers, self.sealed = {}, {}

    def _prepare(self, round: int) -> None:
        self.headers = {number: [] for number in self.terms.numbers}
        for number, client in self.honest.items():
            if number in self.runs and self.random.random() < 0.97:
                with suppress(Refused):
                    self._take_prepared(number, client.prepare(round), client)
        runs = sorted({run for run, _ in self.runs.values()})
        for number in self.accomplices:
            for _ in range(self.random.choice((1, 1, 2))):
                key = self.stage.fresh()
                self.secrets.add(key)
                copied = [split(each)[2] for other in self.honest for each in self.headers[other]]
                public = self.random.choice(copied) if copied and self.random.random() < 0.5 else key
                seed = self.stage.fresh()
                self.secrets.add(seed)
                context = Context(self.random.choice(runs), round)
                body = (public, masks.seed_hash(seed))
                header = messages.signed(HEADER, number, context, body, fixed_key(number)).encode()
                self.headers[number].append(header)
                self.sealed[header] = {}

    def _take_prepared(self, number: int, content: bytes, client: Client) -> None:
        """The header, the ciphertexts, and what accomplices read in theirs."""
        header, *rest = split(content)
        others = [other for other in self.terms.numbers if other != number]
        self.headers[number].append(header)
        self.sealed[header] = dict(zip(others, rest, strict=True))
        secrets = Secrets.decode(client.store.load()[1] or b"")
        for kind, secret in (("mask", secrets.mask), ("seed", secrets.seed)):
            if secret:
                self.targets[header, kind] = secret
        for holder in self.accomplices:
            for kind, text in zip(("mask", "seed"), split(self.sealed[header][holder][32:]), strict=True):
                self.shares.setdefault((header, kind), {})[holder] = text

    def _list(self, round: int) -> TrainRequest | None:
        chosen = {number: self.random.choice(each) for number, each in self.headers.items() if each}
        uploaded = {each.owner for each in self.uploads.values() if each.round == round}
        style = self.random.random()
        if style < 0.35:
            keep = set(chosen)
        elif style < 0.6:  # made of the dropped
            keep = set(chosen) - uploaded | self.accomplices
            keep |= set(
                self.random.sample(
                    sorted(chosen), min(len(chosen), self.random.randint(0, self.terms.fewest))
                )
            )
        else:
            size = (
                self.terms.fewest
                if self.random.random() < 0.8
                else self.random.randint(1, self.terms.clients)
            )
            keep = set(self.random.sample(sorted(chosen), min(size, len(chosen))))
        headers = tuple(chosen[number] for number in sorted(keep & set(chosen)))
        if not headers:
            return None
        return TrainRequest(round, self.random.choice((b"a" * 32, b"b" * 32)), headers, ())

    def _train(self, round: int) -> None:
        if self.random.random() < 0.35:
            self._single_out(round)
        family = [
            each for each in (self._list(round) for _ in range(self.random.choice((1, 2, 2, 3)))) if each
        ]
        for number in self._shuffled(self.honest):
            for plain in self.random.sample(family, min(len(family), self.random.choice((1, 1, 2)))):
                sealed = tuple(self.sealed.get(header, {}).get(number, b"") for header in plain.headers)
                request = TrainRequest(plain.round, plain.broadcast, plain.headers, sealed)
                self._ask("train", number, request)

    def _single_out(self, round: int) -> None:
        """One client gets a list of its own of just M names; everybody else will be told that it is in their sum."""
        present = {number: self.random.choice(each) for number, each in self.headers.items() if each}
        victims = [number for number in present if number in self.honest]
        if not victims or len(present) < self.terms.fewest:
            return
        victim = self.random.choice(victims)
        preferred = sorted(
            set(present) - {victim}, key=lambda number: (number in self.honest, self.random.random())
        )
        listed = sorted([victim, *preferred[: self.terms.fewest - 1]])
        headers = tuple(present[number] for number in listed)
        sealed = tuple(self.sealed.get(header, {}).get(victim, b"") for header in headers)
        self._ask("train", victim, TrainRequest(round, b"c" * 32, headers, sealed))

    def _with_an_outsider(self, listed: list[int], commitment: bytes, round: int) -> set[int]:
        """A set with somebody whose upload is under another list, and without the others on that list."""
        outside = [
            each for each in self.uploads.values() if each.round == round and each.commitment != commitment
        ]
        if not outside:
            return set(listed)
        victim = self.random.choice(outside)
        theirs = {int.from_bytes(split(header)[0], "big") for header in self.lists[victim.commitment].headers}
        ranked = sorted(
            listed, key=lambda number: (number != victim.owner, number in theirs, self.random.random())
        )
        most = max(self.terms.fewest, 1 + len(set(listed) - theirs))
        return set(ranked[: self.random.randint(self.terms.fewest, most)])

    def _agree(self, round: int) -> None:
        for commitment in [each for each, plain in self.lists.items() if plain.round == round]:
            listed = [int.from_bytes(split(header)[0], "big") for header in self.lists[commitment].headers]
            uploaded = {each.owner for each in self.uploads.values() if each.commitment == commitment}
            sets = []
            for _ in range(self.random.choice((1, 2, 2, 3))):
                style, full = self.random.random(), (uploaded | self.accomplices) & set(listed)
                if style < 0.3:
                    chosen = full
                elif style < 0.6:  # nearly everybody: somebody's upload came and is called dropped
                    spare = max(0, len(full) - self.terms.fewest)
                    chosen = full - set(
                        self.random.sample(sorted(full), min(spare, self.random.randint(1, 2)))
                    )
                elif style < 0.9:
                    chosen = self._with_an_outsider(listed, commitment, round)
                else:
                    chosen = set(
                        self.random.sample(
                            sorted(self.terms.numbers), self.random.randint(1, self.terms.clients)
                        )
                    )
                sets.append(AgreeRequest(round, commitment, messages.names(chosen)))
            for number in self._shuffled(self.honest):
                for request in self.random.sample(sets, min(len(sets), self.random.choice((1, 1, 2)))):
                    self._ask("agree", number, request)
            for request in sets:
                self.signatures.setdefault((commitment, request.members), {})

    def _unmask(self, round: int) -> None:
        requests = []
        for (commitment, members), honest in self.signatures.items():
            plain = self.lists.get(commitment)
            if plain is not None and plain.round == round:
                requests.append(self._certified(round, commitment, members, honest))
        for number in self._shuffled(self.honest):
            for request in self.random.sample(requests, min(len(requests), 3)):
                self._ask("unmask", number, request)

    def _certified(
        self, round: int, commitment: bytes, members: bytes, honest: dict[int, bytes]
    ) -> UnmaskRequest:
        """With all signatures there are, accomplices' included; sometimes with duplicates, sometimes with none."""
        collected = dict(honest)
        for run in {run for run, _ in self.runs.values()}:
            for number in self.accomplices:
                context = Context(run, round)
                made = messages.signed(AGREEMENT, number, context, (commitment, members), fixed_key(number))
                collected[number] = made.signature
        pairs = list(collected.items())
        if pairs and self.random.random() < 0.4:  # once more the same
            pairs = (pairs * self.terms.clients)[: self.terms.clients]
        if self.random.random() < 0.1:
            pairs = []
        return UnmaskRequest(round, commitment, members, tuple(pairs))

    def _repeat(self) -> None:
        """Old questions once more, to anybody."""
        for kind, _, request in self.random.sample(self.past, min(len(self.past), 5)):
            self._ask(kind, self.random.choice(sorted(self.honest)), request)

    def _ask(self, kind: str, number: int, request: Any) -> None:
        self.past.append((kind, number, request))
        client = self.honest[number]
        with suppress(Refused):
            if kind == "train":
                self._take_upload(number, client.train(request, lambda _: self._vector(number)), request)
            elif kind == "agree":
                signature = split(client.agree(request))[1]
                self.signatures.setdefault((request.commitment, request.members), {})[number] = signature
            else:
                self._take_reveal(number, client.unmask(request))

    def _vector(self, number: int) -> Any:
        self.stage.vectors += 1
        return f"{number}.{self.stage.vectors}"

    def _take_upload(self, number: int, content: bytes, request: TrainRequest) -> None:
        _, _, commitment, masked = split(content)
        self.lists[commitment] = request
        row = {name: sign for name, sign in json.loads(masked).items() if sign}
        self.uploads[content] = Upload(number, commitment, request.round, row)

    def _take_reveal(self, number: int, content: bytes) -> None:
        _, _, commitment, members, shares = split(content)
        inside = {int.from_bytes(each, "big") for each in split(members)}
        for header, share in zip(self.lists[commitment].headers, split(shares), strict=True):
            dealer = int.from_bytes(split(header)[0], "big")
            if share:
                kind = "seed" if dealer in inside else "mask"
                self.shares.setdefault((header, kind), {})[number] = share

    def _shuffled(self, numbers: Any) -> list[int]:
        return self.random.sample(sorted(numbers), len(numbers))

    # --- what it knows --------------------------------------------------------------------------------------

    def learned(self) -> set[bytes]:
        """Its accomplices' secrets, and those of honest clients that its shares open."""
        opened = set(self.secrets)
        for name, shares in self.shares.items():
            secret = self.targets.get(name)
            if secret is not None and shamir.combine(shares) == secret:
                opened.add(secret)
        return opened

    def seen(self) -> list[Row]:
        """Its uploads without the streams that it can compute."""
        secrets = self.learned()

        def closed(name: str) -> bool:
            return name.startswith("z") or not self.stage.known(bytes.fromhex(name), secrets)

        return [
            {name: sign for name, sign in upload.row.items() if closed(name)}
            for upload in self.uploads.values()
        ]

    def leaks(self) -> list[Row]:
        """Combinations of vectors that it can compute and must not; empty if the protocol holds."""
        rows = self.seen()
        owners = {next(iter(row)): upload for row, upload in zip(rows, self.uploads.values(), strict=True)}
        return [row for row in free_of_masks(rows) if not self._allowed(row, owners)]

    def _allowed(self, row: Row, owners: dict[str, Upload]) -> bool:
        parts = [owners[name] for name in row]
        equal = len(set(row.values())) == 1
        one_list = len({part.commitment for part in parts}) == 1
        return equal and one_list and len(parts) >= self.terms.fewest - len(self.accomplices)


def sizes(source: random.Random, largest: int = 6) -> tuple[int, int, int]:
    """(N, k, M) that a plan may have."""
    while True:
        clients = source.randint(3, largest)
        accomplices = source.randint(0, clients - 2)
        lowest = max((clients + accomplices) // 2 + 1, accomplices + 2)
        if lowest <= clients:
            return clients, accomplices, source.randint(lowest, clients)


def attack(
    seed: int,
    kind: type[Client] = Client,
    size: tuple[int, int, int] | None = None,
) -> tuple[int, list[Row]]:
    """One random server: (how many sums it opened, what it must not know and does)."""
    source = random.Random(seed)
    stage = Stage(random=source)
    with stage.on():
        clients, accomplices, fewest = size or sizes(source)
        keys = tuple(fixed_key(number) for number in range(1, clients + 1))
        terms = Terms(b"p" * 32, b"r" * 32, keys, accomplices, fewest, 9, 1, 4)
        chosen = set(source.sample(sorted(terms.numbers), accomplices))
        server = LawlessServer(terms, chosen, stage, kind)
        server.play(rounds=2)
        return len(free_of_masks(server.seen())), server.leaks()


def main(count: int, start: int = 0) -> int:
    sums = 0
    for seed in range(start, start + count):
        opened, leaks = attack(seed)
        sums += opened
        if leaks:
            print(f"server {seed} learned {leaks}")
            return 1
        if (seed + 1 - start) % 10_000 == 0:
            print(f"{seed + 1 - start} servers, {sums} sums opened, no leak", flush=True)
    print(f"{count} lawless servers (N <= 6, any k and M): {sums} sums opened, nothing else learned")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
