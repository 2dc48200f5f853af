"""Weights and predictions of one (repeat, fold), in a file beside the cell (``save = [...]``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from fedande_mpi import ande
from fedande_mpi.celldata import CellData
from fedande_mpi.errors import ResultsError
from fedande_mpi.results import check_format
from fedande_mpi.schema import (
    FORMAT_VERSION,
    SIDECAR_ATTRIBUTES,
    SIDECAR_DIMENSIONS,
    SIDECAR_FIELDS,
    SIDECAR_FORMAT,
    Array,
)
from fedande_mpi.storage import create_field, create_scales, open_whole, write_whole

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[Any]

_BY_PATH = {f.path: f for f in SIDECAR_FIELDS}


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of every parent set after the last round.

    Attributes
    ----------
    values : ndarray, shape (models, total)
        ``models`` is 1 where all clients share the weights, otherwise C.
    offsets : ndarray, shape (sets + 1,)
        Block of parent set i is ``values[:, offsets[i]:offsets[i + 1]]``; see :func:`unpack_weights`.
    parent_sets : ndarray, shape (sets, n)
    arity : ndarray, shape (d,)
    """

    values: FloatArray
    offsets: IntArray
    parent_sets: IntArray
    arity: IntArray


@dataclass(frozen=True, eq=False)
class Predictions:
    """Posteriors of the fold's test rows after the last round.

    Attributes
    ----------
    posterior : ndarray, shape (C, rows, o)
    row : ndarray, shape (rows,)
        Index of each test row in canonical order.
    label : ndarray, shape (rows,)
        Its true class.
    """

    posterior: FloatArray
    row: IntArray
    label: IntArray


def unpack_weights(
    flat: FloatArray, parents: IntArray, arity: IntArray, n_classes: int
) -> dict[str, FloatArray]:
    """Take one parent set's block of weights apart, see `fedande_mpi.ande`.

    Parameters
    ----------
    flat : ndarray, shape (cells * o,)
    parents : ndarray, shape (n,)
        Attribute indices, ascending.
    arity : ndarray, shape (d,)
        Number of values of each attribute.
    n_classes : int
        o.

    Returns
    -------
    dict of str to ndarray
        ``prior`` (o,), ``parents`` (o, q) unless n = 0, and ``child{j}`` (o, q, arity_j) for every
        attribute j that is no parent. All are views of `flat`.

    Raises
    ------
    ResultsError
        If `flat` has not the size that follows from the rest.
    """
    expected = ande.n_cells(parents, arity) * n_classes
    if flat.shape != (expected,):
        raise ResultsError(
            f"weights of parent set {tuple(map(int, parents))}: expected shape ({expected},), "
            f"got {flat.shape}; check parents, arity and n_classes"
        )
    return ande.unpack(flat, parents, arity, n_classes)


def sidecar_path(directory: str | Path, name: str, repeat: int, fold: int) -> Path:
    """Path of a sidecar: ``<cell>.r<repeat>.f<fold>.h5``."""
    return Path(directory) / f"{name}.r{repeat}.f{fold}.h5"


def write_sidecar(
    directory: str | Path,
    cell: CellData,
    repeat: int,
    fold: int,
    *,
    weights: Weights | None = None,
    predictions: Predictions | None = None,
) -> Path:
    """Write the sidecar of a (repeat, fold) and have the cell link to it.

    Call it before the cell is written: a cell then never links to what is not there.

    Parameters
    ----------
    directory : str or Path
        Directory of the cell.
    cell : CellData
        The link is noted in its ``saved``.
    repeat, fold : int
    weights : Weights, optional
    predictions : Predictions, optional

    Returns
    -------
    Path
        The sidecar.

    Raises
    ------
    ResultsError
        If the sizes contradict each other, or the file cannot be written.
    """
    path = sidecar_path(directory, cell.info.name, repeat, fold)
    content = _content(path, weights, predictions)
    sizes: dict[str, int] = {}
    for name, array in content.items():
        for dim, size in zip(_BY_PATH[name].dims, array.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ResultsError(f"{path.name}: {name} has {size} along {dim}, expected {sizes[dim]}")
    attributes: dict[str, Any] = {"format": SIDECAR_FORMAT, "format_version": FORMAT_VERSION}
    attributes |= {"config_sha256": cell.info.config_sha256, "dataset_sha256": cell.info.dataset_sha256}
    attributes |= {"repeat": repeat, "fold": fold}

    def build(file: h5py.File) -> None:
        for attribute in SIDECAR_ATTRIBUTES:
            file.attrs[attribute.name] = attribute.kind(attributes[attribute.name])
        scales = create_scales(file, SIDECAR_DIMENSIONS, sizes)
        for name, array in content.items():
            create_field(file, _BY_PATH[name], array, scales)

    write_whole(path, build)
    cell.saved[repeat, fold] = path
    return path


def _content(path: Path, weights: Weights | None, predictions: Predictions | None) -> dict[str, Array]:
    content: dict[str, Array] = {}
    for group, holder in (("weights", weights), ("predictions", predictions)):
        if holder is None:
            continue
        for known in SIDECAR_FIELDS:
            _, owner, name = known.path.split("/")
            if owner == group:
                array = np.asarray(getattr(holder, name), dtype=known.dtype)
                if array.ndim != len(known.dims):
                    raise ResultsError(
                        f"{path.name}: {known.path} expects {known.dims}, got shape {array.shape}"
                    )
                content[known.path] = array
    if weights is not None:
        offsets, total = content["/weights/offsets"], content["/weights/values"].shape[1]
        if len(offsets) != len(weights.parent_sets) + 1 or offsets[0] != 0 or offsets[-1] != total:
            raise ResultsError(
                f"{path.name}: /weights/offsets expects {len(weights.parent_sets) + 1} numbers from 0 to "
                f"{total}, got {len(offsets)}"
            )
    return content


def read_sidecar(path: str | Path) -> tuple[Weights | None, Predictions | None]:
    """Read a sidecar.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    (Weights or None, Predictions or None)
        None for what the run did not save.

    Raises
    ------
    ResultsError
        If the file is absent, damaged, or of another or a newer format.
    """
    path = Path(path)
    with open_whole(path) as file:
        check_format(file, path, SIDECAR_FORMAT)
        arrays = {
            known.path.rpartition("/")[2]: file[known.path][...]
            for known in SIDECAR_FIELDS
            if known.path in file
        }
    weights = {name: arrays[name] for name in Weights.__dataclass_fields__ if name in arrays}
    predictions = {name: arrays[name] for name in Predictions.__dataclass_fields__ if name in arrays}
    return Weights(**weights) if weights else None, Predictions(**predictions) if predictions else None
