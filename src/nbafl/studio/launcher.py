"""Starting runs from the page: `nbafl run` as a process of its own, never code inside the web process.

The process gets a session of its own, so neither a page reload nor the end of the studio ends it. Its plan and what
it says stand in `runs/.studio/`, beside the run folders, because a run folder belongs to the run alone.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nbafl.durable import write_text
from nbafl.errors import UsageError
from nbafl.plan import Plan

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass
class Launch:
    """A run that was started here, as long as the studio is up."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def failure(self) -> str | None:
        """Why the run ended without being asked to; None while it goes and when it went well."""
        code = self.process.poll()
        if code in (None, 0, -signal.SIGTERM):
            return None
        said = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        lines = said.strip().splitlines()
        return lines[-1].removeprefix("nbafl: ") if lines else f"The run ended with exit code {code}."


@dataclass
class Launcher:
    """Starts, resumes and stops runs below one folder."""

    root: Path
    launches: dict[str, Launch] = field(default_factory=dict)

    def suggest(self, plan: Plan) -> str:
        """A name that is free: when, what data, what is promised."""
        worth = f"eps{plan.epsilon:g}-{plan.calibration}" if plan.noise else "no-noise"
        base = f"{datetime.now():%Y%m%d-%H%M%S}-{Path(plan.dataset).name}-{worth}"
        return re.sub(r"[^A-Za-z0-9._-]", "-", base)

    def start(self, plan: Plan, name: str) -> Launch:
        """Begin a run of `plan` in a folder of that name."""
        if not NAME.fullmatch(name):
            raise UsageError(
                "name", name, "letters, digits, dots, dashes and underscores, at most 80 of them"
            )
        taken = name in self.launches and self.launches[name].alive
        if taken or (self.root / name).exists():
            raise UsageError("name", name, "one that no other run has")
        config = self._beside(f"{name}.toml")
        write_text(config, plan.to_toml())
        return self._run(name, "--config", str(config), "--out", str(self.root / name))

    def resume(self, name: str) -> Launch:
        """Go on with a run that was stopped."""
        return self._run(name, "--resume", str(self.root / name))

    def stop(self, name: str) -> None:
        """End a run that was started here; a run may be ended at any instant and resumed to the same result."""
        launch = self.launches.get(name)
        if launch is not None and launch.alive:
            launch.process.terminate()

    def started_here(self, name: str) -> bool:
        """Whether the run of that name is a living process of this studio."""
        launch = self.launches.get(name)
        return launch is not None and launch.alive

    def _run(self, name: str, *arguments: str) -> Launch:
        log = self._beside(f"{name}.log")
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "nbafl.cli", "run", "--json", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )
        self.launches[name] = Launch(name, process, log)
        return self.launches[name]

    def _beside(self, file: str) -> Path:
        folder = self.root / ".studio"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / file
