"""Result cells by their place in the grid, one for each, with what the figures need of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedande_mpi.cell import model_name
from fedande_mpi.celldata import CellData
from fedande_mpi.conditions import Selections, cell_keys, n_clients, read_selected
from fedande_mpi.errors import ResultsError
from fedande_mpi.known import KNOWN
from fedande_mpi.reporting import FloatArray, nan_mean
from fedande_mpi.schema import FIELDS

_PATHS = ("/complete", "/test/accuracy", "/communication/bytes_down", "/communication/bytes_up")
_FIELDS = tuple(f for f in FIELDS if f.path in _PATHS)


class Place(NamedTuple):
    """Where a cell stands in the grid."""

    dataset: str
    n: int
    method: str
    scope: str
    clients: int

    @property
    def model(self) -> str:
        """Name of the model, with ``-w`` when weighted."""
        return model_name(self.n, self.method)

    def at(self, dataset: str) -> Place:
        """Return the same place of another data set."""
        return self._replace(dataset=dataset)

    def __str__(self) -> str:
        """Return it in a few words, for messages."""
        return f"{self.dataset} {self.model} {self.method} {self.scope} C={self.clients}"


@dataclass(frozen=True)
class Measured:
    """A cell's accuracies.

    Attributes
    ----------
    keys : dict
        As :func:`~fedande_mpi.conditions.cell_keys`.
    rounds : tuple of int
    accuracy : (rounds,) array
        Mean over clients, then over the complete (repeat, fold); NaN where not evaluated.
    repeats : dict of int to (rounds,) array
        Means over clients and folds of every repeat that has as many folds as any.
    sent : (rounds,) array
        Bytes sent up to and including the round, both ways, all clients; mean over the units; NaN unknown.
    """

    keys: dict[str, Any]
    rounds: tuple[int, ...]
    accuracy: FloatArray
    repeats: dict[int, FloatArray]
    sent: FloatArray

    @property
    def last(self) -> int:
        """Index of the last evaluated round."""
        return int(np.flatnonzero(~np.isnan(self.accuracy))[-1])


@dataclass(frozen=True)
class Results:
    """Cells by place, never two at one.

    Attributes
    ----------
    cells : dict of Place to Measured
    datasets : list of str
        The paper's in its order, then others by name.
    """

    cells: dict[Place, Measured]
    datasets: list[str]


def read_results(paths: Selections) -> Results:
    """Read the cells with a complete (repeat, fold).

    Parameters
    ----------
    paths : str, Path or iterable of them
        Files, directories, glob patterns; as ``PATH:KEY=VALUE,...`` some of their cells.

    Returns
    -------
    Results

    Raises
    ------
    ResultsError
        If nothing is complete, or two cells have one place.
    """
    found: dict[Place, list[Measured]] = {}
    cells = read_selected(paths, _FIELDS)
    for cell in cells:
        measured = _measure(cell)
        if measured is not None:
            info = cell.info
            place = Place(info.dataset, info.n, info.method, info.scope, n_clients(info))
            found.setdefault(place, []).append(measured)
    if not found:
        raise ResultsError(
            f"expected results of at least one fold, found none in {len(cells)} cells; run them"
        )
    for place, rivals in found.items():
        if len(rivals) > 1:
            raise ResultsError(
                f"{place}: expected one cell to draw, found {len(rivals)} that differ in "
                f"{_difference(rivals)}; choose one with PATH:KEY=VALUE"
            )
    chosen = {place: rivals[0] for place, rivals in sorted(found.items())}
    return Results(chosen, in_order(place.dataset for place in chosen))


def in_order(datasets: Iterable[str]) -> list[str]:
    """Sort data sets: the paper's in its order, then others by name."""
    order = {known.name: index for index, known in enumerate(KNOWN)}
    return sorted(set(datasets), key=lambda name: (order.get(name, len(order)), name))


def _measure(cell: CellData) -> Measured | None:
    """Summarise a cell; None without an evaluated unit."""
    units = cell.complete_units()
    if not units:
        return None
    index = tuple(np.array(units).T)
    accuracy = nan_mean(cell.arrays["/test/accuracy"][index], axis=-1)  # (units, rounds)
    mean = nan_mean(accuracy, axis=0)
    if np.isnan(mean).all():
        return None
    folds = np.bincount(index[0], minlength=cell.info.n_repeats)
    sent = sum(
        np.where(cell.arrays[path][index] < 0, np.nan, cell.arrays[path][index]).cumsum(axis=-1)
        for path in _PATHS[2:]
    )
    return Measured(
        cell_keys(cell.info),
        cell.info.rounds,
        mean,
        {int(r): nan_mean(accuracy[index[0] == r], axis=0) for r in np.flatnonzero(folds == folds.max())},
        np.mean(sent, axis=0),
    )


def _differs(cells: list[Measured], key: str) -> bool:
    return any(cell.keys.get(key) != cells[0].keys.get(key) for cell in cells[1:])


def _difference(cells: list[Measured]) -> str:
    keys = sorted({key for cell in cells for key in cell.keys if _differs(cells, key)})
    parts = [f"{key} ({', '.join(str(cell.keys.get(key)) for cell in cells)})" for key in keys]
    return ", ".join(parts) or "nothing known"
