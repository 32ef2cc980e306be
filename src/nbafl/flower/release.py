"""The client's side of one round: from a trained vector to an upload that may leave.

Own client app and mod both call `respond`, so nothing leaves a client in any other way: check what the server asks,
train, clip (again, in float64, so that no rounding of the training's arithmetic escapes the bound), noise from the
operating system on an integer grid, a row in the ledger, and only then the bytes. A request that was answered before
gets the same bytes again. What leaves is how far the weights moved (from the broadcast, or from zero where the weights
themselves are clipped), on the grid that all clients share.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import Error, Message

from nbafl.errors import NbaflError, Refused, UsageError
from nbafl.evaluation import Evaluation
from nbafl.flower import wire
from nbafl.flower.wire import Instruction, Layout, Malformed
from nbafl.plan import Plan
from nbafl.privacy import adversary
from nbafl.privacy.adversary import Release
from nbafl.privacy.common_grid import CommonGrid
from nbafl.privacy.gaussian import gdp_mu
from nbafl.privacy.ledger import Charge, Declined, Ledger, Price, Request
from nbafl.privacy.noise import REACH, Precision, SecureGaussian, precision, widened
from nbafl.privacy.units import Account, in_account

log = logging.getLogger("nbafl")


class TrainingFailed(Declined):
    """Training raised something; what it said may quote data, so it stays in the client's own log."""

    def __init__(self) -> None:
        super().__init__("training failed on the client; its own log says why.")


@functools.lru_cache(maxsize=64)
def precision_of(plan: Plan, dimension: int) -> Precision:
    """How a plan pays for finite precision, in uploads and in scores; `Declined` where it cannot."""
    # Whoever sees every upload looks at each by itself; a broadcast holds the noise of all drawn, and the server's.
    named = adversary.parse(plan.adversary)
    draws = 1 if named.uploads == "all" else plan.drawn + 1
    rounds = plan.rounds + sum(each.rounds for each in plan.continues or ())
    numbers = dimension + (plan.reserve > 0)  # a score is one more
    try:
        whole = precision(numbers, rounds, draws, plan.epsilon, plan.delta)
        if not plan.continues:
            return whole
        release = plan.release()
        own = named.cost(replace(release, earlier=()), plan.noise_scales(), plan.rounds)
        own += plan.reserve * gdp_mu(plan.epsilon, plan.delta) ** 2
        return whole.after(release.before(named.name), own)
    except Refused as error:
        raise Declined(str(error)) from None


def _less(after: Callable[[int], float], widening: float, answers: int) -> float:
    """What answers cost with noise that is wider than planned by a factor."""
    return after(answers) / widening**2


class Releaser:
    """One client's way out: its plan and its ledger."""

    evaluation: Evaluation | None = None
    """The scores that this client releases besides, for whoever shows what was agreed."""

    def __init__(self, plan: Plan, ledger: Ledger, exposures: int = 1, verified: bool = False) -> None:
        """`exposures`: uploads the owner wants to be safe against; the plan's L counts if it is larger.

        `verified`: this process has already walked the ledger's chain.
        """
        if not verified:
            ledger.verify()
        self.plan, self.ledger = plan, ledger
        self.release, self.noise = plan.release(), plan.noise_scales()
        self.release = replace(
            self.release, exposures=min(max(self.release.exposures, exposures), plan.rounds)
        )
        self.adversary = adversary.parse(plan.adversary)
        if exposures > plan.exposures and self.adversary.uploads == "none":
            raise UsageError(
                "exposures", exposures, f"{plan.exposures} ({self.adversary.name} sees no uploads; epsilon_uploads "
                "limits what they are worth)"
            )  # fmt: skip
        self.reach = plan.rule.reach(plan)
        self.account = Account.of(self.release.sensitivity.unit, self.release.sensitivity.adjacency)
        self._accounts = {account: self._charge(account) for account in Account}

    def answer(
        self, request: Request, client: int, start: np.ndarray, train: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """The upload for a request, as a float32 offset that is safe to send: stored, or trained and charged."""
        if (
            self.plan.secure_sums() is not None
        ):  # its noise is made for sums: a single upload carries too little
            raise Declined("this plan uses secure aggregation: an upload leaves masked, or not at all.")
        stored = self.ledger.stored(request)
        if stored is not None:
            return np.frombuffer(stored, dtype=np.float32)
        price, paid = self.price(client, start.size), precision_of(self.plan, start.size)
        self.ledger.check(request, price)
        centre = self.reach.centre(start)
        offset = self.reach.bound(self._finite(trained(train), centre), start)
        upload = self._hidden(offset, client, self.reach.rounding(start), paid.widening)
        self.ledger.record(request, upload.tobytes(), price)
        return upload

    def _hidden(self, offset: np.ndarray, client: int, rounding: float, widening: float) -> np.ndarray:
        """An offset with its noise, on the grid of all clients (8.4), where everything counts p_i times."""
        share, sigma, sensitivity = self._share(client), self._sigma(client), self._sensitivity(client)
        moved = share * rounding + float(np.spacing(share * self.reach.radius))
        drawn = widened(share * sigma, share * sensitivity, offset.size, moved) * widening
        if not self.grid.holds(share * self.reach.radius + REACH * drawn):  # known before there is any data
            raise Declined("the broadcast's weights are too large for this plan's noise.")
        noisy = SecureGaussian().add(share * offset, share * sigma, share * sensitivity, moved, widening)
        return self.grid.rounded(noisy, client)

    def price(self, client: int, dimension: int | None = None) -> Price:
        """What one more answer costs each account, by the plan's own accounting.

        `dimension`: numbers in an upload; with it the noise is as wide as it is drawn, and finite precision is charged.
        """
        paid = precision_of(self.plan, dimension) if dimension else Precision(1.0, 0.0)
        sigma = self._sigma(client) * paid.widening
        charges = {
            account: Charge(
                (float(release.uplink[client]) / sigma) ** 2,
                functools.partial(_less, after, paid.widening),
                release.sensitivity.conditional,
            )
            for account, (release, after) in self._accounts.items()
        }
        return Price(self.account, charges, self.plan.rounds, self.adversary.name, paid.epsilon)

    def cost_alone(self, client: int) -> float:
        """mu^2 of one upload to somebody who sees just that."""
        return self.price(client).upload

    def _charge(self, account: Account) -> tuple[Release, Callable[[int], float]]:
        """The plan's release as it protects an account, and what so many answers cost there."""
        release = in_account(self.release, account, self.reach.radius)

        @functools.cache
        def after(answers: int) -> float:
            return self.adversary.cost(release, self.noise, answers) if answers else 0.0

        return release, after

    def _sigma(self, client: int) -> float:
        sigma = float(self.noise.sigma_uplink[client])
        if not sigma > 0:
            raise Declined("this plan adds no noise to uploads, so nothing is uploaded.")
        assert self.grid  # a refusal after training would depend on the data
        return sigma

    @functools.cached_property
    def grid(self) -> CommonGrid:
        """Where all clients' uploads lie; `Declined` where the plan's noise is too small for one."""
        try:
            return CommonGrid.of(self.release, self.noise, self.reach.radius)
        except Refused as error:
            raise Declined(str(error)) from None

    def _sensitivity(self, client: int) -> float:
        return float(self.release.uplink[client])

    def _share(self, client: int) -> float:
        return float(self.release.weights[client])

    @staticmethod
    def _finite(vector: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """Training that broke down counts as no training: staying silent instead would tell that it broke down."""
        if np.isfinite(vector).all():
            return vector
        log.warning(
            "local training gave NaN or infinite weights: noise around the clip's centre (the broadcast, or zero under "
            "paper and proximal) is sent in their place."
        )
        return centre


@dataclass(frozen=True)
class Broadcast:
    """What a server's message asks, once it was checked: where to start, and how its arrays lie in a vector."""

    instruction: Instruction
    layout: Layout
    start: np.ndarray


Read = Callable[[object], tuple[Layout, dict[str, np.ndarray]]]
"""Makes named arrays of a record, and says how they lie in a vector."""
Train = Callable[[Broadcast], np.ndarray]
"""Returns the vector to upload, not yet clipped or noised."""


def respond(
    releaser: Releaser, message: Message, read: Read, train: Train, records: int | None = None
) -> tuple[Instruction, Message]:
    """The one way from a server's message to a reply: everything is checked, then trained, noised and recorded.

    `records`: how many the client holds, where nbafl can know.
    """
    if message.metadata.message_type.partition(".")[0] != "train":
        raise Declined("only training is answered: evaluations and queries would leave without noise.")
    instruction = Instruction.read(message.content)
    check_instruction(releaser.plan, instruction, records)
    layout, received = read(message.content.get(wire.ARRAYS))
    start = layout.vector(received)
    wire.check_broadcast(start)
    layout.check_precision()
    request = Request(instruction.plan, instruction.round, wire.digest(received))
    asked = Broadcast(instruction, layout, start)
    upload = releaser.answer(request, instruction.client, start, lambda: train(asked))
    return instruction, wire.answer(instruction, layout.arrays(upload, received), message)


def refusal(error: Exception, message: Message) -> Message:
    """The reply of a client that says no: why, if that quotes nothing of its own; else its own log knows."""
    if isinstance(error, NbaflError):
        log.warning("refused: %s", error)
    else:
        log.error("something went wrong; nothing was sent.", exc_info=error)
    reason = "this client cannot answer; its own log says why."
    if isinstance(error, (Declined, Malformed)):
        reason = error.told if isinstance(error, Declined) else str(error)
    return Message(Error(code=wire.REFUSED, reason=reason), reply_to=message)


def trained(train: Callable[[], np.ndarray]) -> np.ndarray:
    """What training gives; why it failed stays in the client's own log."""
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
        raise Declined(f"round {instruction.round} is not one of the plan's {plan.rounds} rounds.")
    check_client(plan, instruction.client, records)


def check_client(plan: Plan, client: int, units: int | None) -> None:
    """The place a server gives a client must be one whose noise is enough for this client's own data.

    `units`: how many records, or persons, it holds. The number stays at home: the text may be sent to the server.
    """
    if not 0 <= client < plan.clients:
        raise Declined(f"number {client + 1} is not one of the plan's {plan.clients} clients.")
    if units is not None and plan.weighting == "records" and units < plan.client_sizes[client]:
        raise Declined(
            f"this client holds fewer than the {plan.client_sizes[client]} {plan.counted} that the plan counts on from "
            f"client number {client + 1}: its noise would be too small."
        )
