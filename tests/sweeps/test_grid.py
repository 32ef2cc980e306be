"""Which runs a sweep consists of, and what it refuses before anything is trained."""

from __future__ import annotations

import pytest
from tests.paper_setting import Plan

from nbafl.errors import UsageError
from nbafl.sweeps.folder import SweepFolder
from nbafl.sweeps.grid import Grid

BASE = {"clients": 4, "samples": 20, "rounds": 2, "sensitivity": "gradient", "model": "softmax"}


def grid(**axes: object) -> Grid:
    return Grid(BASE, {name: tuple(values) for name, values in axes.items()}, (0, 1))


def test_every_combination_with_every_seed_once() -> None:
    made = grid(epsilon=[1.0, 3.0], adversary=["broadcast", "curious-server", "targeted"])
    points = made.points()
    assert made.size == len(points) == 12
    assert len({point.name for point in points}) == 12
    assert len({(point.plan.epsilon, point.plan.adversary, point.plan.seed) for point in points}) == 12
    assert points[0].name == "epsilon-1_adversary-broadcast_seed-0"
    assert all(point.plan.clients == 4 for point in points)


def test_a_grid_survives_being_written_down() -> None:
    made = grid(epsilon=[1.0, 3.0], per_round=[2, None])
    again = Grid.from_dict(made.to_dict())
    assert again.to_dict() == made.to_dict()
    assert [point.plan for point in again.points()] == [point.plan for point in made.points()]


def test_names_that_would_meet_are_told_apart() -> None:
    made = grid(target=["a/b", "a_b"])
    assert len({point.name for point in made.points()}) == 4


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"epsilom": [1.0]}, "epsilom"),
        ({"seed": [1, 2]}, "seeds"),
        ({"epsilon": []}, "at least one value"),
        ({"epsilon": [1.0, 1.0]}, "each value once"),
    ],
)
def test_an_odd_axis_is_refused(axes: dict[str, list[object]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        grid(**axes)


def test_an_invalid_combination_is_refused_before_any_run() -> None:
    with pytest.raises(UsageError, match="per_round"):
        grid(per_round=[2, 5]).points()


def test_from_python_the_swept_fields_replace_those_of_the_plan() -> None:
    made = Grid.of(Plan(**BASE, epsilon=7.0, seed=3), {"epsilon": [1.0, 2.0]}, 2, None)
    assert made.seeds == (3, 4)
    assert {point.plan.epsilon for point in made.points()} == {1.0, 2.0}


def test_a_folder_holds_one_sweep(tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = SweepFolder(tmp_path / "sweep")
    folder.open(grid(epsilon=[1.0]))
    (folder.runs / "epsilon-1.0_seed-0").mkdir()
    folder.open(grid(epsilon=[1.0]))
    with pytest.raises(UsageError, match="other fields or seeds"):
        folder.open(grid(epsilon=[2.0]))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(UsageError, match="new or empty"):
        SweepFolder(tmp_path / "other").open(grid(epsilon=[1.0]))
