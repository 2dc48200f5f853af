"""Replaying recorded cases, to see that a machine computes what it should.

A case is an ``.npz`` with a small federation and the right answers, from an independent implementation:
``X, y, card, o, n, client (-1 = test row), n_clients, rounds, local_steps, initial_weight, pseudocount,
aggregation, parent_sets``, and as far as present ``w{i}_prior (o)``, ``w{i}_parents (o, q)``, ``w{i}_child{j}
(o, q, arity_j)`` and ``objective{i} (T, C)`` of the i-th parent set, ``federated_posterior (C, rows, o)``,
``federated_accuracy (T, C)``, ``local_generative_*`` and ``pooled_generative_*``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import ande
from fedande_mpi.cell import Cell, Discriminative
from fedande_mpi.errors import DataError
from fedande_mpi.federation import UnitResult, run_unit
from fedande_mpi.links import Communicator
from fedande_mpi.planning import arrange_unit
from fedande_mpi.unit import Unit

TOLERANCE = 1e-6
"""Largest difference that passes: absolute, for the objective relative."""

_REQUIRED = (
    *("X", "y", "card", "o", "n", "client"),
    *("n_clients", "rounds", "local_steps", "initial_weight", "pseudocount"),
)

Differences = dict[str, float]


def read_case(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read a recorded case.

    Raises
    ------
    DataError
        When the file is not a recorded case.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            case = dict(file)
    except OSError as error:
        raise DataError(f"expected a recorded case (.npz), got {path}: {error.strerror or error}") from error
    except (TypeError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(
            f"expected a recorded case (.npz), got {path}, which is not a NumPy archive"
        ) from error
    missing = [name for name in _REQUIRED if name not in case]
    if missing:
        raise DataError(f"expected a recorded case, got {path} without {', '.join(missing)}")
    return case


def verify_case(
    comm: Communicator,
    case: Mapping[str, NDArray[Any]] | None,
    *,
    transport: str = "gather",
    shards: int | None = None,
    block_mib: float = 64.0,
    optimizer: str = "compiled",
    poll: Callable[[], None] = lambda: None,
) -> Differences | None:
    """Replay a case on all ranks; collective.

    Parameters
    ----------
    comm : Communicator
    case : mapping of str to array, or None
        As `read_case` returns it; only rank 0's counts.
    transport, shards, block_mib, optimizer
        As in an experiment.
    poll : callable
        See `run_unit`.

    Raises
    ------
    DataError
        When the case records nothing to compare.

    Returns
    -------
    dict of str to float, or None
        On rank 0 the largest difference of ``weights``, ``objective`` (relative), ``posterior`` and
        ``accuracy``; NaN for what the case does not record.
    """
    case = comm.share(case)
    common: dict[str, Any] = {
        "dataset": "case",
        "n": int(case["n"]),
        "clients": int(case["n_clients"]),
        "pseudocount": float(case["pseudocount"]),
        "save": ("weights", "predictions"),
        "transport": transport,
        "shards": shards,
        "block_mib": block_mib,
        "optimizer": optimizer,
    }
    solver = Discriminative(
        rounds=int(case["rounds"]),
        local_steps=int(case["local_steps"]),
        initial_weight=float(case["initial_weight"]),
        aggregation=str(case.get("aggregation", np.array("mean"))),
    )
    cells = {
        "federated": Cell(method="discriminative", scope="federated", discriminative=solver, **common),
        "local_generative": Cell(method="generative", scope="local", **common),
        "pooled_generative": Cell(method="generative", scope="federated", **common),
    }
    found: dict[str, list[float]] = {name: [] for name in ("weights", "objective", "posterior", "accuracy")}
    for name, cell in cells.items():
        unit = Unit(
            cell=cell,
            X=np.ascontiguousarray(case["X"], dtype=np.int32),
            y=np.ascontiguousarray(case["y"], dtype=np.int32),
            arity=case["card"].astype(np.int64),
            n_classes=int(case["o"]),
            digest="",
            owner=case["client"].astype(np.int32),
            repeat=0,
            fold=0,
        )
        if "parent_sets" in case and not np.array_equal(case["parent_sets"], unit.sets):
            raise DataError(
                f"expected a recorded case of the {len(unit.sets)} sets of {cell.n} of the {unit.arity.size} "
                "attributes in lexicographic order, got other parent_sets: its weights belong to other sets"
            )
        result = run_unit(comm, unit, arrange_unit(unit, comm.size), poll)
        if result is not None:
            _compare_scores(name, case, result, found)
        if name == "federated":
            if result is not None:
                _compare_weights(case, unit, result, found)
            for index in range(len(unit.sets)):
                if f"objective{index}" in case:
                    # what is reported is the sum over the sets that are computed
                    others = np.arange(len(unit.sets)) != index
                    alone = run_unit(comm, unit, arrange_unit(unit, comm.size, others), poll)
                    if alone is not None:
                        found["objective"].append(_relative(case[f"objective{index}"], alone.objective[1:]))
    if comm.rank != 0:
        return None
    if not any(found.values()):
        raise DataError(
            "expected a recorded case with weights, objectives, posteriors or accuracies, got one without any: "
            "there is nothing to compare"
        )
    return {name: max(values, default=float("nan")) for name, values in found.items()}


def _largest(expected: NDArray[Any], got: NDArray[Any]) -> float:
    if expected.shape != got.shape:
        return float("inf")
    difference = float(np.max(np.abs(expected - got), initial=0.0))
    return float("inf") if np.isnan(difference) else difference  # what is not a number agrees with nothing


def _relative(expected: NDArray[Any], got: NDArray[Any]) -> float:
    scale = np.where(expected == 0.0, 1.0, np.abs(expected))  # 0 of a client without rows
    return _largest(expected / scale, got / scale) if expected.shape == got.shape else float("inf")


def _compare_scores(
    name: str, case: Mapping[str, NDArray[Any]], result: UnitResult, found: dict[str, list[float]]
) -> None:
    if f"{name}_posterior" in case and result.posterior is not None:
        expected = case[f"{name}_posterior"]
        got = result.posterior if expected.ndim == 3 else result.posterior[0]
        found["posterior"].append(_largest(expected, got))
    if f"{name}_accuracy" in case:
        expected = case[f"{name}_accuracy"]
        accuracy = result.metrics[:, 0]
        got = accuracy[1:] if expected.ndim == 2 else accuracy[0] if expected.ndim == 1 else accuracy[0, 0]
        found["accuracy"].append(_largest(expected, np.asarray(got)))


def _compare_weights(
    case: Mapping[str, NDArray[Any]], unit: Unit, result: UnitResult, found: dict[str, list[float]]
) -> None:
    for index, parents in enumerate(unit.sets):
        tables = ande.unpack(result.weights[index], parents, unit.arity, unit.n_classes)
        for part, got in tables.items():
            if f"w{index}_{part}" in case:
                found["weights"].append(_largest(case[f"w{index}_{part}"], got))
