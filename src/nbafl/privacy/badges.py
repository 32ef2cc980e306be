"""Two badges of a claim, used wherever one is shown: is it kept, and is it strong? Kept is not strong.

How strong it is follows from how often the best guess between two equally likely values of a unit can be right; a coin is
right half of the time. Report, command line and studio take their words from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

STRONG, WEAK = 0.6, 0.9
"""A best guess right up to so often: strong, weak; beyond that the claim is no useful limit."""


@dataclass(frozen=True)
class Badge:
    """A word, and whether it is good news (`good`), bad (`bad`) or in between (`perhaps`)."""

    word: str
    kind: str


def holds(found: float | None, claimed: float) -> bool:
    """Whether the epsilon that was found (None or infinite: there is none) is at most the claimed one, up to rounding."""
    return found is not None and found <= claimed * (1 + 1e-9)


def kept(delivers: bool, conditional: bool) -> Badge:
    """Whether the noise is worth the claimed epsilon."""
    if not delivers:
        return Badge("not kept", "bad")
    return Badge("kept conditionally", "perhaps") if conditional else Badge("kept", "good")


def strength(guess: float | None) -> Badge:
    """How much the epsilon that holds means; None where none is finite."""
    if guess is not None and guess <= STRONG:
        return Badge("strong", "good")
    if guess is not None and guess <= WEAK:
        return Badge("weak", "perhaps")
    return Badge("no useful limit", "bad")


def percent(share: float) -> str:
    """A probability in per cent, rounded up because it is a bound, but never up to a certainty that it is not."""
    if share >= 1:
        return "100%"
    missing = 100 * (1 - share)
    if missing < 1e-9:
        return "all but 100%"
    decimals = max(1, -math.floor(math.log10(missing)))
    return f"{math.ceil(share * 100 * 10**decimals - 1e-9) / 10**decimals:.{decimals}f}%"
