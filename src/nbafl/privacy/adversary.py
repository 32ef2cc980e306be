"""Who is looking, what they see, and what a run costs against them: the one table of adversaries.

The cost of a run is μ²: squares add up over rounds (see `gaussian`), and `release` says what a round costs by what is
seen of it. An adversary is a rule for how many rounds are seen in which way. Command line, statement, report, audit
and studio read names and descriptions from the table here.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace

import numpy as np

from nbafl import plugins
from nbafl.errors import UsageError
from nbafl.privacy.release import Noise, Release, RoundCosts, round_costs
from nbafl.privacy.sensitivity import check_count


@dataclass(frozen=True)
class Adversary:
    """Somebody who looks at a run: one row of the table below. What it sees is what a run costs against it."""

    kind: str
    """Its name, less the number of its accomplices."""
    title: str
    short: str
    """What it sees, in a few words: a cell of a table."""
    view: str
    """The same as one phrase after "sees", less what accomplices add."""
    uploads: str = "none"  # of the target: none | exposed (L of them) | all
    others: str = (
        "none"  # uploads of all other clients: none | same (L rounds) | spread (L of each, anywhere)
    )
    accomplices: int = 0
    """Clients that work with it, and tell it their own noise."""
    takes_count: str = "never"  # whether its name takes `:COUNT` accomplices: never | may | must
    standard: bool = False
    """Whether every plan says what it is worth against this one."""

    @property
    def name(self) -> str:
        """As a command line or a plan spells it."""
        return f"{self.kind}:{self.accomplices}" if self.accomplices else self.kind

    @property
    def key(self) -> str:
        """As JSON spells it."""
        return key_of(self.name)

    @property
    def pattern(self) -> str:
        """Which names of this kind there are."""
        return {"never": "{0}", "may": "{0}[:COUNT]", "must": "{0}:COUNT"}[self.takes_count].format(self.kind)

    @property
    def heading(self) -> str:
        """Its title, with the number of its accomplices."""
        return f"{self.title} ({self.accomplices})" if self.accomplices else self.title

    @property
    def sees(self) -> str:
        """What it sees, as one phrase."""
        if not self.accomplices:
            return self.view
        clients = (
            "one client that works" if self.accomplices == 1 else f"{self.accomplices} clients that work"
        )
        return f"{self.view}, and the uploads and noise of {clients} with it against another one"

    @property
    def colluders(self) -> int:
        """Accomplices whose noise it takes out of a broadcast; whoever sees every upload gains nothing by that."""
        return 0 if self.uploads == "all" else self.accomplices

    def among(self, clients: int) -> bool:
        """Whether so many clients leave one for it to attack."""
        return self.accomplices < clients

    def seen(self, exposures: int) -> str:
        """`sees` with the number of exposures in place of L."""
        if exposures > 1:
            return self.sees.replace(" L ", f" {exposures} ")
        told = self.sees
        for several, one in (("rounds", "round"), ("further rounds", "further round"), ("uploads", "upload")):
            told = told.replace(f"up to L {several}", f"one {one}")
        return told

    @property
    def sees_participation(self) -> bool:
        """Whether it can tell who took part: whoever can tap uploads can also see that there was one."""
        return self.uploads != "none" or self.others != "none"

    def cost(self, release: Release, noise: Noise, participations: int) -> float:
        """Worst μ² over target clients, for a run in which the target takes part `participations` times."""
        return float(self.costs(release, noise, np.array([participations]))[0])

    def costs(self, release: Release, noise: Noise, participations: np.ndarray) -> np.ndarray:
        """`cost` for many numbers of participations at once."""
        costs = round_costs(release, noise, self.colluders).worst()
        # In slices, so that a million different clients over a thousand rounds still fit into memory.
        slices = np.array_split(participations, 1 + len(participations) * len(costs.upload) // 2_000_000)
        return np.concatenate([self._total(costs, release.exposures, part).max(axis=1) for part in slices])

    def views(
        self, exposures: int, rounds: np.ndarray, spread: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of so many rounds with the target: (its upload seen, all others tapped, only the broadcast seen)."""
        uploads = {"none": 0 * rounds, "exposed": np.minimum(exposures, rounds), "all": rounds}[self.uploads]
        taps = {"none": 0 * spread, "same": 0 * spread + exposures, "spread": exposures * spread}[self.others]
        tapped = np.minimum(taps, rounds - uploads)
        return uploads, tapped, rounds - uploads - tapped

    def _total(self, costs: RoundCosts, exposures: int, participations: np.ndarray) -> np.ndarray:
        """Rounds of each view times their cost, math.md (4.4) to (4.9): participations in rows, clients in columns."""
        uploads, tapped, rest = self.views(exposures, participations[:, None].astype(float), costs.spread)
        return _times(uploads, costs.upload) + _times(tapped, costs.tapped) + _times(rest, costs.broadcast)


def _times(number: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """number·cost, and 0 where there are none of them even if each would cost infinitely much."""
    with np.errstate(invalid="ignore"):
        return np.where(number > 0, number * cost, 0.0)


BROADCAST = Adversary(
    "broadcast",
    "Broadcast",
    "all broadcasts",
    "every broadcast of the server, and nothing else",
    standard=True,
)
TARGETED = Adversary(
    "targeted",
    "Targeted",
    "broadcasts, L uploads of one client",
    "every broadcast, and the target's uploads in up to L rounds of its choice",
    uploads="exposed",
    standard=True,
)
EAVESDROPPER = Adversary(
    "eavesdropper",
    "Eavesdropper",
    "broadcasts, L uploads of the target, all others in L further rounds",
    "every broadcast, the target's uploads in up to L rounds of its choice, and every other upload in up to L further "
    "rounds in which the target takes part",
    uploads="exposed",
    others="same",
    standard=True,
)
EAVESDROPPER_SPREAD = Adversary(
    "eavesdropper-spread",
    "Eavesdropper, spread",
    "the same, each tap in a round of its choice",
    "every broadcast, and up to L uploads of each client, each in a round of its choice, regardless of who takes part when",
    uploads="exposed",
    others="spread",
)
CURIOUS_SERVER = Adversary(
    "curious-server",
    "Curious server",
    "every upload",
    "every upload of every client, and every broadcast",
    uploads="all",
    takes_count="may",
    standard=True,
)
COLLUDERS = Adversary(
    "colluders",
    "Colluders",
    "broadcasts, less their own noise",
    "every broadcast",
    accomplices=1,
    takes_count="must",
    standard=True,
)
_TABLE = {
    each.kind: each
    for each in (BROADCAST, TARGETED, EAVESDROPPER, EAVESDROPPER_SPREAD, CURIOUS_SERVER, COLLUDERS)
}


def register(adversary: Adversary) -> None:
    """Add a row to the table: command line, statement, report, audit and studio take it from there."""
    _TABLE[adversary.kind] = adversary


def table() -> tuple[Adversary, ...]:
    """Every kind of adversary there is."""
    plugins.load()
    return tuple(_TABLE.values())


def standard() -> tuple[Adversary, ...]:
    """Those against whom every plan says what its noise is worth."""
    return tuple(each for each in table() if each.standard)


def names() -> str:
    """What an adversary may be called, in words."""
    *most, last = (each.pattern for each in table())
    return f"{', '.join(most)} or {last}"


def colluders(count: int) -> Adversary:
    """`count` clients that pool what they know: every broadcast and their own noise, which they subtract."""
    check_count("colluders", count)
    return replace(COLLUDERS, accomplices=count)


def parse(name: str) -> Adversary:
    """The adversary of that name, as a command line or a plan spells it."""
    kind, colon, count = name.partition(":")
    found = {each.kind: each for each in table()}.get(kind)
    if found is not None and not colon and found.takes_count != "must":
        return found
    if (
        found is not None
        and colon
        and found.takes_count != "never"
        and re.fullmatch("[1-9][0-9]{0,8}", count)
    ):
        return replace(found, accomplices=int(count))
    raise UsageError("adversary", name, names())


def key_of(name: str) -> str:
    """A name as JSON spells it; the way back is `of_key`."""
    return name.replace("-", "_").replace(":", "_")


def of_key(key: str) -> Adversary | None:
    """The adversary that JSON calls so; None where it is none."""
    for each in table():
        count = key.removeprefix(f"{replace(each, accomplices=0).key}_")
        for name in (each.kind, f"{each.kind}:{count}"):
            with contextlib.suppress(UsageError):
                if parse(name).key == key:
                    return parse(name)
    return None


def name_of(key: str) -> str:
    """The name behind a key of JSON; keys of attacks that are no adversaries read the same way."""
    found = of_key(key)
    return found.name if found is not None else key.replace("_", "-")
