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

from nbafl.errors import NbaflError
from nbafl.flower.wire import Instruction
from nbafl.plan import Plan
from nbafl.privacy import adversary
from nbafl.privacy.ledger import Declined, Ledger, Price, Request
from nbafl.privacy.noise import SecureGaussian, largest_coordinate
from nbafl.protocol import Training, clip

log = logging.getLogger("nbafl")


class TrainingFailed(Declined):
    """Training raised something; what it said may quote data, so it stays in the client's own log."""

    def __init__(self) -> None:
        super().__init__("training failed on the client; its own log says why.")


@dataclass(frozen=True)
class Reach:
    """Where an upload can lie before its noise: within `radius` of the broadcast, or of zero."""

    around_broadcast: bool
    radius: float

    def centre(self, start: np.ndarray) -> np.ndarray:
        return start if self.around_broadcast else np.zeros_like(start)

    def rounding(self, start: np.ndarray) -> float:
        """How far float64 may be off in a coordinate of vector − centre, for any start a server may send."""
        return float(np.spacing(np.abs(start).max() + self.radius)) if self.around_broadcast else 0.0

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
        ledger.verify()
        self.plan, self.ledger = plan, ledger
        self.release, self.noise = plan.release(), plan.noise_scales()
        self.release = replace(
            self.release, exposures=min(max(self.release.exposures, exposures), plan.rounds)
        )
        self.adversary = adversary.parse(plan.adversary)
        self.reach = reach(plan.training())

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
        offset = self.reach.bound(self._finite(_trained(train), centre), start)
        noisy = SecureGaussian().add(
            offset, self._sigma(client), self._sensitivity(client), self.reach.rounding(start)
        )
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
            raise Declined("this plan adds no noise to uploads, so nothing is uploaded.")
        if self.reach.radius > largest_coordinate(sigma):  # a refusal after training would depend on the data
            raise Declined(
                f"this plan's noise {sigma:.3g} is too small beside its clipping norm {self.reach.radius:.3g}."
            )
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


def _trained(train: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return train()
    except NbaflError as error:
        log.warning("training failed; nothing was sent: %s", error)
    except Exception:
        log.exception("training failed; nothing was sent.")
    raise TrainingFailed


def check_instruction(plan: Plan, instruction: Instruction, records: int | None) -> None:
    """A client answers the plan it agreed to, in its rounds, as a client whose noise is enough for its own data."""
    if instruction.plan != plan.digest():
        raise Declined("the server's plan is not the one this client agreed to.")
    if not 1 <= instruction.round <= plan.rounds:
        raise Declined(f"round {instruction.round} is none of the plan's {plan.rounds} rounds.")
    check_client(plan, instruction.client, records)


def check_client(plan: Plan, client: int, records: int | None) -> None:
    """The number a server gives a client must be one whose noise is enough for this client's own data.

    How many records there are stays at home: the text may be sent to the server.
    """
    if not 0 <= client < plan.clients:
        raise Declined(f"client {client} is none of the plan's {plan.clients} clients.")
    if records is not None and plan.weighting == "records" and records < plan.client_sizes[client]:
        raise Declined(
            f"this client holds fewer than the {plan.client_sizes[client]} records that the plan counts on from client "
            f"{client}: its noise would be too small."
        )
