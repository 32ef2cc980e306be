"""Evidence of a federation of four real clients: verified whole, refused with the place named once anything is changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from federation_processes import Federation, Nursery, wait_for

from nbafl.cli import run_command
from nbafl.evidence import verify
from nbafl.evidence.sealed import open_file
from nbafl.flower.keys import make_client_key

pytestmark = pytest.mark.e2e
PLAN = ("--rounds", 3, "--samples", 40, "--model", "softmax", "--sensitivity", "gradient", "--epsilon", 8)


def _evidence(nursery: Nursery, folder: Path, *plan: object) -> tuple[Federation, Path]:
    """A federation of four clients that came to its end, and the file about it, which verifies."""
    federation = Federation(folder, 4, *plan)
    server = nursery.start("serve", *federation.serve())
    wait_for((federation.home / "handout" / "roster.toml").is_file, "the roster in the handout")
    clients = [nursery.start(f"join-{each}", *federation.join(each)) for each in range(4)]
    assert [each.finish() for each in (server, *clients)] == [0] * 5, server.output
    agreed, supplied = federation.home / "handout" / "plan.toml", []
    for client in range(4):
        file = folder / f"extract-{client}.json"
        words = ["--plan", agreed, "--key", federation.key(client), "--out", file]
        assert run_command(["ledger", "extract", str(folder / f"state-{client}"), *map(str, words)]) == 0
        supplied += ["--ledger", str(file)]
    make_client_key("operator", folder)
    key = str(folder / "operator")
    assert run_command(["evidence", str(federation.home), *supplied, "--key", key]) == 0
    file = federation.home / "run" / "evidence.html"
    assert run_command(["evidence", "--verify", str(file), "--key", f"{key}.pub"]) == 0
    return federation, file


def test_evidence_of_a_secure_federation(nursery: Nursery, tmp_path: Path) -> None:
    _, file = _evidence(nursery, tmp_path, *PLAN, "--aggregation", "secure", "--min-answers", 3)
    content = open_file(file).content
    assert content["plan"]["aggregation"] == "secure"
    assert [each["spent"]["releases"] for each in content["ledgers"]] == [3, 3, 3, 3]
    text = file.read_text()
    (tmp_path / "changed.html").write_text(text.replace('"min_answers":3', '"min_answers":4', 1))
    found = [str(each) for each in verify(tmp_path / "changed.html").findings]
    assert "plan: was changed after signing." in found


def test_evidence_of_four_clients(nursery: Nursery, tmp_path: Path, capsys) -> None:
    federation, file = _evidence(nursery, tmp_path, *PLAN)
    said = capsys.readouterr().out
    assert "Verified" in said
    assert "4 clients (client-0, client-1, client-2, client-3)" in said
    content = open_file(file).content
    assert [each["spent"]["releases"] for each in content["ledgers"]] == [3, 3, 3, 3]
    assert [each["records"] for each in content["participants"]["clients"]] == [40] * 4

    def places(old: str, new: str) -> list[str]:
        text = file.read_text()
        assert old in text
        (tmp_path / "changed.html").write_text(text.replace(old, new, 1))
        return [str(each) for each in verify(tmp_path / "changed.html").findings]

    row = content["ledgers"][2]["rows"][-1]
    found = places(f'"upload":"{row["upload"]}"', f'"upload":"{"0" * 64}"')
    assert f"ledger of client-2: row {row['number']} does not fit the chain." in found
    assert "ledgers: was changed after signing." in found
    assert "plan: was changed after signing." in places('"lr":', '"lr":1')
    assert "model: was changed after signing." in places('"sha256":"', '"sha256":"0')
    assert "page: was changed after signing: do not go by what it shows." in places(
        "3 releases", "1 releases"
    )
    copy = Path(shutil.copytree(federation.home / "run", tmp_path / "copy"))
    (copy / "model.safetensors").write_bytes(b"another")
    assert [each.place for each in verify(copy / "evidence.html").findings] == ["model.safetensors"]
