"""What the server makes of a reply: a vector it may average, or one sentence why not.

Honest uploads fail the norm check with probability below e^-72 (their noise would have to be longer than
sigma (sqrt(d) + 12)); that much a rejection by value may add to delta (MATH section 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from flwr.app import Message

from nbafl.flower import wire
from nbafl.flower.release import reach
from nbafl.flower.wire import Instruction, Layout, Malformed
from nbafl.plan import Plan

TAIL = 12.0


class Refusal(Malformed):
    """The client itself said no."""


class Inbox:
    """Checks for the uploads of one round, all made from one broadcast."""

    def __init__(self, plan: Plan, layout: Layout, start: Mapping[str, np.ndarray]) -> None:
        limit = reach(plan.training())
        self.layout = layout
        self.centre = limit.centre(layout.vector(start))
        self.radius = limit.radius
        self.sigma = plan.noise_scales().sigma_uplink

    def read(self, reply: Message, instruction: Instruction) -> np.ndarray:
        """The upload as a vector; anything else than a well-formed, sane one is refused."""
        if reply.has_error():
            kind = Refusal if reply.error.code == wire.REFUSED else Malformed
            raise kind(wire.printable(reply.error.reason or "no reason given"))
        try:
            wire.check_answer(reply.content, instruction)
            vector = self.layout.vector(self.layout.read(reply.content.get(wire.ARRAYS)))
        except Malformed:
            raise
        except Exception as error:  # whatever a stranger's bytes may provoke
            raise Malformed(f"it cannot be read ({type(error).__name__}).") from None
        self.check_norm(vector, instruction.client)
        return vector

    def check_norm(self, vector: np.ndarray, client: int) -> float:
        """The norm of what was clipped and noised; NaN, infinities and absurd norms are refused."""
        if not np.isfinite(vector).all():
            raise Malformed("it holds NaN or infinite numbers.")
        # 1.001: float32 on the wire, and noise widened for the grid.
        most = 1.001 * (self.radius + float(self.sigma[client]) * (math.sqrt(vector.size) + TAIL))
        norm = float(np.linalg.norm(vector - self.centre))
        if norm > most:
            raise Malformed(f"its norm {norm:.4g} is above {most:.4g}, all that clipping and noise allow.")
        return norm
