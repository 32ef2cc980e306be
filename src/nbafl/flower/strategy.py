"""The server's side as a Flower strategy: K-random, weighted average, downlink noise, a checkpoint a round.

    strategy = nbafl.flower.NbAFL(plan)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=plan.rounds)

The draw, the average, the top-up after dropouts and the server's step are the functions of `nbafl.protocol` that the
simulation calls. Uploads are checked before they count (see `wire`); with fewer good ones than `min_answers` the
run stops with `Refused` instead of going on with an old model. A round's broadcast is written to the checkpoint
before it is sent, so a server that was killed sends the same broadcast again and clients answer with the bytes they
already paid for.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from safetensors.numpy import load, save

from nbafl.durable import write_bytes
from nbafl.errors import DataError, Refused, UsageError
from nbafl.flower import wire
from nbafl.flower.inbox import Inbox, Refusal
from nbafl.flower.wire import Instruction, Layout, Malformed
from nbafl.plan import Plan
from nbafl.privacy.dropouts import top_up_variance
from nbafl.privacy.noise import SecureGaussian
from nbafl.privacy.sensitivity import downlink
from nbafl.protocol import aggregate, draw, normalise, server_step

log = logging.getLogger("nbafl")


@dataclass
class Round:
    """What happened in the round just aggregated."""

    number: int
    drawn: list[int]
    answered: list[int] = field(default_factory=list)
    missing: dict[int, str] = field(default_factory=dict)
    sigma_downlink: float = 0.0
    upload_norm: float | None = None


class TooFew(Refused):
    """Too few clients are left. Why each is silent, its own limit for instance, is between it and the server."""

    def __init__(self, told: str, reasons: Mapping[int, str]) -> None:
        why = "; ".join(f"client {client}: {reason}" for client, reason in sorted(reasons.items()))
        super().__init__(f"{told} ({why})." if why else f"{told}.")
        self.told = told
        """What the other clients may know."""


class NbAFL(Strategy):
    """Noising before aggregation, by a Plan."""

    def __init__(
        self,
        plan: Plan | str | Path,
        *,
        min_answers: int | None = None,
        checkpoint: str | Path | None = None,
        clients: Mapping[int, int] | None = None,
        wait: float = 600.0,
        grace: float = 5.0,
        own_clients: bool = False,
    ) -> None:
        """`plan`: a Plan or its TOML file.

        `clients` maps Flower's node ids to the plan's client numbers; left out, nodes are numbered as found.
        `min_answers`: stop below so many good uploads (default: half of those drawn, at least 1).
        `wait`: seconds to wait for the clients to connect; `grace`: for one that was lost, in each later round.
        `own_clients`: the clients run nbafl's own app, so rules other than `client` hold too.
        """
        plan = plan if isinstance(plan, Plan) else Plan.from_toml(plan)
        if not own_clients and plan.sensitivity != "client":
            raise UsageError(
                "sensitivity",
                plan.sensitivity,
                "client around training code that nbafl does not control (others need nbafl's own client app)",
            )
        if not plan.noise:
            raise UsageError("noise", plan.noise, "true in a federation of real parties")
        self.plan = plan
        self.min_answers = min_answers if min_answers is not None else max(1, math.ceil(plan.drawn / 2))
        if not 1 <= self.min_answers <= plan.drawn:
            raise UsageError("min_answers", min_answers, f"between 1 and the clients drawn ({plan.drawn})")
        self.checkpoint = Path(checkpoint) if checkpoint is not None else None
        self.clients = dict(clients) if clients is not None else None
        self.wait, self.grace = wait, grace
        self.gone: dict[int, str] = {}
        self.last: Round | None = None
        self.draw_seed = secrets.randbits(62)  # who is drawn stays unknown to those who see only broadcasts
        self.velocity: np.ndarray | None = None
        self._layout: Layout | None = None
        self._start: dict[str, np.ndarray] = {}
        self._sent: dict[int, Instruction] = {}
        self._release, self._noise = plan.release(), plan.noise_scales()

    # --- Flower's interface ------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """All rounds of the plan, or those left after the last checkpoint."""
        if num_rounds is not None and num_rounds != self.plan.rounds:
            raise UsageError("num_rounds", num_rounds, f"the plan's {self.plan.rounds} rounds")
        if evaluate_config is not None and len(evaluate_config):
            raise UsageError("evaluate_config", evaluate_config, "left out: clients report no metrics")
        done, arrays = self.resume(initial_arrays)
        result = Result()
        result.arrays = arrays
        if evaluate_fn:
            self._evaluate(evaluate_fn, done, arrays, result)
        for number in range(done + 1, self.plan.rounds + 1):
            messages = list(self.configure_train(number, arrays, train_config or ConfigRecord(), grid))
            replies = grid.send_and_receive(messages, timeout=timeout)
            aggregated, metrics = self.aggregate_train(number, replies)
            assert aggregated is not None
            result.arrays = arrays = aggregated
            result.train_metrics_clientapp[number] = metrics or MetricRecord()
            if evaluate_fn:
                self._evaluate(evaluate_fn, number, arrays, result)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message for each client drawn that is there: broadcast, plan, round and a ticket of its own."""
        self._learn_layout(arrays)
        drawn = draw(self.draw_seed, server_round, self.plan.clients, self.plan.drawn).tolist()
        nodes = self._nodes(grid, drawn)
        self.last = Round(server_round, drawn)
        self._sent, messages = {}, []
        for client in drawn:
            if client not in nodes:
                self.last.missing[client] = self.gone.get(client, "not connected")
                continue
            instruction = Instruction(self.plan.digest(), server_round, secrets.token_hex(16), client)
            self._sent[nodes[client]] = instruction
            asked = ConfigRecord({**config, "server-round": server_round, **instruction.to_config()})
            content = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: asked})
            messages.append(
                Message(
                    content,
                    dst_node_id=nodes[client],
                    message_type=MessageType.TRAIN,
                    group_id=str(server_round),
                )
            )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next broadcast: checked uploads averaged, the server's noise on top, written down before it is sent."""
        assert self.last is not None, "configure_train comes first"
        uploads = self._good_uploads(self.last, replies)
        noisy = self._noisy_average(self.last, uploads)
        current = self._layout_known.vector(self._start)
        following, velocity = server_step(
            torch.from_numpy(current),
            torch.from_numpy(noisy),
            _tensor(self.velocity),
            self.plan.server_momentum,
        )
        vector = following.numpy()
        if not np.isfinite(vector).all() or np.abs(vector).max() > wire.LARGEST:
            raise Refused(f"round {server_round} gave a model with absurd weights: it is not broadcast.")
        self.velocity = None if velocity is None else velocity.numpy()
        arrays = self._layout_known.arrays(vector, self._start)
        self._save(server_round, arrays)
        return wire.to_record(arrays), MetricRecord({"answered": len(self.last.answered)})

    def configure_evaluate(  # Flower names the arguments
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> Iterable[Message]:
        """Nothing: what clients measure on their own data would leave them without noise."""
        return []

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],  # noqa: ARG002
    ) -> MetricRecord | None:
        """Nothing was asked."""
        return None

    def summary(self) -> None:
        """One line in Flower's log."""
        noise = self._noise
        log.info(
            "NbAFL: %d clients, %d a round, sigma uplink %.4g, sigma downlink %.4g, epsilon %g at delta %g against %s",
            self.plan.clients,
            self.plan.drawn,
            float(noise.sigma_uplink.max()),
            noise.sigma_downlink,
            self.plan.epsilon,
            self.plan.delta,
            self.plan.adversary,
        )

    # --- checkpoints -------------------------------------------------------------------------------------

    def resume(self, initial_arrays: ArrayRecord) -> tuple[int, ArrayRecord]:
        """(rounds done, broadcast to go on from); the initial model where there is no checkpoint."""
        self._learn_layout(initial_arrays)
        if self.checkpoint is None or not self.checkpoint.is_file():
            self._save(0, self._start)
            return 0, initial_arrays
        content = self.checkpoint.read_bytes()
        try:
            tensors = load(content)
            notes = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        except Exception as error:
            raise DataError(f"checkpoint {str(self.checkpoint)!r} is damaged: {error}.") from None
        if notes.get("plan") != self.plan.digest():
            raise Refused(f"checkpoint {str(self.checkpoint)!r} belongs to another plan.")
        self.restore(tensors, notes)
        return int(notes["round"]), wire.to_record(self._start)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Everything a later process needs, as arrays and notes."""
        tensors = {f"model/{name}": np.asarray(value, order="C") for name, value in self._start.items()}
        if self.velocity is not None:
            tensors["velocity"] = self.velocity
        return tensors, {"plan": self.plan.digest(), "draw_seed": str(self.draw_seed)}

    def restore(self, tensors: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> None:
        self._start = {name.removeprefix("model/"): value for name, value in tensors.items() if "/" in name}
        self.velocity = tensors.get("velocity")
        self.draw_seed = int(notes["draw_seed"])

    # --- inside ------------------------------------------------------------------------------------------

    @property
    def _layout_known(self) -> Layout:
        assert self._layout is not None, "configure_train comes first"
        return self._layout

    def _learn_layout(self, arrays: ArrayRecord) -> None:
        self._start = wire.read_any(arrays)
        wire.check_broadcast(Layout.of(self._start).vector(self._start))
        self._layout = Layout.of(self._start)

    def _nodes(self, grid: Grid, drawn: list[int]) -> dict[int, int]:
        """Client number to node id, of those connected: waits for all at first, for those drawn later on."""
        started = time.monotonic()
        wanted = set(range(self.plan.clients)) if not self._sent else set(drawn) - self.gone.keys()
        patience = self.wait if not self._sent else min(self.grace, self.wait)
        while True:
            known = self._number(set(grid.get_node_ids()))
            waited = time.monotonic() - started
            enough = len(known.keys() & set(drawn)) >= self.min_answers
            if wanted <= known.keys() or (enough and waited > patience):
                return known
            if waited > self.wait:
                raise TooFew(
                    f"only {len(known)} of {self.plan.clients} clients were connected after {self.wait:g} s; "
                    f"at least {self.min_answers} must answer",
                    self.gone,
                )
            time.sleep(0.1)

    def _number(self, online: set[int]) -> dict[int, int]:
        if self.clients is None:
            if len(online) < self.plan.clients:
                return dict(enumerate(sorted(online)))
            self.clients = {node: number for number, node in enumerate(sorted(online)[: self.plan.clients])}
        return {number: node for node, number in self.clients.items() if node in online}

    def _good_uploads(self, happened: Round, replies: Iterable[Message]) -> dict[int, np.ndarray]:
        """Client number to checked upload; refuses when too few are left."""
        inbox = Inbox(self.plan, self._layout_known, self._start)
        uploads: dict[int, np.ndarray] = {}
        for reply in replies:
            instruction = self._sent.get(reply.metadata.src_node_id)
            if instruction is None or instruction.client in uploads:
                log.warning("round %d: a reply nobody asked for was dropped.", happened.number)
                continue
            try:
                uploads[instruction.client] = inbox.read(reply, instruction)
            except Malformed as error:
                happened.missing[instruction.client] = str(error)
                if isinstance(error, Refusal):
                    self.gone[instruction.client] = str(error)
                log.warning(
                    "round %d: no upload of client %d: %s", happened.number, instruction.client, error
                )
        for instruction in self._sent.values():
            if instruction.client not in uploads:
                happened.missing.setdefault(instruction.client, "no answer in time")
        happened.answered = sorted(uploads)
        if len(uploads) < self.min_answers:
            raise TooFew(
                f"round {happened.number} stopped: {len(uploads)} of {len(happened.drawn)} clients gave a usable "
                f"upload, {self.min_answers} are needed",
                happened.missing,
            )
        offsets = [np.linalg.norm(upload - inbox.centre) for upload in uploads.values()]
        happened.upload_norm = float(np.mean(offsets))
        return uploads

    def _noisy_average(self, happened: Round, uploads: Mapping[int, np.ndarray]) -> np.ndarray:
        """sum p_i w_i over those who answered, plus server noise with the top-up for those who did not."""
        drawn, answered = np.array(happened.drawn), np.array(happened.answered)
        stacked = torch.from_numpy(np.stack([uploads[client] for client in happened.answered]))
        average = aggregate(stacked, self._release.weights[answered]).numpy()
        weights, uplink = self._release.weights[drawn], self._release.uplink[drawn]
        sigma_uplink, sigma_downlink = self._noise.sigma_uplink[drawn], self._noise.sigma_downlink
        extra = top_up_variance(weights, sigma_uplink, sigma_downlink, np.isin(drawn, answered))
        happened.sigma_downlink = math.sqrt(sigma_downlink**2 + extra)
        if happened.sigma_downlink == 0:
            return average
        return SecureGaussian().add(average, happened.sigma_downlink, downlink(uplink, normalise(weights)))

    def _save(self, done: int, arrays: Mapping[str, np.ndarray]) -> None:
        self._start = dict(arrays)
        if self.checkpoint is None:
            return
        tensors, notes = self.state()
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        content = save(tensors, metadata={**notes, "round": str(done)})
        write_bytes(self.checkpoint, content, mode=0o600)  # it holds the seed of the draw

    def _evaluate(
        self, evaluate_fn: Callable[..., Any], done: int, arrays: ArrayRecord, result: Result
    ) -> None:
        measured = evaluate_fn(done, arrays)
        if measured is not None:
            log.info("round %d: %s", done, measured)
            result.evaluate_metrics_serverapp[done] = measured


def _tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(np.ascontiguousarray(array))
