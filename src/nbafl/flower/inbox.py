"""What the server makes of a reply: a vector it may average, or one sentence why not.

Honest uploads fail the norm check with probability below e^-72 in every dimension: a standard normal vector is longer
than sqrt(d) + 12 with no more (Gaussian concentration, E|z| <= sqrt(d)), and everything else that makes an upload longer,
the noise as wide as it is drawn, the grid and float32 on the wire, is in the bound. That much a rejection by value may add
to delta (math.md (7.3)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from flwr.app import Message

from nbafl.flower import wire
from nbafl.flower.release import precision_of
from nbafl.flower.wire import Instruction, Layout, Malformed
from nbafl.plan import Plan
from nbafl.privacy.common_grid import CommonGrid
from nbafl.privacy.noise import grid_step, widened

TAIL = 12.0


class Refusal(Malformed):
    """The client itself said no."""


class Inbox:
    """Checks for the uploads of one round, all made from one broadcast."""

    def __init__(self, plan: Plan, layout: Layout, start: Mapping[str, np.ndarray]) -> None:
        limit, release, noise = plan.rule.reach(plan), plan.release(), plan.noise_scales()
        self.layout = layout
        self.radius = limit.radius
        self.grid = CommonGrid.of(release, noise, limit.radius)
        self.sigma, self.uplink = release.weights * noise.sigma_uplink, release.weights * release.uplink
        self.rounding = limit.rounding(layout.vector(start))
        self.widening = precision_of(plan, layout.dimension).widening

    def read(self, reply: Message, instruction: Instruction) -> np.ndarray:
        """The upload in whole steps of the common grid; anything else than a well-formed, sane one is refused."""
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
        return self.grid.multiples(vector, instruction.client)

    def check_norm(self, vector: np.ndarray, client: int) -> float:
        """The norm of what was clipped and noised; NaN, infinities and absurd norms are refused."""
        if not np.isfinite(vector).all():
            raise Malformed("it holds NaN or infinite numbers.")
        most = self.largest_norm(client)
        norm = float(np.linalg.norm(vector))
        if norm > most:
            raise Malformed(f"its norm {norm:.4g} is above {most:.4g}, all that clipping and noise allow.")
        return norm

    def largest_norm(self, client: int) -> float:
        """What clip, noise, grid and float32 make of an honest upload at most, but for a chance of e^-72."""
        share, size = float(self.grid.weights[client]), self.layout.dimension
        root, sigma = (
            math.sqrt(size),
            float(self.sigma[client]),
        )  # of the noise that counts p_i times, like the grid
        moved = share * self.rounding + float(np.spacing(share * self.radius))
        drawn = self.widening * widened(sigma, float(self.uplink[client]), size, moved)
        rounded = (grid_step(sigma) + self.grid.step) * root
        whole = self.radius + (drawn * (root + TAIL) + rounded) / share
        # float32 moves a number by 2^-24 of its size at most, and by 2^-150 where it is tiny.
        on_the_wire = 2.0**-24 * whole + 2.0**-149 * root
        return (whole + on_the_wire) * (1 + 1e-9)
