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

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from safetensors import safe_open
from safetensors.numpy import save

from nbafl.durable import write_bytes
from nbafl.errors import DataError, Refused, UsageError
from nbafl.flower import wire
from nbafl.flower.average import noisy_average
from nbafl.flower.inbox import Inbox, Refusal
from nbafl.flower.open_round import NOT_CONNECTED, NOT_IN_TIME, OpenRound, TooFew
from nbafl.flower.wire import Instruction, Layout, Malformed
from nbafl.plan import Plan
from nbafl.privacy.scope import Scope
from nbafl.protocol import draw
from nbafl.protocol.server import State

log = logging.getLogger("nbafl")


SEED_BITS = 124


class NbAFL(Strategy):
    """Noising before aggregation, by a Plan."""

    aggregation = "plain"

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
        if not own_clients and not plan.rule.any_training:
            raise UsageError(
                "sensitivity",
                plan.sensitivity,
                "client around training code that nbafl does not control (others need nbafl's own client app)",
            )
        if not own_clients and plan.aggregation != self.aggregation:
            raise UsageError("aggregation", plan.aggregation, f"{self.aggregation} for {type(self).__name__}")
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
        """Clients that said no, and why: they are not asked again."""
        self.lost: set[int] = set()
        """Clients that went away and have had their grace: nobody waits for them until they are back."""
        self.names: Sequence[str] = ()
        """What people call the clients."""
        self.last: OpenRound | None = None
        # Who is drawn stays unknown to those who see only broadcasts, and to clients that know when they were: in 62 bits
        # they could have looked for the seed that fits.
        self.draw_seed = secrets.randbits(SEED_BITS)
        self.server = plan.job(classes=plan.weighted_classes).server
        self.kept: State = {}
        """What the server's optimiser keeps from round to round."""
        self._layout: Layout | None = None
        self._start: dict[str, np.ndarray] = {}
        self._sent: dict[int, Instruction] = {}
        self._grid: Grid

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
        if self.checkpoint is None:
            log.warning(
                "no checkpoint was given: if this server is started again, it makes its rounds again with other noise, "
                "and no epsilon covers that."
            )
        done, arrays = self.resume(initial_arrays)
        result = Result()
        result.arrays = arrays
        if evaluate_fn:
            self._evaluate(evaluate_fn, done, arrays, result)
        for number in range(done + 1, self.plan.rounds + 1):
            arrays, metrics = self.make_round(number, arrays, train_config or ConfigRecord(), grid, timeout)
            result.arrays = arrays
            result.train_metrics_clientapp[number] = metrics
            if evaluate_fn:
                self._evaluate(evaluate_fn, number, arrays, result)
        last = torch.from_numpy(self._layout_known.vector(self._start))
        final = self.server.final(last, self.kept).numpy()
        result.arrays = wire.to_record(self._layout_known.arrays(final, self._start))
        return result

    def make_round(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, timeout: float
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The next broadcast, and how many answered."""
        messages = list(self.configure_train(number, arrays, config, grid))
        replies = grid.send_and_receive(messages, timeout=timeout)
        aggregated, metrics = self.aggregate_train(number, replies)
        assert aggregated is not None
        return aggregated, metrics or MetricRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message for each client drawn that is there: broadcast, plan, round and a ticket of its own."""
        self._learn_layout(arrays)
        drawn = draw(self.draw_seed, server_round, self.plan.clients, self.plan.drawn).tolist()
        # Everybody is waited for at first, later on only who was drawn: who waits for them sees that they were.
        before = self._number(set(grid.get_node_ids())) if self._sent else None
        nodes = self._nodes(grid, drawn)
        self._grid = grid
        self.last = OpenRound(
            server_round, drawn, online=self._available(nodes if before is None else before)
        )
        self._sent, messages = {}, []
        for client in drawn:
            if client not in nodes:
                self.last.missing[client] = self.gone.get(client, NOT_CONNECTED)
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
        start = self._layout_known.vector(self._start)
        arrays = self._step(server_round, noisy_average(self.plan, self.last, uploads, start))
        return arrays, MetricRecord({"answered": len(self.last.answered)})

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
        noise = self.plan.noise_scales()
        log.info(
            "NbAFL: %d clients, %d a round, sigma uplink %.4g, sigma downlink %.4g, claimed: epsilon %g %s",
            self.plan.clients,
            self.plan.drawn,
            float(noise.sigma_uplink.max()),
            noise.sigma_downlink,
            self.plan.epsilon,
            Scope.of(self.plan).words,
        )

    # --- checkpoints -------------------------------------------------------------------------------------

    def resume(self, initial_arrays: ArrayRecord) -> tuple[int, ArrayRecord]:
        """(rounds done, broadcast to go on from); the initial model where there is no checkpoint."""
        self._learn_layout(initial_arrays)
        if self.checkpoint is None or not self.checkpoint.is_file():
            self._save(0, self._start)
            return 0, initial_arrays
        try:
            with safe_open(self.checkpoint, framework="numpy") as content:
                notes = content.metadata() or {}
                tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        except Exception as error:
            raise DataError(f"checkpoint {str(self.checkpoint)!r} is damaged: {error}.") from None
        if notes.get("plan") not in self.plan.digests():
            raise Refused(f"checkpoint {str(self.checkpoint)!r} belongs to another plan.")
        self.restore(tensors, notes)
        return int(notes["round"]), wire.to_record(self._start)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Everything a later process needs, as arrays and notes."""
        tensors = {f"model/{name}": np.asarray(value, order="C") for name, value in self._start.items()}
        tensors |= {name: value.numpy() for name, value in self.kept.items()}
        return tensors, {"plan": self.plan.digest(), "draw_seed": str(self.draw_seed)}

    def restore(self, tensors: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> None:
        self._start = {name.removeprefix("model/"): value for name, value in tensors.items() if "/" in name}
        self.kept = {
            name: torch.from_numpy(np.array(value)) for name, value in tensors.items() if "/" not in name
        }
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

    def _step(self, number: int, mean: np.ndarray) -> ArrayRecord:
        """The server's step towards a mean: the next broadcast, written down before it is sent."""
        current = torch.from_numpy(self._layout_known.vector(self._start))
        following = self.advance(current, torch.from_numpy(mean), number).numpy()
        arrays = self._layout_known.arrays(following, self._start)
        self._save(number, arrays)
        return wire.to_record(arrays)

    def advance(self, current: torch.Tensor, mean: torch.Tensor, number: int) -> torch.Tensor:
        """The server's step towards a mean; a model that nobody would train is never kept or sent."""
        following, kept = self.server.step(current, mean, self.kept, number)
        if not following.isfinite().all() or following.abs().max() > wire.LARGEST:
            raise Refused(f"round {number} gave a model with weights far out of range: it is not broadcast.")
        self.kept = kept
        return following

    def wait_for_all(self, grid: Grid) -> dict[int, int]:
        """Client number to node id, once all are connected or `wait` is over."""
        deadline = time.monotonic() + self.wait
        while len(known := self._number(set(grid.get_node_ids()))) < self.plan.clients - len(self.gone):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return known

    def _nodes(self, grid: Grid, drawn: list[int]) -> dict[int, int]:
        """Client number to node id, of those connected: waits for all at first, for those drawn later on."""
        started = time.monotonic()
        everybody = set(range(self.plan.clients)) if not self._sent else set(drawn)
        patience = self.wait if not self._sent else min(self.grace, self.wait)
        while True:
            known = self._number(set(grid.get_node_ids()))
            self.lost -= known.keys()
            wanted = everybody - self.gone.keys() - self.lost
            waited = time.monotonic() - started
            asked = set(drawn) - self.gone.keys()
            enough = len(asked & known.keys()) >= self.min_answers
            hopeless = len(asked) < self.min_answers  # the round says so, with everybody's reason
            if hopeless or (enough and (wanted <= known.keys() or waited > patience)):
                self.lost |= wanted - known.keys()
                return {client: node for client, node in known.items() if client not in self.gone}
            if waited > self.wait:
                raise TooFew(
                    f"only {len(known)} of {self.plan.clients} clients were connected after {self.wait:g} s; "
                    f"at least {self.min_answers} must answer",
                    self.gone,
                )
            time.sleep(0.1)

    def _available(self, nodes: Mapping[int, int]) -> list[int]:
        """Connected clients that have not said no for good."""
        return sorted(nodes.keys() - self.gone.keys())

    def kind_of(self, client: int) -> str:
        """In one word why a client gave no usable upload in the last round."""
        assert self.last is not None
        said = {NOT_CONNECTED: "absent", NOT_IN_TIME: "late"}.get(self.last.missing.get(client, ""))
        return said or ("refused" if client in self.gone else "lost" if client in self.lost else "rejected")

    def name(self, client: int) -> str:
        """What people call this client."""
        return f"client {self.names[client]}" if self.names else f"client {client}"

    def _number(self, online: set[int]) -> dict[int, int]:
        if self.clients is None:
            if len(online) < self.plan.clients:
                return dict(enumerate(sorted(online)))
            self.clients = {node: number for number, node in enumerate(sorted(online)[: self.plan.clients])}
        return {number: node for node, number in self.clients.items() if node in online}

    def _good_uploads(self, happened: OpenRound, replies: Iterable[Message]) -> dict[int, np.ndarray]:
        """Client number to checked upload; refuses when too few are left."""
        inbox = Inbox(self.plan, self._layout_known, self._start)
        uploads: dict[int, np.ndarray] = {}
        for reply in replies:
            instruction = self._sent.get(reply.metadata.src_node_id)
            if instruction is None or instruction.client in uploads:
                log.warning("round %d: an unsolicited reply was discarded.", happened.number)
                continue
            try:
                uploads[instruction.client] = inbox.read(reply, instruction)
            except Malformed as error:
                happened.missing[instruction.client] = str(error)
                if isinstance(error, Refusal):
                    self.gone[instruction.client] = str(error)
                elif reply.has_error() and reply.error.code == wire.LOST:
                    self.lost.add(instruction.client)
                log.warning(
                    "round %d: no upload of %s: %s", happened.number, self.name(instruction.client), error
                )
        for instruction in self._sent.values():
            if instruction.client not in uploads:
                happened.missing.setdefault(instruction.client, NOT_IN_TIME)
        happened.answered = sorted(uploads)
        happened.still_online = self._available(self._number(set(self._grid.get_node_ids())))
        if len(uploads) < self.min_answers:
            raise TooFew(
                f"round {happened.number} stopped: {len(uploads)} of {len(happened.drawn)} clients gave a usable "
                f"upload, {self.min_answers} are needed",
                happened.missing,
            )
        return uploads

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
