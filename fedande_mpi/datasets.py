"""Data sets of coded nominal attributes, the same from every source.

Codes are positions in the declared value list, so that every rank and client shares one dictionary.
Rows are in canonical order (lexicographic in the names of the values, attributes in order, class last;
numbers by size), so that every source of a data set gives the same folds.

This module is the one to import from; :mod:`~fedande_mpi.registry` finds sources and the ``*_source``
modules read them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedande_mpi.columns import choose_columns, default_target
from fedande_mpi.errors import DataError
from fedande_mpi.known import KNOWN, KnownDataset, find_known
from fedande_mpi.registry import DatasetStatus, dataset_status, fetch, locate
from fedande_mpi.table import Missing, Table, canonical_order, code_missing, number_text

__all__ = [
    "KNOWN",
    "Dataset",
    "DatasetStatus",
    "KnownDataset",
    "check",
    "dataset_status",
    "discretise",
    "fetch",
    "load_dataset",
]

_EVERYTHING = "(-inf, inf)"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set; m instances, d attributes, o classes.

    Attributes
    ----------
    name : str
        A short name, fit for a file name.
    X : ndarray of int32, shape (m, d)
        Codes of the attributes' values; -1 = missing (only under ``missing="ignore"``).
    y : ndarray of int32, shape (m,)
        Codes of the classes.
    arity : ndarray of int64, shape (d,)
        Number of values of each attribute, the one added for missing cells included.
    attribute_names : tuple of str, length d
        Names of the attributes.
    value_names : tuple of tuple of str, length d
        Names of the values in the order of their codes; the one added for missing cells is last.
    class_names : tuple of str, length o
        Names of the classes in the order of their codes.
    numeric : mapping of int to ndarray of float64, shape (m,)
        Raw values (NaN = missing) of the attributes that :func:`discretise` still has to cut. Until
        then their column of `X` is 0 and their arity 1.
    n_dropped : int
        Rows dropped because their class is missing.
    missing : {"value", "ignore"}
        How missing cells are coded.
    """

    name: str
    X: NDArray[np.int32]
    y: NDArray[np.int32]
    arity: NDArray[np.int64]
    attribute_names: tuple[str, ...]
    value_names: tuple[tuple[str, ...], ...]
    class_names: tuple[str, ...]
    numeric: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    n_dropped: int = 0
    missing: Missing = "value"

    @property
    def n_instances(self) -> int:
        """Number of rows, m."""
        return len(self.X)

    @property
    def n_attributes(self) -> int:
        """Number of attributes without the class, d."""
        return len(self.attribute_names)

    @property
    def n_classes(self) -> int:
        """Number of declared classes, o."""
        return len(self.class_names)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of names, declared values, codes and numbers; not of the data set's name."""
        names = [self.attribute_names, self.value_names, self.class_names, self.X.shape, sorted(self.numeric)]
        sha = hashlib.sha256(json.dumps(names, ensure_ascii=True).encode())
        sha.update(np.ascontiguousarray(self.X, dtype="<i4").data)
        sha.update(np.ascontiguousarray(self.y, dtype="<i4").data)
        for j in sorted(self.numeric):
            # + 0.0 and one NaN: equal numbers, equal bytes
            number = np.where(np.isnan(self.numeric[j]), np.nan, self.numeric[j] + 0.0)
            sha.update(np.ascontiguousarray(number, dtype="<f8").data)
        return sha.hexdigest()

    def take(self, rows: ArrayLike) -> Dataset:
        """Return the given rows, in the given order, with the same dictionary.

        Parameters
        ----------
        rows : array_like of int, shape (k,), or of bool, shape (m,)
            The rows' positions, or which to keep.
        """
        index = np.asarray(rows)
        numeric = {j: number[index] for j, number in self.numeric.items()}
        return replace(self, X=self.X[index], y=self.y[index], numeric=numeric)


def load_dataset(
    source: str,
    *,
    target: str | None = None,
    data_dir: str | Path | None = None,
    missing: Missing = "value",
    bins: int | None = None,
    nominal: Collection[str] = (),
) -> Dataset:
    """Read a data set, whatever it comes from.

    Parameters
    ----------
    source : str
        A path to ``.arff`` or ``.csv`` (``.gz`` too), the name of a file in `data_dir` without its
        ending, one of the paper's twelve names, ``openml:ID``, or
        ``synthetic:m=...,d=...,o=...,arity=...,seed=...,kind=mixture|noise|xor``.
    target : str, optional
        Name of the class; default: what OpenML says, else the last column.
    data_dir : str or Path, optional
        Directory to look for names in before anything else; default: ``FEDANDE_DATA``.
    missing : {"value", "ignore"}
        ``"value"``: an attribute with a missing cell gains one value, coded last. ``"ignore"``: missing
        cells are coded -1.
    bins : int, optional
        Accept numeric attributes; :func:`discretise` cuts them into this many bins in each fold.
    nominal : collection of str
        Numeric or string attributes (or the class) to use as they are, each distinct value a category.

    Returns
    -------
    Dataset
        Rows in canonical order.

    Raises
    ------
    DataError
        If the source is unknown or cannot be read, a column is missing or has a type that is not
        allowed for, no row is left, or a named data set is not what the paper's table says.
    """
    if missing not in ("value", "ignore"):
        raise DataError(f"expected missing = 'value' or 'ignore', got {missing!r}")
    if bins is not None and bins < 2:
        raise DataError(f"expected bins >= 2, got {bins}")
    if isinstance(nominal, str):
        nominal = (nominal,)
    found = locate(source, data_dir)
    table = found.read()
    dataset = _assemble(found.name, table, target, missing, bins, nominal)
    if found.known is not None:
        _verify(dataset, found.known, found.description, target in (None, default_target(table)))
    return dataset


def check(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Load one of the twelve and verify m, d, o and the number of missing cells.

    Parameters
    ----------
    name : str
        A name of the table.
    data_dir : str or Path, optional
        As in :func:`load_dataset`.

    Returns
    -------
    Dataset
        The data set, under ``missing="ignore"``.

    Raises
    ------
    DataError
        If it cannot be read or differs from the table.
    """
    known = find_known(name)
    if known is None:
        raise DataError(f"expected one of {', '.join(known.name for known in KNOWN)}, got {name!r}")
    dataset = load_dataset(name, data_dir=data_dir, missing="ignore")
    cells = int((dataset.X < 0).sum())
    if cells != known.missing_cells:
        raise DataError(
            f"{name}: expected {known.missing_cells:,} missing cells, got {cells:,} "
            f"from {locate(name, data_dir).description}; use another copy"
        )
    return dataset


def discretise(dataset: Dataset, train_rows: ArrayLike, bins: int) -> Dataset:
    """Cut the numeric attributes into intervals that hold equally many training rows.

    The cut points are the training values at the fractions i/`bins` of the sorted training rows; an
    interval ends with its cut point. Cut points that coincide merge, and the largest training value is
    none, so no interval is empty of training rows and the arity may be below `bins`.

    Parameters
    ----------
    dataset : Dataset
        Returned as it is if nothing is numeric.
    train_rows : array_like of int, shape (k,)
        Rows that may be looked at.
    bins : int
        Intervals wanted, at least 2.

    Returns
    -------
    Dataset
        All rows, nothing numeric. Missing cells are coded as in the other attributes, and the value
        for them exists if any row of the data set lacks the attribute.

    Raises
    ------
    DataError
        If `bins` is below 2.
    """
    if not dataset.numeric:
        return dataset
    if bins < 2:
        raise DataError(f"expected bins >= 2, got {bins}")
    X, arity, value_names = dataset.X.copy(), dataset.arity.copy(), list(dataset.value_names)
    for j, number in dataset.numeric.items():
        absent = np.isnan(number)
        seen = number[np.asarray(train_rows)]
        seen = seen[~np.isnan(seen)]
        cuts = np.empty(0)
        if len(seen):
            # an observed value, so that no interpolation can depend on rounding
            cuts = np.unique(np.quantile(seen, np.arange(1, bins) / bins, method="inverted_cdf"))
            cuts = cuts[cuts < seen.max()]
        codes = np.where(absent, -1, np.searchsorted(cuts, number, side="left")).astype(np.int32)
        value_names[j], X[:, j] = code_missing(_interval_names(cuts), codes, dataset.missing)
        arity[j] = len(value_names[j])
    return replace(dataset, X=X, arity=arity, value_names=tuple(value_names), numeric={})


def _interval_names(cuts: NDArray[np.float64]) -> tuple[str, ...]:
    ends = [number_text(cut) for cut in cuts.tolist()]
    if not ends:
        return (_EVERYTHING,)
    inner = [f"({low}, {high}]" for low, high in pairwise(ends)]
    return (f"(-inf, {ends[0]}]", *inner, f"({ends[-1]}, inf)")


def _assemble(
    name: str, table: Table, target: str | None, missing: Missing, bins: int | None, nominal: Collection[str]
) -> Dataset:
    columns, label = choose_columns(name, table, target, bins, nominal)
    keep = label.codes >= 0
    n_dropped = int((~keep).sum())
    if n_dropped == len(keep):
        raise DataError(f"{name}: expected rows with a class, but {label.name!r} is missing in all")
    if n_dropped:
        columns = [replace(column, codes=column.codes[keep]) for column in columns]
        label = replace(label, codes=label.codes[keep])
    rows = canonical_order([*columns, label])

    X = np.zeros((len(rows), len(columns)), dtype=np.int32)
    value_names: list[tuple[str, ...]] = []
    numeric: dict[int, NDArray[np.float64]] = {}
    for j, column in enumerate(columns):
        if column.kind == "numeric":
            numeric[j] = column.numbers()[rows]
            value_names.append((_EVERYTHING,))
            continue
        values, X[:, j] = code_missing(column.values, column.codes[rows], missing)
        if not values:
            raise DataError(f"{name}: attribute {column.name!r} has no value in any row; remove the column")
        value_names.append(values)
    return Dataset(
        name=name,
        X=X,
        y=label.codes[rows],
        arity=np.array([len(values) for values in value_names], dtype=np.int64),
        attribute_names=tuple(column.name for column in columns),
        value_names=tuple(value_names),
        class_names=label.values,
        numeric=numeric,
        n_dropped=n_dropped,
        missing=missing,
    )


def _verify(dataset: Dataset, known: KnownDataset, where: str, usual_class: bool) -> None:
    # the table says nothing of how many values another class has
    n_classes = known.n_classes if usual_class else dataset.n_classes
    expected = (known.n_instances, known.n_attributes, n_classes)
    got = (dataset.n_instances, dataset.n_attributes, dataset.n_classes)
    if got != expected:
        numbers = ["m = {:,}, d = {}, o = {}".format(*triple) for triple in (expected, got)]
        raise DataError(
            f"{known.name}: expected {numbers[0]} as in the paper, got {numbers[1]} from {where}; "
            "use another copy, or give the file's path to use it as it is"
        )
