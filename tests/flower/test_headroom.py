"""`join --check` tries limits out and keeps nothing; a refusal names the limit, what was asked and the way out."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from nbafl.cli import run_command
from nbafl.cli.join import _print_agreement
from nbafl.errors import DataError, Refused
from nbafl.flower import joining
from nbafl.flower.headroom import Owner
from nbafl.flower.inspection import Facts, model_hash
from nbafl.flower.keys import make_client_key
from nbafl.flower.limits import Wanted
from nbafl.flower.release import Releaser
from nbafl.flower.wire import Layout
from nbafl.plan import Plan
from nbafl.privacy import anchor
from nbafl.privacy.ledger import BudgetSpent, Ledger, Limits, Request, rehearsal
from nbafl.privacy.units import Account
from nbafl.protocol.linear_regression import LinearRegression

PLAN = Plan(
    clients=2, rounds=3, samples=20, sensitivity="gradient", features="raw", model="softmax", epsilon=2.0, delta=1e-5,
    adversary="curious-server",
)  # fmt: skip
SHAPE, CLASSES = (4,), 3

Check = Callable[..., int]


def records() -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(3)
    return source.normal(size=(20, *SHAPE)).astype(np.float32), source.integers(0, CLASSES, 20)


class Line:
    """A server with the same plan and model, without a network."""

    address = "127.0.0.1:9"
    number = 1

    def __init__(self, *_: object) -> None:
        pass

    @contextmanager
    def visiting(self) -> Iterator[dict[str, object]]:
        model = model_hash(Layout.of(LinearRegression(SHAPE, CLASSES).parameters()))
        facts = Facts(PLAN.digest(), "", model, "", time.time(), time.time() + 1e8, 0)
        yield {**asdict(facts), "client": self.number}

    def round_trip(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    monkeypatch.setattr(joining, "Connection", Line)
    return tmp_path / "the state"


@pytest.fixture
def check(state: Path, tmp_path: Path) -> Check:
    (tmp_path / "plan.toml").write_text(PLAN.to_toml())
    (tmp_path / "ca.crt").write_text("not read")
    make_client_key("me", tmp_path)
    files = ["--plan", tmp_path / "plan.toml", "--certificate", tmp_path / "ca.crt", "--key", tmp_path / "me"]
    data = ["--data", f"{__name__}:records", "--outputs", CLASSES, "--state", state, "--check"]
    return lambda *more: run_command([str(part) for part in ("join", Line.address, *files, *data, *more)])


def test_a_check_writes_nothing_and_the_next_one_is_free(
    check: Check, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("--epsilon", 0.1) == 1
    assert "This limit is the one asked for now: ask for a larger one." in capsys.readouterr().err
    assert not (state / "ledger.sqlite").exists()
    assert not list((tmp_path / "anchors").glob("*.json"))
    assert check("--epsilon", 3) == 0
    assert "room for 3 answers" in capsys.readouterr().out
    assert check() == 2, "a check is no word of the owner's: a limit must still be given"
    ledger = Ledger(state / "ledger.sqlite")
    before = ledger.rows()
    assert check("--epsilon", 3) == 0
    assert ledger.rows() == before


def test_an_owner_is_not_asked_to_loosen_a_limit_that_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client that was started again had its own answers taken for room that a limit does not leave."""
    ledger = Ledger(tmp_path / "ledger.sqlite", anchors=tmp_path / "anchors")
    ledger.set_limits(Limits(2.0, 1e-5))
    releaser, start = Releaser(PLAN, ledger), np.zeros(15)
    for number in range(1, PLAN.rounds + 1):
        _print_agreement(releaser)
        assert f"{PLAN.rounds + 1 - number} more for this plan" in (told := capsys.readouterr().out)
        assert "loosen" not in told
        releaser.answer(Request(PLAN.digest(), number, "b"), 0, start, lambda: start)
    ledger.set_limits(Limits(1.0, 1e-5))
    _print_agreement(Releaser(PLAN.with_fields(rounds=4), ledger))
    assert "The limit ends before the plan does" in capsys.readouterr().out


def test_the_refusal_gives_the_command_that_works(
    check: Check, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(state / "ledger.sqlite")
    ledger.set_limits(Limits(0.1, 1e-5, 50, Account.RECORD, 9.0))
    rows = ledger.rows()
    assert check("--epsilon", 3) == 1
    refusal = capsys.readouterr().err
    assert "above this client's limit 0.1." in refusal
    assert refusal.count("To loosen it") == 1
    assert "--epsilon 3 was not applied" in refusal
    assert "limit for a record (one record replaced): epsilon 0.1" in refusal
    assert ledger.rows() == rows
    command = re.search(r"To loosen it: nbafl (.*--loosen)", refusal)
    assert command is not None
    assert run_command(shlex.split(command[1])) == 0
    assert ledger.limits() == [Limits(3.0, 1e-5, 50, Account.RECORD, 9.0)], "nothing else was loosened"
    assert check() == 0
    assert check("--epsilon", 8) == 0
    assert "--epsilon 8 was not applied" in capsys.readouterr().out, "asked in vain, though there is room"


@pytest.mark.parametrize("number", [-1, 2, 10**9])
def test_a_number_outside_the_plan_is_a_sentence(
    number: int, check: Check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Line, "number", number)
    assert check("--epsilon", 3) == 1
    assert f"number {number + 1} is not one of the plan's 2 clients" in capsys.readouterr().err


def test_a_limit_that_nobody_asked_to_loosen_is_named_with_its_own_command(tmp_path: Path) -> None:
    limit = Limits(0.1, 1e-5, account=None)
    owner = Owner((limit,), Wanted(), tmp_path)
    told = owner.explain(BudgetSpent("spent.", limit))
    assert told == (
        f"spent. To loosen it, with larger numbers: nbafl ledger limit {tmp_path} --unit any --epsilon 0.1 --delta 1e-05 "
        "--loosen"
    )
    drop = Limits(0.1, 1e-5, account=Account.CLIENT_DROP)
    (sentence,) = Owner((drop, limit), Wanted(epsilon=2.0), tmp_path).not_applied(Account.RECORD)
    assert "--unit any --epsilon 2 " in sentence
    assert "--unit client --adjacency drop" in Owner((drop,), Wanted(), tmp_path).explain(
        BudgetSpent("spent.", drop)
    )


def test_a_rehearsal_refuses_what_the_ledger_would_and_leaves_it_alone(state: Path) -> None:
    place = state / "ledger.sqlite"
    ledger = Ledger(place)
    ledger.set_limits(Limits(9.0, 1e-5))
    rows = ledger.rows()
    with rehearsal(place) as copy:
        assert copy.limits() == ledger.limits()
        copy.set_limits(Limits(1.0, 1e-5))
        copy.mark(Request("a" * 64, 1, ""), "tried")
        copy.verify()
        scratch = copy.path
    assert not scratch.parent.exists()
    assert ledger.rows() == rows
    assert ledger.verify() == 2
    ledger.close()
    for file in state.glob("ledger.sqlite*"):
        file.unlink()
    with pytest.raises(Refused, match="one with 2 rows was here before"), rehearsal(place):
        pass
    assert not place.exists()


FIRST_RELEASE = Path(__file__).parents[1] / "privacy" / "first_release" / "ledger.sqlite"


@pytest.fixture
def old(state: Path, tmp_path: Path) -> Path:
    """A ledger of 0.1.0 that this machine knows."""
    state.mkdir()
    place = shutil.copy(FIRST_RELEASE, state / "ledger.sqlite")
    with closing(sqlite3.connect(place)) as connection:
        hashes = dict(connection.execute("SELECT number, hash FROM rows"))
    anchor.write(tmp_path / "anchors", place, hashes[0], max(hashes), hashes[max(hashes)])
    return place


def test_a_rehearsal_leaves_a_ledger_of_the_first_release_one(old: Path, tmp_path: Path) -> None:
    def everything() -> dict[Path, bytes]:
        return {
            file: file.read_bytes()
            for folder in (old.parent, tmp_path / "anchors")
            for file in folder.iterdir()
        }

    before = everything()
    with rehearsal(old) as copy:
        assert copy.spent().releases == 6
        assert copy.limits_of(Account.RECORD) == Limits(8.0, 1e-5)
    assert everything() == before


def test_a_rehearsal_names_the_ledger_that_was_tampered_with(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("UPDATE rows SET cost = 0 WHERE number = 3")
    sentence = f"ledger {str(old)!r} was tampered with: row 3 does not fit the chain."
    with pytest.raises(Refused, match=f"^{re.escape(sentence)}$"), rehearsal(old):
        pass
    old.write_bytes(b"no ledger")
    with pytest.raises(DataError, match="is not a readable ledger"), rehearsal(old):
        pass


def test_a_rehearsal_refuses_a_copy_of_a_ledger(old: Path, tmp_path: Path) -> None:
    shutil.copy(old, tmp_path / "copy.sqlite")
    with pytest.raises(Refused, match=r"is a copy of .*ledger.sqlite"), rehearsal(tmp_path / "copy.sqlite"):
        pass
