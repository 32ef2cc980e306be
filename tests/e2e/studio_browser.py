"""What the browser tests of the studio share: a studio of their own, a watch over a page, and the moves a person makes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import find_browser
from free_ports import free_port
from tests.paper_setting import Plan

from nbafl.cli import run_command
from nbafl.studio.draft import Draft

PAPER = Draft.from_plan(Plan()).query()
"""The paper's setting with exact noise, as a link to the Plan page says it."""
CHROMIUM = find_browser.find()
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
PATIENCE = int(os.environ.get("NBAFL_PATIENCE", 600_000))
"""Milliseconds a page may take for what it will do; only a busy machine comes near."""


@dataclass
class Server:
    """A studio of its own: a real process over its own folders."""

    url: str
    root: Path
    process: subprocess.Popen
    log: Path

    @property
    def runs(self) -> Path:
        return self.root / "runs"


@contextlib.contextmanager
def held_up(server: Server) -> Iterator[None]:
    """Its computations stand still: what a page shows meanwhile stays until the block ends, however slow the browser."""
    workers = [worker for forks in children(server.process.pid) for worker in children(forks)]
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)


def children(process: int) -> list[int]:
    """Processes that a process started, whichever of its threads did."""
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, thread.read_text().split())
    return found


def nbafl(*words: object) -> list[str]:
    return [sys.executable, "-m", "nbafl.cli", *map(str, words)]


def serve(root: Path, *options: str) -> Server:
    """A studio over `root`, once it answers."""
    port, log = free_port(), root / "studio.log"
    (root / "runs").mkdir(parents=True, exist_ok=True)
    words = nbafl("studio", "--port", port, "--runs", "runs", *options)
    with open(log, "wb") as output:
        # The web framework behaves differently when it thinks it is under test; a user's studio is not.
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, cwd=root, env=plain)
    server = Server(f"http://127.0.0.1:{port}", root, process, log)
    deadline = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(server.url + "/studio-static/studio.css", timeout=5).close()
            return server
        except urllib.error.HTTPError:
            return server
        except OSError:
            time.sleep(0.2)
    process.kill()
    raise AssertionError(f"the studio did not come up: {log.read_text()}")


def end(server: Server) -> None:
    """Ctrl-C; the studio has nothing to complain of."""
    server.process.send_signal(signal.SIGINT)
    try:
        server.process.wait(PATIENCE / 1000)
    finally:
        server.process.kill()
    said = server.log.read_text()
    assert "Traceback" not in said, said


@dataclass
class Watch:
    """What a page did that it should not have done."""

    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def over(self, context) -> None:
        context.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        context.on("weberror", lambda e: self.complaints.append(str(e.error)))
        context.on("request", self._seen)
        context.on(
            "response", lambda r: self.complaints.append(f"{r.status} {r.url}") if r.status >= 400 else None
        )

    def _seen(self, request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.hostname != "127.0.0.1":
            self.foreign.append(request.url)


def open_page(page, server: Server, address: str = "/") -> None:
    page.goto(server.url + address)
    page.wait_for_function("() => window.socket?.connected && window.did_handshake")


def plan_page(page, server: Server, query: str = "") -> None:
    open_page(page, server, f"/?{query}")
    page.locator('[data-epsilon="plan:eavesdropper"]').wait_for()


def type_text(page, name: str, text: str) -> None:
    page.locator(f"[data-field={name}]").fill(text)


def choose(page, name: str, option: str) -> None:
    page.locator(f"[data-choice={name}]").click()
    page.locator(".q-menu .q-item", has_text=option).first.click()


def slide(page, name: str, key: str, times: int, until: str) -> None:
    """Move a slider with the keyboard and wait until the page has answered for where it stands now.

    A busy machine may take a hand that rests in between for one that has let go, and put the slider where it knows it.
    """
    track = page.locator(f"[data-slider={name}] .q-slider__track-container")
    track.focus()
    place = "where => Number((where.closest('[role=slider]') ?? where.querySelector('[role=slider]')).ariaValueNow)"
    goal = track.evaluate(place) + (times if key == "ArrowRight" else -times)
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(COMMANDED, [until]):
        assert time.monotonic() < deadline, f"the slider {name} did not come to {until}"
        if track.evaluate(place) == goal:
            page.wait_for_timeout(50)
        else:
            page.keyboard.press(key)


COMMANDED = """parts => { const words = document.querySelector('[data-command]').innerText + ' ';
  return parts.every(part => words.includes(part + ' ')); }"""


def wait_for_command(page, *parts: str) -> None:
    """Wait until the numbers on the page belong to a plan with these options."""
    page.wait_for_function(COMMANDED, arg=list(parts))


def command(page) -> list[str]:
    return shlex.split(page.locator("[data-command]").inner_text())


def epsilons(page) -> dict[str, float | None]:
    return _epsilons(snapshot(page))


def _epsilons(shown: dict) -> dict[str, float | None]:
    return {name: None if value == "none" else float(value) for name, value in shown["epsilons"]}


def snapshot(page) -> dict:
    """What the page says at one instant: command, every ε, every other number, and all its text."""
    return page.evaluate(
        """() => {
          const all = (what, key) => [...document.querySelectorAll(what)].map(e => [e.dataset[key], e.dataset.value]);
          return {command: document.querySelector('[data-command]').innerText, text: document.body.innerText,
                  epsilons: all('[data-epsilon]', 'epsilon'), numbers: all('[data-number]', 'number')};
        }"""
    )


def plan_json(words: list[str]) -> dict:
    """`nbafl plan --json` for the options of a `nbafl run`."""
    assert words[:2] == ["nbafl", "run"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run_command(["plan", *words[2:], "--json"]) == 0
    return json.loads(printed.getvalue())


def check_against_command_line(page) -> dict:
    """Every number on the page is the one `nbafl plan --json` prints for the command the page shows."""
    shown = snapshot(page)
    told, found = plan_json(shlex.split(shown["command"])), _epsilons(shown)
    numbers = {name: float(value) for name, value in shown["numbers"]}
    for name, entry in told["guarantee"].items():
        assert found[f"plan:{name}"] == entry["epsilon"]
        if told["conditional"]:
            assert found[f"clip:{name}"] == told["unconditional"][name]["epsilon"]
    for name in ("sigma_uplink", "sigma_downlink", "sigma_aggregate"):
        assert numbers[name] == told["noise"][name]
    assert numbers["uplink_sensitivity"] == told["sensitivity"]["uplink"]
    assert numbers["downlink_sensitivity"] == told["sensitivity"]["downlink"]
    for sentence in told["warnings"] + told["assumptions"]:
        assert sentence in shown["text"]
    return told
