"""What a run gives against an adversary, however it was made: as planned, as its rounds were, or in secure sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbafl.privacy import accounting, dropouts
from nbafl.privacy.adversary import Adversary
from nbafl.privacy.dropouts import AnsweredRound
from nbafl.privacy.release import Noise, Release
from nbafl.privacy.secure_sums import SecureSums


@dataclass(frozen=True)
class Outcome:
    """All that left, the noise on it, and how."""

    release: Release
    noise: Noise
    secure: SecureSums | None = None
    """The sums of secure aggregation; None where the server sees every upload."""
    rounds: Sequence[AnsweredRound] | None = None
    """A federation's as they were; None: as planned. A secure sum of M or more costs the same, whoever stayed away."""

    def cost(self, adversary: Adversary) -> float:
        """mu^2 over all rounds, earlier runs and scores included, if the target took part in each."""
        if self.secure is not None:
            return self.secure.cost(adversary)
        if self.rounds is not None:
            return dropouts.realised_cost(self.release, self.noise, adversary, self.rounds)
        return accounting.whole_cost(self.release, self.noise, adversary)

    def epsilon(self, adversary: Adversary, delta: float) -> float:
        """epsilon at delta; infinite where nothing holds."""
        if self.secure is not None:
            return self.secure.protecting(self.release.uplink).epsilon(adversary, delta)
        if self.rounds is not None:
            return dropouts.epsilon_of_rounds(self.release, self.noise, adversary, self.rounds, delta)
        return accounting.epsilon_spent(self.release, self.noise, adversary, delta)

    def delta(self, adversary: Adversary, epsilon: float) -> float:
        """delta at epsilon."""
        if self.secure is not None:
            return self.secure.delta(adversary, epsilon)
        if self.rounds is not None:
            return dropouts.delta_of_rounds(self.release, self.noise, adversary, self.rounds, epsilon)
        return accounting.delta_spent(self.release, self.noise, adversary, epsilon)

    def power(self, adversary: Adversary, false_positive_rate: float) -> float:
        """The highest true positive rate of any test of the target's data at that false positive rate."""
        if self.secure is not None:
            return self.secure.attack_power(adversary, false_positive_rate)
        if self.rounds is not None:
            return dropouts.attack_power_of_rounds(
                self.release, self.noise, adversary, self.rounds, false_positive_rate
            )
        return accounting.attack_power(self.release, self.noise, adversary, false_positive_rate)
