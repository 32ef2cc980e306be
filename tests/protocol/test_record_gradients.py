"""Every way to per-record gradients against a loop of plain backward passes, for every kind of model."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from tests.zoo import CLASSES, SHAPE, ZOO, loss_of, records
from torch import Tensor, nn
from torch.nn import functional

from nbafl.errors import UsageError
from nbafl.protocol import Training, flatten
from nbafl.protocol import record_gradients as ways
from nbafl.protocol.gradient import clipped_gradient, clipped_sum
from nbafl.protocol.independence import DropoutOff
from nbafl.protocol.products import Direct, Geometry, Patches, Places, Rows, gram, merged
from nbafl.protocol.record_gradients import RecordGradients

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 1e-2}
COUNT = 9


def loop(model: nn.Module, x: Tensor, y: Tensor, shares: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """sum of shares times clipped gradients, and their lengths, by autograd alone; in float64 from there on."""
    total, lengths = 0.0, []
    for record, target, share in zip(x, y, shares, strict=True):
        one = copy.deepcopy(model)
        own = [weight for weight in one.parameters() if weight.requires_grad]
        with DropoutOff():
            found = torch.autograd.grad(loss_of(one, record, target), own, allow_unused=True)
        parts = [torch.zeros_like(w) if g is None else g for g, w in zip(found, own, strict=True)]
        each = torch.cat([part.reshape(-1).double() for part in parts])
        lengths.append(each.norm())
        total = total + float(share) * each / max(1.0, float(each.norm()) / bound)
    return total, torch.stack(lengths)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", ZOO)
def test_a_clipped_sum_equals_a_loop_over_the_records(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    model = ZOO[name]().to(dtype).train()
    x, y = records(COUNT, 1, dtype)
    point = flatten(model)
    shares = torch.linspace(0.5, 1.5, COUNT, dtype=point.dtype) / COUNT
    _, lengths = loop(model, x, y, shares, 1.0)
    bound = float(lengths.median())  # about half of the records are clipped
    training = Training(rule="gradient", steps=1, record_clip=bound)
    with DropoutOff():
        ours, clipped = clipped_gradient(model, x, y, point, shares, training)
    theirs, _ = loop(model, x, y, shares, bound)
    assert point.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert float((ours.double() - theirs).norm() / theirs.norm()) <= TOLERANCE[dtype]
    assert COUNT // 2 - 1 <= int(clipped.sum()) <= COUNT // 2 + 2


@pytest.mark.parametrize("name", ZOO)
def test_the_way_is_the_fast_one_wherever_it_can_be(name: str) -> None:
    model = ZOO[name]().train()
    found = RecordGradients(model, SHAPE, "cross_entropy")
    expected = {"MLP": "chain", "control flow": "one by one"}.get(name, "taps")
    assert found.way == expected
    assert found.draws == (name == "dropout")
    matrices = {n for n, w in model.named_parameters() if w.requires_grad and w.ndim > 1 and n != "place"}
    if expected == "taps":
        assert matrices <= found.tapped


def test_chunks_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, (x, y) = ZOO["Transformer encoder"]().double(), records(COUNT, 2, torch.float64)
    shares, training = torch.full((COUNT,), 1 / COUNT).double(), Training(rule="gradient", steps=1)
    whole = clipped_gradient(model, x, y, flatten(model), shares, training)
    monkeypatch.setattr(ways, "CHUNK_BYTES", 1)
    single = clipped_gradient(model, x, y, flatten(model), shares, training)
    torch.testing.assert_close(whole[0], single[0], rtol=1e-9, atol=1e-12)
    assert torch.equal(whole[1], single[1])


def test_memory_follows_the_chunk_not_the_records() -> None:
    """What a record takes is known from the trial step, and a chunk is as many as fit."""
    model = nn.Sequential(
        nn.Linear(*SHAPE, 3000),
        nn.ReLU(),
        nn.LayerNorm(3000),
        nn.Linear(3000, 3000),
        nn.ReLU(),
        nn.Linear(3000, 3),
    )
    found = RecordGradients(model.train(), SHAPE, "cross_entropy")
    assert flatten(model).numel() > 9_000_000
    assert found._each < 400_000, "a record must not cost a copy of the weights"


class Sly(nn.Module):
    """Uses a layer's weight a second time, behind its back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(*SHAPE, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(x / 8)) * self.layer.weight.square().sum(1))


class Now(nn.Module):
    """Uses it a second time only once it is told to: after the trial step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.later = nn.Linear(*SHAPE, CLASSES), False
        self.norm = nn.LayerNorm(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x / 8)) * (self.layer.weight.square().sum(1) if self.later else 1.0)


def agrees(model: nn.Module, gradients: RecordGradients) -> bool:
    x, y = records(COUNT, 3, torch.float64)
    shares, training = (
        torch.full((COUNT,), 1 / COUNT).double(),
        Training(rule="gradient", steps=1, record_clip=0.3),
    )
    ours, _ = clipped_sum(gradients, x, y, flatten(model), shares, training)
    return torch.allclose(ours, loop(model, x, y, shares, 0.3)[0], rtol=1e-6, atol=1e-9)


def test_a_weight_used_behind_its_layers_back_is_carried() -> None:
    torch.manual_seed(1)
    model = Sly().double().train()
    found = RecordGradients(model, SHAPE, "cross_entropy")
    assert found.tapped == {"head.weight", "head.bias"}
    assert agrees(model, found)


def test_a_weight_that_escapes_later_is_noticed_in_its_chunk() -> None:
    torch.manual_seed(1)
    model = Now().double().train()
    found = RecordGradients(model, SHAPE, "cross_entropy")
    assert "layer.weight" in found.tapped
    model.later = True
    assert agrees(model, found)


def test_a_fast_way_that_computes_something_else_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A planted mistake in a layer's formula must never reach an upload."""
    monkeypatch.setattr(Patches, "squares", lambda self: 0.5 * Direct(self.gradients()).squares())
    torch.manual_seed(1)
    model = ZOO["depthwise CNN"]().double().train()
    with caplog.at_level(logging.WARNING, "nbafl"):
        found = RecordGradients(model, SHAPE, "cross_entropy")
    assert found.way == "one by one"
    assert "differ from those taken one by one" in caplog.text
    assert agrees(model, found)


def test_a_model_that_cannot_be_trained_is_refused_in_a_sentence() -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    with pytest.raises(UsageError, match="one that trains; a trial step failed: RuntimeError"):
        RecordGradients(Broken(*SHAPE, CLASSES).train(), SHAPE, "cross_entropy")


# --- the forms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [1, 2, 40])
@pytest.mark.parametrize("across", [False, True])
def test_places_by_length_by_gram_and_directly(places: int, across: bool) -> None:
    torch.manual_seed(places)
    a, s = torch.randn(5, places, 7, dtype=torch.float64), torch.randn(5, places, 6, dtype=torch.float64)
    form, scale = Places(a, s, across), torch.rand(5, dtype=torch.float64)
    each = torch.einsum("bti,bto->bio" if across else "bti,bto->boi", a, s).flatten(1)
    torch.testing.assert_close(form.gradients(), each)
    torch.testing.assert_close(form.squares(), each.square().sum(1), rtol=1e-7, atol=0)
    torch.testing.assert_close(form.weighted(scale), scale @ each)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("stride", "dilation", "padding"), [(1, 1, 0), (2, 1, 1), (1, 2, 2)])
@pytest.mark.parametrize("size", [5, 30])
def test_patches_are_what_a_convolution_multiplies(
    groups: int, stride: int, dilation: int, padding: int, size: int
) -> None:
    """Small images of many channels go by Gram, large ones directly; both equal autograd."""
    torch.manual_seed(0)
    wide = 4 if size > 10 else 32
    weight = torch.randn(wide, wide // groups, 3, 2, dtype=torch.float64, requires_grad=True)
    images = torch.randn(3, 2, wide, size, size, dtype=torch.float64)
    both = (stride, stride), (padding, padding), (dilation, dilation)
    each, slopes = [], []
    for image in images:
        out = functional.conv2d(image, weight, None, *both, groups)
        slope = torch.randn_like(out)
        each.append(torch.autograd.grad(out, weight, slope)[0].reshape(-1))
        slopes.append(slope)
    form = Patches(images, torch.stack(slopes), Geometry((3, 2), *both, groups))
    scale, true = torch.rand(3, dtype=torch.float64), torch.stack(each)
    torch.testing.assert_close(form.squares(), true.square().sum(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(form.weighted(scale), scale @ true)
    torch.testing.assert_close(form.gradients(), true)


def test_rows_of_an_embedding_and_uses_put_together() -> None:
    torch.manual_seed(0)
    index, slopes = torch.randint(4, (5, 9)), torch.randn(5, 9, 3, dtype=torch.float64)
    form, scale = Rows(index, slopes, 4), torch.rand(5, dtype=torch.float64)
    each = torch.einsum("btr,btd->brd", functional.one_hot(index, 4).double(), slopes).flatten(1)
    torch.testing.assert_close(form.gradients(), each)
    torch.testing.assert_close(form.squares(), each.square().sum(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(form.weighted(scale), scale @ each)
    product = Places(torch.randn(5, 2, 3, dtype=torch.float64), torch.randn(5, 2, 4, dtype=torch.float64))
    for uses in ([form, product], [product, product], [form, form, form]):
        whole = sum(use.gradients() for use in uses)
        torch.testing.assert_close(merged(uses).squares(), whole.square().sum(1), rtol=1e-6, atol=0)
        torch.testing.assert_close(merged(uses).weighted(scale), scale @ whole)


def test_gram_sums_that_cancel_never_come_out_too_short() -> None:
    """Slopes that sum to nearly nothing at equal inputs of 1e9: what Gram sums lose may only shorten a record's share."""
    torch.manual_seed(0)
    a = 1e9 * torch.ones(200, 8, 64, dtype=torch.float64)
    s = torch.randn(200, 8, 64, dtype=torch.float64)
    s = s - s.mean(1, keepdim=True) + 1e-12 * torch.randn_like(s)
    true = torch.einsum("bti,bto->boi", a, s).flatten(1).square().sum(1)
    assert bool((gram(a @ a.mT, s @ s.mT) >= true).all())


class MeanOverPlaces(nn.Module):
    """One linear layer at every place of a record, and the mean of its answers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(1)


@pytest.mark.parametrize("places", [8, 2], ids=["formed", "Gram"])
@pytest.mark.parametrize("size", [1e12, 1e18, 1e25])
def test_a_record_whose_places_cancel_swallows_no_other(places: int, size: float) -> None:
    """Its gradient is 0 and nothing is clipped; added place by place it moved an upload 47 times as far as 2 eta G/m."""
    torch.manual_seed(0)
    inputs, outputs = (3, 2) if places == 8 else (16, 16)
    model, count = MeanOverPlaces(inputs, outputs).double(), 100
    x, y = torch.randn(count, places, inputs).double() + 2, torch.zeros(count, dtype=torch.int64)
    shares, training = torch.full((count,), 1 / count).double(), Training(rule="gradient", steps=1)
    point = flatten(model)
    before, _ = clipped_gradient(model, x, y, point, shares, training)
    for row in (0, count // 2, count - 1):
        crafted = x.clone()
        crafted[row] = 0
        crafted[row, 0], crafted[row, 1] = size, -size
        after, _ = clipped_gradient(model, crafted, y, point, shares, training)
        assert float((after - before).norm()) <= 2 * training.record_clip / count


def test_frozen_weights_do_not_make_chunks_small() -> None:
    """They are the same for all records: counted once a record, they would cut a batch into a chunk for every few."""
    base = nn.Linear(24, 2000)
    base.requires_grad_(False)
    way = RecordGradients(nn.Sequential(base, nn.ReLU(), nn.Linear(2000, 3)), (24,), "cross_entropy")
    assert way.way == "taps"
    assert way._each < 4 * 24 * 2000
