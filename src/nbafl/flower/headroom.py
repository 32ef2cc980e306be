"""What a client's limits leave for a plan, in words for its owner: which limit stops it, and what would loosen it.

The server hears none of this: limits, and what was spent on other plans, stay at home.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nbafl.flower.limits import Wanted
from nbafl.flower.release import Releaser
from nbafl.privacy.ledger import BudgetSpent, Declined, Limits, Request, wording
from nbafl.privacy.units import Account


def stopping(releaser: Releaser, client: int) -> Declined | None:
    """Why the limits allow no further answer to the plan; None where they allow one."""
    plan = releaser.plan
    try:
        # Asked for the last round: earlier ones may be over, and all cost the same.
        releaser.ledger.check(Request(plan.digest(), plan.rounds, ""), releaser.price(client))
    except Declined as error:
        return error
    return None


@dataclass(frozen=True)
class Owner:
    """What the ledger said when its client was started, and what its owner said then."""

    in_force: tuple[Limits, ...]
    asked: Wanted
    place: Path
    """Folder of the ledger."""

    def not_applied(self, account: Account) -> Iterator[str]:
        """A sentence for each limit that is stricter than what was asked for a plan of this account, and stays."""
        for limit in self.in_force:
            if limit.account in (account, None) and self._loosened(limit) != limit:
                yield wording.not_applied(self.place, limit, self._loosened(limit))

    def explain(self, stopped: Declined) -> str:
        """Why nothing can be answered; where a limit is the reason, also what loosens it."""
        limit = stopped.limit if isinstance(stopped, BudgetSpent) else None
        if limit is None:
            return str(stopped)
        if limit not in self.in_force:
            return f"{stopped} This limit is the one asked for now: ask for a larger one."
        if self._loosened(limit) != limit:
            return f"{stopped} {wording.not_applied(self.place, limit, self._loosened(limit))}"
        return f"{stopped} To loosen it, with larger numbers: {wording.loosening(self.place, limit)}"

    def _loosened(self, limit: Limits) -> Limits:
        """The limit with everything that was asked for and is looser."""
        asked, uploads, releases = self.asked, limit.epsilon_uploads, limit.releases
        return replace(
            limit,
            epsilon=max(limit.epsilon, asked.epsilon or 0.0),
            delta=max(limit.delta, asked.delta or 0.0),
            epsilon_uploads=None if uploads is None else max(uploads, asked.epsilon_uploads or 0.0),
            releases=None if releases is None else max(releases, asked.releases or 0),
        )
