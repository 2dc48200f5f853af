"""Cells as HDF5 files: one file for each cell, always whole.

The fields are those of :mod:`fedande_mpi.schema`; ``docs/format.md`` is the page for readers.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fedande_mpi.celldata import CellData, CellInfo, extended
from fedande_mpi.errors import ResultsError
from fedande_mpi.schema import ATTRIBUTES, DIMENSIONS, FIELDS, FORMAT, FORMAT_VERSION, Array, Field
from fedande_mpi.settings import cell_settings, differing_keys
from fedande_mpi.storage import (
    check_writable,
    create_field,
    create_scales,
    open_whole,
    write_whole,
)

__all__ = ["CellData", "CellInfo", "check_writable", "open_cell", "read_cell", "write_cell"]

CELLS_GROUP = "cells"  # where a merged file keeps its cells
SAVED_GROUP = "saved"  # where a cell keeps the links to its sidecars

_COMPARED = (
    *("dataset", "dataset_sha256", "model", "n", "method", "scope", "n_clients", "epsilon", "epsilon_scope"),
    *("sensitivity", "rounds", "n_folds", "n_rows", "config_sha256"),
)


def open_cell(directory: str | Path, info: CellInfo, overwrite: bool = False) -> CellData:
    """Load the cell to continue it, or begin it.

    Parameters
    ----------
    directory : str or Path
    info : CellInfo
        What the cell must be. With more repeats than its file the arrays grow; with fewer the file's
        repeats stay.
    overwrite : bool
        Begin anew whatever is there; the old file stays until the first write.

    Returns
    -------
    CellData

    Raises
    ------
    ResultsError
        If the file is damaged (`DamagedFile`), of a newer format, or of another configuration or data set:
        the message names the differing keys.
    """
    path = Path(directory) / f"{info.name}.h5"
    if overwrite or not path.exists():
        return CellData.empty(info)
    stored = read_cell(path)
    different = _differences(stored.info, info)
    if different:
        raise ResultsError(
            f"{path}: was written for another experiment, it differs in {', '.join(different)}; "
            "choose another directory, or use --overwrite to replace it"
        )
    return extended(info, stored)


def _differences(stored: CellInfo, info: CellInfo) -> list[str]:
    different = differing_keys(stored.settings, cell_settings(info.settings, info.method))
    # A digest says that something differs, not what: it is named where nothing else is.
    for name in _COMPARED:
        before, now = getattr(stored, name), getattr(info, name)
        known = any(entry.split(" ")[0] in (name, name.removeprefix("n_")) for entry in different)
        if before != now and not known and not (name == "config_sha256" and different):
            shown = "" if name.endswith("sha256") else f" ({before!r} in the file, {now!r} asked for)"
            different.append(name + shown)
    return different


def write_cell(directory: str | Path, cell: CellData) -> Path:
    """Write a cell's file as a whole.

    Parameters
    ----------
    directory : str or Path
        Made if needed.
    cell : CellData

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ResultsError
        If it cannot be written; the old file is intact.
    """
    path = Path(directory) / f"{cell.info.name}.h5"
    write_whole(path, lambda file: fill_group(file, cell, path.parent))
    return path


def fill_group(group: h5py.Group, cell: CellData, directory: Path) -> None:
    """Write a cell into an open group; links to sidecars are relative to `directory`."""
    info = cell.info
    values: dict[str, Any] = {a.name: getattr(info, a.name) for a in ATTRIBUTES if hasattr(info, a.name)}
    values |= {"format": FORMAT, "format_version": FORMAT_VERSION, "created": cell.created}
    values["epsilon"] = np.nan if info.epsilon is None else info.epsilon
    for attribute in ATTRIBUTES:
        group.attrs[attribute.name] = attribute.kind(values[attribute.name])
    scales = create_scales(group, DIMENSIONS, info.sizes, {"round": np.asarray(info.rounds)})
    for known in FIELDS:
        create_field(group, known, cell.arrays[known.path], scales)
    for (repeat, fold), sidecar in sorted(cell.saved.items()):
        relative = os.path.relpath(sidecar, directory)
        group[f"{SAVED_GROUP}/r{repeat}_f{fold}"] = h5py.ExternalLink(relative, "/")


def read_cell(path: str | Path) -> CellData:
    """Read a file with one cell.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    CellData

    Raises
    ------
    ResultsError
        If the file is absent, damaged, of another or a newer format, or holds several cells.
    """
    path = Path(path)
    with open_whole(path) as file:
        groups = list(cell_groups(file, path))
        if len(groups) != 1:
            raise ResultsError(f"{path}: expected one cell, found {len(groups)}; read it with read_cells")
        return read_group(*groups[0], path)


def cell_groups(file: h5py.File, path: Path) -> Iterator[tuple[str, h5py.Group]]:
    """Name and group of each cell in an open file.

    Raises
    ------
    ResultsError
        If the file is of another or a newer format.
    """
    check_format(file, path, FORMAT)
    if CELLS_GROUP not in file:
        yield path.stem, file
        return
    for name, group in file[CELLS_GROUP].items():
        check_format(group, path, FORMAT)
        yield name, group


def check_format(group: h5py.Group, path: Path, expected: str) -> None:
    """Refuse a file of another format, or of a newer version."""
    found = group.attrs.get("format")
    if found != expected:
        raise ResultsError(
            f"{path}: expected format '{expected}', found {found!r}; it was not written by fedande"
        )
    version = int(group.attrs["format_version"])
    if version > FORMAT_VERSION:
        raise ResultsError(
            f"{path}: has {expected} version {version}, this program reads up to {FORMAT_VERSION}; "
            "upgrade fedande_mpi"
        )


def read_group(name: str, group: h5py.Group, path: Path, fields: Iterable[Field] = FIELDS) -> CellData:
    """Read the cell in an open group of the file `path`."""
    given: dict[str, Any] = {}
    for attribute in ATTRIBUTES:
        value = group.attrs[attribute.name]
        given[attribute.name] = attribute.kind(value)
    created = given.pop("created")
    del given["format"], given["format_version"]
    epsilon = given.pop("epsilon")
    info = CellInfo(
        name=name,
        epsilon=None if np.isnan(epsilon) else epsilon,
        rounds=tuple(int(value) for value in group["round"][...]),
        n_repeats=group["repeat"].size,
        n_folds=group["fold"].size,
        n_rows=group["row"].size,
        settings=cell_settings(tomllib.loads(given["config"]), given["method"]),
        **given,
    )
    arrays = {known.path: _read_field(group, known, info) for known in fields}
    saved: dict[tuple[int, int], Path] = {}
    for key in group.get(SAVED_GROUP, ()):
        link = group[SAVED_GROUP].get(key, getlink=True)
        repeat, _, fold = key[1:].partition("_f")
        saved[int(repeat), int(fold)] = path.parent / link.filename
    return CellData(info, arrays, created, saved)


def _read_field(group: h5py.Group, known: Field, info: CellInfo) -> Array:
    key = known.path.lstrip("/")
    shape = known.shape(info.sizes)
    if key not in group:
        if known.path == "/complete":
            raise KeyError("no dataset /complete")
        return known.empty(info.sizes)  # the file is older than the field
    dataset = group[key]
    if dataset.shape != shape:
        raise ValueError(f"{known.path} has shape {dataset.shape} instead of {shape}")
    content: Array = dataset.asstr()[...] if known.is_text else dataset[...].astype(known.dtype, copy=False)
    return content
