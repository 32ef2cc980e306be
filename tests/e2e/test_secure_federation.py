"""A secure federation of real processes over TLS: sums are what was encoded, also when parties are killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from secure_soak import soak


@pytest.mark.e2e
def test_sums_are_right_and_recorded_while_parties_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    outcome = soak(
        tmp_path,
        clients=4,
        fewest=3,
        accomplices=0,
        rounds=6,
        client_kills=3,
        server_kills=1,
        seed=1,
        pause=(0.5, 1.0),
    )
    assert outcome.rounds == 6
    assert outcome.opened >= 3
    # After three sums it is 0.47 with a spread of 0.025 (simulated): a tenth is guessed, nine spreads are a quarter.
    assert outcome.last_accuracy > 0.25
