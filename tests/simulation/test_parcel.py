"""What one rank packs another finds again, in memory it may write to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nbafl.simulation.parcel import Parcel, opened


def sent(value: object, spare: int = 37) -> object:
    """Through memory that is longer than needed, as that of the longest parcel is."""
    parcel = Parcel(value)
    content = torch.full((parcel.length + spare,), 255, dtype=torch.uint8)
    parcel.write(content)
    return opened(content)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5.0),
        torch.tensor(3),
        torch.empty(0),
        torch.empty(3, 0, dtype=torch.float64),
        torch.ones(4, 5, dtype=torch.float64).t()[1:],
        torch.tensor([True, False, True]),
        torch.ones(3, dtype=torch.bfloat16),
    ],
)
def test_tensors_come_back_as_they_were(tensor: torch.Tensor) -> None:
    first, back, last = sent(["before", tensor, torch.ones(1, dtype=torch.int8)])
    assert (first, last.item()) == ("before", 1)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)


def test_whatever_pickle_knows_travels_too() -> None:
    value = {range(3): None, "name": ("host", 7), "array": np.arange(9)[::2]}
    back = sent(value)
    assert np.array_equal(back.pop("array"), value.pop("array"))
    assert back == value
    assert sent(None) is None


def test_sums_may_be_made_in_what_was_received() -> None:
    one, other = sent([torch.ones(1000), torch.ones(1000)])
    assert one.add_(other).sum() == 2000
    assert other.sum() == 1000
