"""The server's optimisers against torch's own, and that their state is all they need."""

from __future__ import annotations

import pytest
import torch

from nbafl.errors import UsageError
from nbafl.protocol import Training
from nbafl.protocol.server import ADAM_DECAY, ADAM_FLOOR, ServerSteps, State
from nbafl.simulation.job import Job


def walk(server: ServerSteps, steps: list[torch.Tensor]) -> list[torch.Tensor]:
    """Broadcasts when every round's average lies one of `steps` from the broadcast."""
    current, state, path = torch.zeros_like(steps[0]), State(), []
    for number, step in enumerate(steps, 1):
        current, state = server.step(current, current + step, state, number)
        path.append(current)
    return [*path, server.final(current, state)]


def some_steps(rounds: int, seed: int = 0) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(7, generator=source, dtype=torch.float64) for _ in range(rounds)]


def test_plain_averaging_takes_the_average_itself() -> None:
    following, state = ServerSteps().step(torch.zeros(1), torch.ones(1), {}, 1)
    assert (float(following), state) == (1.0, {})


def test_momentum_is_the_heavy_ball() -> None:
    path = walk(ServerSteps(momentum=0.5, rounds=3), [torch.ones(1)] * 3)
    assert [float(each) for each in path] == [1.0, 2.5, 4.25, 4.25]


@pytest.mark.parametrize(("momentum", "lr"), [(0.0, 0.1), (0.9, 0.01), (0.5, None)])
def test_adam_is_torchs_own(momentum: float, lr: float | None) -> None:
    steps = some_steps(9)
    path = walk(ServerSteps("adam", momentum, lr, rounds=9), steps)
    weights = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([weights], lr or 0.01, (momentum, ADAM_DECAY), ADAM_FLOOR)
    for step, ours in zip(steps, path, strict=False):
        weights.grad = -step
        theirs.step()
        assert torch.allclose(ours, weights.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("average", [1, 2, 9])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_final_model_is_the_mean_of_the_last_broadcasts(optimiser: str, average: int) -> None:
    *path, final = walk(ServerSteps(optimiser, 0.5, average=average, rounds=9), some_steps(9))
    assert torch.allclose(final, torch.stack(path[-average:]).mean(0), rtol=1e-13, atol=0)


def test_broadcasts_do_not_depend_on_averaging() -> None:
    paths = [walk(ServerSteps("adam", 0.9, average=each, rounds=6), some_steps(6)) for each in (1, 4)]
    assert all(torch.equal(one, other) for one, other in zip(paths[0][:-1], paths[1][:-1], strict=True))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"server_optimiser": "rprop"}, "server_optimiser"),
        ({"server_momentum": 1.0}, "server_momentum"),
        ({"server_lr": 0.1}, "server_lr"),
        ({"server_optimiser": "adam", "server_lr": 0.0}, "server_lr"),
        ({"server_average": 26}, "server_average"),
        ({"server_average": 0}, "server_average"),
    ],
)
def test_what_no_server_can_do_is_refused(fields: dict, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Job(Training(rule="client"), rounds=25, **fields)
