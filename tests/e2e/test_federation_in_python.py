"""A federation without the command line: `nbafl.serve` and `nbafl.join` in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from free_ports import free_port
from tests.paper_setting import Plan

from nbafl import Run
from nbafl.flower.home import prepare
from nbafl.flower.keys import make_client_key

pytestmark = pytest.mark.e2e

SERVE = """
import sys, nbafl
home, port = sys.argv[1:]
run = nbafl.serve(home, host="127.0.0.1", port=int(port), wait=600, callbacks=["tensorboard"],
                  on_round=lambda metrics, silent: print(metrics.round, *silent, flush=True))
print(run.path)
"""
JOIN = """
import json, sys, nbafl
address, key, data, handout, state, most = sys.argv[1:]
outcome = nbafl.join(address, key, data, handout, state=state, epsilon=50, max_releases=int(most) or None)
print(json.dumps([outcome.ended, outcome.problem, outcome.spent.releases]))
"""


def assert_tensorboard_shows(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert [event.step for event in shown.Tensors("test_loss")] == [1, 2, 3]
    (event,) = shown.Tensors("epsilon at delta 0.01 per client replaced/eavesdropper")
    assert event.tensor_proto.float_val[0] == pytest.approx(
        run.privacy["guarantee"]["eavesdropper"]["epsilon"]
    )


def test_serve_and_join_are_python_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    plan = Plan(
        clients=2, rounds=3, samples=50, model="softmax", epsilon=50, delta=0.01, sensitivity="client", clip=1
    )
    home = prepare(tmp_path / "home", plan, [])
    for name in ("a", "b"):
        make_client_key(name, tmp_path / "keys")
        (home.key_folder / f"{name}.pub").write_bytes((tmp_path / "keys" / f"{name}.pub").read_bytes())
    port = free_port()

    def start(script: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    started = [start(SERVE, home.path, port)]
    try:
        for number, (name, most) in enumerate((("a", 0), ("b", 2))):
            state = tmp_path / f"state-{name}"
            data = f"mnist:{number}/2"
            client = (f"127.0.0.1:{port}", tmp_path / "keys" / name, data, home.handout, state, most)
            started.append(start(JOIN, *client))
        said = [(*each.communicate(timeout=1200), each.returncode) for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()
    assert [code for _, _, code in said] == [0, 0, 0], said
    assert said[0][0].split("\n")[:3] == ["1", "2", "3 b"]
    finished = Run.load(home.run)
    assert finished.finished
    assert_tensorboard_shows(finished)
    assert json.loads(said[1][0]) == ["finished", None, 3]
    ended, problem, releases = json.loads(said[2][0])
    assert (ended, releases) == (None, 2)
    assert problem.startswith("This client left the federation: ")
