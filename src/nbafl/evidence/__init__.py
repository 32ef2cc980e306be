"""One file that proves what a run promised: for a data protection officer or a journal.

`gather` collects everything from a run folder, `seal` puts it into one signed page, `verify` holds such a file against
itself: signature, digests, the chains of the clients' ledgers, and every epsilon computed again from the plan.
"""

from nbafl.evidence.checks import Finding, Verdict, verify
from nbafl.evidence.content import gather
from nbafl.evidence.sealed import seal

__all__ = ["Finding", "Verdict", "gather", "seal", "verify"]
