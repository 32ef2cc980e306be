"""Starting runs from the page: `nbafl run` as a process of its own, never code inside the web process.

The process gets a session of its own, so neither a page reload nor the end of the studio ends it. Its plan and what
it says stand in `runs/.studio/`, beside the run folders, because a run folder belongs to the run alone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from nbafl.durable import write_text
from nbafl.errors import UsageError
from nbafl.folders.audits import AUDIT
from nbafl.folders.runs import PLAN, name_of
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
        return self.last_line or f"The process ended with exit code {code}."

    @property
    def last_line(self) -> str:
        """What the process said last."""
        said = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        lines = said.strip().splitlines()
        return lines[-1].removeprefix("nbafl: ") if lines else ""


@dataclass
class Launcher:
    """Starts, resumes and stops runs below one folder."""

    root: Path
    launches: dict[str, Launch] = field(default_factory=dict)
    audits: dict[str, Launch] = field(default_factory=dict)

    def suggest(self, plan: Plan) -> str:
        """A name that is free: when, what data, what is promised."""
        return re.sub(r"[^A-Za-z0-9._-]", "-", name_of(plan))

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
        return self._run(name, "--config", str(config), "--out", str(self._folder(name)))

    def resume(self, name: str) -> Launch:
        """Go on with a run that was stopped."""
        return self._run(name, "--resume", str(self._folder(name)))

    def stop(self, name: str) -> None:
        """End a run that was started here; a run may be ended at any instant and resumed to the same result."""
        launch = self.launches.get(name)
        if launch is not None and launch.alive:
            launch.process.terminate()
        elif launch is None and (process := self._process_of(name)) is not None:
            os.kill(process, signal.SIGTERM)

    def starting(self, name: str) -> bool:
        """Whether the run was started here and goes, or ended badly before it had a folder."""
        launch = self.launches.get(name)
        return launch is not None and bool(launch.alive or launch.failure)

    def audit(self, name: str) -> None:
        """Attack the plan of a run; what is found is written into its folder."""
        if self.auditing(name) is None:
            folder = str(self._folder(name))
            log = self._beside(f"{name}.audit.log")
            words = ("audit", "--config", f"{folder}/{PLAN}", "--out", folder)
            self.audits[name] = Launch(name, self._spawn(log, *words), log)

    def auditing(self, name: str) -> str | None:
        """How far the audit of a run is, in words; None where none goes."""
        launch = self.audits.get(name)
        return (launch.last_line or "starting the audit") if launch is not None and launch.alive else None

    def audit_failure(self, name: str) -> str | None:
        """Why an audit left no verdict; a claim that was refuted ends it with exit code 1, which is none."""
        launch = self.audits.get(name)
        found = (self._folder(name) / AUDIT).is_file()
        return launch.failure if launch is not None and not launch.alive and not found else None

    def can_stop(self, name: str) -> bool:
        """Whether a process that this studio, or one before it, started for that run is alive."""
        launch = self.launches.get(name)
        return launch.alive if launch is not None else self._process_of(name) is not None

    def _run(self, name: str, *arguments: str) -> Launch:
        log = self._beside(f"{name}.log")
        process = self._spawn(log, "run", "--json", *arguments)
        write_text(self._beside(f"{name}.pid"), f"{process.pid}\n")
        self.launches[name] = Launch(name, process, log)
        return self.launches[name]

    def _spawn(self, log: Path, *words: str) -> subprocess.Popen[bytes]:
        with open(log, "wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "nbafl.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )

    def _process_of(self, name: str) -> int | None:
        """The process that an earlier studio started for a run, if it is that process still: numbers are used again."""
        try:
            process = int((self.root / ".studio" / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return None
        return process if str(self._folder(name)) in _words(process) else None

    def _folder(self, name: str) -> Path:
        return (self.root / name).resolve()

    def _beside(self, file: str) -> Path:
        path = self.root / ".studio" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def _words(process: int) -> list[str]:
    """The command line of a process; empty where there is none."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        pass
    try:
        told = subprocess.run(["ps", "-p", str(process), "-o", "args="], capture_output=True, text=True)
    except OSError:
        return []
    return told.stdout.split()
