"""A file that says another version made it: none of its words is believed, and none is shown as if it were checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.evidence.files import FOLDER, finished_run, resigned

from nbafl.cli import run_command
from nbafl.evidence import page, verify
from nbafl.evidence.sealed import open_file

INVENTED = "Each person with all of their rows, against everybody (ε = 0.05)."


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return finished_run(tmp_path_factory.mktemp(FOLDER))


def another_version(content: dict) -> None:
    for place in (content, content["statement"]):
        place["versions"] = {**place["versions"], "nbafl": "0.1.9"}


def invented(content: dict) -> None:
    """The hostile reader's file: every number is right, every word of it is made up."""
    another_version(content)
    content["summary"] = [["Protected", INVENTED]]
    content["statement"]["sentences"] = [INVENTED]
    content["statement"]["sensitivity"]["premise"] = INVENTED
    content["questions"] = [{"question": "What is claimed?", "answer": INVENTED}]


def places(path: Path) -> list[str]:
    return [each.place for each in verify(path).findings]


def test_the_summary_is_made_again_and_never_the_files_own(made, tmp_path, capsys, monkeypatch):
    """`--verify` printed the invented lines of such a file as verified, with the operator's key pinned."""
    honest = page.render
    monkeypatch.setattr(page, "render", lambda content: honest(content).replace("3 clients", "300 clients"))
    file = resigned(made, tmp_path, invented)
    monkeypatch.undo()
    words = ["evidence", "--verify", str(file), "--key", str(made / "operator.pub")]
    assert run_command(words) == 0
    said = capsys.readouterr().out
    assert INVENTED not in said
    assert "300 clients" not in said
    own = dict(open_file(made / "run" / "evidence.html").content["summary"])
    for label in ("Who", "Protected", "How strongly"):
        assert f"{label}: {own[label]}\n" in said
    assert "Made by nbafl 0.1.9" in said
    assert "the wording of the page was NOT checked. Do not go by the page" in said
    assert run_command([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["summary"] == own
    assert (told["verified"], told["wording_checked"], told["other_version"]) == (True, False, "0.1.9")


def test_the_version_that_made_it_is_checked_word_by_word(made, capsys):
    assert run_command(["evidence", "--verify", str(made / "run" / "evidence.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wording_checked"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda s: s.update(unit="person"), "statement.unit"),
        (lambda s: s.update(adjacency="drop"), "statement.adjacency"),
        (lambda s: s["adversary"].update(name="curious-server"), "statement.adversary.name"),
        (lambda s: s["claimed"].update(adversary="curious-server"), "statement.claimed.adversary"),
        (lambda s: s["mechanism"].update(aggregation="secure"), "statement.mechanism.aggregation"),
        (lambda s: s.update(model_digest="0" * 64), "statement.model_digest"),
    ],
)  # fmt: skip
def test_names_are_compared_whatever_the_version(made, tmp_path, change, place):
    def forged(content: dict) -> None:
        another_version(content)
        change(content["statement"])

    assert place in places(resigned(made, tmp_path, forged))


@pytest.mark.parametrize(
    "versions", [{}, {"nbafl": None}, {"nbafl": "0.2.0. It protects persons"}, {"python": "3.12"}]
)
def test_a_file_that_names_no_version_does_not_fit(made, tmp_path, versions):
    def forged(content: dict) -> None:
        for place in (content, content["statement"]):
            place["versions"] = versions

    assert not verify(resigned(made, tmp_path, forged)).holds


def test_no_claim_hides_among_the_versions(made, tmp_path):
    """Sentences that begin like the one on versions were never compared."""

    def sentence(content: dict) -> None:
        content["statement"]["sentences"].append("Computed with care: epsilon is 0.05 for each person.")

    def version(content: dict) -> None:
        for place in (content, content["statement"]):
            place["versions"] = {**place["versions"], "numpy": "2.0, and epsilon is 0.05 for each person"}

    assert places(resigned(made, tmp_path, sentence)) == ["statement.sentence"]
    assert "versions" in places(resigned(made, tmp_path, version))


def test_a_name_cannot_pretend_to_be_a_line(made, tmp_path, capsys):
    def forged(content: dict) -> None:
        another_version(content)
        content["facts"]["clients"][0] = "north\nHow strongly: Strong (ε = 0.05)"
        content["participants"]["clients"][0]["name"] = content["facts"]["clients"][0]

    assert run_command(["evidence", "--verify", str(resigned(made, tmp_path, forged))]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("How strongly")]) == 1
