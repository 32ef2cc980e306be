"""A federation of real processes over TLS: it learns, keeps intruders out, and survives kill -9 on either side."""

from __future__ import annotations

import dataclasses
import math
import random
import sqlite3
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from federation_processes import Federation, Nursery, is_listening, wait_for
from tests.paper_setting import Plan

from nbafl.data.federation import Federation as Data
from nbafl.flower import frames
from nbafl.flower.certificates import make_certificates
from nbafl.flower.home import prepare
from nbafl.flower.hub import Hub
from nbafl.flower.keys import make_client_key
from nbafl.flower.postbox import Desk
from nbafl.flower.server import Server
from nbafl.run import Run
from nbafl.simulation.models import build
from nbafl.simulation.simulator import Simulator

pytestmark = pytest.mark.e2e


def simulated_losses(plan: Plan, count: int) -> np.ndarray:
    """Test losses of the same plan in simulation: same data, same start, `count` different noises."""
    data = Data.mnist(clients=plan.clients, samples=plan.samples, partition=plan.partition, seed=plan.seed)
    model = build(plan.model, data.shape, data.outputs, plan.seed)
    losses = []
    for seed in range(count):
        simulator = Simulator(data, model, dataclasses.replace(plan.job(), seed=seed, eval_every=plan.rounds))
        while simulator.round < plan.rounds:
            metrics = simulator.step()
        losses.append(metrics.test_loss)
    return np.array(losses)


def test_four_clients_learn_what_the_simulation_learns_and_intruders_stay_out(
    tmp_path: Path, nursery: Nursery
) -> None:
    federation = Federation(tmp_path, 4, "--rounds", 5, "--samples", 300, "--epsilon", 50)
    server = nursery.start("serve", *federation.serve("--wait", 600))
    wait_for(lambda: is_listening(federation.port) or server.code is not None, "the server")
    refuse_intruders(federation, tmp_path, nursery)
    clients = [nursery.start(f"join-{client}", *federation.join(client)) for client in range(4)]
    wait_for(lambda: federation.metrics, "the first round")
    # kill -9 of serve or join can leave nothing behind: neither has a child process.
    assert not any(children(process.pid) for process in (server, *clients))
    for process in (server, *clients):
        assert process.finish() == 0, process.output
    check_run(federation)
    for client in range(4):
        assert federation.ledger(client).spent().releases == 5
        federation.ledger(client).verify()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text() if Path(f"/proc/{pid}").exists() else ""
    return [int(child) for child in text.split()]


def refuse_intruders(federation: Federation, folder: Path, nursery: Nursery) -> None:
    """A key nobody registered, a server of another authority, and a connection without TLS."""
    make_client_key("stranger", folder)
    other = make_certificates(["127.0.0.1"], folder / "other")
    unregistered = [*federation.join(0, "--state", folder / "x")]
    unregistered[unregistered.index("--key") + 1] = folder / "stranger"
    wrong = [*federation.join(1, "--state", folder / "y"), "--certificate", other.authority]
    intruders = [nursery.start("unregistered", *unregistered), nursery.start("wrong", *wrong)]
    complaints = [
        ("does not name the key of this client", 2),
        ("cannot prove that it belongs to this federation", 1),
    ]
    for process, (complaint, code) in zip(intruders, complaints, strict=True):
        assert process.finish() == code, process.output
        assert complaint in process.output
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{federation.port}/v1/next", content=b"")


def check_run(federation: Federation) -> None:
    """The run folder is whole, and its loss is one the simulation could have given."""
    run = Run.load(federation.home / "run")
    assert run.finished
    for name in ("plan.toml", "metrics.jsonl", "model.safetensors", "privacy.json", "report.html"):
        assert (run.path / name).stat().st_size > 0
    state = run.path / "checkpoint" / "state.safetensors"
    assert state.stat().st_mode & 0o077 == 0, "it holds the secret seed of the draw"
    assert [line["round"] for line in run.metrics] == [1, 2, 3, 4, 5]
    # A report is for everybody: nothing in it is about single uploads, which only the eavesdropper's claim prices.
    assert all(line["upload_norm"] is None for line in run.metrics)
    assert "norm" not in (run.path / "answers.jsonl").read_text()
    assert all(answer["answered"] == [0, 1, 2, 3] for answer in federation.answers)
    losses = simulated_losses(run.plan, 8)
    # Student's t with 7 degrees of freedom exceeds 20 with probability 2e-7.
    spread = losses.std(ddof=1) * math.sqrt(1 + 1 / 8)
    assert abs(run.metrics[-1]["test_loss"] - losses.mean()) < 20 * spread
    assert run.metrics[-1]["test_loss"] < 0.95 * run.metrics[0]["test_loss"]


def test_a_server_killed_in_the_middle_of_a_round_goes_on_where_it_was(
    tmp_path: Path, nursery: Nursery
) -> None:
    rounds = 25  # many, so that it cannot be over before a slow machine gets to the kill
    federation = Federation(tmp_path, 3, "--rounds", rounds, "--samples", 100, "--model", "softmax")
    server = nursery.start("serve", *federation.serve())
    clients = [nursery.start(f"join-{client}", *federation.join(client)) for client in range(3)]
    wait_for(lambda: "round 3: recorded" in clients[0].output, f"round 3:\n{clients[0].output}")
    server.kill()
    done = [line["round"] for line in federation.metrics]
    assert done == list(range(1, len(done) + 1))
    assert 2 <= len(done) < rounds
    again = nursery.start("serve", *federation.serve())
    assert again.finish() == 0, again.output
    for client in clients:
        assert client.finish() == 0, client.output
    assert [line["round"] for line in federation.metrics] == list(range(1, rounds + 1))
    for client in range(3):
        ledger = federation.ledger(client)
        # Each round was charged once; what had to be sent twice was sent as the same bytes.
        assert ledger.spent().releases == rounds
        ledger.verify()
    assert [answer["number"] for answer in federation.answers] == list(range(1, rounds + 1))
    assert all(answer["answered"] == [0, 1, 2] for answer in federation.answers)


class Witness:
    """Looks at every upload in the moment it arrives: is it on the sender's ledger already?"""

    def __init__(self, server: Server, hub: Hub, ledger: Path, victim: int) -> None:
        self.ledger, self.seen, self.unrecorded = ledger, 0, 0
        self.server, self.node = server, next(node for node, number in hub.nodes.items() if number == victim)
        keep = hub.postbox.answer

        def watched(desk: Desk, name: str, block: bytes) -> bool:
            if desk.node == self.node and not frames.decode(block).has_error():
                self.look()
            return keep(desk, name, block)

        hub.postbox.answer = watched  # type: ignore[method-assign]

    def look(self) -> None:
        self.seen += 1
        with sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True) as connection:
            rounds = [row[0] for row in connection.execute("SELECT round FROM rows WHERE kind = 'release'")]
        connection.close()
        self.unrecorded += self.server.round + 1 not in rounds


def test_a_client_killed_at_twenty_random_instants_never_sends_what_it_did_not_record(
    tmp_path: Path, nursery: Nursery
) -> None:
    options = ("--rounds", 400, "--samples", 50, "--model", "softmax", "--adversary", "curious-server")
    federation = Federation(tmp_path, 2, *options)
    home, chance = prepare(federation.home, None, []), random.Random(20)
    model = build("softmax", (1, 28, 28), 10, 0)
    with Hub("127.0.0.1", federation.port, home.certificates, home.roster().connection_keys, 2**22) as hub:
        server = Server(home.plan, model, hub, wait=600, min_answers=1)
        victim_ledger = tmp_path / "state-0" / "ledger.sqlite"
        witness = Witness(server, hub, victim_ledger, victim=0)
        stop, answered = threading.Event(), 0

        def rounds() -> None:
            nonlocal answered
            while not stop.is_set() and server.round < home.plan.rounds:
                server.step()
                answered += 0 in server.strategy.last.answered  # type: ignore[union-attr]

        def two_more_uploads() -> None:
            before = witness.seen
            wait_for(lambda: witness.seen > before + 1 or not working.is_alive(), "two uploads of the victim")
            assert working.is_alive()

        other = nursery.start("other", *federation.join(1))
        victim = nursery.start("victim", *federation.join(0))
        working = threading.Thread(target=rounds, daemon=True)
        working.start()
        for _ in range(20):
            two_more_uploads()
            time.sleep(chance.uniform(0, 0.4))
            victim.kill()
            victim = nursery.start("victim", *federation.join(0))
        two_more_uploads()
        assert other.alive
        stop.set()
        working.join(600)
        assert not working.is_alive()
    assert witness.unrecorded == 0
    assert witness.seen >= 42
    ledger = federation.ledger(0)
    ledger.verify()
    assert ledger.spent().releases >= witness.seen - ledger.spent().resends
    assert ledger.spent().releases >= answered


def test_a_spent_budget_is_refused_the_noise_corrected_and_too_few_stop_the_run(
    tmp_path: Path, nursery: Nursery
) -> None:
    files = [
        hospital(tmp_path / f"{name}.csv", seed)
        for seed, name in enumerate(("north", "south", "west", "test"))
    ]
    options = ("--dataset", "csv", "--target", "outcome", "--test", files[3], "--model", "softmax")
    federation = Federation(tmp_path, 3, "--rounds", 6, "--samples", 100, *options)
    server = nursery.start("serve", *federation.serve("--min-answers", 2))
    clients = [
        nursery.start("all", *federation.join(0, data=files[0])),
        nursery.start("three", *federation.join(1, "--max-releases", 3, data=files[1])),
        nursery.start("two", *federation.join(2, "--max-releases", 2, data=files[2])),
    ]
    assert clients[2].finish() == 1
    assert "the budget is spent: 2 releases of at most 2 were made" in clients[2].output
    assert server.finish() == 1
    assert "round 4 stopped: 1 of 3 clients gave a usable upload, 2 are needed" in server.output
    assert "client 2: the budget is spent" in server.output
    assert clients[0].finish() == 1
    assert "The federation did not finish: stopped: round 4" in clients[0].output
    assert "the budget is spent" not in clients[0].output, "why another client was silent is not its business"
    assert [answer["answered"] for answer in federation.answers] == [[0, 1, 2], [0, 1, 2], [0, 1]]
    check_top_up(federation)
    assert [federation.ledger(client).spent().releases for client in range(3)] == [4, 3, 2]


def hospital(path: Path, seed: int) -> Path:
    """A hundred patients with numbers, a category and an outcome."""
    generator, lines = np.random.default_rng(seed), ["age,pressure,sex,outcome"]
    for _ in range(100):
        age, pressure, sex = generator.uniform(0, 1), generator.uniform(0, 1), generator.choice(["f", "m"])
        lines.append(f"{age:.3f},{pressure:.3f},{sex},{'yes' if age + pressure > 1 else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def check_top_up(federation: Federation) -> None:
    """With 2 of 3 equal clients Delta_D grows by 3/2, and so must all noise in the average (math.md (7.2))."""
    noise = Plan.from_toml(federation.home / "plan.toml").noise_scales()
    sigma = float(noise.sigma_uplink[0])
    needed = (3 / 2) ** 2 * (sigma**2 / 3 + noise.sigma_downlink**2) - sigma**2 / 2
    used = [answer["sigma_downlink"] for answer in federation.answers]
    assert used[0] == used[1] == pytest.approx(noise.sigma_downlink)
    assert used[2] == pytest.approx(math.sqrt(needed))
