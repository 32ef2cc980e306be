"""Evidence of a run: whole it is verified; whatever is changed in it is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.evidence.files import FOLDER, finished_run, resigned
from tests.paper_setting import Plan

import nbafl
from nbafl.cli import run_command
from nbafl.evidence import gather, seal, verify
from nbafl.evidence.canonical import canonical
from nbafl.evidence.sealed import open_file
from nbafl.flower.keys import make_client_key, read_identity, read_signing_key
from nbafl.folders import audits


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a finished run, the operator's key and its evidence."""
    return finished_run(tmp_path_factory.mktemp(FOLDER))


def places(path: Path, key: str | None = None) -> list[str]:
    return [finding.place for finding in verify(path, key).findings]


def test_the_evidence_of_a_run_is_verified(made, capsys):
    file = made / "run" / "evidence.html"
    assert run_command(["evidence", "--verify", str(file), "--key", str(made / "operator.pub")]) == 0
    said = capsys.readouterr().out
    assert "Verified: signature, digests and chains fit, and every epsilon was computed again." in said
    assert "3 clients (north, south, <b>west</b>)" in said
    assert "<b>west</b>" not in file.read_text()
    content = open_file(file).content
    assert {
        "summary",
        "statement",
        "plan",
        "schema",
        "participants",
        "ledgers",
        "audit",
        "model",
        "questions",
    } <= set(content)
    asked = " ".join(each["question"] for each in content["questions"])
    for word in ("claimed", "unit", "adjacency", "accounted", "hazards"):
        assert word in asked
    assert "train" not in json.dumps(content["model"])


def test_answers_call_things_by_the_names_they_have_elsewhere(made):
    answered = {
        each["question"]: each["answer"]
        for each in open_file(made / "run" / "evidence.html").content["questions"]
    }
    assert "colluders:1: " in answered["Who is trusted, and against whom does it hold?"]
    assert "Gaussian" in answered["How is the loss accounted for?"]
    assert [text for text in answered.values() if text[0].islower()] == []


def test_a_file_alone_is_verified_and_says_that_the_model_was_not_at_hand(made, tmp_path, capsys):
    alone = Path(shutil.copy(made / "run" / "evidence.html", tmp_path))
    assert run_command(["evidence", "--verify", str(alone)]) == 0
    said = capsys.readouterr().out
    assert "The model itself was not at hand" in said
    assert read_identity(made / "operator.pub").signing_key in said
    assert run_command(["evidence", str(made / "run"), "--verify", str(alone), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == str(made / "run")


def test_the_run_may_be_named_by_its_federations_folder(made, tmp_path):
    home = tmp_path / "federation"
    (home / "handout").mkdir(parents=True)
    shutil.copytree(made / "run", home / "run")
    shutil.copy(made / "run" / "plan.toml", home)
    alone = Path(shutil.copy(made / "run" / "evidence.html", tmp_path))
    assert run_command(["evidence", str(home), "--verify", str(alone)]) == 0
    (home / "run" / "model.safetensors").write_bytes(b"another")
    assert run_command(["evidence", str(home), "--verify", str(alone)]) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "plan.toml", "metrics.jsonl"])
def test_a_changed_file_of_the_run_is_named(made, tmp_path, capsys, name):
    copy = Path(shutil.copytree(made / "run", tmp_path / "run"))
    content = bytearray((copy / name).read_bytes())
    content[-3] ^= 1
    (copy / name).write_bytes(content)
    assert run_command(["evidence", "--verify", str(copy / "evidence.html")]) == 1
    assert f"  {name}: in '{copy}' is not the one that was signed for.\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('"epsilon":3.0', '"epsilon":2.0', "plan"),
        ('"clients":3', '"clients":4', "plan"),
        ('"rounds":3', '"rounds":2', "plan"),
        ('"best_guess":0.', '"best_guess":0.0', "statement"),
        ('"sha256":"', '"sha256":"0', "model"),
        ("north", "noorth", "participants"),
        ("<td class=\"n\">3</td>", "<td class=\"n\">1</td>", "page"),
        ("What is claimed?", "What is maintained?", "page"),
        ('"verified":true', '"verified":false', "statement"),
    ],
)  # fmt: skip
def test_a_changed_number_or_word_is_named(made, tmp_path, old, new, place):
    text = (made / "run" / "evidence.html").read_text()
    assert old in text
    changed = tmp_path / "changed.html"
    changed.write_text(text.replace(old, new))
    assert place in places(changed)


def test_long_texts_are_shown_where_they_part(made, tmp_path, capsys):
    text = (made / "run" / "evidence.html").read_text()
    changed = tmp_path / "changed.html"
    changed.write_text(text.replace("the best guess can be right 6", "the best guess can be right 5"))
    assert run_command(["evidence", "--verify", str(changed)]) == 1
    (line,) = (each for each in capsys.readouterr().out.splitlines() if "summary[3][1]" in each)
    said, again = line.split(", computed again it is ")
    assert "can be right 5" in said
    assert "can be right 6" in again
    assert len(line) < 250


def test_every_section_is_bound_by_the_signature(made, tmp_path):
    whole = open_file(made / "run" / "evidence.html")
    text = (made / "run" / "evidence.html").read_text()
    for name in whole.content:
        changed = {**whole.content, name: "something else"}
        file = tmp_path / f"{name}.html"
        file.write_text(text.replace(whole.content_text, canonical(changed)))
        assert name in places(file)
    changed = {**whole.content, "more": 1}
    (tmp_path / "more.html").write_text(text.replace(whole.content_text, canonical(changed)))
    assert "more" in places(tmp_path / "more.html")


def test_a_signature_of_somebody_else_is_refused_once_the_key_is_given(made, tmp_path, capsys):
    make_client_key("mallory", tmp_path)
    content = open_file(made / "run" / "evidence.html").content
    file = tmp_path / "evidence.html"
    file.write_text(seal(content, read_signing_key(tmp_path / "mallory")))
    assert places(file) == []
    assert run_command(["evidence", "--verify", str(file), "--key", str(made / "operator.pub")]) == 1
    assert "signature: was made with the key" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda c: c["statement"]["guarantee"]["broadcast"].update(epsilon=0.5), "statement.guarantee.broadcast.epsilon"),
        (lambda c: c["statement"].update(epsilon=2.9), "statement.epsilon"),
        (lambda c: c["statement"].update(delivers_claim=False), "statement.delivers_claim"),
        (lambda c: c["statement"]["mechanism"].update(sigma_downlink=9.0), "statement.mechanism.sigma_downlink"),
        (lambda c: c["plan"].update(epsilon=1.0), "statement.plan_digest"),
        (lambda c: c["statement"]["not_covered"].pop(), "statement.not_covered"),
        (lambda c: c["summary"][3].__setitem__(1, "Strong."), "summary[3][1]"),
        (lambda c: c["questions"][0].update(answer="Everything is fine."), "questions[0].answer"),
        (lambda c: c["participants"].update(count=30), "participants"),
        (lambda c: c["model"].update(sha256="0" * 64), "statement.model_digest"),
        (lambda c: c["plan"].update(rounds=-1), "evidence"),
        (lambda c: c["statement"]["sentences"].pop(2), "statement.sentence"),
    ],
)  # fmt: skip
def test_an_operator_who_signs_what_is_wrong_is_found_out(made, tmp_path, change, place):
    found = places(resigned(made, tmp_path, change))
    assert place in found
    assert "signature" not in found


def test_a_page_that_shows_something_else_than_the_content_is_found_out(made, tmp_path, monkeypatch):
    from nbafl.evidence import page

    honest = page.render
    monkeypatch.setattr(page, "render", lambda content: honest(content).replace("3 clients", "300 clients"))
    file = resigned(made, tmp_path, dict)
    monkeypatch.undo()
    assert places(file) == ["page"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"<html></html>", None])
def test_what_is_no_evidence_is_refused_in_one_sentence(tmp_path, capsys, content):
    file = tmp_path / "file.html"
    if content is not None:
        file.write_bytes(content)
    assert run_command(["evidence", "--verify", str(file)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_folder_of_an_audit_is_called_so(tmp_path, capsys):
    plan = Plan(
        clients=3, samples=30, rounds=3, sensitivity="gradient", model="softmax", epsilon=3, delta=1e-5
    )
    audits.write(tmp_path / "a1", plan, {"verdict": "consistent"})
    for words in (["evidence", str(tmp_path / "a1")], ["predict", str(tmp_path / "a1"), "new.csv"]):
        assert run_command(words) == 2
        assert "a1' is the folder of an audit; " in capsys.readouterr().err


def test_something_after_the_end_is_refused(made, tmp_path, capsys):
    file = tmp_path / "file.html"
    file.write_text((made / "run" / "evidence.html").read_text() + "<script>1</script>")
    assert run_command(["evidence", "--verify", str(file)]) == 1
    assert "its frame was changed" in capsys.readouterr().err


def test_a_folder_whose_model_was_exchanged_gets_no_evidence(made, tmp_path, capsys):
    copy = Path(shutil.copytree(made / "run", tmp_path / "run"))
    (copy / "evidence.html").unlink()
    (copy / "model.safetensors").write_bytes(b"another model")
    assert run_command(["evidence", str(copy), "--key", str(made / "operator")]) == 1
    assert "model.safetensors of 'run' is not the one" in capsys.readouterr().err
    assert not (copy / "evidence.html").exists()


def test_a_damaged_schema_is_named(made, tmp_path, capsys):
    folder = shutil.copytree(made / "run", tmp_path / "run")
    (folder / "schema.toml").write_bytes(b"\xff\xfe\x99")
    assert run_command(["evidence", str(folder), "--key", str(made / "operator")]) == 2
    assert capsys.readouterr().err.endswith("schema.toml of 'run' is damaged: it is not text.\n")


def test_the_operators_key_is_made_when_first_needed(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    out = tmp_path / "one.html"
    for _ in range(2):
        assert run_command(["evidence", str(made / "run"), "--out", str(out)]) == 0
    public = read_identity(tmp_path / ".nbafl" / "operator.pub").signing_key
    assert public in capsys.readouterr().out
    assert verify(out, public).holds


def test_bad_usage_is_one_sentence(made, tmp_path):
    assert run_command(["evidence"]) == 2
    assert run_command(["evidence", str(tmp_path)]) == 2
    assert run_command(["evidence", str(made / "run"), "--ledger", str(tmp_path / "none.json")]) == 2
    assert run_command(["evidence", "--verify", "x.html", "--out", "y.html"]) == 2


def test_an_audit_that_refutes_is_told(made, tmp_path):
    run = nbafl.Run.load(made / "run")
    found = {
        "adversary": run.plan.adversary, "claimed_epsilon": 3.0, "delta": 1e-5, "verdict": "refuted",
        "refuted_by": ["claim"], "confidence": 0.95, "trials": 100,
        "proved_epsilon": {"gaussian": 5.0, "distribution_free": None},
        "attacks": {"broadcast": {"proved_epsilon": {"gaussian": 5.0}, "accounted_epsilon": 3.0}},
    }  # fmt: skip
    file = tmp_path / "refuted.html"
    file.write_text(seal({**gather(run), "audit": found}, read_signing_key(made / "operator")))
    assert {"audit", "audit.attacks.broadcast"} <= set(places(file))
