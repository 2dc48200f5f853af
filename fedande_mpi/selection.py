"""Scores of cells for statistical tests: what :mod:`fedande_mpi.conditions` selects, unit by unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedande_mpi.celldata import CellData
from fedande_mpi.conditions import Selections, cell_keys, read_selected
from fedande_mpi.errors import ResultsError
from fedande_mpi.reporting import nan_mean
from fedande_mpi.schema import FIELDS

__all__ = ["Scores", "Selections", "common_units", "differing", "read_scores"]

METRICS = ("accuracy", "cll", "brier", "macro_f1")
LOWER_IS_BETTER = frozenset(("brier",))

# Settings that change no score of a last round, so that cells may differ in them.
_NO_MATTER = ("evaluate", "save")


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of a cell, one for each of its complete units.

    Attributes
    ----------
    keys : Mapping
        ``dataset, dataset_sha256, model, n, method, scope``, ``clients`` (none when centralised), ``epsilon``
        (none for discriminative models), and every other setting.
    values : Mapping of (int, int) to float
        For each (repeat, fold) the score at the last evaluated round, mean over the clients.
    test_folds : Mapping of int to bytes
        For each repeat of `values`, its division into folds.
    n_folds, n_rows : int
    name : str
        Of the cell.
    """

    keys: Mapping[str, Any]
    values: Mapping[tuple[int, int], float]
    test_folds: Mapping[int, bytes]
    n_folds: int
    n_rows: int
    name: str

    @property
    def mean(self) -> float:
        """Mean over the units."""
        return float(np.mean(list(self.values.values())))


def read_scores(selections: Selections, metric: str = "accuracy") -> list[Scores]:
    """Read the scores of the selected cells.

    Parameters
    ----------
    selections : str, Path or iterable of them
        Files, directories or patterns, each with conditions if need be.
    metric : {"accuracy", "cll", "brier", "macro_f1"}

    Returns
    -------
    list of Scores
        Each cell once; cells without a complete unit are left out.

    Raises
    ------
    ResultsError
        If a file cannot be read, a key or the metric is unknown, or a selection selects nothing.
    """
    if metric not in METRICS:
        raise ResultsError(f"metric: expected one of {', '.join(METRICS)}, got '{metric}'")
    fields = [f for f in FIELDS if f.path in ("/complete", "/folds/test_fold", f"/test/{metric}")]
    found = [_scores(cell, metric) for cell in read_selected(selections, fields)]
    found = [each for each in found if each.values]
    if not found:
        given = [selections] if isinstance(selections, str | Path) else list(selections)
        raise ResultsError(f"{', '.join(map(str, given))}: expected results of at least one fold, found none")
    return found


def _scores(cell: CellData, metric: str) -> Scores:
    info = cell.info
    keys = {key: value for key, value in cell_keys(info).items() if key not in _NO_MATTER}
    values: dict[tuple[int, int], float] = {}
    for unit in cell.complete_units():
        rounds = nan_mean(cell.arrays[f"/test/{metric}"][unit], axis=-1)
        evaluated = rounds[~np.isnan(rounds)]
        if evaluated.size:
            values[unit] = float(evaluated[-1])
    folds = {repeat: cell.arrays["/folds/test_fold"][repeat].tobytes() for repeat, _ in values}
    return Scores(keys, values, folds, info.n_folds, info.n_rows, info.name)


def differing(scores: Iterable[Scores]) -> list[str]:
    """Name the keys that some cells share but with several values, sorted; the model follows from n and method."""
    seen: dict[str, set[Any]] = {}
    for each in scores:
        for key, value in each.keys.items():
            seen.setdefault(key, set()).add(value)
    return sorted(key for key, values in seen.items() if len(values) > 1 and key != "model")


def common_units(scores: Sequence[Scores]) -> npt.NDArray[np.float64]:
    """Scores of several cells on the units that all of them have.

    Returns
    -------
    (number of cells, number of units) ndarray

    Raises
    ------
    ResultsError
        If the cells were not tested on the same folds: such scores make no pairs.
    """
    first = scores[0]
    units = sorted(set(first.values).intersection(*(each.values for each in scores[1:])))
    for each in scores[1:]:
        for repeat in {repeat for repeat, _ in units}:
            if each.n_folds != first.n_folds or each.test_folds[repeat] != first.test_folds[repeat]:
                raise ResultsError(
                    f"{first.name} and {each.name}: expected the same folds of the same rows, got others "
                    f"(they differ in {', '.join(differing((first, each)))}); run both with one seed"
                )
    return np.array([[each.values[unit] for unit in units] for each in scores]).reshape(len(scores), -1)
