"""LoRA on a transformers model between real processes: only the adapters travel, and each party builds the rest itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from federation_processes import Federation, Nursery, is_listening, wait_for
from safetensors.torch import load_file, save_file

from nbafl.errors import UsageError
from nbafl.flower.serving import _started
from nbafl.plan import Plan
from nbafl.simulation.models import build

pytest.importorskip("peft")
pytest.importorskip("transformers")

ADAPTERS = """
import peft, torch, transformers

class Digits(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(pixel_values=x).logits

def lora(shape, outputs):
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=28, patch_size=14,
        num_channels=1, num_labels=outputs, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    adapters = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])
    return Digits(peft.get_peft_model(transformers.ViTForImageClassification(config), adapters))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "adapters.py").write_text(ADAPTERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    return tmp_path


@pytest.fixture
def nursery(place: Path) -> Iterator[Nursery]:
    made = Nursery(place)
    yield made
    made.close()


@pytest.mark.e2e
def test_two_clients_train_adapters_and_the_backbone_stays(place: Path, nursery: Nursery) -> None:
    fields = [
        "--model",
        "adapters:lora",
        "--sensitivity",
        "gradient",
        "--features",
        "raw",
        "--rounds",
        2,
        "--samples",
        40,
    ]
    fields += ["--lr", 0.5, "--record-clip", 1, "--epsilon", 40, "--delta", 1e-5, "--calibration", "exact"]
    fields += [
        "--server-optimiser",
        "adam",
        "--server-lr",
        0.05,
        "--server-average",
        2,
        "--server-momentum",
        0.5,
    ]
    federation = Federation(place, 2, *fields)
    server = nursery.start("server", *federation.serve("--wait", 300))
    wait_for(lambda: is_listening(federation.port) or not server.alive, "the server")
    clients = [nursery.start(f"client-{each}", *federation.join(each)) for each in range(2)]
    assert server.finish() == 0, server.output
    assert [each.finish() for each in clients] == [0, 0], [each.output for each in clients]
    started, ended = (
        build("adapters:lora", (1, 28, 28), 10, 0),
        load_file(federation.home / "run" / "model.safetensors"),
    )
    moved = {name for name, value in started.state_dict().items() if not torch.equal(value, ended[name])}
    trained = {name for name, weight in started.named_parameters() if weight.requires_grad}
    assert moved == trained
    told = json.loads((federation.home / "run" / "privacy.json").read_text())
    assert told["model_parameters"] == sum(started.get_parameter(name).numel() for name in trained)
    assert any("frozen and assumed to be public" in each for each in told["assumptions"])
    assert any("Adam" in each and "mean of the last 2 broadcasts" in each for each in told["sentences"])
    for each in range(2):
        assert [row.round for row in federation.ledger(each).rows() if row.kind == "release"] == [1, 2]


def test_starting_weights_may_not_change_what_never_travels(place: Path) -> None:
    model = build("adapters:lora", (1, 28, 28), 10, 0)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    frozen = next(name for name, weight in model.named_parameters() if not weight.requires_grad)
    trained = next(name for name, weight in model.named_parameters() if weight.requires_grad)
    weights[trained] += 1
    save_file(weights, place / "adapters.safetensors")
    fine = _started(Plan(init="adapters.safetensors", sensitivity="gradient", lr=0.1, rounds=2), model)
    assert torch.equal(fine.state_dict()[trained], weights[trained])
    weights[frozen] += 1
    save_file(weights, place / "backbone.safetensors")
    with pytest.raises(UsageError, match="do not travel"):
        _started(Plan(init="backbone.safetensors", sensitivity="gradient", lr=0.1, rounds=2), model)
