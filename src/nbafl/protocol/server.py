"""What the server does with a round's noisy average: take it, carry it on with momentum, or give it to Adam.

All of it happens after the noise, so it is post-processing and costs no privacy. Everything a later round needs is in
a State of named tensors, which a checkpoint keeps. The final model may be the mean of the last broadcasts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nbafl.errors import UsageError

State = dict[str, Tensor]
OPTIMISERS = ("sgd", "adam")
ADAM_LR = 0.01
"""Adam moves each weight by about this much a round, whatever the clients' step size is."""
ADAM_DECAY = 0.99
ADAM_FLOOR = 1e-8


@dataclass(frozen=True)
class ServerSteps:
    """How broadcasts follow from averages in a run of so many rounds."""

    optimiser: str = "sgd"
    momentum: float = 0.0
    """Of sgd, or how slowly Adam forgets earlier steps (its first beta)."""
    lr: float | None = None
    """Step size of Adam [ADAM_LR]; sgd takes the average as it is."""
    average: int = 1
    """The final model is the mean of so many of the last broadcasts."""
    rounds: int = 1

    def __post_init__(self) -> None:
        for field, fine, allowed in (
            ("optimiser", self.optimiser in OPTIMISERS, " or ".join(OPTIMISERS)),
            ("momentum", 0 <= self.momentum < 1, "at least 0 and below 1"),
            ("lr", self.lr is None or (self.optimiser == "adam" and self.lr > 0), "above 0, and given with adam alone"),
            ("average", 1 <= self.average <= self.rounds, f"from 1 to the number of rounds, {self.rounds}"),
        ):  # fmt: skip
            if not fine:
                raise UsageError(f"server_{field}", getattr(self, field), allowed)

    def step(self, current: Tensor, aggregate: Tensor, state: State, round: int) -> tuple[Tensor, State]:
        """The next broadcast and state from the noisy average of a round (1..T); nothing is changed in place."""
        following, kept = self._optimise(current, aggregate, state)
        if self.average > 1 and round > self.rounds - self.average:
            kept = {**kept, **_with_one_more(following, state)}
        return following, kept

    def final(self, broadcast: Tensor, state: State) -> Tensor:
        """The model that a run ends with: the last broadcast, or the mean of the last ones."""
        return state.get("mean", broadcast)

    def _optimise(self, current: Tensor, aggregate: Tensor, state: State) -> tuple[Tensor, State]:
        if self.optimiser == "adam":
            return self._adam(aggregate - current, current, state)
        if self.momentum == 0:
            return aggregate, {}
        step, velocity = aggregate - current, state.get("velocity")
        velocity = step if velocity is None else self.momentum * velocity + step
        return current + velocity, {"velocity": velocity}

    def _adam(self, step: Tensor, current: Tensor, state: State) -> tuple[Tensor, State]:
        """Kingma and Ba, "Adam", Algorithm 1, with the round's step in the place of the negative gradient."""
        zero = torch.zeros_like(step)
        count = int(state.get("count", 0)) + 1
        first = self.momentum * state.get("first", zero) + (1 - self.momentum) * step
        second = ADAM_DECAY * state.get("second", zero) + (1 - ADAM_DECAY) * step.square()
        length = (second / (1 - ADAM_DECAY**count)).sqrt() + ADAM_FLOOR
        lr = ADAM_LR if self.lr is None else self.lr
        moved = current + lr * (first / (1 - self.momentum**count)) / length
        return moved, {"first": first, "second": second, "count": torch.tensor(count)}


def _with_one_more(broadcast: Tensor, state: State) -> State:
    """The running mean of the last broadcasts."""
    count = int(state.get("averaged", 0)) + 1
    mean = broadcast.clone() if count == 1 else state["mean"] + (broadcast - state["mean"]) / count
    return {"mean": mean, "averaged": torch.tensor(count)}
