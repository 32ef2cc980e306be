"""Parties on machines of their own: the how-to in six commands, and a federation after another with a client more."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from federation_processes import Federation, Nursery, Process, wait_for
from free_ports import free_port

from nbafl.cli import run_command
from nbafl.flower.keys import make_client_key
from nbafl.flower.operations import revoke
from nbafl.flower.roster import Roster
from nbafl.plan import Plan

pytestmark = pytest.mark.e2e

NAMES = ("east", "north", "south", "west")
RULE = (
    "--model",
    "softmax",
    "--sensitivity",
    "gradient",
    "--features",
    "raw",
    "--record-clip",
    1,
    "--lr",
    0.5,
)
PROMISE = ("--epsilon", 20, "--delta", 1e-5, "--adversary", "curious-server")


def table(path: Path, rows: int, seed: int) -> Path:
    x = np.random.default_rng(seed).uniform(0, 1, (rows, 2))
    lines = [f"{one:.4f},{two:.4f},{'yes' if one > two else 'no'}" for one, two in x]
    path.write_text("one,two,outcome\n" + "\n".join(lines) + "\n")
    return path


def begin(nursery: Nursery, own: Path, port: int, rows: int) -> Process:
    """What one hospital types, in a folder of its own."""
    own.mkdir()
    data = table(own / "records.csv", rows, rows)
    files = ("--key", own / own.name, "--handout", own / "handout", "--data", data, "--state", own / "state")
    options = ("--begin", "--records", rows, "--epsilon", 20)
    return nursery.start(f"join-{own.name}", "join", f"127.0.0.1:{port}", *files, *options)


def test_four_parties_need_six_commands(tmp_path: Path, nursery: Nursery) -> None:
    """One for each hospital, two for the coordinator; key files and handouts travel in between."""
    port, sizes = free_port(), dict(zip(NAMES, (60, 80, 50, 70), strict=True))
    joins = [begin(nursery, tmp_path / name, port, rows) for name, rows in sizes.items()]
    keys, home = tmp_path / "keys", tmp_path / "federation"
    keys.mkdir()
    for name in NAMES:
        wait_for(lambda name=name: (tmp_path / name / f"{name}.pub").exists(), f"the key of {name}")
        wait_for(lambda name=name: "waiting" in joins[NAMES.index(name)].output, f"{name} waits")
        shutil.copy(tmp_path / name / f"{name}.pub", keys)
    test = ("--dataset", "csv", "--target", "outcome", "--test", table(tmp_path / "test.csv", 40, 9))
    plan = map(str, ("--rounds", 2, *test, *RULE, *PROMISE))
    assert run_command(["serve", "--prepare", "--home", str(home), "--roster", str(keys), *plan]) == 0
    for name in NAMES:
        shutil.copytree(home / "handout", tmp_path / name / "handout")
    server = nursery.start("serve", "serve", "--home", home, "--host", "127.0.0.1", "--port", port)
    assert [process.finish() for process in (server, *joins)] == [0] * 5, server.output
    assert Plan.from_toml(home / "plan.toml").client_sizes.tolist() == [sizes[name] for name in NAMES]


def test_a_client_is_added_and_a_revoked_one_left_out_between_runs(tmp_path: Path, nursery: Nursery) -> None:
    """A folder of its own, the same certificates; the ledger of whoever stays counts both runs."""
    shape = ("--rounds", 2, "--samples", 50, *RULE, *PROMISE)
    first = Federation(tmp_path, 3, *shape)
    data = ("--outputs", 10, "--epsilon", 1e6)
    server = nursery.start("serve", *first.serve())
    clients = [
        nursery.start(f"join-{each}", *first.join(each, *data, data="hostile.data:fifty"))
        for each in range(3)
    ]
    assert [process.finish() for process in (server, *clients)] == [0] * 4, server.output
    revoke(first.home, "client-1")
    before = {file: file.read_bytes() for file in sorted(first.home.rglob("*.toml"))}
    make_client_key("client-3", tmp_path / "keys", records=50)
    (tmp_path / "new").mkdir()
    shutil.copy(tmp_path / "keys" / "client-3.pub", tmp_path / "new")
    home = tmp_path / "second"
    command = [
        "serve",
        "--prepare",
        "--from",
        str(first.home),
        "--home",
        str(home),
        "--roster",
        str(tmp_path / "new"),
    ]
    assert run_command(command) == 0
    assert run_command([*command[:-4], "--home", str(first.home)]) == 2, "never over the old one"
    assert {file: file.read_bytes() for file in sorted(first.home.rglob("*.toml"))} == before
    assert Roster.load(home / "roster.toml").names == ["client-0", "client-2", "client-3"]
    assert (home / "handout" / "ca.crt").read_bytes() == (first.home / "handout" / "ca.crt").read_bytes()
    second = Federation.at(tmp_path, home, 3)
    server = nursery.start("serve", *second.serve())
    clients = [
        nursery.start(f"again-{each}", *second.join(each, *data, data="hostile.data:fifty"))
        for each in (0, 2, 3)
    ]
    assert [process.finish() for process in (server, *clients)] == [0] * 4, server.output
    assert [second.ledger(client).spent().releases for client in range(4)] == [4, 2, 4, 2]
    plans = {row.plan for row in second.ledger(0).rows() if row.kind == "release"}
    assert plans == {Plan.from_toml(each / "plan.toml").digest() for each in (first.home, home)}
