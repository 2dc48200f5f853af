"""Cells of any type as codes of categories, column by column: what an estimator does to its input.

Numbers and texts are categories alike; ``1``, ``1.0`` and ``numpy.int64(1)`` are one, ``1`` and ``"1"`` are
two. None, NaN, NaT and ``pandas.NA`` are missing cells.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedande_mpi.errors import DataError


class InputError(DataError, ValueError):
    """Rows that an estimator cannot take; a ValueError too, as scikit-learn's tools expect."""


@dataclass(frozen=True, eq=False)
class Cells:
    """One column as given.

    Attributes
    ----------
    name : str
        For messages.
    values : list
        Its distinct values, none of them missing.
    codes : (m,) array of int64
        Position of each cell's value in ``values``, -1 where missing.
    declared : bool
        Whether ``values`` are declared categories in their order, those that do not occur included.
    """

    name: str
    values: list[Hashable]
    codes: NDArray[np.int64]
    declared: bool


@dataclass(frozen=True, eq=False)
class Categories:
    """The categories of one column, in the order of their codes.

    Attributes
    ----------
    values : list
        Distinct values.
    missing : int
        The code of a missing cell: one past the values', or -1 where missing cells have no value.
    """

    values: list[Hashable]
    missing: int

    @property
    def arity(self) -> int:
        """Number of codes; 1 for a column without a value, which is missing throughout."""
        return max(1, len(self.values) + (self.missing >= 0))


def is_frame(X: Any) -> bool:
    """Say whether `X` is a pandas DataFrame, whose columns have types of their own."""
    return all(hasattr(X, name) for name in ("iloc", "dtypes", "columns"))


def columns_of(X: Any) -> Iterator[Cells]:
    """Yield the columns of a pandas DataFrame or an array of shape (m, d).

    Raises
    ------
    InputError
        When a cell cannot be a category.
    """
    frame = is_frame(X)
    for j in range(X.shape[1]):
        column = X.iloc[:, j] if frame else X[:, j]
        name = f"column {X.columns[j]!r}" if frame else f"column {j}"
        if frame and hasattr(column, "cat"):
            codes = column.cat.codes.to_numpy().astype(np.int64)
            yield Cells(name, list(column.cat.categories), codes, True)
        else:
            yield _distinct(name, column.to_numpy() if frame else column)


def _distinct(name: str, cells: NDArray[Any]) -> Cells:
    values: list[Any]
    if cells.dtype.kind == "O":
        seen: dict[Hashable, int] = {}
        try:
            codes = np.fromiter((seen.setdefault(cell, len(seen)) for cell in cells), np.int64, cells.size)
        except TypeError:
            wrong = next(cell for cell in cells if not isinstance(cell, Hashable))
            raise InputError(
                f"expected numbers or texts as categories, got a cell of type {type(wrong).__name__} in {name}"
            ) from None
        values = list(seen)
    else:
        distinct, codes = np.unique(cells, return_inverse=True)
        values = distinct.tolist() if distinct.dtype.kind not in "mM" else list(distinct)
    absent = np.array([_is_missing(value) for value in values], dtype=bool)
    number = np.where(absent, -1, np.cumsum(~absent) - 1)
    present = [value for value, gone in zip(values, absent, strict=True) if not gone]
    return Cells(name, present, number[codes] if values else codes, False)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)
    except TypeError:  # pandas.NA: whether it differs from itself is unknown to it
        return True


def learn(
    cells: Cells, declared: ArrayLike | None, *, missing_is_value: bool, handle_unknown: str
) -> tuple[Categories, NDArray[np.int32]]:
    """Choose the categories of a column and code its cells.

    Parameters
    ----------
    cells : Cells
        The column of the training rows.
    declared : sequence, optional
        The categories in order, a missing value among them if missing cells are a category though none
        occurs; default: those its type declares, else what occurs, sorted.
    missing_is_value : bool
        Whether missing cells, if there are any, get a category of their own, coded last.
    handle_unknown : {"ignore", "error"}
        See `encode`; for cells that are not among the declared categories.

    Returns
    -------
    categories : Categories
    codes : (m,) array of int32
    """
    has_missing = bool((cells.codes < 0).any())
    if declared is not None:
        given = np.asarray(declared, dtype=object).tolist()
        values: list[Hashable] = [value for value in given if not _is_missing(value)]
        has_missing |= len(values) < len(given)
        if len(set(values)) < len(values):
            raise InputError(f"expected distinct categories, got {_some(values)} for {cells.name}")
    else:
        values = cells.values if cells.declared else _sorted(cells.values)
    categories = Categories(values, len(values) if missing_is_value and has_missing else -1)
    codes = encode(cells, categories, missing_is_value=missing_is_value, handle_unknown=handle_unknown)
    return categories, codes


def _sorted(values: Iterable[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:  # of several types
        return sorted(values, key=lambda value: (type(value).__name__, str(value)))


def encode(
    cells: Cells, categories: Categories, *, missing_is_value: bool, handle_unknown: str
) -> NDArray[np.int32]:
    """Code the cells of a column.

    Parameters
    ----------
    cells : Cells
    categories : Categories
    missing_is_value : bool
        Whether a missing cell is unknown where missing cells are no category.
    handle_unknown : {"ignore", "error"}
        Code unknown cells -1, or refuse them.

    Returns
    -------
    (m,) array of int32

    Raises
    ------
    InputError
        For unknown cells under ``"error"``.
    """
    code_of = {value: code for code, value in enumerate(categories.values)}
    codes = np.array(
        [*(code_of.get(value, -1) for value in cells.values), categories.missing], dtype=np.int32
    )
    if handle_unknown == "error":
        occurs = np.bincount(cells.codes + 1, minlength=len(cells.values) + 1) > 0
        unknown: list[Hashable] = [
            value for code, value in enumerate(cells.values) if codes[code] < 0 and occurs[code + 1]
        ]
        if occurs[0] and missing_is_value and categories.missing < 0:
            unknown.append(None)
        if unknown:
            raise InputError(
                f"expected the categories of the training rows, got unknown {_some(unknown)} in {cells.name}: "
                "declare them in categories, or set handle_unknown='ignore'"
            )
    return np.asarray(codes[cells.codes])  # -1 is the last


def _some(values: Sequence[Any], most: int = 5) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(repr(value) for value in values[:most]) + more


def as_array(values: Sequence[Hashable]) -> NDArray[Any]:
    """Return categories as an array: of texts or numbers where all of them are, else of objects."""
    for kind in (str, bool, int, float):
        if values and all(isinstance(value, kind) for value in values):
            return np.array(values)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
