"""Nonsense given to the other verbs: one sentence, exit code 2, nothing written."""

from __future__ import annotations

import pytest

from nbafl.cli import run_command

NONSENSE = [
    ("plan", "--exposures", "99999999999999999999"),
    ("plan", "--lr", "1e-308"),
    ("plan", "--lr", "5e-324"),
    ("audit", "--trials", "0"),
    ("audit", "--confidence", "2"),
    ("audit", "--epsilon", "0"),
    ("run", "--target", "outcome"),
    ("serve", "--prepare", "--test", "test.csv"),
    ("plan", "--ignore", "patient"),
    ("reproduce", "1"),
    ("reproduce", "12"),
    ("reproduce", "--seeds", "0"),
    ("reproduce", "--seeds", "99999999999999999999"),
    ("sweep", "--seeds", "99999999999999999999"),
    ("bench", "W9"),
    ("bench",),
    ("studio", "--host", "0.0.0.0"),
    ("join", "nowhere"),
    ("serve", "--prepare", "--name", ""),
    ("serve", "--prepare", "--name", "\u00e9"),
    ("keys", "certificate", "not a name"),
    ("keys", "renew", "federation", "--name", "../up"),
    ("keys", "renew", "federation"),
    ("ledger", "show", "missing.sqlite"),
    ("no-such-verb",),
]


@pytest.mark.parametrize("arguments", NONSENSE, ids=" ".join)
def test_nonsense_ends_in_one_sentence(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("nbafl: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []
