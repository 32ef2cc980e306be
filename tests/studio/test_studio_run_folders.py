"""Run folders as they really come: whole, going, stopped, half-written, damaged, many."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from tests.paper_setting import Plan

import nbafl
from nbafl.studio import run_cards
from nbafl.studio.run_folders import RunFolders


def train(folder: Path, **fields: object) -> Path:
    """A finished run, made by the real thing."""
    generator = np.random.default_rng(0)
    clients = [
        (generator.normal(size=(8, 4)).astype("float32"), generator.integers(0, 2, 8)) for _ in range(3)
    ]
    federation = nbafl.Federation.from_arrays(clients=clients, test=clients[0])
    given = {"rounds": 4, "model": "softmax", "sensitivity": "client", "epsilon": 5.0, "delta": 1e-5}
    nbafl.simulate(Plan(clients=3, samples=8, **{**given, **fields}), federation, out=folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("made") / "whole")


@pytest.fixture
def runs(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "runs" / "whole")
    return tmp_path / "runs"


def _copy(runs: Path, name: str) -> Path:
    return Path(shutil.copytree(runs / "whole", runs / name))


def test_a_finished_run_is_read(runs: Path) -> None:
    (entry,) = RunFolders(runs).look()
    assert (entry.name, entry.state, entry.rounds_done, entry.has_report) == ("whole", "finished", 4, True)
    lines = nbafl.Run.load(runs / "whole").metrics
    assert entry.last is not None
    assert entry.last["train_loss"] == lines[-1]["train_loss"]
    assert RunFolders(runs).curve("whole") == lines
    assert RunFolders(runs).privacy("whole") == json.loads((runs / "whole" / "privacy.json").read_text())


def test_an_empty_or_missing_shelf_is_no_error(tmp_path: Path) -> None:
    assert RunFolders(tmp_path).look() == []
    assert RunFolders(tmp_path / "nowhere").look() == []
    (tmp_path / "file").write_text("")
    assert RunFolders(tmp_path / "file").look() == []


def test_a_run_somebody_works_on_is_running_and_knows_its_time_left(runs: Path) -> None:
    path = _copy(runs, "going")
    (path / "model.safetensors").unlink()
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
    run_folders = RunFolders(runs)
    assert run_folders.find("going").state == "stopped"
    with open(path / "checkpoint" / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entry = run_folders.find("going")
        assert (entry.state, entry.rounds_done) == ("running", 3)
        assert entry.seconds_left == pytest.approx(
            sorted(json.loads(line)["seconds"] for line in lines[:3])[1]
        )
        assert run_folders.look()[0].name == "going"
    assert run_folders.find("going").state == "stopped"
    assert run_folders.find("going").seconds_left is None


def test_a_line_being_written_is_left_out_until_it_is_whole(runs: Path) -> None:
    path = _copy(runs, "growing") / "metrics.jsonl"
    text = path.read_text()
    run_folders = RunFolders(runs)
    path.write_text(text[:-10])
    assert run_folders.find("growing").rounds_done == 3
    assert len(run_folders.curve("growing")) == 3
    path.write_text(text)
    assert run_folders.find("growing").rounds_done == 4
    assert len(run_folders.curve("growing")) == 4


DAMAGE = {
    "no-plan": lambda path: (path / "plan.toml").unlink(),
    "not-toml": lambda path: (path / "plan.toml").write_text("epsilon = = 5"),
    "binary-plan": lambda path: (path / "plan.toml").write_bytes(bytes(range(256))),
    "impossible-plan": lambda path: (path / "plan.toml").write_text("epsilon = -1"),
    "unknown-field": lambda path: (path / "plan.toml").write_text("colour = 'red'"),
    "broken-metrics": lambda path: (path / "metrics.jsonl").write_text('{"round": 1\n{"round": 2}\n'),
    "other-metrics": lambda path: (path / "metrics.jsonl").write_text("[1, 2]\n"),
    "binary-metrics": lambda path: (path / "metrics.jsonl").write_bytes(b"\xff\xfe\x00\n"),
    "wrong-type": lambda path: (path / "metrics.jsonl").write_text('{"round": "x", "seconds": 1}\n'),
    "broken-privacy": lambda path: (path / "privacy.json").write_text("{"),
    "metrics-a-folder": lambda path: _turn_into_folder(path / "plan.toml"),
}


def _turn_into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_folder_says_so_and_breaks_nothing(runs: Path, kind: str) -> None:
    DAMAGE[kind](_copy(runs, "broken"))
    entries = {entry.name: entry for entry in RunFolders(runs).look()}
    assert entries["whole"].state == "finished"
    assert entries["broken"].state == "damaged"
    assert entries["broken"].problem.endswith(".")
    assert "Traceback" not in entries["broken"].problem
    assert "damaged" in run_cards.row(entries["broken"])["badge"]
    RunFolders(runs).curve("broken")


def test_a_half_written_folder_is_shown(runs: Path) -> None:
    (runs / "half" / "checkpoint").mkdir(parents=True)
    path = _copy(runs, "begun")
    for name in ("metrics.jsonl", "model.safetensors", "privacy.json", "report.html"):
        (path / name).unlink()
    entries = {entry.name: entry for entry in RunFolders(runs).look()}
    assert (entries["half"].state, entries["half"].plan) == ("damaged", None)
    assert (entries["begun"].state, entries["begun"].rounds_done) == ("stopped", 0)
    assert run_cards.row(entries["begun"])["progress"] == "0 of 4 rounds"


def test_names_that_leave_the_shelf_are_not_found(runs: Path) -> None:
    run_folders = RunFolders(runs / "whole")
    assert run_folders.find("../whole") is None
    assert run_folders.find("..") is None
    assert RunFolders(runs).find(".studio") is None


def test_a_changed_run_is_read_again_and_a_removed_one_forgotten(runs: Path) -> None:
    run_folders = RunFolders(runs)
    run_folders.look()
    (runs / "whole" / "audit.json").write_text('{"verdict": "consistent"}')
    assert run_folders.find("whole").has_audit
    assert run_folders.audit("whole") == {"verdict": "consistent"}
    shutil.rmtree(runs / "whole")
    assert run_folders.look() == []


def test_a_folder_deleted_between_two_glances_breaks_nothing(runs: Path) -> None:
    class Slow(RunFolders):
        """Has listed the folder just before it was deleted."""

        def _names(self) -> list[str]:
            return [*super()._names(), "gone"]

    run_folders = Slow(runs)
    assert {entry.name: entry.state for entry in run_folders.look()} == {
        "whole": "finished",
        "gone": "damaged",
    }
    assert run_folders.curve("gone") == []
    assert run_folders.privacy("gone") is None
    assert run_folders.audit("gone") is None


def test_a_file_that_cannot_be_read_is_said_in_a_sentence(runs: Path) -> None:
    (runs / "whole" / "privacy.json").unlink()
    (runs / "whole" / "privacy.json").mkdir()
    (entry,) = RunFolders(runs).look()
    assert entry.state == "damaged"
    assert entry.problem == "privacy.json of 'whole' cannot be read: Is a directory."


def test_audits_are_no_runs_and_belong_to_the_run_of_the_same_plan(runs: Path) -> None:
    path = _copy(runs, "audit-1")
    for name in ("metrics.jsonl", "model.safetensors", "privacy.json", "report.html"):
        (path / name).unlink()
    (path / "audit.json").write_text('{"verdict": "refuted", "trials": 5}')
    run_folders = RunFolders(runs)
    assert {entry.name: entry.state for entry in run_folders.look()} == {
        "whole": "finished",
        "audit-1": "audit",
    }
    assert run_folders.audit("whole") == {"verdict": "refuted", "trials": 5}
    said = run_cards.audit(run_folders.audit("whole"), run_folders.find("whole"))
    assert "refuted" in said
    assert "∞" not in said
    (path / "plan.toml").write_text(
        (path / "plan.toml").read_text().replace("epsilon = 5.0", "epsilon = 4.0")
    )
    run_folders.look()
    assert run_folders.audit("whole") is None
    assert "nbafl audit --config" in run_cards.audit(None, run_folders.find("whole"))


def test_the_folder_of_figures_is_no_run(runs: Path) -> None:
    (runs / "reproduce" / "data").mkdir(parents=True)
    assert [entry.name for entry in RunFolders(runs, apart=runs / "reproduce").look()] == ["whole"]


def test_long_metrics_are_read_from_the_end(runs: Path) -> None:
    path = _copy(runs, "long") / "metrics.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    path.write_text("".join(json.dumps({**line, "round": n}) + "\n" for n in range(1, 3001)))
    assert RunFolders(runs).find("long").rounds_done == 3000
    assert len(RunFolders(runs).curve("long")) == 3000


def test_two_hundred_runs_are_listed(runs: Path, record_property) -> None:
    for number in range(199):
        _copy(runs, f"run-{number}")
    run_folders = RunFolders(runs)
    times = []
    for _ in range(2):
        started = time.perf_counter()
        found = [run_cards.row(entry) for entry in run_folders.look()]
        times.append(time.perf_counter() - started)
        assert len(found) == 200
    record_property("seconds_first_and_second_look", times)
    print(f"200 run folders: first look {times[0]:.2f} s, later looks {times[1]:.3f} s")


def test_runs_side_by_side_show_every_field_in_which_they_differ(runs: Path) -> None:
    train(runs / "other", lr=0.25, epsilon=3.0)
    run_folders = RunFolders(runs)
    table = run_cards.compare([run_folders.find("whole"), run_folders.find("other")])
    assert "<td>0.1</td><td>0.25</td>" in table
    assert "ε 5 at δ 10⁻⁵, eavesdropper, per client (replace), exact" in table
    assert "ε 3 at δ 10⁻⁵, eavesdropper, per client (replace), exact" in table
    assert ">mu<" not in table


def test_a_claim_that_the_noise_does_not_keep_is_not_repeated_alone(runs: Path) -> None:
    path = _copy(runs, "unkept") / "privacy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"delivers_claim": False, "epsilon": 17.25}))
    run_folders = RunFolders(runs)
    assert (
        run_cards.promise(run_folders.find("whole"))
        == "ε 5 at δ 10⁻⁵, eavesdropper, per client (replace), exact"
    )
    assert (
        run_cards.promise(run_folders.find("unkept"))
        == "claims ε 5, worth ε 17.25, at δ 10⁻⁵, eavesdropper, per client (replace), exact"
    )
    assert "kept at δ" in run_cards.facts(run_folders.find("whole"))
    assert "ε 17.25" in run_cards.facts(run_folders.find("unkept"))
    (path.parent / "model.safetensors").unlink()
    assert run_cards.promise(run_folders.find("unkept")).startswith("claims ε 5 at δ")


def test_what_a_run_says_cannot_become_markup(runs: Path) -> None:
    sentence = "<script>alert(1)</script>"
    entry = RunFolders(runs).find("whole")
    assert "<script" not in run_cards.statement({"sentences": [sentence]}, entry)
    assert "<script" not in run_cards.audit(
        {"adversary": sentence, "trials": sentence, "confidence": sentence}, entry
    )
