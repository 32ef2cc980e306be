"""The Figures page over what `nbafl reproduce` leaves behind, whole or not."""

from __future__ import annotations

import json
from pathlib import Path

from nbafl.folders.reproductions import visit
from nbafl.studio import figures_page

VERDICT = {"figure": 2, "claim": "loss falls as ε grows", "calibration": "paper", "verdict": "holds"}


def _write(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("x")


def test_pictures_stand_side_by_side_the_papers_first(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "fig02_exact.png",
        "fig02_exact.svg",
        "fig02_paper.png",
        "fig02_paper.csv",
        "fig11_paper.svg",
        "x.txt",
    )
    (tmp_path / "verdicts.json").write_text(json.dumps([VERDICT]))
    second, eleventh = visit(tmp_path).figures
    assert list(second.pictures.items()) == [("paper", "fig02_paper.png"), ("exact", "fig02_exact.svg")]
    assert second.data == {"paper": "fig02_paper.csv"}
    assert [verdict.verdict for verdict in second.verdicts] == ["holds"]
    assert (eleventh.number, eleventh.verdicts) == (11, ())


def test_an_empty_or_missing_folder_has_no_figures(tmp_path: Path) -> None:
    assert visit(tmp_path).figures == ()
    assert visit(tmp_path / "nowhere").figures == ()


def test_verdicts_that_cannot_be_read_are_said_and_pictures_still_shown(tmp_path: Path) -> None:
    for content in ("{", "[1]", '[{"figure": "two"}]', '{"a": 1}'):
        _write(tmp_path, "fig03_paper.svg")
        (tmp_path / "verdicts.json").write_text(content)
        found = visit(tmp_path)
        assert [figure.number for figure in found.figures] == [3]
        assert "verdicts.json" in found.problem


def test_verdicts_without_pictures_are_shown(tmp_path: Path) -> None:
    (tmp_path / "verdicts.json").write_text(
        json.dumps([{**VERDICT, "figure": 9, "evidence": {"best_T": [20, 25]}}])
    )
    (figure,) = visit(tmp_path).figures
    card = figures_page._card(figure)
    assert "Figure 9" in card
    assert "best_T" in card


def test_verdicts_of_one_claim_stand_together_and_an_epsilon_never_alone(tmp_path: Path) -> None:
    privacy = {"claimed_epsilon": 50.0, "real_epsilon": 171.644, "delta": 0.01, "adversary": "eavesdropper",
               "assumption": "2C/m granted"}  # fmt: skip
    exact = {**VERDICT, "calibration": "exact", "verdict": "fails", "evidence": {"privacy": privacy}}
    (tmp_path / "verdicts.json").write_text(json.dumps([VERDICT, exact]))
    (figure,) = visit(tmp_path).figures
    card = figures_page._card(figure)
    assert card.count("loss falls as ε grows") == 1
    assert "claims ε = 50, is worth ε = 171.6 at δ = 0.01 against eavesdropper (2C/m granted)" in card
    overview = figures_page._overview((figure,))
    assert overview.index("holds") < overview.index("fails")


def test_what_a_verdict_says_cannot_become_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    bad = {**VERDICT, "claim": evil, "calibration": evil, "verdict": evil, "evidence": {evil: {evil: evil}}}
    (tmp_path / "verdicts.json").write_text(json.dumps([bad]))
    (figure,) = visit(tmp_path).figures
    assert "<script" not in figures_page._card(figure) + figures_page._overview((figure,))
