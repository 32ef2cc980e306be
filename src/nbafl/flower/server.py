"""The server of a real federation as something that makes rounds, like the simulator does.

`run.train` drives it and keeps the run folder: a round is finished once its checkpoint is in place, and the next
broadcast leaves only after that. It is in the checkpoint before clients score it or metrics tell of it. Beside the
metrics, `answers.jsonl` says who was drawn, who answered, why the others did not, and how much noise the server added;
what is spent so far is told from the same lines as the final statement.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor, nn
from torch.func import functional_call

from nbafl.data.checks import Arrays
from nbafl.errors import Refused
from nbafl.evaluation import Evaluation
from nbafl.flower import inspection, wire
from nbafl.flower.client import parameters
from nbafl.flower.evaluation import mean_score
from nbafl.flower.hub import Hub
from nbafl.flower.inspection import Facts
from nbafl.flower.monitor import Progress
from nbafl.flower.open_round import OpenRound
from nbafl.flower.spending import Spending
from nbafl.flower.strategy import SEED_BITS, NbAFL
from nbafl.flower.wire import Instruction, Layout, Malformed
from nbafl.folders import answers
from nbafl.plan import Plan
from nbafl.protocol import flatten, likeliest, load, record_losses, unflatten
from nbafl.simulation.scoring.metrics import RoundMetrics

log = logging.getLogger("nbafl")

HANG_UP = 10.0
"""Seconds a client may take to hang up once it was told that all is over."""
_HALF_SEED = 2 ** (SEED_BITS // 2)
"""What one whole number of a checkpoint keeps of the seed of the draw."""
FAREWELL = 30.0
"""Seconds after the end in which clients that are just restarting are still told of it."""


def _nowhere() -> None:
    """A server that nobody drives keeps nothing."""


class NotReady(Refused):
    """Somebody would refuse the first round."""

    told = "a client is not ready; nothing was released"

    def __init__(self, reasons: Mapping[str, str]) -> None:
        why = " ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
        super().__init__(
            f"{len(reasons)} of the clients would refuse, so nothing was started or spent. {why}"
        )


class Server:
    """Rounds with clients on the other end of a hub; see run.Trainer."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        hub: Hub,
        *,
        test: Arrays | None = None,
        task: str = "classification",
        classes: Sequence[str] = (),
        timeout: float = 600.0,
        wait: float = 600.0,
        min_answers: int | None = None,
        answers: Path | None = None,
        facts: Callable[[int], Facts] | None = None,
        before_round: Callable[[Server], None] | None = None,
    ) -> None:
        """`timeout`: seconds a round may take; `wait`: until clients connect; `answers`: file for who answered.

        `facts`: what clients are asked to check before the first round, given the rounds done; `before_round` is called
        ahead of each.
        """
        self.plan, self.hub, self.timeout, self.answers = plan, hub, timeout, answers
        self.strategy = NbAFL(plan, clients=hub.nodes, own_clients=True, wait=wait, min_answers=min_answers)
        self._facts, self._before_round = facts, before_round
        self.progress = Progress()
        self._spending: Spending | None = None
        self.evaluation: Evaluation | None = None
        """Ask clients for noisy sums of scores, where there is no test set."""
        self.keep: Callable[[], None] = _nowhere
        """Puts `state` on disk: a broadcast that clients score, or of which metrics tell, must not be made again."""
        self.round, self.vector = 0, flatten(model)
        self.made = 0
        """Rounds whose broadcast is there; the last of them may still have to be measured."""
        self._attempts = 0
        self._unable: frozenset[int] = frozenset()
        """Clients that gave nothing when they were last drawn."""
        self._model, self._loss = model.eval(), plan.training(task, classes).loss
        self._evaluated = plan.job(task, classes).evaluated
        self._layout = Layout.of(parameters(model))
        self._test = None if test is None else tuple(torch.from_numpy(np.array(part)) for part in test)

    def step(self) -> RoundMetrics:
        """One round with whoever is there; `Refused` when too few answer."""
        if self._spending is None:
            self.count_rounds()
        if self._before_round is not None:
            self._before_round(self)
        if self._facts is not None:
            self.check_clients(self._facts(self.made))
            self._facts = None
        started = time.perf_counter()
        if self.made == self.round:
            participants = self._make_round(self.round + 1)
            self.keep()  # before anything is told of this broadcast
        else:
            participants = self._participants()
        measured = self._evaluate(self.made)
        self.round = self.made
        return RoundMetrics(
            round=self.made,
            participants=participants,
            broadcast_norm=float(self.vector.norm()),
            seconds=time.perf_counter() - started,
            **measured,
        )

    def _make_round(self, number: int) -> int:
        """A round with a line in `answers.jsonl`; how many answered."""
        if self.plan.drawn < self.plan.clients and self.answers is not None:
            answers.begin(self.answers, number)
        self._attempts += 1
        happened = self._round(number)
        happened.attempts, self._attempts = self._attempts, 0
        if self.answers is not None:
            answers.add(self.answers, asdict(happened))
        self._finished(happened)
        return len(happened.answered)

    def _participants(self) -> int:
        """How many answered in the last round, which an earlier process made and did not measure."""
        return answers.first(self.answers, self.plan, self.made)[-1].answers

    def _round(self, number: int) -> OpenRound:
        """Ask, collect, average: the next broadcast is in `vector`."""
        broadcast = wire.to_record(self._layout.arrays(self.vector.numpy(), {}))
        with self.progress.during("waiting"):
            messages = self.strategy.configure_train(number, broadcast, ConfigRecord(), self.hub.exchange)
        asked = time.monotonic()
        with self.progress.during("training"):
            replies = self.hub.exchange.send_and_receive(messages, timeout=self.timeout)
        with self.progress.during("aggregating"):
            try:
                following, _ = self.strategy.aggregate_train(number, replies)
            finally:
                happened = self.strategy.last
                assert happened is not None
                kinds = [self.strategy.kind_of(client) for client in happened.missing]
                self.progress.count(len(happened.answered), kinds)
            self.vector = torch.from_numpy(self._layout.vector(self._layout.read(following))).float()
        steady = {self.hub.nodes[node] for node in self.hub.postbox.steady(asked)}
        happened.still_online = [client for client in happened.still_online if client in steady]
        return happened

    def count_rounds(self) -> None:
        """Enter what the rounds of earlier processes cost; until then nobody is told an epsilon."""
        self._spending, self._unable = Spending(self.plan, self.evaluation), frozenset()
        for made in answers.first(self.answers, self.plan, self.made):
            self._spending.add(made)
        for line in answers.lines_of(self.answers, self.made):
            self._unable = answers.unable_after(line, self._unable)
        self.progress.epsilon = self._spending.epsilon()
        self.progress.rounds_done = self.made

    def _finished(self, happened: OpenRound) -> None:
        """Enter a round: its cost first, so that no epsilon is ever told for fewer rounds than are."""
        assert self._spending is not None, "step comes first"
        line, before = asdict(happened), self._unable
        self._unable, self.made = answers.unable_after(line, before), happened.number
        if self._unable - before and self.plan.drawn < self.plan.clients and self.answers is not None:
            self.count_rounds()  # for some rounds already it may not have been able
            return
        self._spending.add(answers.as_round(line, self.plan, doubted=bool(self._unable)))
        self.progress.epsilon = self._spending.epsilon()
        self.progress.rounds_done = self.made

    def check_clients(self, facts: Facts) -> None:
        """Ask everybody whether it could answer; before the first round one refusal stops all, and costs nobody."""
        with self.progress.during("waiting"):
            nodes = self.strategy.wait_for_all(self.hub.exchange)
        questions = [
            Message(
                RecordDict({wire.CONFIG: facts.to_config(client)}),
                dst_node_id=node,
                message_type=MessageType.QUERY,
            )
            for client, node in nodes.items()
        ]
        refused = {
            self.hub.nodes[reply.metadata.src_node_id]: why
            for reply in self.hub.exchange.send_and_receive(questions, timeout=self.timeout)
            if (why := inspection.refused(reply)) is not None
        }
        if refused and self.made == 0:
            raise NotReady({self.strategy.name(client): reason for client, reason in refused.items()})
        self.strategy.gone.update(refused)

    @property
    def layout(self) -> Layout:
        """How the model's arrays lie in the vector."""
        return self._layout

    def module(self) -> nn.Module:
        """The model the run has now: the broadcast, or the mean of the last ones where the plan asks for it."""
        final = self.strategy.server.final(self.vector, self.strategy.kept)
        return load(final.to(self.vector.dtype), self._model)

    def state(self) -> dict[str, Tensor]:
        """Everything a later process needs: broadcast, optimiser, rounds done, and the secret seed of the draw."""
        return {
            "vector": self.vector,
            "round": torch.tensor(self.round),
            "made": torch.tensor(self.made),
            "draw_seed": torch.tensor(divmod(self.strategy.draw_seed, _HALF_SEED)),
            **self.strategy.kept,
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        self.vector, self.round = state["vector"], int(state["round"])
        self.made = int(state.get("made", state["round"]))
        *high, low = state["draw_seed"].reshape(-1).tolist()  # one number in earlier versions
        self.strategy.draw_seed = sum(high) * _HALF_SEED + low
        own = ("vector", "round", "made", "draw_seed")
        self.strategy.kept = {name: value for name, value in state.items() if name not in own}
        if self.answers is not None:
            self._attempts = answers.keep(self.answers, self.made)
        self.count_rounds()

    def say_goodbye(self, outcome: str) -> None:
        """Tell every client that the federation is over, and wait until they have hung up.

        Those who went without a word a moment ago may be restarting: whoever comes back in time is told as well, since
        a client cannot tell a server that has finished from one that will be back.
        """
        patience = min(self.strategy.wait, FAREWELL)
        config, postbox = ConfigRecord({wire.END: outcome}), self.hub.postbox
        away = postbox.returning(patience)
        if away:
            log.info(
                "the federation is over; %d clients that went away may still come back and hear it.",
                len(away),
            )
        deadline = time.monotonic() + max(HANG_UP, patience)
        while (online := postbox.online()) or postbox.returning(patience):
            for node in online:
                last = Message(
                    RecordDict({wire.CONFIG: config}), dst_node_id=node, message_type=MessageType.QUERY
                )
                postbox.goodbye(node, last)
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)

    def _ask_for_counts(self, number: int, agreed: Evaluation) -> dict[str, float]:
        """Accuracy or loss from the clients' noisy sums of scores."""
        arrays = wire.to_record(self._layout.arrays(self.vector.numpy(), {}))
        sent, questions = {}, []
        for node in self.hub.exchange.get_node_ids():  # everybody, drawn or not
            asked = Instruction(self.plan.digest(), number, secrets.token_hex(16), self.hub.nodes[node])
            sent[node] = asked
            content = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: ConfigRecord({**asked.to_config()})})
            questions.append(Message(content, dst_node_id=node, message_type=MessageType.EVALUATE))
        with self.progress.during("evaluating"):
            replies = list(self.hub.exchange.send_and_receive(questions, timeout=self.timeout))
        pairs = [(reply, sent[reply.metadata.src_node_id]) for reply in replies]
        try:
            found = mean_score(agreed, pairs)
        except Malformed as error:
            log.warning("round %d: sums of scores are not used: %s", number, error)
            return {}
        return {} if found is None else agreed.metrics(found)

    def _evaluate(self, number: int) -> dict[str, float]:
        if self.evaluation is not None and self._test is None:
            return (
                self._ask_for_counts(number, self.evaluation)
                if self.evaluation.due(number, self.plan)
                else {}
            )
        if self._test is None or not self._evaluated(number):
            return {}
        with torch.no_grad(), self.progress.during("evaluating"):
            x, y = self._test
            output = functional_call(self._model, unflatten(self.vector, self._model), (x,))
            measured = {"test_loss": float(record_losses(output, y, self._loss).double().mean())}
            if not y.is_floating_point():
                measured["test_accuracy"] = float((likeliest(output) == y).double().mean())
        return measured
