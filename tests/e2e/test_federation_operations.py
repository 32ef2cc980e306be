"""Real processes under hostile clients, strangers, servers and clocks: the federation goes on, and nobody pays twice."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import httpx
import numpy as np
import pytest
from federation_processes import (
    SMALL,
    Federation,
    Nursery,
    finish_all,
    is_listening,
    releases,
    serving,
    wait_for,
)
from free_ports import free_port
from tests.paper_setting import OPTIONS

from nbafl.cli import run_command
from nbafl.flower import keys

pytestmark = pytest.mark.e2e

# --- 3: identity -------------------------------------------------------------------------------------------


def test_nothing_is_spent_while_one_client_would_refuse(tmp_path: Path, nursery: Nursery) -> None:
    """In 0.1.0 sizes followed sorted file names: a wrong order spent half a federation's budget."""
    home = tmp_path / "home"
    for name, records in (("b", 60), ("a", 40)):
        keys.make_client_key(name, tmp_path / "keys", records)
    roster = tmp_path / "roster.toml"
    public = [str(tmp_path / "keys" / f"{name}.pub") for name in ("b", "a")]
    assert run_command(["keys", "roster", *public, "--out", str(roster)]) == 0
    plan = ["--rounds", "2", "--model", "softmax", "--dataset", "mnist", "--features", "raw", "--lr", "0.1"]
    assert run_command(["serve", "--prepare", "--home", str(home), "--roster", str(roster), *plan]) == 0
    federation = Federation.at(tmp_path, home, 2)
    server = serving(nursery, federation)
    commands = {name: federation.join(0, "--outputs", 10, data="hostile.data:few") for name in ("a", "b")}
    for name, command in commands.items():
        command[command.index("--key") + 1] = tmp_path / "keys" / name
        command[command.index("--state") + 1] = tmp_path / f"state-{name}"
    joined = {name: nursery.start(f"join-{name}", *each) for name, each in commands.items()}
    finish_all(joined["b"], code=1)
    assert "fewer than the 60 records" in joined["b"].output
    wait_for(lambda: "connected to" in joined["a"].output, joined["a"].output)
    assert server.alive
    assert (
        not (tmp_path / "state-b" / "ledger.sqlite").exists() or "releases so far" not in joined["b"].output
    )


def test_one_refusal_before_the_first_round_stops_all_and_costs_nobody(
    tmp_path: Path, nursery: Nursery
) -> None:
    federation = Federation(tmp_path, 2, "--rounds", 2, *SMALL)
    server = serving(nursery, federation)
    other = tmp_path / "other"
    assert (
        run_command(["serve", "--prepare", "--home", str(other), *OPTIONS, "--clients", "2", "--rounds", "3"])
        == 0
    )
    wrong = ("--plan", other / "plan.toml")  # an older copy of the plan
    clients = [
        nursery.start("join-0", *federation.join(0)),
        nursery.start("join-1", *federation.join(1, *wrong)),
    ]
    finish_all(server, *clients, code=1)
    assert "client client-1: the server's plan is not the one this client agreed to" in server.output
    assert "nothing was started or spent" in server.output
    assert "a client is not ready" in clients[0].output
    assert releases(federation, 0) == releases(federation, 1) == 0
    assert federation.metrics == []


def test_a_client_that_released_nothing_does_not_exit_with_zero(tmp_path: Path, nursery: Nursery) -> None:
    federation = Federation(tmp_path, 2, "--rounds", 1, "--per-round", 1, *SMALL)
    server = serving(nursery, federation)
    limit = ("--epsilon", 10_000)  # a draw that others see is worth less than the plan counts on
    clients = [nursery.start(f"join-{client}", *federation.join(client, *limit)) for client in range(2)]
    codes = sorted(client.finish() for client in clients)
    finish_all(server)
    assert codes == [0, 1]
    idle = next(client for client in clients if client.code == 1)
    assert "this client released nothing" in idle.output


# --- 4: restarts -------------------------------------------------------------------------------------------


def test_a_client_killed_while_signing_on_is_let_in_again(tmp_path: Path, nursery: Nursery) -> None:
    federation = Federation(tmp_path, 2, "--rounds", 2, *SMALL)
    server = serving(nursery, federation)
    for _ in range(3):
        client = nursery.start("join-0", *federation.join(0))
        wait_for(lambda client=client: "connected to" in client.output, client.output)
        client.kill()
        for note in (tmp_path / "state-0").glob("node*"):  # 0.1.0 kept its number there, if it got that far
            note.unlink()
    clients = [nursery.start(f"join-{client}", *federation.join(client)) for client in range(2)]
    finish_all(server, *clients)


def test_a_server_killed_after_the_last_round_says_goodbye_when_it_is_back(
    tmp_path: Path, nursery: Nursery
) -> None:
    federation = Federation(tmp_path, 2, "--rounds", 2, *SMALL)
    server = serving(nursery, federation)
    clients = [nursery.start(f"join-{client}", *federation.join(client)) for client in range(2)]
    wait_for(lambda: len(federation.metrics) == 2, "the last round")
    for client in clients:
        client.signal(signal.SIGSTOP)
    wait_for(lambda: (federation.home / "run" / "report.html").exists(), "the end of the run")
    server.kill()
    for client in clients:
        client.signal(signal.SIGCONT)
    again = serving(nursery, federation)
    finish_all(again, *clients)
    assert all(releases(federation, client) == 2 for client in range(2))
    finish_all(nursery.start("serve", *federation.serve()), code=2)


@pytest.mark.parametrize("step", [-400, 3600])
def test_clocks_that_jump_in_the_middle_of_a_run_stop_nobody(
    tmp_path: Path, nursery: Nursery, step: int
) -> None:
    federation = Federation(tmp_path, 2, "--rounds", 12, *SMALL)
    clocks = {name: tmp_path / f"clock-{name}" for name in ("server", "client")}
    server = serving(nursery, federation, CLOCK_FILE=clocks["server"])
    clients = [
        nursery.start("join-0", *federation.join(0), CLOCK_FILE=clocks["client"]),
        nursery.start("join-1", *federation.join(1)),
    ]
    wait_for(lambda: len(federation.metrics) >= 2, "two rounds")
    clocks["client"].write_text(str(step))
    wait_for(lambda: len(federation.metrics) >= 5, "more rounds")
    clocks["server"].write_text(str(step))
    finish_all(server, *clients)
    assert all(releases(federation, client) == 12 for client in range(2))


# --- operators -----------------------------------------------------------------------------------------------


def test_revoke_pause_and_drain_between_rounds(tmp_path: Path, nursery: Nursery) -> None:
    federation = Federation(tmp_path, 3, "--rounds", 60, *SMALL)
    home = str(federation.home)
    server = serving(nursery, federation)
    clients = [nursery.start(f"join-{client}", *federation.join(client)) for client in range(3)]
    wait_for(lambda: len(federation.metrics) >= 2, "two rounds")
    assert run_command(["serve", "--home", home, "--pause"]) == 0
    wait_for(lambda: "paused before round" in server.output, server.output)
    done = len(federation.metrics)
    assert run_command(["keys", "revoke", "client-2", "--home", home]) == 0
    assert run_command(["keys", "revoke", "nobody", "--home", home]) == 2
    assert run_command(["serve", "--home", home, "--go-on"]) == 0
    finish_all(clients[2], code=1)
    assert "revoked" in clients[2].output
    assert run_command(["serve", "--home", home, "--drain"]) == 0
    finish_all(server)
    assert done <= len(federation.metrics) < 60
    assert all(client.code is None for client in clients[:2]), "they wait for the server to come back"
    again = serving(nursery, federation)
    finish_all(again, *clients[:2])
    late = [answer for answer in federation.answers if answer["number"] > done + 1]  # type: ignore[operator]
    assert late
    assert all(answer["answered"] == [0, 1] for answer in late)
    assert [line["round"] for line in federation.metrics] == list(range(1, 61))


def test_check_compares_everything_and_releases_nothing(
    tmp_path: Path, nursery: Nursery, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = Federation(tmp_path, 2, "--rounds", 2, *SMALL)
    server = serving(nursery, federation)

    def check(*options: object) -> int:
        capsys.readouterr()
        return run_command([str(part) for part in federation.join(0, "--check", *options)])

    assert check() == 0
    assert "nothing was released" in capsys.readouterr().out
    other = tmp_path / "other"
    assert (
        run_command(["serve", "--prepare", "--home", str(other), *OPTIONS, "--clients", "2", "--rounds", "3"])
        == 0
    )
    assert check("--plan", other / "plan.toml") == 1
    assert "not the one this client agreed to" in capsys.readouterr().err
    assert releases(federation, 0) == 0
    assert federation.metrics == [], "a visitor does not count as connected"
    clients = [nursery.start(f"join-{client}", *federation.join(client)) for client in range(2)]
    finish_all(server, *clients)


def test_a_certificate_is_renewed_while_the_server_runs(
    tmp_path: Path, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBAFL_PASSPHRASE", "a long passphrase")
    # Many rounds, so that they cannot be over before a slow machine gets to the renewal.
    federation = Federation(tmp_path, 2, "--rounds", 40, *SMALL, "--keep-authority")
    before = (federation.home / "tls" / "server.crt").read_bytes()
    assert b"ENCRYPTED" in (federation.home / "tls" / "ca.key").read_bytes()
    server = serving(nursery, federation)
    clients = [nursery.start(f"join-{client}", *federation.join(client)) for client in range(2)]
    wait_for(lambda: federation.metrics, "a round")
    assert run_command(["keys", "renew", str(federation.home)]) == 0
    assert (federation.home / "tls" / "server.crt").read_bytes() != before
    wait_for(lambda: "renewed certificate is in use" in server.output, server.output)
    clients[0].kill()
    clients[0] = nursery.start("join-0", *federation.join(0))  # with the handout it always had
    finish_all(server, *clients)
    monkeypatch.setenv("NBAFL_PASSPHRASE", "another passphrase")
    assert run_command(["keys", "renew", str(federation.home)]) == 1


# --- 8: state --------------------------------------------------------------------------------------------------


def test_status_and_metrics_tell_how_it_is_and_not_who_was_drawn(
    tmp_path: Path, nursery: Nursery, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = Federation(tmp_path, 3, "--rounds", 40, "--per-round", 2, *SMALL)
    home, port = str(federation.home), free_port()
    capsys.readouterr()
    assert run_command(["status", home]) == 0
    assert "prepared" in capsys.readouterr().out
    server = serving(nursery, federation, "--monitor", port, "--log", "json")
    where = f"http://127.0.0.1:{port}"
    wait_for(lambda: is_listening(port), "the endpoint")
    limit = ("--epsilon", 10_000)
    clients = [nursery.start(f"join-{client}", *federation.join(client, *limit)) for client in range(3)]
    wait_for(lambda: len(federation.metrics) >= 2, "two rounds")
    assert run_command(["serve", "--home", home, "--pause"]) == 0
    wait_for(lambda: "paused before round" in server.output, server.output)
    assert [httpx.get(f"{where}/{path}", timeout=60).status_code for path in ("healthz", "readyz", "x")] == [
        200,
        200,
        404,
    ]
    told = httpx.get(f"{where}/metrics", timeout=60).text
    done = len(federation.metrics)
    assert f"nbafl_round {done}.0" in told
    assert "nbafl_clients_online 3.0" in told
    assert f"nbafl_answers_total {2.0 * done}" in told
    labels = 'adjacency="replace",adversary="eavesdropper",delta="0.01",premise="[^"]+",unit="record"'
    assert re.search(f"nbafl_epsilon{{{labels}}} [0-9.]+", told)
    assert 'nbafl_phase{phase="paused"} 1.0' in told
    assert "client-" not in told, "no client has a line of its own"
    capsys.readouterr()

    def told_status() -> dict[str, object]:
        assert run_command(["status", home, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    wait_for(lambda: told_status()["phase"] == "paused", "the status file")
    status = told_status()
    assert not status.keys() & {"drawn", "answered", "missing"}
    assert status["phase"] == "paused"
    assert run_command(["serve", "--home", home, "--go-on"]) == 0
    assert server.finish() == 0, server.output
    rounds = [json.loads(line) for line in server.output.splitlines() if '"round"' in line]
    assert [line["round"] for line in rounds] == list(range(1, 41))
    assert run_command(["status", home]) == 0
    assert "finished" in capsys.readouterr().out
    for client in clients:
        client.finish()


# --- 13: evaluation without a test set ---------------------------------------------------------------------------


def test_clients_count_right_answers_where_nobody_has_a_test_set(tmp_path: Path, nursery: Nursery) -> None:
    generator, data = np.random.default_rng(3), tmp_path / "data"
    data.mkdir()
    for name, rows in (("a", 120), ("b", 120), ("a-held", 200), ("b-held", 200)):
        x = generator.uniform(0, 1, (rows, 2))
        lines = [f"{one:.4f},{two:.4f},{'yes' if one > two else 'no'}" for one, two in x]
        folder = data if "held" not in name else tmp_path
        (folder / f"{name}.csv").write_text("one,two,outcome\n" + "\n".join(lines) + "\n")
    assert run_command(["data", "schema", str(data), "--target", "outcome"]) == 0
    plan = ("--dataset", data, "--target", "outcome", "--rounds", 6, "--samples", 100, "--model", "softmax")
    plan += ("--sensitivity", "gradient", "--lr", 2.0, "--record-clip", 1.0, "--epsilon", 30)
    federation = Federation(tmp_path, 2, *plan, "--evaluate-every", 3, "--evaluate-noise", 2)
    server = serving(nursery, federation)
    clients = [
        nursery.start(
            f"join-{name}",
            *federation.join(number, "--held-out", tmp_path / f"{name}-held.csv", data=data / f"{name}.csv"),
        )
        for number, name in enumerate("ab")
    ]
    finish_all(server, *clients)
    measured = [line["test_accuracy"] for line in federation.metrics]
    assert [value is not None for value in measured] == [False, False, True, False, False, True]
    assert 0 <= float(measured[-1]) <= 1  # type: ignore[arg-type]
    assert all(releases(federation, client) == 6 + 2 for client in range(2)), "counts are on the ledger"
    stated = json.loads((federation.home / "run" / "privacy.json").read_text())["evaluation"]
    assert stated["counts"] == 2
    assert stated["epsilon_with_training"] > stated["epsilon_counts_alone"] > 0
