"""Result files as a tidy pandas frame or an xarray tree (extra ``analysis``)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedande_mpi.celldata import CellData
from fedande_mpi.conditions import known_epsilon, n_clients
from fedande_mpi.errors import ResultsError
from fedande_mpi.formatting import format_table
from fedande_mpi.merging import Paths, read_cells
from fedande_mpi.reporting import summarise, table, table_rows
from fedande_mpi.results import SAVED_GROUP, cell_groups
from fedande_mpi.schema import FIELDS, SIDECAR_FORMAT
from fedande_mpi.storage import open_whole

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = ["format_table", "open_results", "open_tree", "summarise", "table", "table_rows"]

_MEASURES = tuple(f for f in FIELDS if f.path.startswith(("/test/", "/train/")))
_GROUPS = tuple(dict.fromkeys(f.path.split("/")[1] for f in FIELDS if f.path.count("/") > 1))


def _needs(function: str, *names: str) -> list[ModuleType]:
    """Import packages of the extra ``analysis``, or say how to get them."""
    import importlib

    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise ResultsError(
            f"{function} expects {' and '.join(names)}, {error.name or 'one of them'} is not installed; "
            "pip install 'fedande-mpi[analysis]'"
        ) from error


def open_results(paths: Paths) -> pd.DataFrame:
    """Read results into one tidy frame.

    Parameters
    ----------
    paths : str, Path or iterable of them
        Result files, merged files, directories (with all below them), glob patterns.

    Returns
    -------
    pandas.DataFrame
        One row for each cell, complete (repeat, fold), round and client. Columns: ``dataset, model, n,
        method, scope, clients, epsilon`` (``inf`` for exact counts, NaN for discriminative models),
        ``epsilon_scope, sensitivity``, every other setting of the cells, ``repeat, fold, round, client``,
        and the datasets of ``/test`` and ``/train`` under their names. What was not evaluated is NaN.

    Raises
    ------
    ResultsError
        If a file cannot be read, or pandas is not installed.
    """
    (pandas,) = _needs("open_results", "pandas")
    cells = read_cells(paths, (FIELDS[0], *_MEASURES))
    frames = [pandas.DataFrame(_columns(cell)) for cell in cells]
    filled = [frame for frame in frames if len(frame)] or frames[:1]
    names = ["dataset", "model", "n", "method", "scope", "clients", "epsilon", "epsilon_scope", "sensitivity"]
    settings = dict.fromkeys(key for cell in cells for key in sorted(cell.info.settings) if key not in names)
    index = ["repeat", "fold", "round", "client"]
    measures = [f.path.rpartition("/")[2] for f in _MEASURES]
    result: pd.DataFrame = pandas.concat(filled, ignore_index=True)
    return result.reindex(columns=[*names, *settings, *index, *measures])


def _columns(cell: CellData) -> dict[str, Any]:
    """Columns of one cell's frame."""
    info = cell.info
    units = np.array(cell.complete_units(), dtype=np.int64).reshape(-1, 2)
    shape = (len(units), len(info.rounds), info.sizes["client"])
    rows = int(np.prod(shape))
    epsilon = known_epsilon(info)
    given: dict[str, Any] = {
        "dataset": info.dataset,
        "model": info.model,
        "n": info.n,
        "method": info.method,
        "scope": info.scope,
        "clients": n_clients(info),
        "epsilon": np.nan if epsilon is None else epsilon,
        "epsilon_scope": info.epsilon_scope,
        "sensitivity": info.sensitivity,
    }
    given = {**info.settings, **given}
    columns: dict[str, Any] = {key: [value] * rows for key, value in given.items()}
    columns["repeat"] = np.broadcast_to(units[:, 0, None, None], shape).ravel()
    columns["fold"] = np.broadcast_to(units[:, 1, None, None], shape).ravel()
    columns["round"] = np.broadcast_to(np.array(info.rounds)[None, :, None], shape).ravel()
    columns["client"] = np.broadcast_to(np.arange(shape[2])[None, None, :], shape).ravel()
    for field in _MEASURES:
        columns[field.path.rpartition("/")[2]] = cell.arrays[field.path][units[:, 0], units[:, 1]].ravel()
    return columns


def open_tree(path: str | Path) -> xr.DataTree:
    """Open a result file as a tree of labelled arrays, read when they are used.

    Unlike ``xarray.open_datatree`` it follows the links to sidecars: those that exist appear under
    ``/saved/r<repeat>_f<fold>``. (netCDF readers resolve the dimensions of a linked file in the wrong one.)

    Parameters
    ----------
    path : str or Path
        A cell, a merged file, or a sidecar.

    Returns
    -------
    xarray.DataTree
        With the file's groups; close it when done.

    Raises
    ------
    ResultsError
        If the file cannot be read, or xarray and h5netcdf are not installed.
    """
    xarray, _ = _needs("open_tree", "xarray", "h5netcdf")
    path = Path(path)
    groups: list[str] = []
    sidecars: dict[str, Path] = {}
    with open_whole(path) as file:
        cells = [] if file.attrs.get("format") == SIDECAR_FORMAT else cell_groups(file, path)
        for _, cell in cells:
            prefix = cell.name.rstrip("/")
            groups += [prefix, *(f"{prefix}/{group}" for group in _GROUPS if group in cell)]
            for key in cell.get(SAVED_GROUP, ()):
                link = cell[SAVED_GROUP].get(key, getlink=True)
                sidecars[f"{prefix}/{SAVED_GROUP}/{key}"] = path.parent / link.filename
    if not sidecars:
        tree: xr.DataTree = xarray.open_datatree(path, engine="h5netcdf")
        return tree
    parts = {group: xarray.open_dataset(path, engine="h5netcdf", group=group or "/") for group in groups}
    opened: list[xr.Dataset | xr.DataTree] = list(parts.values())
    for place, sidecar in sidecars.items():
        if sidecar.is_file():
            linked = xarray.open_datatree(sidecar, engine="h5netcdf")
            opened.append(linked)
            parts |= {place + name.rstrip("/"): part for name, part in linked.to_dict().items()}
    tree = xarray.DataTree.from_dict({name or "/": part for name, part in parts.items()})

    def close() -> None:
        for each in opened:
            each.close()

    tree.set_close(close)
    return tree
