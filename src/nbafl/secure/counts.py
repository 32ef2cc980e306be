"""How many clients must sign, and how many uploads a sum must hold; plain numbers, so planning needs no cryptography."""

from __future__ import annotations

from nbafl.errors import UsageError


def threshold(clients: int, accomplices: int) -> int:
    """t = floor((N + k)/2) + 1: two sets with t signatures each share an honest signer, as 2(t - k) > N - k."""
    return (clients + accomplices) // 2 + 1


def check_counts(clients: int, accomplices: int, fewest: int) -> None:
    """t <= M <= N, and at least two honest uploads in every sum; N is the roster, never those present."""
    if clients < accomplices + 2:  # then t <= N holds as well
        allowed = f"at least {accomplices + 2}: two honest clients besides {accomplices} accomplices"
        raise UsageError("clients", clients, allowed)
    needed = threshold(clients, accomplices)
    if not needed <= fewest <= clients:
        allowed = (
            f"from {needed} (more than half of {clients} clients and {accomplices} accomplices) to {clients}"
        )
        raise UsageError("min_answers", fewest, allowed)
    if fewest - accomplices < 2:
        raise UsageError(
            "min_answers", fewest, f"at least {accomplices + 2}: two honest uploads hide each other"
        )
