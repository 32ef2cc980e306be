"""`nbafl bench`: the fixed workloads, against the arithmetic floor and against other simulators."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbafl.errors import Refused, UsageError

if TYPE_CHECKING:
    from nbafl.simulation.workloads import Measurement, Workload

HELP = """Measure this machine: seconds per round, against what the arithmetic alone would take.

\b
Examples:
  nbafl bench W3   # 50 small clients, 20 local steps
  nbafl bench W2 --peers
      # the same workload in pfl, FedJAX and Flower, in a separate environment
  nbafl bench W1 --json
  nbafl bench W6
      # per-record clipping of CNNs, a GRU, a transformer, LoRA, beside Opacus
"""

PEERS = {"pfl": "pfl_bench.py", "fedjax": "fedjax_bench.py", "flower": "flower_bench.py"}
PEER_PACKAGES = ["pfl[pytorch]==0.6.*", "fedjax==0.0.17", "flwr[simulation]==1.41.0"]
PEER_TORCH = "torch==2.13.0"
PEER_LIMIT_SECONDS = 1800


def bench(
    workload: Annotated[str, typer.Argument(help="W1 to W6.", metavar="WORKLOAD")],
    peers: Annotated[bool, typer.Option("--peers", help="Also run pfl, FedJAX and Flower.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.", metavar="DEVICE")] = "auto",
    engine: Annotated[
        str, typer.Option(help="auto, dual, plain, clients or vmap.", metavar="ENGINE")
    ] = "auto",
    tf32: Annotated[bool, typer.Option("--tf32", help="Products in TF32 on a GPU.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    from rich.console import Console

    from nbafl.simulation import model_workloads
    from nbafl.simulation.workloads import find, measure

    if workload.upper() in model_workloads.WORKLOADS:
        _bench_models(workload.upper(), device, tf32, as_json, peers)
        return
    chosen = find(workload)
    if peers and chosen.population:
        raise UsageError("peers", chosen.name, "asked for with W1, W2 or W3: no peer holds a million clients")
    say = Console(stderr=True)
    with say.status(f"{chosen.name}: {chosen.sentence}"):
        measured = measure(chosen, device, engine, tf32)
    times = _peers(_task(chosen), say) if peers else {}
    if as_json:
        print(json.dumps({**measured.to_dict(), "peers": times}, indent=2, allow_nan=False))
    else:
        _print(chosen, measured, times)


def _bench_models(name: str, device: str, tf32: bool, as_json: bool, peers: bool) -> None:
    """W5 and W6: several models, each beside a plain torch loop, the plain gradient or Opacus in the same turns."""
    if peers and name != "W5":
        raise UsageError("peers", name, "asked for with W1, W2, W3 or W5: no simulator clips records")
    from rich.console import Console
    from rich.table import Table

    from nbafl.simulation.model_workloads import WORKLOADS, measure

    say = Console(stderr=True)
    with say.status(f"{name}: {WORKLOADS[name]}"):
        found = measure(name, device, tf32)
    if peers:
        found = [
            replace(each, others={**each.others, **_peers(_model_task(each.model), say)}) for each in found
        ]
    if as_json:
        print(json.dumps({"workload": name, "models": [each.to_dict() for each in found]}, indent=2))
        return
    table = Table(title=f"{name}: {WORKLOADS[name]}", title_justify="left")
    columns = list(dict.fromkeys(who for each in found for who in each.others))
    for column in ("model", "nbafl, seconds", *columns):
        table.add_column(column, justify="left" if column == "model" else "right")
    for each in found:
        cells = [_beside(each.seconds, each.others.get(who)) for who in columns]
        table.add_row(each.model, f"{each.seconds:.4f}", *cells)
    Console().print(table)


def _beside(ours: float, theirs: float | None) -> str:
    return "–" if theirs is None else f"{theirs:.4f}  ({theirs / ours:.2f} ×)"


def _print(chosen: Workload, measured: Measurement, times: dict[str, float | None]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{chosen.name}: {chosen.sentence}", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    rows = [
        ("seconds a round", f"{measured.seconds_per_round:.4f}"),
        ("arithmetic floor, all products dense", f"{measured.floor_seconds:.4f}"),
        ("  ratio to it", f"{measured.ratio_to_floor:.2f}"),
        ("  counts, GFLOP", f"{measured.floor_gflop:.3g}"),
        ("floor of the work done, zeros skipped", f"{measured.work_floor_seconds:.4f}"),
        ("  ratio to it", f"{measured.ratio_to_work_floor:.2f}"),
        ("  counts, GFLOP", _parts(measured)),
        ("large matrix product", _rate(measured.gflops)),
        ("large sparse product", _rate(measured.sparse_gflops)),
        ("start-up, seconds", f"{measured.startup_seconds:.1f}"),
        ("peak memory", f"{measured.memory_mb:,.0f} MB"),
        ("test accuracy", "–" if measured.test_accuracy is None else f"{measured.test_accuracy:.3f}"),
        ("engine, device", f"{measured.engine}, {measured.device}"),
    ]
    for peer, seconds in times.items():
        ratio = (
            "failed" if seconds is None else f"{seconds:.3f}  ({seconds / measured.seconds_per_round:.1f} ×)"
        )
        rows.append((f"{peer}, seconds a round", ratio))
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _parts(measured: Measurement) -> str:
    dense, sparse = measured.work_dense_gflop, measured.work_sparse_gflop
    return f"{dense:.3g} dense" + (f" + {sparse:.3g} sparse" if sparse else "")


def _rate(gflops: float | None) -> str:
    return "–" if gflops is None else f"{gflops:,.0f} GFLOP/s"


def _peers(workload: dict[str, Any], say: Any) -> dict[str, float | None]:
    """Seconds a round of every peer on the same workload; None for one that failed."""
    root = Path(__file__).parents[3]
    adapters = root / "benchmarks" / "peers"
    if not adapters.is_dir():
        raise Refused(
            "--peers needs the source checkout: the adapters in benchmarks/peers are not installed."
        )
    python = _peer_environment(root, say)
    task = json.dumps(workload)
    times: dict[str, float | None] = {}
    for peer, script in PEERS.items():
        command = [str(python), str(adapters / script), task]
        if peer == "pfl":  # one worker per core is pfl's fastest way
            command = [
                str(python),
                "-m",
                "torch.distributed.run",
                f"--nproc_per_node={os.cpu_count()}",
                *command[1:],
            ]
        with say.status(f"{workload['workload']}, {workload['model']}, in {peer}"):
            times[peer] = _seconds(command, root, say, peer)
    return times


def _task(chosen: Workload) -> dict[str, Any]:
    training, job = chosen.training, chosen.job()
    return {
        "workload": chosen.name,
        "clients": chosen.clients,
        "samples": chosen.samples,
        "per_round": chosen.per_round or chosen.clients,
        "model": chosen.model,
        "steps": training.steps,
        "batch": training.batch or chosen.samples,
        "lr": training.lr,
        "mu": training.mu,
        "clip": training.clip,
        "sigma": job.sigma_uplink,
        "eval_every": chosen.eval_every,
        "rounds": chosen.peer_rounds,
        "warm": 2,
    }


def _model_task(model: str) -> dict[str, Any]:
    """W5 as the peers are given it; the test set is never looked at."""
    from nbafl.simulation.model_workloads import CLIENTS, LOCAL, PER_ROUND, SAMPLES, SIGMA

    local = {name: getattr(LOCAL, name) for name in ("steps", "batch", "lr", "mu", "clip")}
    who = {"clients": CLIENTS, "samples": SAMPLES, "per_round": PER_ROUND}
    return {
        "workload": "W5", "model": model, **who, **local, "sigma": SIGMA, "eval_every": 10**9, "rounds": 10, "warm": 2,
    }  # fmt: skip


def _seconds(command: list[str], root: Path, say: Any, peer: str) -> float | None:
    path = os.pathsep.join([str(root / "src"), str(root / "benchmarks" / "peers")])
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        done = _run(command, environment, PEER_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        say.print(f"{peer} took longer than {PEER_LIMIT_SECONDS} seconds.")
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if not lines:
        say.print(f"{peer} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        return None
    return float(json.loads(lines[-1])["seconds_per_round"])


def _peer_environment(root: Path, say: Any) -> Path:
    """A virtual environment for the peers alone: their requirements disagree with ours.

    The stamp is written last. What an interrupted or failed installation left behind has none and is made anew.
    """
    folder = root / ".venv-peers"
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if stamp.exists():
        return python
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraint = folder / "constraints.txt"
    with say.status("installing pfl, FedJAX and Flower into .venv-peers (several minutes)"):
        _install([sys.executable, "-m", "venv", "--clear", str(folder)])
        constraint.write_text(PEER_TORCH + "\n")
        _install([*pip, PEER_TORCH])
        _install([*pip, "--constraint", str(constraint), *PEER_PACKAGES])
    stamp.touch()
    return python


def _install(command: list[str]) -> None:
    done = _run(command, dict(os.environ))
    if done.returncode:
        said = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.strip()]
        why = next(
            (line for line in said if "No matching distribution" in line), (said or ["no message"])[-1]
        )
        raise Refused(f"The peers could not be installed: {why.strip().rstrip('.')}.")


def _run(
    command: list[str], environment: dict[str, str], limit: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; if it takes too long, or we are told to stop, all that it started ends with it."""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
