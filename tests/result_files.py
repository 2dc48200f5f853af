"""Result cells made by hand, for tests that need files without a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedande_mpi.ande import n_cells
from fedande_mpi.celldata import CellData, CellInfo
from fedande_mpi.sidecar import Predictions, Weights, write_sidecar

ROWS = 30
CONFIG = """\
datasets = ["tic-tac-toe"]
n = [1]
methods = ["discriminative"]
scopes = ["federated"]
clients = [3]
folds = 3
repeats = 2
seed = 1
nominal = []

[discriminative]
rounds = 2
local_steps = 5
"""


def info(**changes: Any) -> CellInfo:
    values: dict[str, Any] = {
        "name": "tic-tac-toe_A1DE-w_federated_C3_0a1b2c3d",
        "dataset": "tic-tac-toe",
        "dataset_sha256": "d" * 64,
        "model": "A1DE-w",
        "n": 1,
        "method": "discriminative",
        "scope": "federated",
        "n_clients": 3,
        "epsilon": None,
        "epsilon_scope": "",
        "sensitivity": "",
        "config": CONFIG,
        "config_sha256": "a" * 64,
        "rounds": (0, 1, 2),
        "n_repeats": 2,
        "n_folds": 3,
        "n_rows": ROWS,
        "settings": {
            "n": 1,
            "method": "discriminative",
            "seed": 1,
            "rounds": 2,
            "local_steps": 5,
            "nominal": (),
        },
    }
    return CellInfo(**values | changes)


def unit_values(cell: CellInfo, repeat: int, fold: int) -> dict[str, Any]:
    """Values of a (repeat, fold) that follow from its numbers; accuracy 1/2 + round/10 + small terms."""
    clients, rounds = cell.sizes["client"], len(cell.rounds)
    rng = np.random.default_rng((repeat, fold))
    test_fold = (np.arange(cell.n_rows) + repeat) % cell.n_folds
    owner = np.where(test_fold == fold, -1, np.arange(cell.n_rows) % clients)
    number = np.arange(rounds)[:, None]
    accuracy = 0.5 + number / 10 + repeat / 100 + fold / 1000 + np.arange(clients) / 10_000
    return {
        "/test/accuracy": accuracy,
        "/test/cll": -1 / (1 + number) - np.arange(clients) / 100,
        "/test/brier": rng.random((rounds, clients)),
        "/test/macro_f1": rng.random((rounds, clients)),
        "/train/objective": np.where(number == 0, np.nan, rng.random((rounds, clients))),
        "/train/iterations": np.full((rounds, clients), 5),
        "/train/evaluations": np.full((rounds, clients), 7),
        "/train/stop_reason": np.zeros((rounds, clients), dtype="i1"),
        "/communication/bytes_down": np.full(rounds, 800),
        "/communication/bytes_up": np.full(rounds, 800),
        "/timing/local": np.full(rounds, 0.5),
        "/timing/unit": 1.5,
        "/provenance/mpi_size": 3,
        "/provenance/shards": 1,
        "/provenance/hostname": "nœud-1",
        "/provenance/versions": json.dumps({"python": "3.11.7", "numpy": "2.0.0"}),
        "/provenance/started": "2026-01-02T03:04:05+00:00",
        "/folds/test_fold": test_fold.astype("i4"),
        "/folds/owner": owner.astype("i4"),
    }


def filled(cell: CellInfo, units: Iterable[tuple[int, int]] | None = None) -> CellData:
    """Cell with these units complete; all of them by default."""
    data = CellData.empty(cell)
    for repeat, fold in data.missing() if units is None else units:
        data.record(repeat, fold, unit_values(cell, repeat, fold))
    return data


def save_sidecar(
    directory: Path, cell: CellData, repeat: int, fold: int, n: int = 1
) -> tuple[Weights, Predictions]:
    """Write a sidecar with weights and predictions of two classes and three attributes."""
    arity = np.array([2, 3, 2])
    parent_sets = np.arange(3).reshape(3, 1) if n else np.zeros((1, 0), dtype=int)
    sizes = [n_cells(parents, arity) * 2 for parents in parent_sets]
    rng = np.random.default_rng(7)
    weights = Weights(rng.random((1, sum(sizes))), np.cumsum([0, *sizes]), parent_sets, arity)
    row = np.flatnonzero(cell.arrays["/folds/test_fold"][repeat] == fold)
    predictions = Predictions(rng.random((3, len(row), 2)), row, row % 2)
    write_sidecar(directory, cell, repeat, fold, weights=weights, predictions=predictions)
    return weights, predictions


def generative(name: str = "g", **changes: Any) -> CellInfo:
    values: dict[str, Any] = {
        "name": name,
        "model": "A1DE",
        "method": "generative",
        "rounds": (1,),
        "epsilon": 1.0,
    }
    values |= {"epsilon_scope": "counts", "sensitivity": "paper", "config_sha256": name.ljust(64, "0")}
    values["config"] = "seed = 1\nclients = [3]\n[generative]\nepsilon = 1.0\n[discriminative]\nrounds = 99\n"
    return info(**values | changes)


def discriminative(name: str = "d", **changes: Any) -> CellInfo:
    return info(**{"name": name, "config_sha256": name.ljust(64, "0")} | changes)
