"""The client's ledger: charged before it leaves, never past a limit, and tampering shows."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dp_accounting
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbafl.errors import DataError, Refused
from nbafl.privacy.gaussian import gdp_epsilon
from nbafl.privacy.ledger import Charge, Ledger, Limits, Price, Request
from nbafl.privacy.units import Account

WIDE = Limits(epsilon=1e6, delta=1e-5)


def open_ledger(folder: Path, name: str = "ledger.sqlite", **options: bool) -> Ledger:
    return Ledger(folder / "state" / name, anchors=folder / "anchors", **options)


def flat(mu: float, most: int = 1000) -> Price:
    """Every answer costs the same mu^2, to the server and to the plan's adversary."""
    return priced(mu**2, lambda answers: answers * mu**2, most, "curious-server")


def priced(upload: float, after: Callable[[int], float], most: int, adversary: str) -> Price:
    """The same price for every account."""
    return Price(Account.RECORD, dict.fromkeys(Account, Charge(upload, after)), most, adversary)


def ask(round: int, plan: str = "plan", broadcast: str = "w") -> Request:
    return Request(plan, round, f"{broadcast}{round}")


@settings(
    derandomize=True,
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.floats(0.05, 1.5), min_size=1, max_size=5), st.floats(1e-8, 0.1))
def test_the_sum_is_what_an_independent_accountant_says(
    tmp_path_factory: pytest.TempPathFactory, mus: list[float], delta: float
) -> None:
    ledger = open_ledger(tmp_path_factory.mktemp("ledger"))
    ledger.set_limits(WIDE)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    for round, mu in enumerate(mus):
        ledger.record(Request(f"plan{round}", 1, "w"), b"", flat(mu))
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    spent = ledger.spent(delta)
    assert spent.releases == len(mus)
    assert spent.of("client").epsilon_uploads == pytest.approx(
        accountant.get_epsilon(delta), rel=2e-3, abs=2e-3
    )


def test_a_plan_that_meets_its_claim_exactly_may_finish_and_no_more(tmp_path: Path) -> None:
    rounds, mu = 25, 0.7
    limit = gdp_epsilon(mu * math.sqrt(rounds), 1e-5)
    ledger = open_ledger(tmp_path)
    ledger.set_limits(Limits(limit, 1e-5))
    for round in range(1, rounds + 1):
        ledger.record(ask(round), b"upload", flat(mu))
    assert ledger.spent().of("record").epsilon == pytest.approx(limit)
    with pytest.raises(
        Refused, match=r"the next release would bring epsilon to .* above this client's limit"
    ):
        ledger.record(ask(26), b"upload", flat(mu))
    with pytest.raises(Refused, match="the plan has 25 rounds"):
        ledger.record(ask(26), b"upload", flat(mu, most=25))
    with pytest.raises(Refused, match="above this client's limit"):
        ledger.check(Request("another plan", 1, "w"), flat(mu))
    assert ledger.spent().releases == rounds
    assert ledger.verify() == 2 + rounds


def test_a_limit_on_the_number_of_releases(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.set_limits(Limits(100, 1e-5, releases=2))
    ledger.record(ask(1), b"", flat(0.1))
    ledger.record(ask(2), b"", flat(0.1))
    with pytest.raises(Refused, match="2 releases of at most 2"):
        ledger.record(ask(3), b"", flat(0.1))


def test_limits_tighten_by_themselves_and_loosen_only_in_writing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    with pytest.raises(Refused, match="no limit for a record"):
        ledger.record(ask(1), b"", flat(1))
    ledger.set_limits(Limits(3, 1e-5, releases=9))
    assert ledger.set_limits(Limits(8, 1e-6)) == Limits(3, 1e-6, releases=9)
    assert open_ledger(tmp_path).limits_of(Account.CLIENT) == Limits(3, 1e-6, releases=9)
    assert ledger.set_limits(Limits(8, 1e-5), loosen=True) == Limits(8, 1e-5)
    assert [row.kind for row in ledger.rows()] == ["opened", "limit", "limit", "limit"]


@pytest.mark.parametrize("price", [math.inf, math.nan, -1.0])
def test_what_cannot_be_priced_is_refused(tmp_path: Path, price: float) -> None:
    ledger = open_ledger(tmp_path)
    ledger.set_limits(WIDE)
    with pytest.raises(Refused, match="cannot be accounted for"):
        ledger.record(ask(1), b"", priced(1.0, lambda answers: price * answers, 10, "broadcast"))
    with pytest.raises(Refused, match="cannot be accounted for"):
        ledger.record(ask(1), b"", priced(math.inf, lambda answers: answers, 10, "broadcast"))


def test_answers_given_while_fewer_exposures_were_counted_are_made_up_for(tmp_path: Path) -> None:
    """The price of a plan is that of all its answers together, whatever L stood in an earlier start."""
    ledger = open_ledger(tmp_path)
    ledger.set_limits(WIDE)
    cheap = priced(1.0, lambda answers: 1 + 0.1 * (answers - 1), 10, "eavesdropper")
    wary = priced(1.0, lambda answers: min(answers, 3) + 0.1 * max(0, answers - 3), 10, "eavesdropper")
    for round, price in enumerate((cheap, cheap, cheap, wary, cheap), start=1):
        ledger.record(ask(round), b"", price)
    costs = [row.cost for row in ledger.rows() if row.kind == "release"]
    assert costs == pytest.approx([1, 0.1, 0.1, 3.1 - 1.2, 0])
    assert ledger.affordable("plan", wary) == 5


def test_a_retry_gets_the_same_bytes_for_nothing_and_anything_else_is_charged(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.set_limits(WIDE)
    assert ledger.stored(ask(1)) is None
    ledger.record(ask(1), b"first", flat(1))
    before = ledger.spent()
    assert open_ledger(tmp_path).stored(ask(1)) == b"first"
    assert ledger.spent().of("record").epsilon == before.of("record").epsilon
    assert ledger.spent().resends == 1
    for other in (ask(2), ask(1, plan="other"), ask(1, broadcast="v")):
        assert ledger.stored(other) is None
    ledger.record(ask(1, broadcast="v"), b"second", flat(1))
    assert ledger.spent().releases == 2
    assert ledger.stored(ask(1)) == b"first", "A, B, A: the first answer of a round is not charged again"
    ledger.record(ask(2), b"third", flat(1))
    assert ledger.stored(ask(1)) is None, "only uploads of the round a plan is in are kept"
    with pytest.raises(Refused, match="round 0 is over"):
        ledger.record(ask(0), b"late", flat(1))


RACER = """
import sys, time
from nbafl.privacy.ledger import Charge, Ledger, Limits, Price, Request
from nbafl.privacy.units import Account
from nbafl.errors import Refused
ledger = Ledger(sys.argv[1], anchors=sys.argv[2])
ledger.set_limits(Limits(1e6, 1e-5, releases=20))
each = Charge(1.0, lambda answers: answers)
price, won = Price(Account.RECORD, dict.fromkeys(Account, each), 1000, "curious-server"), 0
while time.time() < float(sys.argv[4]): pass
try:
    for round in range(100):
        ledger.record(Request(sys.argv[3], round, "w"), b"x", price)
        won += 1
except Refused:
    pass
print(won)
"""


def test_two_processes_cannot_both_spend_the_last_release(tmp_path: Path) -> None:
    start = str(time.time() + 3)
    arguments = [sys.executable, "-c", RACER, str(tmp_path / "l.sqlite"), str(tmp_path / "anchors")]
    racers = [
        subprocess.Popen([*arguments, f"plan{number}", start], stdout=subprocess.PIPE) for number in range(4)
    ]
    won = [int(racer.communicate()[0]) for racer in racers]
    assert sum(won) == 20
    ledger = Ledger(tmp_path / "l.sqlite", anchors=tmp_path / "anchors")
    assert ledger.spent().releases == 20
    ledger.verify()


KILLED = """
import sys
from nbafl.privacy.ledger import Charge, Ledger, Limits, Price, Request
from nbafl.privacy.units import Account
ledger = Ledger(sys.argv[1], anchors=sys.argv[2])
ledger.set_limits(Limits(1e6, 1e-5))
each = Charge(1.0, lambda answers: answers)
price = Price(Account.RECORD, dict.fromkeys(Account, each), 10**9, "curious-server")
first = ledger.spent().releases + 1
for round in range(first, 10**6):
    ledger.record(Request("plan", round, "w"), bytes(50_000), price)
    sys.stdout.write(f"{round}\\n"); sys.stdout.flush()   # the upload "leaves" here
"""


def test_killed_at_any_instant_it_never_holds_fewer_releases_than_left(tmp_path: Path) -> None:
    chance = random.Random(6)
    for _ in range(6):
        arguments = [sys.executable, "-c", KILLED, str(tmp_path / "l.sqlite"), str(tmp_path / "anchors")]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        sent = int(process.stdout.readline())
        time.sleep(chance.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        for line in process.communicate()[0].splitlines(keepends=True):
            sent = int(line) if line.endswith("\n") else sent
        ledger = Ledger(tmp_path / "l.sqlite", anchors=tmp_path / "anchors")
        assert sent <= ledger.spent().releases <= sent + 1
        ledger.verify()
        ledger.close()


def filled(folder: Path) -> Ledger:
    ledger = open_ledger(folder)
    ledger.set_limits(WIDE)
    for round in range(1, 4):
        ledger.record(ask(round), b"upload", flat(0.5))
    return ledger


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE rows SET cost = 0 WHERE number = 3",
        "UPDATE rows SET time = time - 1 WHERE number = 4",
        "UPDATE rows SET round = 9 WHERE number = 2",
        "UPDATE rows SET note = replace(note, '1000000', '2000000') WHERE number = 1",
        "DELETE FROM rows WHERE number = 3",
        "DELETE FROM rows WHERE number = 4",
        "UPDATE rows SET number = -1 WHERE number = 2",
        "UPDATE uploads SET content = x'00'",
    ],
)
def test_tampering_shows(tmp_path: Path, tampering: str) -> None:
    ledger = filled(tmp_path)
    assert ledger.verify() == 5
    with sqlite3.connect(ledger.path) as connection:
        connection.execute(tampering)
    connection.close()
    with pytest.raises(Refused, match=r"tampered with|rolled back"):
        ledger.verify()


def test_a_ledger_from_a_backup_is_refused(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    ledger.close()
    backup = ledger.path.read_bytes()
    ledger = open_ledger(tmp_path)
    ledger.record(ask(4), b"", flat(0.5))
    ledger.close()
    ledger.path.write_bytes(backup)
    with pytest.raises(Refused, match="rolled back or rewritten: it held row 5"):
        open_ledger(tmp_path)
    with pytest.raises(Refused, match="rolled back or rewritten"):
        open_ledger(tmp_path, adopt=True)


def test_a_copy_is_refused_until_it_is_adopted(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    ledger.close()
    shutil.copy(ledger.path, tmp_path / "state" / "copy.sqlite")
    with pytest.raises(Refused, match=r"is a copy of .*ledger.sqlite"):
        open_ledger(tmp_path, "copy.sqlite")
    moved = open_ledger(tmp_path, "copy.sqlite", adopt=True)
    assert moved.spent().releases == 3
    moved.record(ask(4), b"", flat(0.5))
    moved.verify()
    with pytest.raises(Refused, match="rolled back or rewritten"):
        open_ledger(tmp_path)


def test_a_ledger_whose_anchor_is_lost_and_a_new_one_in_its_place_are_refused(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    ledger.close()
    with pytest.raises(Refused, match="is not known on this machine"):
        Ledger(ledger.path, anchors=tmp_path / "other")
    os.remove(ledger.path)
    with pytest.raises(Refused, match="one with 5 rows was here before"):
        open_ledger(tmp_path)


def test_an_anchor_that_lags_behind_a_crash_is_fine(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    (anchor,) = (tmp_path / "anchors").glob("*.json")
    older = anchor.read_text()
    ledger.record(ask(4), b"", flat(0.5))
    ledger.close()
    anchor.write_text(older)
    assert open_ledger(tmp_path).spent().releases == 4


def test_a_ledger_is_known_again_after_a_reboot_renumbered_its_disk(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    ledger.close()
    (anchor,) = (tmp_path / "anchors").glob("*.json")
    note = json.loads(anchor.read_text())
    assert note["file"] == {"path": str(ledger.path), "inode": ledger.path.stat().st_ino}
    note["file"]["device"] = 12345  # as anchors of earlier versions say
    anchor.write_text(json.dumps(note))
    assert open_ledger(tmp_path).spent().releases == 3


def test_how_many_answers_are_affordable_is_how_many_are_answered(tmp_path: Path) -> None:
    for case, (mu, limit, most) in enumerate(
        [(0.3, 3.0, 1000), (0.3, 0.01, 10), (0.01, 5.0, 7), (1.0, 9.0, 40)]
    ):
        ledger = open_ledger(tmp_path / str(case))
        ledger.set_limits(Limits(limit, 1e-5))
        possible = ledger.affordable("plan", flat(mu, most))
        for round in range(1, possible + 1):
            ledger.record(ask(round), b"", flat(mu, most))
        assert ledger.affordable("plan", flat(mu, most)) == 0
        with pytest.raises(Refused):
            ledger.record(ask(possible + 1), b"", flat(mu, most))


def test_the_file_is_private_and_garbage_is_refused(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    assert ledger.path.stat().st_mode & 0o077 == 0
    (tmp_path / "garbage").write_bytes(os.urandom(4096))
    with pytest.raises(DataError, match="is not a readable ledger"):
        Ledger(tmp_path / "garbage", anchors=tmp_path / "anchors")
    with pytest.raises(DataError, match="does not exist"):
        open_ledger(tmp_path, "missing.sqlite", must_exist=True)


def test_a_full_disk_is_one_sentence_charges_nothing_and_passes(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    (pages,) = ledger._connection.execute("PRAGMA page_count").fetchone()
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Refused, match="cannot be read or written: database or disk is full"):
        ledger.record(ask(4), bytes(100_000), flat(0.5))
    assert ledger.spent().releases == 3
    assert ledger.stored(ask(4)) is None
    ledger._connection.execute("PRAGMA max_page_count = 1000000")
    ledger.record(ask(4), bytes(100_000), flat(0.5))
    assert ledger.verify() == 6


def test_an_anchor_that_cannot_be_written_keeps_the_upload_home(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    shutil.rmtree(tmp_path / "anchors")
    (tmp_path / "anchors").write_text("no folder")
    with pytest.raises(Refused, match=r"the anchors in .* cannot be written"):
        ledger.record(ask(4), b"", flat(0.5))
    assert ledger.spent().releases == 4, "counted, though it never left"


@pytest.mark.parametrize("damage", ["", "{", '{"number": "x"}', "[]"])
def test_a_damaged_anchor_is_one_sentence(tmp_path: Path, damage: str) -> None:
    filled(tmp_path).close()
    (anchor,) = (tmp_path / "anchors").glob("*.json")
    anchor.write_text(damage)
    with pytest.raises(Refused, match=r"anchor .* cannot be read"):
        open_ledger(tmp_path)


def test_a_damaged_page_is_one_sentence(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    for round in range(4, 60):
        ledger.record(ask(round), b"", flat(0.01))
    ledger.close()
    content = bytearray(ledger.path.read_bytes())
    content[4096 * 3 :] = bytes(len(content) - 4096 * 3)  # the schema is whole, the rows are not
    ledger.path.write_bytes(content)
    with pytest.raises(Refused, match="cannot be read or written: database disk image is malformed"):
        open_ledger(tmp_path)


@pytest.mark.parametrize(
    "schema", ["CREATE TABLE patients (name TEXT)", "CREATE TABLE rows (number INTEGER, kind TEXT)"]
)
def test_another_database_or_another_version_is_left_as_it_is(tmp_path: Path, schema: str) -> None:
    place = tmp_path / "other.sqlite"
    with sqlite3.connect(place) as connection:
        connection.execute(schema)
    connection.close()
    before = place.read_bytes()
    for must_exist in (False, True):
        with pytest.raises(DataError, match="is not a ledger of this version"):
            Ledger(place, anchors=tmp_path / "anchors", must_exist=must_exist)
    assert place.read_bytes() == before
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="is not a ledger"):
        Ledger(tmp_path / "empty", anchors=tmp_path / "anchors", must_exist=True)
