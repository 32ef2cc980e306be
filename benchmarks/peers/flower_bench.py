"""The workload in Flower's simulation engine (Ray), one CPU per client.

`run_simulation` is deprecated in favour of `flwr run`, which starts a server process that outlives the run; the engine
behind both is the same.
"""

from __future__ import annotations

import os
import sys

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def main() -> None:
    os.environ.update(SWITCHES, PEER_TASK=sys.argv[1])  # before Flower and its workers start
    from flower_app import GIVEN, client_app, server_app
    from flwr.simulation import run_simulation

    resources = {"client_resources": {"num_cpus": 1}}
    run_simulation(server_app, client_app, num_supernodes=GIVEN.clients, backend_config=resources)


if __name__ == "__main__":
    main()
