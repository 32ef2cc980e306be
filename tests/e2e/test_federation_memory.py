"""What a client's process holds of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from federation_processes import Apart, Federation, wait_for

pytestmark = pytest.mark.e2e


def test_a_client_with_softmax_regression_holds_less_than_150_mb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started by itself, as on a machine of its own; torch alone is 144 MB of private pages."""
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    shape = ("--rounds", 500, "--samples", 50, "--model", "softmax", "--features", "raw")
    federation = Federation(
        tmp_path, 2, *shape, "--sensitivity", "gradient", "--epsilon", 50, "--delta", 1e-5
    )
    apart = Apart(tmp_path)
    try:
        server = apart.start("serve", *federation.serve())
        clients = [
            apart.start(
                f"join-{client}", *federation.join(client, "--outputs", 10, data="hostile.data:fifty")
            )
            for client in range(2)
        ]
        wait_for(lambda: len(federation.metrics) > 1 or server.code is not None, "two rounds")
        own = [client.own_mb[1] for client in clients]
        maps = Path(f"/proc/{clients[0].pid}/maps").read_text()
    finally:
        apart.close()
    assert max(own) < 150, own
    assert "torch" not in maps
