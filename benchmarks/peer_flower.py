"""Rounds of Flower's simulation engine with empty clients: `python peer_flower.py CLIENTS ROUNDS`.

Prints the times at which rounds ended, as JSON. Needs `flwr[simulation]` 1.24.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

ENDED: list[float] = []


class Empty(NumPyClient):
    """Returns what it got."""

    def fit(self, parameters, config):
        """Do nothing."""
        return parameters, 1, {}


class Timed(FedAvg):
    """Notes when the last client has answered."""

    def aggregate_fit(self, server_round, results, failures):
        """Average as ever."""
        ENDED.append(time.perf_counter())
        return super().aggregate_fit(server_round, results, failures)


def main() -> None:
    n_clients, n_rounds = int(sys.argv[1]), int(sys.argv[2])

    def server(context):
        strategy = Timed(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=n_clients,
            min_available_clients=n_clients,
            initial_parameters=ndarrays_to_parameters([np.zeros(8)]),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=n_rounds))

    run_simulation(
        ServerApp(server_fn=server),
        ClientApp(client_fn=lambda context: Empty().to_client()),
        n_clients,
        backend_config={"client_resources": {"num_cpus": 1}},
    )
    print(json.dumps(ENDED))


if __name__ == "__main__":
    main()
