"""The list of runs as a table: filtered, grouped by plan, put into a link; runs written on, renamed and thrown away."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from tests.paper_setting import Plan

import nbafl
from nbafl.errors import Refused, UsageError
from nbafl.folders import audits, labels
from nbafl.report.audit import write_audit
from nbafl.studio import charts, federation_card, run_cards, shelf, sweep_card, tradeoff
from nbafl.studio.plot import as_csv
from nbafl.studio.run_folders import RunFolders
from nbafl.studio.run_table import View, choices, groups, row


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one plan, and another plan."""
    generator = np.random.default_rng(0)
    clients = [
        (generator.normal(size=(8, 4)).astype("float32"), generator.integers(0, 2, 8)) for _ in range(3)
    ]
    federation = nbafl.Federation.from_arrays(clients=clients, test=clients[0])
    root = tmp_path_factory.mktemp("made")
    shared = {
        "clients": 3,
        "samples": 8,
        "rounds": 3,
        "model": "softmax",
        "sensitivity": "client",
        "delta": 1e-5,
    }
    for name, epsilon, seed in (("a0", 5.0, 0), ("a1", 5.0, 1), ("b", 50.0, 0)):
        nbafl.simulate(nbafl.Plan(**shared, epsilon=epsilon, seed=seed), federation, out=root / name)
    return root


@pytest.fixture
def folders(made: Path, tmp_path: Path) -> RunFolders:
    return RunFolders(shutil.copytree(made, tmp_path / "runs"))


def test_a_view_goes_through_a_link_and_filters(folders: RunFolders) -> None:
    view = View(find="a0", sort="real", descending=True, grouped=True).with_filter("unit", "client")
    assert View.from_query(dict(view.query())) == view
    assert View.from_query({"sort": "no such column", "unit": ""}) == View()
    rows = [row(group) for group in groups(folders.look(), grouped=False)]
    assert choices(rows, "unit") == ["any", "client"]
    assert all(view.shows(each) for each in rows)
    assert not any(view.with_filter("unit", "record").shows(each) for each in rows)
    assert view.with_filter("unit", "any").filters == {}


def test_seeds_of_a_plan_are_one_row_with_their_mean(folders: RunFolders) -> None:
    found = groups(folders.look(), grouped=True)
    assert sorted(len(group.entries) for group in found) == [1, 2]
    both = next(group for group in found if len(group.entries) == 2)
    values = [entry.last["test_accuracy"] for entry in both.entries]
    shown = row(both)
    assert shown["accuracy"] == pytest.approx(np.mean(values))
    assert shown["result"] == f"{np.mean(values):.1%} ± {np.std(values, ddof=1):.1%}"
    assert "1 more seed" in shown["label"]
    assert (shown["claimed"], shown["unit"], shown["rounds"]) == (5.0, "client", 3)


def test_the_key_chart_holds_real_epsilons_with_adversary_delta_and_unit(folders: RunFolders) -> None:
    points = tradeoff.points(groups(folders.look(), grouped=True))
    assert sorted(point.epsilon for point in points) == pytest.approx([5.0, 50.0])
    assert {point.about for point in points} == {"eavesdropper, δ 10⁻⁵, one client"}
    assert sorted(point.deviation is None for point in points) == [False, True]
    assert len(as_csv(tradeoff.figure(points)).splitlines()) == 3
    assert tradeoff.figure([]) is None


@pytest.mark.parametrize(
    ("epsilons", "ends", "dtick"),
    [
        ((1.0,), (0.5, 2), "D2"),
        ((3.0, 8.0), (2, 10), "D2"),
        ((0.9, 438.4), (0.5, 500), "D2"),
        ((1.0, 5000.0), (0.5, 10000), 1),
    ],
)
def test_axes_of_the_key_chart_end_at_round_numbers_and_below_102_percent(
    epsilons: tuple[float, ...], ends: tuple[float, float], dtick: object
) -> None:
    found = [tradeoff.Point("a", epsilon, 0.985, None, "eavesdropper") for epsilon in epsilons]
    layout = tradeoff.figure(found)["layout"]
    assert np.allclose(10.0 ** np.array(layout["xaxis"]["range"]), ends)
    assert layout["xaxis"]["dtick"] == dtick
    assert layout["yaxis"]["range"] == [pytest.approx(0.935), 1.01]
    assert layout["legend"]["yanchor"] == "bottom"  # above the plot however many lines it takes


def test_several_seeds_are_a_mean_and_a_band(folders: RunFolders) -> None:
    seeds = [folders.curve("a0"), folders.curve("a1")]
    most, least, mean = charts.run_curves([("a", seeds)], "train_loss")["data"]
    assert all(
        low <= middle <= high for low, middle, high in zip(least["y"], mean["y"], most["y"], strict=True)
    )
    assert len(as_csv(charts.run_curves([("a", seeds)], "train_loss")).splitlines()) == 1 + len(mean["x"])


def test_a_run_is_written_on_renamed_put_away_and_thrown_away(folders: RunFolders) -> None:
    shelf.relabel(folders.find("b"), " for <b>Monday</b> ", "good, large good")
    entry = folders.find("b")
    assert entry.label == labels.Label("for <b>Monday</b>", ("good", "large"))
    assert "<b>Monday" not in run_cards.written(entry)
    with pytest.raises(UsageError, match="tags"):
        shelf.relabel(entry, "", "x" * 41)
    shelf.archive(entry, True)
    assert not View().shows(row(groups([folders.find("b")], grouped=False)[0]))
    assert View(archived=True).shows(row(groups([folders.find("b")], grouped=False)[0]))
    for wrong in ("../out", "", "a0"):
        with pytest.raises(UsageError, match="name"):
            shelf.rename(entry, wrong, folders.root)
    assert shelf.rename(entry, "c", folders.root) == "c"
    shelf.delete(folders.find("c"))
    assert {entry.name for entry in folders.look()} == {"a0", "a1"}
    assert not list(folders.root.glob(".deleted*"))


def test_a_run_that_goes_is_left_alone(folders: RunFolders) -> None:
    entry = folders.find("a0")
    running = type(entry)(**{**entry.__dict__, "state": "running"})
    for act in (lambda: shelf.delete(running), lambda: shelf.rename(running, "z", folders.root)):
        with pytest.raises(Refused, match="a process works on it"):
            act()
    assert folders.find("a0") is not None


def test_folders_of_runs_sweeps_and_federations_are_what_they_are(folders: RunFolders) -> None:
    root = folders.root
    shutil.copytree(root / "b", root / "study" / "inner" / "b")
    (root / "empty").mkdir()
    sweep = root / "grid"
    shutil.copytree(root / "a0", sweep / "runs" / "one")
    (sweep / "sweep.json").write_text("{}")
    setting = {
        "epsilon": 5,
        "seeds": 2,
        "real_epsilon": 5.0,
        "against": "eavesdropper",
        "delta": 1e-5,
        "unit": "client",
    }
    setting |= {"test_accuracy": {"mean": 0.8, "deviation": 0.1}, "best": True}
    (sweep / "table.json").write_text(
        json.dumps({"runs": [{}, {}], "settings": [setting], "score_on": "the test records"})
    )
    home = root / "federation"
    (home / "handout").mkdir(parents=True)
    for place in (home, home / "handout"):
        shutil.copy(root / "b" / "plan.toml", place)
    shutil.copytree(root / "b", home / "run")
    states = {entry.name: entry.state for entry in folders.look()}
    assert states["study/inner/b"] == "finished"
    assert (states["grid"], states["federation"], states["federation/run"]) == (
        "sweep",
        "federation",
        "finished",
    )
    assert not {"empty", "federation/handout", "grid/runs/one"} & set(states)
    assert "80.0% ± 10.0%" in sweep_card.draw(folders.find("grid"))
    assert [point.epsilon for point in tradeoff.points(groups([folders.find("grid")], grouped=False))] == [
        5.0
    ]


def _status(**changes: object) -> dict[str, object]:
    privacy = {
        "epsilon": 10.0,
        "delta": 1e-5,
        "adversary": "eavesdropper",
        "unit": "client",
        "adjacency": "drop",
        "premise": "proved",
        "assumptions": ["trust"],
    }
    found = {"time": time.time(), "pid": 1, "phase": "training", "rounds_done": 2, "rounds": 3, "clients": 3}
    found |= {"online": ["ann"], "answers": 5, "refusals": {"late": 1}, "seconds": {"training": 4.0}}
    return found | {"privacy": privacy} | changes


def test_a_federation_is_told_in_totals_and_never_by_who_was_drawn(
    folders: RunFolders, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / "handout").mkdir(parents=True)
    shutil.copy(folders.root / "b" / "plan.toml", home)
    assert "has not been started" in federation_card.draw(home)
    (home / "status.json").write_text(
        json.dumps(_status(drawn=["bob-was-drawn"], answered=["bob-was-drawn"]))
    )
    said = federation_card.draw(home)
    for part in (
        "2 / 3",
        "1 / 3",
        "1 late",
        "80%",
        "ε = 10",
        "per client (drop)",
        "eavesdropper",
        "trust",
        "ann",
    ):
        assert part in said, part
    assert "bob-was-drawn" not in said
    assert "when it last wrote" not in said
    gone = _status(time=0, pid=2**22 + 1, seconds={"waiting": 900.0, "training": 8.0})  # no such process
    (home / "status.json").write_text(json.dumps(gone))
    said = federation_card.draw(home)
    for part in (
        "not running",
        "<b>4 s</b>",
        "clients connected when it last wrote",
        "Connected when it last",
    ):
        assert part in said, part
    (home / "plan.toml").write_text(Plan(sensitivity="paper", epsilon=50).to_toml())
    conditional = {**_status()["privacy"], "premise": "if 2C/m holds"}  # type: ignore[dict-item]
    (home / "status.json").write_text(json.dumps(_status(seconds={"training": 0.5}, privacy=conditional)))
    said = federation_card.draw(home)
    assert said.count(", if 2C/m holds") == 2
    assert "<b>0.25 s</b>" in said
    unknown = {**_status()["privacy"], "epsilon": None}  # type: ignore[dict-item]
    (home / "status.json").write_text(json.dumps(_status(rounds_done=0, privacy=unknown)))
    said = federation_card.draw(home)
    assert "<b>not known</b>" in said
    assert "Spent so far: not known yet" in said
    assert "100%" not in said
    for broken in ("not json", "{}", json.dumps(_status(privacy=3))):
        (home / "status.json").write_text(broken)
        assert "notice error" in federation_card.draw(home)


def test_an_audit_has_a_page_of_its_own_and_a_part_in_the_report(folders: RunFolders) -> None:
    folder = folders.root / "b"
    run = nbafl.Run.load(folder)
    found = {
        "verdict": "refuted",
        "claimed_epsilon": 50.0,
        "delta": 1e-5,
        "adversary": "eavesdropper",
        "trials": 2000,
    }
    found |= {"confidence": 0.95, "refuted_by": ["<attack>"], "attacks": {}}
    assert "Audit:" not in run.report().read_text()
    audits.write(folder, run.plan, found)
    (folder / "scores.png").write_bytes(b"picture")
    page, report = write_audit(folder, run.plan, found).read_text(), run.report().read_text()
    for text in (page, report):
        assert "at delta = 1e-05 against eavesdropper" in text
        assert "one client" in text
        assert "data:image/png;base64" in text
        assert "&lt;attack&gt;" in text
    assert folders.find("b").verdict == "refuted"


def test_a_damaged_label_is_no_reason_not_to_show_a_run(folders: RunFolders) -> None:
    for text in ("[]", "no json", '{"tags": 3}'):
        (folders.root / "b" / labels.FILE).write_text(text)
        assert folders.find("b").label == labels.Label()
