"""Which versions of Flower the strategy and the mod work with, each tried in an environment of its own.

    .venv/bin/python benchmarks/flower_versions.py 1.24.0 1.30.0 1.41.0 [--folder DIR]

Installs each version into a new environment (everything else comes from the one this runs in), and makes two rounds there:
strategy, mod and a training function in one process, over a Grid of this script. It prints a line per version.
`nbafl serve` and `nbafl join` need the version that `nbafl[flower]` brings, and say so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

TRIAL = """
import json, sys, tempfile
from importlib.metadata import version
from pathlib import Path
import numpy as np
import nbafl.flower.offline
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
try:
    from flwr.supercore.task_identity import TaskIdentity
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 2, 3
except ImportError:
    pass
from nbafl.flower import Limits, NbAFL, private
from nbafl.plan import Plan

plan = Plan(clients=3, rounds=2, sensitivity="client", clip=1.0, epsilon=50, delta=1e-5, adversary="curious-server")
folder = Path(tempfile.mkdtemp())
mod = private(plan, state=folder)

def train(message, context):
    arrays = message.content["arrays"]
    moved = ArrayRecord({name: Array(array.numpy() + np.float32(0.01)) for name, array in arrays.items()})
    return Message(RecordDict({"arrays": moved}), reply_to=message)

class Room(Grid):
    def get_node_ids(self): return [11, 12, 13]
    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = "m"
            node = message.metadata.dst_node_id
            context = Context(1, node, {"nbafl-name": str(node)}, RecordDict(), {})
            replies.append(mod(message, context, train))
        return replies
    def set_run(self, run): pass
    def create_message(self, *a, **k): pass
    def push_messages(self, messages): return []
    def pull_messages(self, ids): return []
    def get_nodes(self): return []
    run = None

strategy = NbAFL(plan)
result = strategy.start(grid=Room(), initial_arrays=ArrayRecord({"w": Array(np.zeros((20, 5), np.float32))}), num_rounds=2)
moved = float(np.abs(result.arrays["w"].numpy()).max())
assert moved > 0 and len(strategy.last.answered) == 3, (moved, strategy.last)
ledgers = sorted(path.name for path in folder.glob("ledger-*.sqlite"))
assert len(ledgers) == 3, ledgers
print(json.dumps({"flower": version("flwr"), "works": True}))
"""


def environment(folder: Path, flower: str) -> Path:
    """The python of a new environment with this Flower, and everything else from here."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", f"flwr=={flower}"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
    )
    here = [sysconfig.get_path("purelib"), str(Path(__file__).parent.parent / "src")]
    (Path(site.stdout.strip()) / "rest.pth").write_text("\n".join(here) + "\n")
    return python


def tried(python: Path) -> dict[str, object]:
    found = subprocess.run([python, "-c", TRIAL], capture_output=True, text=True)
    if found.returncode == 0:
        return dict(json.loads(found.stdout.splitlines()[-1]))
    lines = found.stderr.strip().splitlines() or ["nothing was said"]
    return {"works": False, "why": lines[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="nbafl-flower-"))
    for flower in options.versions:
        try:
            found = tried(environment(folder / flower, flower))
        except subprocess.CalledProcessError:
            found = {"works": False, "why": "it cannot be installed here"}
        print(json.dumps({"asked": flower, **found}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
