"""What a client uploads before its noise, whatever the rule: the one call a deployment makes."""

from __future__ import annotations

from torch import Tensor, nn

from nbafl.protocol.gradient import gradient_step
from nbafl.protocol.local import train_locally
from nbafl.protocol.proximal import proximal_upload
from nbafl.protocol.training import Training


def upload(
    model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training, order: Tensor | None = None
) -> Tensor:
    """The vector that `training.rule` makes of a client's data and the broadcast `start`.

    `order` holds minibatches (`client_batches`) for the rules that know them, `paper` and `client`.
    """
    if training.rule == "gradient":
        return gradient_step(model, x, y, start, training)
    if training.rule == "proximal":
        return proximal_upload(model, x, y, start, training)
    return train_locally(model, x, y, start, training, order)
