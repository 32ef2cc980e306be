"""The client's side of one round: from a trained vector to an upload that may leave.

Own client app and mod both end here, so nothing leaves a client in any other way: clip (again, in float64, so that
no rounding of the training's arithmetic escapes the bound), noise from the operating system on an integer grid, a row
in the ledger, and only then the bytes. A request that was answered before gets the same bytes again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from nbafl.errors import Refused, UsageError
from nbafl.plan import Plan
from nbafl.privacy import adversary
from nbafl.privacy.ledger import Ledger, Price, Request
from nbafl.privacy.noise import SecureGaussian
from nbafl.protocol import Training, clip

log = logging.getLogger("nbafl")


@dataclass(frozen=True)
class Reach:
    """Where an upload can lie before its noise: within `radius` of the broadcast, or of zero."""

    around_broadcast: bool
    radius: float

    def centre(self, start: np.ndarray) -> np.ndarray:
        return start if self.around_broadcast else np.zeros_like(start)

    def bound(self, vector: np.ndarray, start: np.ndarray) -> np.ndarray:
        """vector − centre, clipped (Algorithm 1 line 8) in float64 to a hair inside the radius: rounding stays in."""
        offset = torch.from_numpy(vector.astype(np.float64) - self.centre(start))
        return clip(offset, self.radius * (1 - 2.0**-40)).numpy()


def reach(training: Training) -> Reach:
    """What each rule clips: the weights, the update, or the one step on clipped gradients."""
    match training.rule:
        case "client":
            return Reach(True, training.clip)
        case "gradient":
            return Reach(True, training.lr * training.record_clip)
        case _:
            return Reach(False, training.clip)


class Releaser:
    """One client's way out: its plan and its ledger."""

    def __init__(self, plan: Plan, ledger: Ledger, exposures: int = 1) -> None:
        """`exposures`: uploads the owner wants to be safe against; the plan's L counts if it is larger."""
        self.plan, self.ledger = plan, ledger
        self.release, self.noise = plan.release(), plan.noise_scales()
        self.release = replace(
            self.release, exposures=min(max(self.release.exposures, exposures), plan.rounds)
        )
        self.adversary = adversary.parse(plan.adversary)
        self.reach = reach(plan.training())

    def check(self, request: Request, client: int) -> None:
        """Refuse before training what could not be released after it."""
        self.ledger.check(request, self.price(client))

    def answer(
        self, request: Request, client: int, start: np.ndarray, train: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """The upload for a request, as a float32 vector that is safe to send: stored, or trained and charged."""
        stored = self.ledger.stored(request)
        if stored is not None:
            return np.frombuffer(stored, dtype=np.float32)
        price = self.price(client)
        self.ledger.check(request, price)
        centre = self.reach.centre(start)
        offset = self.reach.bound(self._finite(train(), centre), start)
        noisy = SecureGaussian().add(offset, self._sigma(client), self._sensitivity(client))
        # Adding the public centre and rounding to float32 is post-processing of what the noise already hides.
        upload = (noisy + centre).astype(np.float32)
        self.ledger.record(request, upload.tobytes(), price)
        return upload

    def price(self, client: int) -> Price:
        """What one more answer costs, by the plan's own accounting."""

        def after(answers: int) -> float:
            return self.adversary.cost(self.release, self.noise, answers) if answers else 0.0

        upload = (self._sensitivity(client) / self._sigma(client)) ** 2
        return Price(upload, after, self.plan.rounds, self.adversary.name)

    def _sigma(self, client: int) -> float:
        sigma = float(self.noise.sigma_uplink[client])
        if not sigma > 0:
            raise Refused("this plan adds no noise to uploads, so nothing is uploaded.")
        return sigma

    def _sensitivity(self, client: int) -> float:
        return float(self.release.uplink[client])

    @staticmethod
    def _finite(vector: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """Training that broke down counts as no training: staying silent instead would tell that it broke down."""
        if np.isfinite(vector).all():
            return vector
        log.warning(
            "local training gave NaN or infinite weights: noise around the centre is sent in their place."
        )
        return centre


def check_client(plan: Plan, client: int, records: int | None) -> None:
    """The number a server gives a client must be one whose noise is enough for this client's own data."""
    if not 0 <= client < plan.clients:
        raise UsageError("client", client, f"between 0 and {plan.clients - 1}, the plan's clients")
    if records is not None and plan.weighting == "records" and records < plan.client_sizes[client]:
        raise Refused(
            f"this client holds {records} records, but the plan counts on {plan.client_sizes[client]}: its noise "
            "would be too small."
        )
