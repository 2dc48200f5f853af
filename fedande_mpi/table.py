"""The form in which every source hands its data over: columns of coded text.

A :class:`Column` is a list of distinct values and one code per row, whatever the source and the type.
Numeric columns are coded too (their values are the numbers' texts), so that one rule decides later
whether a column is used as it is, cut into bins, or refused.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.errors import DataError

Kind = Literal["nominal", "numeric", "string", "date"]
Missing = Literal["value", "ignore"]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, eq=False)
class Column:
    """One column as read, before anything is decided about it.

    Attributes
    ----------
    name : str
        The column's name.
    kind : {"nominal", "numeric", "string", "date"}
        What the source says it is. Only nominal columns can be used without the user's word.
    values : tuple of str
        Distinct values in the order of their codes: as declared, or sorted when nothing declares them.
    codes : ndarray of int32, shape (m,)
        Position of each row's value in `values`; -1 = missing.
    """

    name: str
    kind: Kind
    values: tuple[str, ...]
    codes: NDArray[np.int32]

    def numbers(self) -> NDArray[np.float64]:
        """Return the values as numbers, NaN where missing, shape ``(m,)``."""
        return np.array([*(float(value) for value in self.values), np.nan])[self.codes]


@dataclass(frozen=True, eq=False)
class Table:
    """All columns of a source, in its order.

    Attributes
    ----------
    columns : tuple of Column
        Every column, the class included.
    target : str or None
        The class as the source names it; None = the last column.
    drop : frozenset of str
        Columns that are no attributes (row identifiers).
    """

    columns: tuple[Column, ...]
    target: str | None = None
    drop: frozenset[str] = frozenset()


def is_number(text: str) -> bool:
    """Whether `text` is a finite decimal number (``nan`` and ``inf`` are words)."""
    return _NUMBER.fullmatch(text) is not None and np.isfinite(float(text))


def number_text(number: float) -> str:
    """Return the shortest text of a number; whole numbers carry no point."""
    return f"{number:.0f}" if number.is_integer() and abs(number) < 1e16 else repr(number)


def sorted_values(values: set[str]) -> tuple[str, ...]:
    """Sort distinct values: as numbers if all of them are, else as text."""
    if all(is_number(value) for value in values):
        return tuple(sorted(values, key=lambda value: (float(value), value)))
    return tuple(sorted(values))


def encode(cells: Sequence[str | None], values: Sequence[str]) -> NDArray[np.int32]:
    """Code the cells of one column, shape ``(m,)``; None becomes -1.

    Raises
    ------
    KeyError
        If a cell is not one of `values`.
    """
    code: dict[str | None, int] = {value: i for i, value in enumerate(values)}
    code[None] = -1
    return np.fromiter(map(code.__getitem__, cells), np.int32, count=len(cells))


def observed_column(name: str, cells: Sequence[str | None], kind: Kind = "nominal") -> Column:
    """Return a column whose values are those that occur, sorted."""
    values = sorted_values({cell for cell in set(cells) if cell is not None})
    return Column(name, kind, values, encode(cells, values))


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a text file, gzipped or not, and turn what can go wrong while it is read into one clear line.

    Raises
    ------
    DataError
        If the file is absent, unreadable, damaged or not UTF-8 text.
    """
    try:
        # utf-8-sig: spreadsheets and Windows editors put a byte-order mark first
        opener = gzip.open if path.name.lower().endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; expected an .arff or .csv file (.gz too)") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8 text, got byte 0x{error.object[error.start]:02x}; "
            "convert it, for instance with iconv -f latin1 -t utf-8"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected an .arff or .csv file") from None


def missing_name(values: Sequence[str]) -> str:
    """Return a name for missing cells that no value has: ``?``, or more of them."""
    name = "?"
    while name in values:  # a file may declare a quoted '?'
        name += "?"
    return name


def code_missing(
    values: tuple[str, ...], codes: NDArray[np.int32], missing: Missing
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Give missing cells (-1) a value of their own, coded last, unless they are to be ignored.

    Parameters
    ----------
    values : tuple of str
        Names of the values.
    codes : ndarray of int32, shape (m,)
        Codes of the cells.
    missing : {"value", "ignore"}
        What to do with missing cells.

    Returns
    -------
    values, codes
        As given, or one value longer.
    """
    absent = codes < 0
    if missing == "ignore" or not absent.any():
        return values, codes
    return (*values, missing_name(values)), np.where(absent, np.int32(len(values)), codes)


def canonical_order(columns: Sequence[Column]) -> NDArray[np.intp]:
    """Return the order of the rows that no source can change, shape ``(m,)``.

    Lexicographic in the names of the values, the first column counting most; numeric columns by size.
    Missing cells sort as ``?``, whatever becomes of them, and missing numbers last.
    """
    keys = [np.zeros(len(columns[0].codes), dtype=np.int64)]
    size = 1
    for column in columns:
        if column.kind == "numeric":
            distinct, rank = np.unique(column.numbers(), return_inverse=True)
            n_ranks = len(distinct)
        else:
            names = [*column.values, missing_name(column.values)]
            n_ranks = len(names)
            rank_of = np.empty(n_ranks, dtype=np.int64)
            rank_of[sorted(range(n_ranks), key=names.__getitem__)] = np.arange(n_ranks)
            rank = rank_of[column.codes]  # code -1 is the last name
        if size * n_ranks >= 2**62:  # a key packs as many columns as fit: one sort instead of many
            keys.append(np.zeros_like(keys[0]))
            size = 1
        keys[-1] = keys[-1] * n_ranks + rank
        size *= n_ranks
    return np.lexsort(keys[::-1])
