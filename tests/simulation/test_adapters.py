"""Part of a model: frozen weights, peft's LoRA, a tiny transformer from a config, tied weights; in both worlds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.paper_setting import Plan
from tests.zoo import CLASSES, SHAPE, TOKENS, ZOO, records
from torch import Tensor, nn

import nbafl
from nbafl.flower.client import Client, parameters
from nbafl.flower.release import Broadcast, Releaser
from nbafl.flower.wire import Instruction
from nbafl.privacy.ledger import Ledger, Limits
from nbafl.protocol import flatten
from nbafl.protocol.record_gradients import RecordGradients

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


class Classifier(nn.Module):
    """A transformers model that takes a row of numbers as tokens and answers with its logits."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(input_ids=x.long()).logits


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=TOKENS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def whole() -> nn.Module:
    return Classifier(bert())


def lora() -> nn.Module:
    settings = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
    return Classifier(peft.get_peft_model(bert(), settings))


MODELS = {"transformer": whole, "LoRA": lora, "tied": ZOO["tied weights"], "frozen": ZOO["frozen backbone"]}


def plan(**fields: object) -> Plan:
    given = {
        "clients": 2,
        "rounds": 2,
        "samples": 8,
        "sensitivity": "gradient",
        "lr": 0.5,
        "record_clip": 0.5,
    }
    return Plan(**{**given, "epsilon": 50.0, "delta": 0.01, "local_steps": 1, **fields})


def federation() -> nbafl.Federation:
    x, y = records(16, 5)
    parts = [(x[:8].numpy(), y[:8].numpy()), (x[8:].numpy(), y[8:].numpy())]
    return nbafl.Federation.from_arrays(parts, outputs=CLASSES)


@pytest.mark.parametrize("name", MODELS)
def test_a_part_of_a_model_trains_and_the_statement_says_which(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    assert RecordGradients(model.train(), SHAPE, "cross_entropy").way == "taps"
    run = nbafl.simulate(plan(), federation(), model=model, out=tmp_path / "run")
    said = json.loads((run.path / "privacy.json").read_text())
    assert (said["model_parameters"], said["frozen_parameters"]) == (trained, frozen)
    assert any("assumed to be public" in each for each in said["assumptions"]) == (frozen > 0)
    after = dict(model.named_parameters())
    assert all(torch.equal(before[n], after[n]) for n in before), "the model that was given stays as it was"


@pytest.mark.parametrize("name", MODELS)
def test_a_client_uploads_the_trained_part_alone(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, (x, y) = MODELS[name](), records(8, 6)
    ledger = Ledger(tmp_path / "l.sqlite", anchors=tmp_path / "anchors")
    ledger.set_limits(Limits(1e9, 0.01))
    client = Client(Releaser(plan(epsilon=1e6), ledger), model, x.numpy(), y.numpy())
    assert client.layout.dimension == flatten(model).numel()
    start = client.layout.vector(parameters(model)).astype(np.float64)
    asked = Broadcast(Instruction("", 1, "", 0), {}, start)
    sent = client._train(asked)
    bound = 0.5 * 0.5
    assert 0 < np.linalg.norm(sent - start) <= bound
    client.x[0] = 7.9 - client.x[0]
    client.y[0] = (client.y[0] + 1) % CLASSES
    moved = np.linalg.norm(client._train(asked) - sent)
    assert 0 < moved <= 2 * bound / 8
