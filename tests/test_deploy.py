"""Units and container file call commands that exist, as nobody in particular, within limits."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nbafl.cli import app, run_command

DEPLOY = Path(__file__).parent.parent / "deploy"
UNITS = ("nbafl-serve.service", "nbafl-join@.service")


def options(verb: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert run_command([verb, "--help"]) == 0
    return set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


@pytest.mark.parametrize("file", [*UNITS, "Containerfile"])
def test_every_option_they_use_exists(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app is not None
    text = (DEPLOY / file).read_text()
    calls = re.findall(r"(?:nbafl |^#\s+)(serve|join) (.*)", text, re.MULTILINE)
    assert calls
    for verb, rest in calls:
        known = options(verb, capsys)
        for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
            assert option in known, f"{file}: {verb} {option}"


@pytest.mark.parametrize("unit", UNITS)
def test_units_run_as_nobody_in_particular_within_limits(unit: str) -> None:
    text = (DEPLOY / unit).read_text()
    for line in (
        "User=nbafl",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
        "UMask=0077",
    ):
        assert f"\n{line}\n" in text
    assert re.search(r"\nLimitNOFILE=\d+\n", text)
    assert re.search(r"\nMemoryMax=\d+G\n", text)
    assert re.search(r"\nRestart=on-(failure|abnormal)\n", text)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_units(unit: str, tmp_path: Path) -> None:
    copy = tmp_path / unit
    copy.write_text((DEPLOY / unit).read_text().replace("/opt/nbafl/bin/nbafl", "/bin/true"))
    found = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert unit.split(".")[0].rstrip("@") not in found.stderr


def test_the_image_runs_without_root() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert "--read-only" in text
    assert "HEALTHCHECK" in text
