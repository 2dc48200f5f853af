"""What is written down of a unit: the datasets of its cell's file, its sidecar, a line of the log."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from fedande_mpi import ande
from fedande_mpi.federation import UnitResult
from fedande_mpi.metrics import METRICS
from fedande_mpi.planning import MIB, communication_bytes
from fedande_mpi.sidecar import Predictions, Weights
from fedande_mpi.unit import Unit


@cache
def versions() -> str:
    """Return the versions of all that bears on a result, as JSON."""
    names = ["fedande-mpi", "numpy", "scipy", "numba", "h5py", "mpi4py", "mpich"]
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return json.dumps(found)


def report(unit: Unit, result: UnitResult, seconds: float, share: float) -> str:
    """Return a unit's line in the log: how long its last `share` took, rates, and how good it is."""
    cell = unit.cell
    down, up = communication_bytes(unit)
    rounds = max(1, len(cell.rounds) - 1)
    parts = [f"{seconds:.1f} s"]
    if cell.in_rounds:
        parts.append(f"{share * rounds / seconds:,.1f} rounds/s")
    parts.append(f"{share * len(unit.sets) * cell.clients / seconds:,.0f} models/s")
    if (total := float((down + up).sum())) > 0:
        parts.append(f"{share * total / seconds / MIB:.1f} MiB/s between clients and server")
    accuracy = result.metrics[-1, METRICS.index("accuracy")]
    if (scored := accuracy[~np.isnan(accuracy)]).size:
        parts.append(f"accuracy {scored.mean():.4f}")
    return f"{cell} repeat {unit.repeat} fold {unit.fold}: {', '.join(parts)}"


def values_of(unit: Unit, result: UnitResult) -> Iterator[tuple[str, Any]]:
    """Yield the datasets of a unit."""
    for at, name in enumerate(METRICS):
        yield f"/test/{name}", result.metrics[:, at]
    yield "/train/objective", result.objective
    yield "/train/iterations", result.iterations
    yield "/train/evaluations", result.evaluations
    yield "/train/stop_reason", result.stop_reason
    down, up = communication_bytes(unit)
    yield "/communication/bytes_down", down
    yield "/communication/bytes_up", up
    for name, seconds in result.seconds.items():
        yield f"/timing/{name}", seconds
    yield "/timing/server_cpu", result.server_cpu
    yield "/timing/server_wall", result.server_wall
    yield "/folds/owner", unit.owner


def saved_of(unit: Unit, result: UnitResult) -> dict[str, Any]:
    """Return what `fedande_mpi.sidecar.write_sidecar` takes of a unit."""
    saved: dict[str, Any] = {}
    if "weights" in unit.cell.save and result.weights:
        weights = result.weights
        if unit.granularity == "attribute":
            o = unit.n_classes
            weights = [
                rows.reshape(rows.shape[0], -1, o)[:, ande.cell_groups(parents, unit.arity)].reshape(
                    rows.shape[0], -1
                )
                for rows, parents in zip(weights, unit.sets, strict=True)
            ]
        saved["weights"] = Weights(
            np.concatenate(weights, axis=1),
            unit.bounds(unit.sets, "parameter"),
            unit.sets,
            unit.arity,
        )
    if "predictions" in unit.cell.save and result.posterior is not None:
        saved["predictions"] = Predictions(result.posterior, np.flatnonzero(unit.owner < 0), unit.held_out.y)
    return saved
