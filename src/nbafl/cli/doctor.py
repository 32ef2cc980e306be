"""`nbafl doctor`: what this machine has, and what is missing for which verb."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Annotated

import typer

HELP = """Show what this machine has: versions, devices, cores, extras, browser, clock, folders.

Exit code 1 if something that every verb needs is missing.

\b
Examples:
  nbafl doctor
  nbafl doctor --json
"""

CORE = (
    "numpy",
    "scipy",
    "torch",
    "dp-accounting",
    "pydantic",
    "typer",
    "safetensors",
    "matplotlib",
    "randomgen",
)
EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "flower": ("serve, join, status, keys, ledger, evidence", ("flwr", "cryptography", "prometheus_client")),
    "studio": ("studio", ("nicegui",)),
    "tables": ("Parquet files, pandas and polars frames, images", ("pandas", "pyarrow", "polars", "PIL")),
    "onnx": ("export of a model to ONNX", ("onnx", "onnxruntime", "onnxscript")),
    "ray": ("sweep --ray", ("ray",)),
    "tensorboard": ("run --track tensorboard", ("tensorboard",)),
    "mlflow": ("run --track mlflow", ("mlflow",)),
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")


@dataclass(frozen=True)
class Finding:
    """One line of the answer."""

    what: str
    found: str
    ok: bool
    needed: bool = False
    """Whether every verb needs it."""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON list.")] = False,
) -> None:
    findings = examine()
    if as_json:
        print(json.dumps([asdict(each) for each in findings], indent=2))
    else:
        for each in findings:
            print(f"{'ok     ' if each.ok else 'missing'}  {each.what:<22} {each.found}")
    if any(each.needed and not each.ok for each in findings):
        raise typer.Exit(1)


def examine() -> list[Finding]:
    """Everything worth knowing, the indispensable first."""
    return [
        Finding("nbafl", _version("nbafl") or "not installed", True),
        Finding("Python", platform.python_version(), sys.version_info >= (3, 11), needed=True),
        *(_package(name) for name in CORE),
        _cores(),
        _memory(),
        _device(),
        *(_extra(name, *what) for name, what in EXTRAS.items()),
        _browser(),
        _clock(),
        *(_folder(*each) for each in _folders()),
    ]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _package(name: str) -> Finding:
    version = _version(name)
    return Finding(name, version or "not installed: pip install nbafl", version is not None, needed=True)


def _extra(name: str, serves: str, modules: tuple[str, ...]) -> Finding:
    missing = [module for module in modules if util.find_spec(module) is None]
    found = serves if not missing else f"{serves}: pip install 'nbafl[{name}]' (no {', '.join(missing)})"
    return Finding(f"extra {name}", found, not missing)


def _cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("cores", f"{usable} usable of {os.cpu_count()}", True)


def _memory() -> Finding:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return Finding("memory", "unknown", True)
    return Finding("memory", f"{total / 2**30:.1f} GiB", total > 2 * 2**30)


def _device() -> Finding:
    if _version("torch") is None:
        return Finding("GPU", "torch is not installed", False)
    import torch

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return Finding("GPU", ", ".join(names) or "none: the CPU computes", True)


def _browser() -> Finding:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    return Finding(
        "browser", found or "none found here; the studio can be opened from another one", found is not None
    )


def _clock() -> Finding:
    """Signatures of a federation bind a time: a clock that is far off is refused by the server."""
    now = time.gmtime()
    plausible = now.tm_year >= 2025
    return Finding("clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", now), plausible)


def _folders() -> list[tuple[str, Path]]:
    home = Path.home()
    return [
        ("runs folder", Path("runs")),
        ("anchors of ledgers", Path(os.environ.get("NBAFL_ANCHORS") or home / ".nbafl" / "anchors")),
        ("cache of features", Path(os.environ.get("NBAFL_CACHE") or home / ".cache" / "nbafl")),
    ]


def _folder(what: str, path: Path) -> Finding:
    """Writable, or its nearest existing parent is."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 2**30
    writable = os.access(place, os.W_OK)
    told = f"{path} ({free:.0f} GiB free)" if writable else f"{path} cannot be written"
    return Finding(what, told, writable and free > 0.1)
