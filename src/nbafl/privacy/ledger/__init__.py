"""What a client has released, in a file that it owns and that outlives every crash.

A release is written here, and synced to disk, BEFORE the upload leaves: a crash can over-count but never under-count.
Read `budget` (limits, prices and the arithmetic of sums), `chain` (rows bound to each other by hashes), `schema` (the
tables, and how a file of the first release becomes one of this), `book` (the Ledger itself), `rehearsal` (a copy to
try things on) and `wording` (limits in words).
"""

from nbafl.privacy.ledger.book import Ledger, as_json
from nbafl.privacy.ledger.budget import (
    BudgetSpent,
    Charge,
    Declined,
    Limits,
    NotPriced,
    Price,
    Spent,
    Sum,
    epsilon_of,
    together,
)
from nbafl.privacy.ledger.chain import Request, Row
from nbafl.privacy.ledger.rehearsal import rehearsal

__all__ = [
    "BudgetSpent",
    "Charge",
    "Declined",
    "Ledger",
    "Limits",
    "NotPriced",
    "Price",
    "Request",
    "Row",
    "Spent",
    "Sum",
    "as_json",
    "epsilon_of",
    "rehearsal",
    "together",
]
