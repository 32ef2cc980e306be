"""`nbafl sweep` as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nbafl.cli import run_command
from nbafl.cli.sweep import read_grid
from nbafl.errors import UsageError
from nbafl.sweeps.folder import SweepFolder
from nbafl.sweeps.grid import Grid

SMALL = (
    *("--clients", "3", "--samples", "20", "--rounds", "2", "--model", "softmax", "--features", "raw"),
    *("--sensitivity", "gradient", "--delta", "1e-5", "--lr", "0.5", "--workers", "1"),
)


def test_lists_become_axes_and_single_values_stay(tmp_path: Path) -> None:
    grid, federation = read_grid({"epsilon": "1,3", "rounds": "7", "seed": "4"}, None, 2, None)
    assert federation is None
    assert grid.axes == {"epsilon": (1.0, 3.0)}
    assert grid.base["rounds"] == 7
    assert grid.seeds == (4, 5)
    (tmp_path / "grid.toml").write_text(
        'seeds = 3\nepsilon = [1, 3]\nadversary = ["broadcast", "targeted"]\nlr = 0.2\n'
    )
    grid, _ = read_grid({"adversary": "broadcast"}, str(tmp_path / "grid.toml"), None, 0.2)
    assert grid.axes == {"epsilon": (1, 3)}  # an option goes before the file
    assert grid.base["adversary"] == "broadcast"
    assert (len(grid.seeds), grid.base["lr"], grid.holdout) == (3, 0.2, 0.2)


def test_a_value_with_commas_is_one_value(tmp_path: Path) -> None:
    grid, _ = read_grid({"class_weights": "1=2,7=3", "epsilon": "1,3"}, None, 1, None)
    assert grid.axes == {"epsilon": (1.0, 3.0)}
    assert grid.base["class_weights"] == "1=2,7=3"
    grid, _ = read_grid({"class_weights": "1=2,7=3; 1=5; none"}, None, 1, None)
    assert grid.axes == {"class_weights": ("1=2,7=3", "1=5", None)}
    for client in ("a", "b"):
        (tmp_path / f"{client}.csv").write_text("id,room,age,out\n1,x,0.5,ill\n2,y,0.1,well\n3,z,0.3,ill\n")
    own = {"dataset": str(tmp_path), "target": "out", "sensitivity": "gradient", "features": "raw"}
    grid, federation = read_grid({**own, "ignore": "id,room", "epsilon": "1,3"}, None, 1, None)
    assert grid.axes == {"epsilon": (1.0, 3.0)}
    assert grid.base["ignore"] == "id,room"
    assert federation is not None
    assert federation.x.shape == (6, 1)
    with pytest.raises(UsageError, match="read once"):
        read_grid({**own, "ignore": "id;id,room"}, None, 1, None)


def test_the_verb_prints_the_table_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sweep"
    assert run_command(["sweep", "--epsilon", "1,8", *SMALL, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["epsilon"] for row in told["runs"]] == [1.0, 8.0]
    assert told["sweep_dir"] == str(out)
    assert run_command(["sweep", "--epsilon", "1,8", *SMALL, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "the choice between them is not free" in said
    assert "δ=1e-05" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--epsilon", "1,x"), "epsilon"),
        (("--epsilon", "1,-2"), "epsilon"),
        (("--grid", "none.toml"), "does not exist"),
        (("--holdout", "1.5", "--epsilon", "1"), "holdout"),
        (("--epsilon", "1,1"), "each value once"),
    ],
)
def test_bad_usage_is_one_sentence(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["sweep", *SMALL, *words, "--out", str(tmp_path / "none")]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not (tmp_path / "none").exists()


OWN = ("--rounds", "2", "--lr", "0.5", "--workers", "1", "--features", "raw", "--json")


def hospitals(folder: Path, person: bool) -> Path:
    """Two tables of unequal size; with `person`, rows of one patient belong together and a schema says so."""
    rng = np.random.default_rng(3)
    for name, count in (("north", 40), ("south", 22)):
        rows = [
            f"{rng.uniform():.3f},{'ill' if rng.uniform() < 0.4 else 'well'},{number // 2}"
            for number in range(count)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["age,out,patient", *rows]) + "\n")
    extra = ("--person", "patient") if person else ("--ignore", "patient")
    assert run_command(["data", "schema", str(folder), "--target", "out", *extra]) == 0
    return folder


@pytest.mark.parametrize("person", [False, True])
def test_a_folder_of_unequal_clients_is_swept_as_it_is_run(
    person: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = hospitals(tmp_path, person)
    out = tmp_path / "sweep"
    words = ["sweep", "--dataset", str(data), "--epsilon", "1,3", *OWN, "--out", str(out)]
    capsys.readouterr()
    assert run_command(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["unit"] for row in told["runs"]} == {"person" if person else "record"}
    assert told["score_on"] == "the clients' own training records, for want of others"
    assert "no ε covers what it gives away" in (out / "index.html").read_text()


def test_held_out_records_of_unequal_clients_judge_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = hospitals(tmp_path, person=False)
    capsys.readouterr()
    words = ["sweep", "--dataset", str(data), "--epsilon", "1,3", *OWN, "--holdout", "0.2"]
    assert run_command([*words, "--out", str(tmp_path / "sweep")]) == 0
    assert json.loads(capsys.readouterr().out)["score_on"].startswith("held-out training records")


def test_what_cannot_be_held_out_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = hospitals(tmp_path, person=True), tmp_path / "sweep"
    words = ["sweep", "--dataset", str(data), "--epsilon", "1,3", *OWN, "--out", str(out)]
    capsys.readouterr()
    assert run_command([*words, "--holdout", "0.2"]) == 2
    assert "holdout must be unset where rows belong to persons" in capsys.readouterr().err
    assert not out.exists()


def test_a_sweep_that_never_began_leaves_its_folder_to_another(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    folder.open(Grid({}, {"epsilon": (1.0, 2.0)}, (0,), None))
    other = Grid({}, {"epsilon": (1.0, 3.0)}, (0,), None)
    folder.open(other)
    assert folder.grid() == other.to_dict()
    (folder.runs / "epsilon-1.0_seed-0").mkdir()
    with pytest.raises(UsageError, match="other fields or seeds"):
        folder.open(Grid({}, {"epsilon": (1.0, 4.0)}, (0,), None))
    (folder.path / "sweep.json").unlink()  # now these are somebody's runs
    with pytest.raises(UsageError, match="a new or empty folder"):
        folder.open(other)
