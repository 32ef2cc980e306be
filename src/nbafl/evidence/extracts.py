"""What a client supplies from its ledger: its rows of one federation and its limits whole, all others as hashes only.

The chain stays checkable: a row that is shown carries the hash of the one before it, shown or not. The client signs the
extract with its own key, which the federation's roster names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nbafl.errors import DataError, Refused
from nbafl.evaluation import Evaluation
from nbafl.evidence import rounds, signatures
from nbafl.evidence.canonical import canonical
from nbafl.plan import Plan
from nbafl.privacy import adversary
from nbafl.privacy.ledger import Ledger, Row
from nbafl.privacy.ledger.budget import epsilon_of
from nbafl.privacy.ledger.sums import LIMIT, RELEASE
from nbafl.privacy.secure_sums import SecureSums

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TOLERANCE = 1e-9


def make(
    ledger: Ledger, plan: Plan, client: str, key: Ed25519PrivateKey, evaluation: Evaluation | None
) -> dict[str, Any]:
    """The signed extract of a whole ledger for one plan, and the scores that were agreed on beside it."""
    if rounds.is_secret(plan):
        raise Refused(
            "this plan's guarantee requires that the draw stays secret, and an extract would show in which rounds this "
            "client took part."
        )
    ledger.verify()
    rows = ledger.rows()
    names = _names(plan, evaluation)
    released = [row for row in rows if row.plan in names and row.kind == RELEASE]
    if not any(row.plan == plan.digest() for row in released):
        raise DataError(f"ledger {str(ledger.path)!r} holds no releases of plan {plan.digest()[:16]}.")
    extract = {
        "client": client,
        "plan": plan.digest(),
        "evaluation": None if evaluation is None else evaluation.digest(plan),
        "rows": [_shown(row, names) for row in rows],
        "spent": spent(released, plan),
        "key": signatures.public_half(key),
    }
    return {**extract, "signature": signatures.sign(key, signatures.EXTRACT, canonical(extract))}


def _names(plan: Plan, evaluation: Evaluation | None) -> set[str]:
    """What the federation's releases are called in a ledger: its uploads, and its scores."""
    return {plan.digest(), *([] if evaluation is None else [evaluation.digest(plan)])}


def spent(released: list[Row], plan: Plan) -> dict[str, Any]:
    """What the rows of one federation are worth, with everything that an epsilon needs beside it."""
    cost, uploads = math.fsum(row.cost for row in released), math.fsum(row.cost_upload for row in released)
    rounding = math.fsum(row.rounding for row in released)  # what finite precision adds
    sensitivity = plan.sensitivity_of()
    return {
        "releases": len(released),
        "unit": sensitivity.unit,
        "adjacency": sensitivity.adjacency,
        "delta": plan.delta,
        "adversary": plan.adversary,
        "epsilon": epsilon_of(cost, rounding, plan.delta),
        "epsilon_uploads": epsilon_of(uploads, rounding, plan.delta),
        "conditional": sensitivity.conditional,
    }


def problems(
    extract: dict[str, Any],
    plan: Plan,
    number: int | None,
    heard: set[int] | None,
    dimension: int,
    evaluation: Evaluation | None = None,
) -> Iterator[str]:
    """What does not fit in an extract. `number`: the client's in the roster; `heard`: rounds that the server counted.

    `evaluation`: the scores that the federation agreed on. `dimension`: numbers in an upload; the noise is drawn that much
    wider that finite precision is paid for.
    """
    unsigned = {name: value for name, value in extract.items() if name != "signature"}
    if not signatures.fits(extract["key"], extract["signature"], signatures.EXTRACT, canonical(unsigned)):
        yield "the client's signature does not fit"
    if extract["plan"] != plan.digest():
        yield "it is about another plan"
    if extract.get("evaluation") != (None if evaluation is None else evaluation.digest(plan)):
        yield "it does not show the scores that the federation agreed on, or others (make it from the handout's plan.toml)"
    rows: list[Row] = []
    yield from _chain(extract["rows"], rows)
    released = [row for row in rows if row.kind == RELEASE]
    for row in rows:
        if row.kind != LIMIT and row.plan not in _names(plan, evaluation):
            yield f"row {row.number} is of another plan and should be a hash only"
    uploads = [row for row in released if row.plan == plan.digest()]
    yield from _same(extract["spent"], spent(released, plan))
    yield from _worth(uploads, plan, number, dimension)
    if evaluation is not None:
        scored = [row for row in released if row.plan == evaluation.digest(plan)]
        yield from _scores(scored, plan, evaluation, dimension)
    missing = sorted((heard or set()) - {row.round for row in uploads})
    if missing:
        yield f"round {missing[0]} was answered by this client and is not on its ledger"


def _shown(row: Row, names: set[str]) -> dict[str, Any]:
    if row.kind == LIMIT or row.plan in names:
        return asdict(row)
    return {"number": row.number, "hash": row.hash}


def _chain(entries: list[dict[str, Any]], rows: list[Row]) -> Iterator[str]:
    """Walk the chain; rows that are shown are appended to `rows`."""
    previous = ""
    for place, entry in enumerate(entries):
        if set(entry) != {"number", "hash"}:
            row = Row(**entry)
            rows.append(row)
            if row.previous != previous or row.hash != row.expected_hash():
                yield f"row {place} does not fit the chain"
        if entry["number"] != place:
            yield f"row {place} has the number {entry['number']}"
        previous = entry["hash"]


def _same(said: dict[str, Any], computed: dict[str, Any]) -> Iterator[str]:
    for name in sorted(said.keys() - computed.keys()):
        yield f"what it spent has no room for {name[:40]!r}"
    for name, value in computed.items():
        same = (
            math.isclose(said[name], value, rel_tol=1e-6) if isinstance(value, float) else said[name] == value
        )
        if not same:
            yield f"{name} is given as {said[name]}, computed from the rows it is {value}"


def _scores(rows: list[Row], plan: Plan, evaluation: Evaluation, dimension: int) -> Iterator[str]:
    """Scores cost what was agreed on."""
    from nbafl.flower.release import precision_of  # brings Flower

    plain = plan.secure_sums() is None
    price = evaluation.price(plan, precision_of(plan, dimension).widening if plain else 1.0)
    if math.fsum(row.cost for row in rows) < price.after(len(rows)) * (1 - TOLERANCE):
        yield f"its {len(rows)} noisy scores were charged less than the evaluation costs"
    for row in rows:
        if not math.isclose(row.cost_upload, price.upload, rel_tol=TOLERANCE):
            yield f"row {row.number} charges a score {row.cost_upload:.6g}, by the evaluation it costs {price.upload:.6g}"
    yield from _precision(rows, price.rounding)


def _worth(released: list[Row], plan: Plan, number: int | None, dimension: int) -> Iterator[str]:
    """Uploads cost what the plan's accounting says of them."""
    secure = plan.secure_sums()
    due = (
        _due_alone(plan, len(released), number, dimension)
        if secure is None
        else _due(plan, secure, len(released))
    )
    if math.fsum(row.cost for row in released) < due.whole * (1 - TOLERANCE):
        yield f"its {len(released)} releases were charged less than the plan's accounting asks"
    for row in released:
        if due.upload is not None and not math.isclose(row.cost_upload, due.upload, rel_tol=TOLERANCE):
            yield f"row {row.number} charges an upload {row.cost_upload:.6g}, by the plan it costs {due.upload:.6g}"
    yield from _precision(released, due.rounding)


def _precision(rows: list[Row], due: float) -> Iterator[str]:
    for row in rows:
        if row.rounding < due * (1 - TOLERANCE):
            yield f"row {row.number} adds {row.rounding:.3g} to epsilon for finite precision, by the plan it is {due:.3g}"


@dataclass(frozen=True)
class _Due:
    """What a ledger must have charged for so many uploads."""

    whole: float
    """mu^2 of all of them to the plan's adversary, at least."""
    upload: float | None
    """mu^2 of each to the server itself; None where nobody can tell which client it is."""
    rounding: float
    """What each adds to epsilon for finite precision."""


def _due(plan: Plan, secure: SecureSums, uploads: int) -> _Due:
    """A masked upload costs what its sum tells (`flower.secure_member.SecureReleaser.price`)."""
    whole = secure.cost(adversary.parse(plan.adversary), uploads)
    return _Due(whole, secure.cost_server(1), 2 * secure.sums.tau / plan.rounds)


def _due_alone(plan: Plan, uploads: int, number: int | None, dimension: int) -> _Due:
    """An upload that the server sees by itself (`flower.release.Releaser.price`)."""
    from nbafl.flower.release import precision_of  # brings Flower

    release, noise, paid = plan.release(), plan.noise_scales(), precision_of(plan, dimension)
    whole = adversary.parse(plan.adversary).cost(release, noise, uploads) if uploads else 0.0
    each = None
    if number is not None:
        each = float(release.uplink[number - 1] / noise.sigma_uplink[number - 1] / paid.widening) ** 2
    return _Due(whole / paid.widening**2, each, paid.epsilon)
