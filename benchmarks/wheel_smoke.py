"""Build the wheel, install it into an environment of its own outside the repository, and use it there.

    python benchmarks/wheel_smoke.py             packages of this environment, nbafl from the wheel (minutes)
    python benchmarks/wheel_smoke.py --clean     everything from pip, with constraints.txt (many minutes)

Tried: doctor, plan, run, predict, audit, studio (it starts and answers), serve and two joins for three rounds, and the
type hints of the installed package seen from a user's script. CI runs the first form.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATIENCE = 3600
USER = """
import nbafl
from nbafl import Federation, Plan, Run

plan = Plan(clients=3, samples=20, rounds=2, epsilon=3, delta=1e-5)
run: Run = nbafl.simulate(plan, Federation.mnist(clients=3, samples=20))
rounds: int = run.rounds_done


class Diary(nbafl.Callback):
    def on_end(self, run: object) -> None:
        print(run)


reveal_type(run.plan.epsilon)
wrong: str = run.rounds_done
"""
"""A user's script; its last line is wrong on purpose, so that a package without types would not pass."""

MYPY = """[mypy]
follow_imports = silent
[mypy-torch.*,scipy.*,matplotlib.*,dp_accounting.*,randomgen.*]
follow_imports = skip
ignore_missing_imports = true
"""
"""Types of nbafl are what matters here; those of torch take minutes."""


class Environment:
    """A venv with the wheel in it, and a folder to work in, neither of them near the repository."""

    def __init__(self, folder: Path, clean: bool, place: Path | None = None) -> None:
        self.folder, self.work = place or folder / "venv", folder / "work"
        self.work.mkdir()
        wheel = built(folder / "dist")
        if place is None:
            venv.create(self.folder, with_pip=True, symlinks=True)
        if clean:
            constraints = ("--constraint", str(ROOT / "constraints.txt"))
            self.python("-m", "pip", "install", "-q", *constraints, "torch==2.13.0")
            self.python("-m", "pip", "install", "-q", *constraints, f"{wheel}[flower,studio]", "mypy")
        else:
            self.python("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--force-reinstall", wheel)
            if place is None:
                self.borrow_packages()

    def borrow_packages(self) -> None:
        """Other packages come from the environment of this script, after the wheel's own."""
        (site,) = (self.folder / "lib").glob("python*/site-packages")
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {**kept, "NBAFL_ANCHORS": str(self.work / "anchors"), "OMP_NUM_THREADS": "1"}

    def start(self, *words: object) -> subprocess.Popen[str]:
        command = [str(self.folder / "bin" / "python"), *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.work, env=self.environment(), stdout=pipe, stderr=pipe, text=True
        )

    def python(self, *words: object, code: int = 0) -> str:
        process = self.start(*words)
        said, complained = process.communicate(timeout=PATIENCE)
        if process.returncode != code:
            raise SystemExit(
                f"{' '.join(map(str, words))}: exit code {process.returncode}\n{said}\n{complained}"
            )
        return said

    def nbafl(self, *words: object, code: int = 0) -> str:
        return self.python("-m", "nbafl", *words, code=code)


def built(folder: Path) -> Path:
    """The wheel of this checkout, made from a copy: a build folder of last week could bring files that are gone."""
    copy = folder / "source"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    quietly = ("-q", "--no-deps", "--no-build-isolation", "--no-index")
    command = [sys.executable, "-m", "pip", "wheel", *quietly, "-w", str(folder), str(copy)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    (wheel,) = folder.glob("nbafl-*.whl")
    return wheel


# --- what is tried ---------------------------------------------------------------------------------------------


def comes_from_the_wheel(env: Environment) -> None:
    where = Path(env.python("-c", "import nbafl; print(nbafl.__file__)").strip())
    assert env.folder in where.parents, f"nbafl was imported from {where}"


def plan(env: Environment) -> None:
    said = json.loads(env.nbafl("plan", "--epsilon", 3, "--samples", 200, "--json"))
    assert abs(said["guarantee"]["eavesdropper"]["epsilon"] - 3) < 1e-3


def run_and_predict(env: Environment) -> None:
    table = "".join(f"{n % 7},{n % 5},{'yes' if n % 7 > n % 5 else 'no'}\n" for n in range(300))
    (env.work / "clients").mkdir()
    for name in ("north", "south"):
        (env.work / "clients" / f"{name}.csv").write_text("a,b,answer\n" + table, encoding="utf-8")
    (env.work / "new.csv").write_text("a,b\n6,0\n0,4\n", encoding="utf-8")
    said = env.nbafl(
        "run", "--dataset", "clients", "--target", "answer", "--sensitivity", "gradient", "--model", "softmax",
        "--features", "raw", "--epsilon", 8, "--delta", 1e-5, "--rounds", 20, "--out", "run", "--json",
    )  # fmt: skip
    assert json.loads(said)["rounds_done"] == 20
    assert (env.work / "run" / "report.html").is_file()
    env.nbafl("predict", "run", "new.csv", "-o", "answers.csv")
    assert len((env.work / "answers.csv").read_text(encoding="utf-8").splitlines()) == 3


def run_on_mnist(env: Environment) -> None:
    fields = "--clients 5 --samples 40 --rounds 2 --features raw --sensitivity gradient --model softmax"
    assert json.loads(env.nbafl("run", *fields.split(), "--out", "digits", "--json"))["rounds_done"] == 2


def audit(env: Environment) -> None:
    said = env.nbafl("audit", "--preset", "paper", "--trials", 2000, "--out", "audit", "--json", code=1)
    assert json.loads(said)["verdict"] == "refuted"


def studio(env: Environment) -> None:
    port = free_port()
    process = env.start("-m", "nbafl", "studio", "--port", port)
    try:
        until(lambda: b"nbafl" in urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=5).read())
    finally:
        process.terminate()
        process.wait(PATIENCE)


def federation(env: Environment) -> None:
    port, home = free_port(), env.work / "federation"
    agreed = (
        "--clients 2 --samples 50 --rounds 3 --sensitivity client --clip 1 --model softmax --features raw"
    )
    env.nbafl(
        "serve",
        "--prepare",
        "--home",
        home,
        *agreed.split(),
        "--epsilon",
        50,
        "--delta",
        0.01,
        "--name",
        "127.0.0.1",
    )
    env.nbafl("keys", "make", "a", "b", "--out", "keys")
    for name in ("a", "b"):
        (home / "clients" / f"{name}.pub").write_bytes((env.work / "keys" / f"{name}.pub").read_bytes())
    started = [env.start("-m", "nbafl", "serve", "--home", home, "--host", "127.0.0.1", "--port", port)]
    for number, name in enumerate(("a", "b")):
        asked = (
            "--key",
            f"keys/{name}",
            "--data",
            f"mnist:{number}/2",
            "--state",
            f"state-{name}",
            "--epsilon",
            50,
        )
        started.append(
            env.start("-m", "nbafl", "join", f"127.0.0.1:{port}", "--handout", home / "handout", *asked)
        )
    try:
        said = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0, 0], said
    lines = (home / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]


def types_for_users(env: Environment) -> None:
    (env.work / "user.py").write_text(USER, encoding="utf-8")
    (env.work / "mypy.ini").write_text(MYPY, encoding="utf-8")
    said = env.python("-m", "mypy", "--no-incremental", "user.py", code=1)
    complaints = [line for line in said.splitlines() if ": error:" in line]
    assert len(complaints) == 1, said
    assert 'expression has type "int", variable has type "str"' in complaints[0], said
    assert 'Revealed type is "float"' in said.replace("builtins.", ""), said


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if true():
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise SystemExit("the studio did not answer")
        time.sleep(0.5)


TRIALS: tuple[Callable[[Environment], None], ...] = (
    comes_from_the_wheel, plan, run_and_predict, run_on_mnist, audit, studio, federation, types_for_users,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clean", action="store_true", help="install everything with pip")
    parser.add_argument(
        "--venv", type=Path, help="an environment that has the packages already; the wheel goes in"
    )
    parser.add_argument("--only", nargs="+", help="trials to make, by name")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nbafl-wheel-") as folder:
        environment = Environment(Path(folder), asked.clean, asked.venv)
        environment.nbafl("doctor")
        for trial in (each for each in TRIALS if not asked.only or each.__name__ in asked.only):
            begun = time.monotonic()
            trial(environment)
            print(f"{trial.__name__.replace('_', ' '):22} {time.monotonic() - begun:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
