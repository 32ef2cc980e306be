"""The workload's ClientApp and ServerApp; imported by name, so that Flower's workers keep the digits in memory.

A module of its own because what lives in a script's main module is copied to the workers anew with every message.
"""

from __future__ import annotations

import json
import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from networks import network
from task import Stopwatch, Task, digits
from torch import nn

GIVEN = Task(**json.loads(os.environ["PEER_TASK"]))
client_app, server_app = ClientApp(), ServerApp()
_DATA: list = []


def data() -> list:
    """Every worker process reads the digits once."""
    if not _DATA:
        clients, test = digits(GIVEN)
        _DATA.append([(torch.as_tensor(x), torch.as_tensor(y)) for x, y in clients])
        _DATA.append(tuple(torch.as_tensor(part) for part in test))
        torch.set_num_threads(1)
    return _DATA


@client_app.train()
def train(message: Message, context: Context) -> Message:
    x, y = data()[0][int(context.node_config["partition-id"])]
    model = network(GIVEN)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    centre = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(GIVEN.steps):
        if step * GIVEN.batch % GIVEN.samples == 0:
            order = torch.randperm(GIVEN.samples)
        place = step * GIVEN.batch % GIVEN.samples
        rows = order[place : place + GIVEN.batch]
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for own, gradient, start in zip(model.parameters(), gradients, centre, strict=True):
                own -= GIVEN.lr * (gradient + GIVEN.mu * (own - start))
    with torch.no_grad():
        norm = torch.sqrt(sum(parameter.square().sum() for parameter in model.parameters()))
        for parameter in model.parameters():
            parameter.mul_(min(1.0, GIVEN.clip / float(norm))).add_(GIVEN.sigma * torch.randn_like(parameter))
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": GIVEN.samples}),
    }
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def serve(grid: Grid, _: Context) -> None:
    watch, model, seen = Stopwatch(GIVEN), network(GIVEN), []
    strategy = FedAvg(
        fraction_train=GIVEN.per_round / GIVEN.clients,
        fraction_evaluate=0.0,
        min_train_nodes=GIVEN.per_round,
        min_available_nodes=GIVEN.clients,
    )

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if number and number % GIVEN.eval_every == 0:
            model.load_state_dict(arrays.to_torch_state_dict())
            x, y = data()[1]
            with torch.no_grad():
                seen.append(float((model(x).argmax(1) == y).double().mean()))
        if number:
            watch.lap()
        return None

    rounds = GIVEN.warm + GIVEN.rounds
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=evaluate)
    watch.report("flower", seen[-1] if seen else None)
