"""Checks of a result file against the schema."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from fedande_mpi.celldata import CellData
from fedande_mpi.errors import ResultsError
from fedande_mpi.results import cell_groups, read_group
from fedande_mpi.schema import ATTRIBUTES, DIMENSIONS, FIELDS, Field
from fedande_mpi.storage import open_whole


def validate(path: str | Path) -> list[str]:
    """Check a file, with one cell or merged, against the schema.

    Datasets and attributes that the schema does not know are no problem: within a format version fields
    may be added.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    list of str
        What is wrong, one line each; empty when nothing is.
    """
    path = Path(path)
    problems: list[str] = []
    try:
        with open_whole(path) as file:
            for name, group in cell_groups(file, path):
                found = _structure(group)
                if not found:
                    found = _content(read_group(name, group, path))
                problems += [f"{path.name}: {name}: {problem}" for problem in found]
    except ResultsError as error:
        problems.append(str(error))
    return problems


def _structure(group: h5py.Group) -> list[str]:
    problems: list[str] = []
    for attribute in ATTRIBUTES:
        if attribute.name not in group.attrs:
            problems.append(f"attribute {attribute.name} is missing")
        elif not isinstance(group.attrs[attribute.name], _KINDS[attribute.kind]):
            problems.append(f"attribute {attribute.name} is no {attribute.kind.__name__}")
    for dim in DIMENSIONS:
        if not isinstance(group.get(dim.name), h5py.Dataset):
            problems.append(f"dimension scale {dim.name} is missing")
        elif not group[dim.name].is_scale:
            problems.append(f"{dim.name} is no dimension scale")
    for field in FIELDS:
        dataset = group.get(field.path.lstrip("/"))
        if not isinstance(dataset, h5py.Dataset):
            problems.append(f"dataset {field.path} is missing")
        else:
            problems += [f"{field.path}: {problem}" for problem in _field(group, field, dataset)]
    return problems


_KINDS: dict[type, tuple[type, ...]] = {
    str: (str,),
    int: (int, np.integer),
    float: (float, np.floating),
}


def _field(group: h5py.Group, field: Field, dataset: h5py.Dataset) -> list[str]:
    problems: list[str] = []
    string = h5py.check_string_dtype(dataset.dtype)
    if field.is_text:
        if string is None or string.encoding != "utf-8":
            problems.append("expected UTF-8 strings")
    elif dataset.dtype != np.dtype(field.dtype):
        problems.append(f"expected type {field.dtype}, found {dataset.dtype}")
    if dataset.ndim != len(field.dims):
        return [*problems, f"expected dimensions {field.dims}, found shape {dataset.shape}"]
    for axis, name in enumerate(field.dims):
        scale = group.get(name)
        if scale is None:
            continue  # reported already
        if not any(attached == scale for attached in dataset.dims[axis].values()):
            problems.append(f"dimension {axis} is not attached to the scale {name}")
        elif scale.size != dataset.shape[axis]:
            problems.append(f"has {dataset.shape[axis]} along {name}, expected {scale.size}")
    if dataset.attrs.get("units") != field.units:
        problems.append(f"expected units {field.units!r}, found {dataset.attrs.get('units')!r}")
    if not dataset.attrs.get("description"):
        problems.append("has no description")
    return problems


def _content(cell: CellData) -> list[str]:
    """Check the values of the complete units."""
    problems: list[str] = []
    if not np.isin(cell.arrays["/complete"], (0, 1)).all():
        problems.append("/complete: expected 0 or 1")
    for repeat, fold in cell.complete_units():
        where = f"repeat {repeat}, fold {fold}"
        held_out = cell.arrays["/folds/test_fold"][repeat] == fold
        owner = cell.arrays["/folds/owner"][repeat, fold]
        if not np.array_equal(owner == -1, held_out):
            problems.append(f"{where}: /folds/owner holds out other rows than /folds/test_fold")
        if owner.min() < -1 or owner.max() >= cell.info.sizes["client"]:
            problems.append(f"{where}: /folds/owner names a client that does not exist")
        accuracy = cell.arrays["/test/accuracy"][repeat, fold]
        if np.isnan(accuracy).all():
            problems.append(f"{where}: no round was evaluated")
        for path, low, high in _RANGES:
            values = cell.arrays[path][repeat, fold]
            if np.any((values < low) | (values > high)):
                problems.append(f"{where}: {path} is outside {low:g} to {high:g}")
    return problems


# Sums of rounded probabilities may pass their bounds in the last place.
_RANGES = (
    ("/test/accuracy", 0.0, 1.0),
    ("/test/cll", -np.inf, 1e-9),
    ("/test/brier", 0.0, 2.0 + 1e-9),
    ("/test/macro_f1", 0.0, 1.0 + 1e-9),
)
