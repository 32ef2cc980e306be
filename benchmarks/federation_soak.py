"""A federation whose clients and server are killed at random instants: is every upload recorded, none charged twice?

    .venv/bin/python benchmarks/federation_soak.py [--clients 50] [--minutes 60] [--client-kills 1000] [--server-kills 100]

Real processes over TLS on loopback, softmax regression, kill -9, started again at once. Kills are spread over the
given time or until the rounds are done; what is left of the rounds is then finished in peace. Counted at the end, from
the clients' ledgers and the server's own list of answers:

unrecorded     answers the server used that are not on the sender's ledger
double         rounds for which a ledger holds more than one release
rounds         finished, of those planned
server memory  of each life of the server at its end: first quarter of lives beside the last
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "e2e"))
from federation_processes import Nursery
from killed_processes import Soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--client-kills", type=int, default=1000)
    parser.add_argument("--server-kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nbafl-soak-") as folder:
        os.environ["NBAFL_ANCHORS"] = f"{folder}/anchors"
        nursery = Nursery(Path(folder))
        soak = Soak(nursery, Path(folder), options.clients, options.rounds, options.seed)
        try:
            soak.run(60 * options.minutes, options.client_kills, options.server_kills)
            codes = soak.finish(3600)
            found = {"killed": dict(soak.killed), "seconds_of_kills": soak.seconds, **soak.counts()}
        finally:
            nursery.close()
    found |= {
        "planned_rounds": options.rounds,
        "exit_codes": dict(Counter(codes)),
        "load": os.getloadavg()[1],
    }
    print(json.dumps(found, indent=2))
    sys.exit(int(bool(found["unrecorded"] or found["double"] or found["rounds"] != options.rounds)))


if __name__ == "__main__":
    main()
