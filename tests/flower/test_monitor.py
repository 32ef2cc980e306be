"""What a running federation says it has spent: the rounds as they were, nothing before that is known, and never a bare ε."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.flower.rooms import Room, constant, hub_of, plan_of
from tests.privacy.test_going_on import after, first_plan

import nbafl.plan
from nbafl.cli.status import lines
from nbafl.evaluation import Evaluation
from nbafl.flower import NbAFL, status
from nbafl.flower.console import RoundTable, configure_logging
from nbafl.flower.monitor import Monitor, Progress, families
from nbafl.flower.server import Server
from nbafl.flower.spending import Spending
from nbafl.folders import answers
from nbafl.privacy import dropouts
from nbafl.privacy.dropouts import AnsweredRound
from nbafl.simulation.scoring.metrics import RoundMetrics

SECRET = plan_of(clients=10, per_round=3, rounds=30, epsilon=2.0, adversary="broadcast")
CONDITIONAL = plan_of(sensitivity="paper", model="softmax")


def told(plan: nbafl.plan.Plan, progress: Progress, place: Path) -> Monitor:
    """A monitor of a server that nobody talks to."""
    hub = SimpleNamespace(
        postbox=SimpleNamespace(online=set),
        bytes={"received": 0, "sent": 0},
        refused={},
        doorkeeper=type("Keeper", (), {"refused": {}, "__len__": lambda _: 0})(),
    )
    return Monitor(plan, SimpleNamespace(members=[]), hub, progress, 0.0, place)  # type: ignore[arg-type]


def samples(monitor: Monitor) -> list[tuple[dict[str, str], float]]:
    found = {family.name: family for family in families(monitor.status())}["nbafl_epsilon"]
    return [(each.labels, each.value) for each in found.samples]


def server_of(plan: nbafl.plan.Plan, folder: Path, offline: set[int]) -> Server:
    room = Room(constant(), clients=plan.clients)
    room.online -= {100 + each for each in offline}
    hub = hub_of(room, plan.clients)
    made = Server(plan, torch.nn.Linear(5, 5), hub, wait=0.1, min_answers=1, answers=folder / answers.FILE)  # type: ignore[arg-type]
    made.strategy.grace = 0.1
    return made


def test_nothing_is_told_before_it_is_known_and_a_continued_run_starts_with_what_was_spent(
    tmp_path: Path,
) -> None:
    first = first_plan(np.random.default_rng(1), "eavesdropper")
    plan = after(first, epsilon=2 * first.epsilon)
    server = server_of(plan, tmp_path, set())
    monitor = told(plan, server.progress, tmp_path / "status.json")
    assert monitor.status().privacy["epsilon"] is None
    assert samples(monitor) == []
    server.count_rounds()
    assert monitor.status().privacy["epsilon"] == pytest.approx(first.epsilon, rel=1e-9)
    assert monitor.status().privacy["epsilon"] == plan.epsilon_after(0)


def test_status_says_that_nothing_is_known_yet(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "plan.toml").write_text(SECRET.to_toml())
    progress = Progress()
    with told(SECRET, progress, home / "status.json"):
        pass
    said = "\n".join(lines(status.read(home)))
    assert "epsilon not known yet at delta 1e-05 against broadcast, per client (replace)" in said
    old = json.loads((home / "status.json").read_text())
    del old["privacy"]["adjacency"]
    (home / "status.json").write_text(json.dumps(old))
    with pytest.raises(nbafl.errors.DataError, match="another release"):
        status.read(home)


def test_a_client_that_is_always_offline_shows_while_the_rounds_are_made(tmp_path: Path) -> None:
    """Told was 2.0 after 30 rounds, the plan's own figure, whoever stayed away; the draw was public all the time."""
    server = server_of(SECRET, tmp_path, offline={9})
    seen = []
    for _ in range(4):
        server.step()
        seen.append(server.progress.epsilon)
    made = answers.first(tmp_path / answers.FILE, SECRET, 4)
    release, noise = SECRET.release(), SECRET.noise_scales()
    named = nbafl.plan.adversary.parse("broadcast")
    counts = [AnsweredRound(each.answers, each.extra_variance, each.everyone_online) for each in made]
    for done in range(1, 5):
        due = dropouts.epsilon_of_rounds(release, noise, named, counts[:done], SECRET.delta)
        stated = dropouts.epsilon_of_rounds(release, noise, named, made[:done], SECRET.delta)
        assert seen[done - 1] == pytest.approx(due)
        assert due >= stated * (1 - 1e-9)
        assert due > SECRET.epsilon_after(done) * 1.5
    again = server_of(SECRET, tmp_path, offline={9})
    assert again.progress.epsilon is None
    again.restore(server.state())
    assert (again.progress.rounds_done, again.progress.epsilon) == (4, pytest.approx(seen[-1]))


def test_thirty_rounds_with_somebody_offline_are_worth_twice_the_claim() -> None:
    spending = Spending(SECRET)
    for _ in range(30):
        spending.add(AnsweredRound(np.array([0, 1, 2]), everyone_online=False))
    assert spending.epsilon() == pytest.approx(4.03, abs=0.01)


def test_who_was_drawn_does_not_show_in_it() -> None:
    """The guarantee rests on the secret of the draw: the same rounds with other clients give the same numbers."""
    one, other = Spending(SECRET), Spending(SECRET)
    for number in range(6):
        one.add(AnsweredRound(np.array([0, 1, 2]), everyone_online=number % 2 == 0))
        other.add(AnsweredRound((np.arange(3) + 3 * number) % 10, everyone_online=number % 2 == 0))
        assert one.epsilon() == other.epsilon()


@pytest.mark.parametrize("named", ["eavesdropper", "curious-server", "broadcast"])
def test_where_nothing_rests_on_the_draw_it_is_what_the_statement_would_say(named: str) -> None:
    rng = np.random.default_rng(3)
    plan = plan_of(clients=6, rounds=8, adversary=named)
    release, noise = plan.release(), plan.noise_scales()
    made: list[AnsweredRound] = []
    spending = Spending(plan)
    for _ in range(8):
        who = np.sort(rng.choice(6, int(rng.integers(2, 7)), replace=False))
        made.append(AnsweredRound(who, float(rng.uniform(0, 0.1))))
        spending.add(made[-1])
        due = dropouts.epsilon_of_rounds(release, noise, nbafl.plan.adversary.parse(named), made, plan.delta)
        assert spending.epsilon() == pytest.approx(due)


@pytest.mark.parametrize("plan", [SECRET, plan_of(clients=6, rounds=9)])
def test_scores_of_the_clients_are_part_of_it(plan: nbafl.plan.Plan) -> None:
    """Every third round is evaluated: after so many rounds they cost what the statement of such a run counts."""
    evaluation = Evaluation(every=3, sigma=2.0)
    with_scores, without = Spending(plan, evaluation), Spending(plan)
    for done in range(1, 8):
        for each in (with_scores, without):
            each.add(AnsweredRound(np.arange(plan.drawn)))
        release, _ = evaluation.beside(plan, done)
        assert release.scores == pytest.approx((done // 3) / 4)
        named = nbafl.plan.adversary.parse(plan.adversary)
        counts = [AnsweredRound(plan.drawn)] * done
        due = dropouts.epsilon_of_rounds(release, plan.noise_scales(), named, counts, plan.delta)
        assert with_scores.epsilon() == pytest.approx(due)
        assert (with_scores.epsilon() > without.epsilon() * 1.01) == (done >= 3)


def test_a_round_is_looked_at_once_however_many_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    costs = dropouts._costs
    monkeypatch.setattr(dropouts, "_costs", lambda *given: looked.append(1) or costs(*given))
    spending = Spending(plan_of(clients=10, per_round=3, rounds=40, sensitivity="client"))
    for _ in range(40):
        spending.add(AnsweredRound(np.array([0, 1, 2]), everyone_online=False))
        spending.epsilon()
    assert len(looked) <= 40 + 1


def test_metrics_carry_adjacency_and_premise(tmp_path: Path) -> None:
    progress = Progress(epsilon=1.5)
    ((labels, value),) = samples(told(CONDITIONAL, progress, tmp_path / "s"))
    assert value == 1.5
    assert labels == {
        "adversary": "eavesdropper",
        "delta": "1e-05",
        "unit": "record",
        "adjacency": "replace",
        "premise": "if 2C/m holds",
    }
    ((labels, _),) = samples(told(SECRET, progress, tmp_path / "s"))
    assert (labels["unit"], labels["adjacency"], labels["premise"]) == ("client", "replace", "proved")


def test_the_console_says_what_its_epsilon_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    plan, metrics = (
        CONDITIONAL,
        RoundMetrics(1, participants=3, upload_norm=1.0, broadcast_norm=1.0, seconds=0.1),
    )
    with RoundTable(plan, Progress(epsilon=1.25), quiet=False) as table:
        table.add(metrics)
    said = capsys.readouterr().err
    assert "epsilon 1.25" in said
    assert "at delta 1e-05 against eavesdropper, per record (replace), if 2C/m holds" in said
    configure_logging(log="json")
    try:
        with RoundTable(plan, Progress(epsilon=1.25), quiet=False, as_json=True) as table:
            table.add(metrics)
    finally:
        logging.getLogger("nbafl").handlers, logging.getLogger("nbafl").propagate = [], True
    line = json.loads(capsys.readouterr().err)
    assert line["epsilon"] == 1.25
    assert (line["unit"], line["adjacency"], line["premise"]) == ("record", "replace", "if 2C/m holds")


def test_the_strategys_line_says_what_is_claimed_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "nbafl"):
        NbAFL(plan_of(adjacency="drop")).summary()
    assert re.search(
        r"claimed: epsilon 30 at delta 1e-05 against \S+, per client \(drop\)$", caplog.text.strip()
    )
