"""Models that remember, and models that mix: why neither can break a record's bound, and how they are told so.

The bound of a record rests on its gradient being a function of that record and the broadcast alone. What makes it so is
how gradients are taken: `fresh` gives every chunk (every record, where records are taken singly) a copy of the model that
has seen nothing, and `vmap` keeps the records of a chunk apart. A tensor that a model keeps as a plain attribute, or a
buffer it counts in, dies with its copy.

`ready_to_train` is the courteous part: it asks the model a few questions before anything is trained, and refuses one whose
answer to a record depends on what it saw before or on the records beside it, since it would not train as its author meant.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from nbafl.errors import UsageError
from nbafl.protocol.randomness import generator, layer_draws

_DROPOUTS = (
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
)
ANSWERS = 1024
"""Records answered side by side."""
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Their sixth argument is the dropout between layers."""


@dataclass(frozen=True)
class Kinds:
    """What a client's records are made of."""

    tokens: bool = False
    """Whole numbers, for a model that begins with an Embedding; else features."""
    classes: bool = True
    """Whether targets are classes; else they are numbers."""

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Kinds:
        return cls(not x.is_floating_point(), not y.is_floating_point())


def fresh(model: nn.Module, replaced: Iterable[nn.Parameter] = ()) -> nn.Module:
    """A copy that has seen nothing, to be used for one chunk and thrown away.

    Parameters in `replaced` get other values at once (`.data = `), so theirs are not copied.
    """
    plain = (each for each in replaced if type(each) is nn.Parameter)
    return copy.deepcopy(model, {id(each): nn.Parameter(each.detach()) for each in plain})


def answers_alone(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """What the model answers to each record by itself, in evaluation mode: no record enters the answer to another."""

    def answers(records: Tensor) -> Tensor:
        used = fresh(model).eval()
        return vmap(lambda one: functional_call(used, weights, (one[None],))[0], randomness="different")(
            records
        )

    with torch.no_grad():
        try:
            return torch.cat([answers(records) for records in x.split(ANSWERS)])
        except Exception:  # torch has no rule for what this model does: a copy for every record
            return torch.cat([functional_call(fresh(model).eval(), weights, (one,)) for one in x.split(1)])


def ready_to_train(
    model: nn.Module, shape: tuple[int, ...], name: str | None = None, kinds: Kinds = Kinds()
) -> nn.Module:
    """A copy of the model in training mode; refused if its answer to a record is not a function of that record alone."""
    name = name or type(model).__name__
    for place, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False):
            allowed = "free of layers that keep running statistics (use GroupNorm or LayerNorm instead)"
            raise UsageError("model", f"{type(layer).__name__} at {place!r}", allowed)
    model = copy.deepcopy(model).train()
    _ask(fresh(model), trial_records(model, shape, 2, kinds), name)
    return model


def draws_numbers(model: nn.Module, shape: tuple[int, ...], kinds: Kinds = Kinds()) -> bool:
    """Whether the model, as it trains, draws from torch's global generator."""
    x = trial_records(model, shape, 1, kinds)
    with torch.no_grad(), layer_draws(0, 0, "trial", x.device):
        before = _generator_state(x.device)
        fresh(model)(x)
        return not torch.equal(before, _generator_state(x.device))


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.random.get_rng_state()


def trial_records(model: nn.Module, shape: tuple[int, ...], count: int, kinds: Kinds = Kinds()) -> Tensor:
    """Made-up records of numbers in [0, 2), which pixels, columns and (cut to 0 or 1) tokens can all be.

    No data owner's record is used. Every second record is the one before it moved by 1: neighbours differ everywhere.
    """
    like = next(model.parameters())
    drawn = 2 * torch.rand((-(-count // 2), *shape), generator=generator(0, 0, "trial records"))
    pairs = torch.stack([drawn, (drawn + 1) % 2], dim=1).flatten(0, 1)[:count].clamp(max=1.98)
    return pairs.to(like.device, torch.int64 if kinds.tokens else like.dtype)


def _ask(model: nn.Module, x: Tensor, name: str) -> None:
    """f(a), f(b), f(a) and f(a beside b), in training mode with dropout at 0, must agree about a, up to rounding."""
    before = {place: buffer.clone() for place, buffer in model.named_buffers()}
    a, b = x[:1], x[1:]

    def answer(records: Tensor, stream: str = "trial") -> Tensor:
        with torch.no_grad(), layer_draws(0, 0, stream, x.device), DropoutOff():
            return model(records)

    try:
        first, _, again, other = answer(a), answer(b), answer(a), answer(a, "other draws")
        beside = answer(x)[:1]
    except Exception as error:  # whatever a user's own layers may raise
        allowed = f"one that answers such records in training mode; it failed: {told(error)}"
        raise UsageError("model", name, allowed) from error
    for place, buffer in model.named_buffers():
        if not torch.equal(buffer, before[place]):
            raise UsageError("model", f"buffer {place!r}", "free of buffers that change in training")
    if not same(first, again):
        allowed = "a model that remembers nothing: its answer to a record changed after it saw another one"
        raise UsageError("model", name, allowed)
    draws_its_own = not same(first, other)  # noise of its own, of another shape for two records than for one
    if not draws_its_own and not same(first, beside):
        allowed = "a model that answers each record alone: its answer changed with another record beside it"
        raise UsageError("model", name, allowed)


def trial_targets(count: int, outputs: int, kinds: Kinds, device: torch.device) -> Tensor:
    """Targets for made-up records: classes (0 and 1 where there is one output), or numbers."""
    numbers = torch.arange(count, device=device)
    return numbers % max(outputs, 2) if kinds.classes else numbers.float()


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two answers agree but for rounding: to half the digits of their precision."""
    if one.shape != other.shape:
        return False
    size = one.abs().nan_to_num(0, 0, 0).max() if one.numel() else torch.ones(())
    near = torch.finfo(one.dtype).eps ** 0.5 * float(size)
    return torch.allclose(one, other, rtol=0, atol=near, equal_nan=True)


class DropoutOff(TorchFunctionMode):
    """Dropout drops nothing inside, whether it is a layer's or called as a function."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is functional.scaled_dot_product_attention:
            return func(*args[:4], **{**_named_attention(args), **kwargs, "dropout_p": 0.0})
        if func is functional.multi_head_attention_forward:
            return func(*args[:10], 0.0, *args[11:], **kwargs)
        if getattr(func, "__name__", "") in _RECURRENT:
            return func(*args[:5], 0.0, *args[6:], **kwargs)
        return func(*args, **kwargs)


def _named_attention(args: tuple[Any, ...]) -> dict[str, Any]:
    """What `scaled_dot_product_attention(query, key, value, attn_mask, ...)` got after its mask, without the dropout."""
    return dict(zip(("dropout_p", "is_causal"), args[4:], strict=False))


def told(error: Exception) -> str:
    """An exception of somebody else's code as the end of a sentence."""
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__} ({first[0].rstrip('.')})" if first else type(error).__name__
