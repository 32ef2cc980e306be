"""The roster binds name, number, keys and records in one file, and every party computes the same hash of it."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from tests.paper_setting import Plan

from nbafl.cli import run_command
from nbafl.errors import DataError, UsageError
from nbafl.flower import keys
from nbafl.flower.roster import Member, Roster


@pytest.fixture(scope="module")
def roster(tmp_path_factory: pytest.TempPathFactory) -> Roster:
    folder = tmp_path_factory.mktemp("keys")
    for name, records in (("south", 300), ("north", 1200), ("east", None)):
        keys.make_client_key(name, folder, records)
    return Roster.of([keys.read_identity(folder / f"{name}.pub") for name in ("south", "north", "east")], 50)


def test_a_client_has_one_file_with_both_keys_and_one_to_give_away(tmp_path: Path) -> None:
    private, public = keys.make_client_key("north", tmp_path, 7)
    identity = keys.read_identity(public)
    signed = keys.read_signing_key(private).sign(b"text")
    keys.load_signing_key(identity.signing_key).verify(signed, b"text")
    assert keys.load_public_key(identity.key) == keys.read_private_key(private).public_key()
    assert (identity.name, identity.records) == ("north", 7)
    assert private.stat().st_mode & 0o077 == 0


def test_a_key_file_of_the_first_release_says_what_it_lacks(tmp_path: Path) -> None:
    private, public = keys.make_client_key("old", tmp_path)
    public.write_text(public.read_text().splitlines()[0] + "\n")
    private.write_bytes(private.read_bytes().split(b"-----BEGIN")[1].join([b"-----BEGIN", b""]))
    assert keys.read_private_key(private).key_size == 384
    for read, path in ((keys.read_identity, public), (keys.read_signing_key, private)):
        with pytest.raises(DataError, match="holds no signing key"):
            read(path)


def test_the_file_gives_back_what_was_written(roster: Roster, tmp_path: Path) -> None:
    roster.save(tmp_path / "roster.toml")
    again = Roster.load(tmp_path / "roster.toml")
    assert again == roster
    assert again.digest() == roster.digest()
    assert again.sizes == (300, 1200, 50)
    assert list(again.signing_keys) == [1, 2, 3]
    assert all(isinstance(key, Ed25519PublicKey) for key in again.signing_keys.values())
    assert [again.find(key).number for key in again.connection_keys] == [1, 2, 3]  # type: ignore[union-attr]


def test_the_hash_is_that_of_the_documented_encoding(roster: Roster) -> None:
    rows = [[m.number, m.name, m.key, m.signing_key, m.records] for m in roster.members]
    text = json.dumps(["nbafl-roster", 1, rows], separators=(",", ":"))
    assert roster.digest() == hashlib.sha256(text.encode()).hexdigest()


def test_layout_and_comments_do_not_change_the_hash_and_every_field_does(
    roster: Roster, tmp_path: Path
) -> None:
    lines = roster.to_toml().splitlines()
    tables = [chunk.splitlines() for chunk in "\n".join(lines[2:]).split("[[client]]")[1:]]
    for table in tables:
        random.Random(1).shuffle(table)
    shuffled = "\n".join(["# other", lines[1], *("\n".join(["[[client]]  # x", *table]) for table in tables)])
    (tmp_path / "r").write_text(shuffled)
    assert Roster.load(tmp_path / "r").digest() == roster.digest()
    first, others = roster.members[0], roster.members[1:]
    keys.make_client_key("new", tmp_path)
    new = keys.read_identity(tmp_path / "new.pub")
    changes = {"name": "x", "records": 301, "key": new.key, "signing_key": new.signing_key}
    for field, value in changes.items():
        changed = Roster((Member(**{**first.__dict__, field: value}), *others))
        assert changed.digest() != roster.digest()


def broken(change: Callable[[str], str], roster: Roster, path: Path) -> Path:
    path.write_text(change(roster.to_toml()))
    return path


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace("number = 2", "number = 3"), "one for each client"),
        (lambda text: text.replace("number = 2", "number = true"), "whole numbers"),
        (lambda text: text.replace('"south"', '"north"'), "different for every client"),
        (lambda text: text.replace("records = 300", "records = 0"), "at least 1"),
        (lambda text: text.replace("records = 300", "records = 3.5"), "whole numbers"),
        (lambda text: text.replace("records = 300\n", ""), "exactly number"),
        (lambda text: text.replace("records = 300", "records = 300\nextra = 1"), "exactly number"),
        (lambda text: text.replace('"south"', '"../south"'), "plain file name"),
        (lambda text: text.replace("ecdsa-sha2", "ssh-rsa"), "OpenSSH public key"),
        (lambda text: text.replace('signing_key = "', 'signing_key = "!'), "32 bytes in base64"),
        (lambda text: text.replace("version = 1", "version = 2"), "must hold version"),
        (lambda text: text.replace("version = 1", 'version = 1\nstate = "revoked"'), "must hold version"),
        (lambda _: "version = 1\nclient = 5", "must hold version"),
        (lambda _: "version = 1\nclient = [5]", "exactly number"),
        (lambda _: "version = 1\nclient = []", "one for each client"),
        (lambda text: text + "=", "not valid TOML"),
    ],
)
def test_a_damaged_roster_is_one_sentence(
    roster: Roster, tmp_path: Path, change: Callable[[str], str], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        Roster.load(broken(change, roster, tmp_path / "roster.toml"))


def test_one_key_has_one_spelling(roster: Roster) -> None:
    """Else two rosters with different hashes would name the same keys."""
    first = roster.members[0]
    content = base64.b64decode(first.signing_key)
    for other in (
        first.signing_key + "\n",
        first.signing_key.rstrip("="),
        base64.b16encode(content).decode(),
    ):
        with pytest.raises(UsageError, match="32 bytes in base64"):
            Member(**{**first.__dict__, "signing_key": other})
    with pytest.raises(UsageError, match="without a comment"):
        Member(**{**first.__dict__, "key": first.key + " comment"})


def test_the_plan_must_count_on_the_same_clients_and_records(roster: Roster) -> None:
    roster.check_plan(Plan(sizes=roster.sizes))
    with pytest.raises(DataError, match="3 clients, the plan 2"):
        roster.check_plan(Plan(clients=2))
    with pytest.raises(DataError, match=r"300 records for client 'south', the plan 1200"):
        roster.check_plan(Plan(sizes=(1200, 300, 50)))


def test_the_verbs_bind_sizes_to_names_not_to_sorted_file_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, records in (("zebra", 300), ("ant", 700)):
        command = ["keys", "make", name, "--records", str(records), "--out", str(tmp_path)]
        assert run_command(command) == 0
    public = [str(tmp_path / f"{name}.pub") for name in ("zebra", "ant")]
    file = tmp_path / "roster.toml"
    assert run_command(["keys", "roster", *public, "--out", str(file)]) == 0
    assert run_command(["keys", "roster", *public, "--out", str(file)]) == 2
    home = tmp_path / "home"
    assert run_command(["serve", "--prepare", "--home", str(home), "--roster", str(file)]) == 0
    plan = Plan.from_toml(home / "plan.toml")
    assert plan.sizes == (300, 700)
    assert Roster.load(home / "handout" / "roster.toml").names == ["zebra", "ant"]
    refused = ["serve", "--prepare", "--home", str(tmp_path / "b"), "--roster", str(file), "--clients", "5"]
    assert run_command(refused) == 2
    assert "one number per client (5)" in capsys.readouterr().err
