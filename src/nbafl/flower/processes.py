"""Whether a process that left its number somewhere still runs.

A number alone does not tell: numbers are used again, and a file may come from another machine or container. What
names a process is its number together with when it started, the boot of its machine and its space of numbers (Linux).
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def identity(pid: int | None = None) -> str:
    """A name that no other process has, to be kept with the number; empty for one that is gone, or without /proc."""
    started = _started(os.getpid() if pid is None else pid)
    return f"{_machine()} {started}" if started else ""


def alive(pid: int, known: str) -> bool | None:
    """Whether the process of this number and `identity` runs; None where that cannot be told from here."""
    machine, _, started = known.rpartition(" ")
    if not machine or machine != _machine():
        return None
    now = _started(pid)
    return None if not now and _hidden(pid) else now == started


def _machine() -> str:
    """Boot and space of process numbers; empty where the system does not tell."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _hidden(pid: int) -> bool:
    """Whether there is such a process that only others may look at."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return False


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; empty for one that is gone or only waits to be reaped."""
    try:
        state, *rest = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else rest[18]  # fields 3 and 22 of proc(5), after the name in brackets
