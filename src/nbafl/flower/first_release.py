"""Plans of the first release (0.1.0): what their digest was, and what their releases cost each unit.

A ledger of the first release names plans by a digest over all their fields and says nothing of the unit. Whoever still
has the plan file can supply it: the digest is computed as it was then, and the costs that were charged must come out
again before anything is believed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nbafl import rules, toml_file
from nbafl.errors import DataError
from nbafl.plan import Plan
from nbafl.presets import FIRST_RELEASE, digest_of
from nbafl.privacy import adversary
from nbafl.privacy.adversary import Adversary, Noise, Release
from nbafl.privacy.ledger import Ledger, Row
from nbafl.privacy.ledger.chain import Charged
from nbafl.privacy.units import Account, in_account

NUMBERS = (
    "epsilon",
    "delta",
    "clip",
    "record_clip",
    "feature_norm",
    "tolerance",
    "lr",
    "mu",
    "server_momentum",
)


def supply(ledger: Ledger, file: Path) -> Row:
    """Give the ledger's old releases of this plan their unit, and what they cost every other one."""
    fields = _fields(file)
    digest = digest_of(fields)
    rows = ledger.of_first_release().get(digest)
    if not rows:
        raise DataError(
            f"plan {str(file)!r} (digest of the first release {digest[:16]}) has no old releases on this ledger."
        )
    plan = Plan(**{name: value for name, value in fields.items() if name in Plan.model_fields})
    own = plan.release()
    account = Account.of(own.sensitivity.unit, own.sensitivity.adjacency)
    return ledger.convert(digest, account, _charges(plan, rows))


def supply_known(ledger: Ledger, file: Path) -> None:
    """`supply`, where the ledger still waits for this very plan; any other file is none of its business."""
    waiting = {plan for each in ledger.spent().sums for plan in each.unknown}
    known = waiting and not toml_file.read(file, "config file").keys() - FIRST_RELEASE.keys()
    if known and digest_of(_fields(file)) in waiting:
        supply(ledger, file)


def _fields(file: Path) -> dict[str, Any]:
    """All fields of the plan as 0.1.0 read them."""
    given = toml_file.read(file, "config file")
    unknown = sorted(given.keys() - FIRST_RELEASE.keys())
    if unknown:
        raise DataError(
            f"plan {str(file)!r} is not a plan of the first release: it has the field {unknown[0]!r}."
        )
    fields = {**FIRST_RELEASE, **given}
    if isinstance(fields["sizes"], list) and "clients" not in given:
        fields["clients"] = len(fields["sizes"])
    fields["local_steps"] = given.get("local_steps", rules.find(fields["sensitivity"]).local_steps)
    return {
        name: float(value) if name in NUMBERS and isinstance(value, int) else value
        for name, value in fields.items()
    }


def _charges(plan: Plan, rows: list[Row]) -> dict[Account, Charged]:
    """What the rows cost every account, the client that sent them taken as the one for which it is most."""
    named, noise, radius = (
        adversary.parse(plan.adversary),
        plan.noise_scales(),
        plan.rule.reach(plan).radius,
    )
    exposures = _exposures(plan.release(), noise, named, rows)
    charges = {}
    for each in Account:
        release = in_account(_with(plan.release(), exposures), each, radius)
        upload = float(np.max(release.uplink / noise.sigma_uplink)) ** 2
        cost = named.cost(release, noise, len(rows))
        charges[each] = Charged(cost, len(rows) * upload, release.sensitivity.conditional)
    return charges


def _exposures(release: Release, noise: Noise, named: Adversary, rows: list[Row]) -> int:
    """L as it was counted then: the owner may have counted on more than the plan."""
    charged = sum(row.cost for row in rows)
    for exposures in range(release.exposures, release.rounds + 1):
        if named.cost(_with(release, exposures), noise, len(rows)) >= charged * (1 - 1e-9):
            return exposures
    return release.rounds


def _with(release: Release, exposures: int) -> Release:
    return Release(release.sensitivity, release.weights, release.rounds, release.per_round, exposures)
