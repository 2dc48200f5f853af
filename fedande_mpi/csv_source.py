"""CSV files, by the standard library's reader.

The first line names the columns. An empty cell or ``?`` is missing. CSV declares no types, so a column
is nominal and its values are sorted (as numbers if all of them are); only a column of numbers of which
one at least is not whole is numeric. A column of whole numbers is nominal however many it holds: codes
and counts look the same, and cutting codes into bins would be silent damage.
"""

from __future__ import annotations

import csv
from pathlib import Path

from fedande_mpi.errors import DataError
from fedande_mpi.table import Column, Table, is_number, observed_column, open_text


def read_csv(path: Path) -> Table:
    """Read a CSV file with a header line.

    Parameters
    ----------
    path : Path
        The file; gzipped if the name ends in ``.gz``.

    Returns
    -------
    Table
        Columns in file order; values are sorted.

    Raises
    ------
    DataError
        If the file has no header, no row, an unnamed or repeated column, a row of another length, or
        cannot be read.
    """
    with open_text(path) as file:
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        try:
            header = _header(path, next((row for row in reader if row), None))
            rows = []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(
                        f"{path}: line {reader.line_num} has {len(row)} values, "
                        f"expected {len(header)} as in the header; mend the line"
                    )
                rows.append(row)
        except csv.Error as error:
            raise DataError(f"{path}: line {reader.line_num} is not CSV ({error}); mend the line") from None
    if not rows:
        raise DataError(f"{path}: expected rows below the header, got none")
    return Table(
        tuple(_column(name, cells) for name, cells in zip(header, zip(*rows, strict=True), strict=True))
    )


def _header(path: Path, row: list[str] | None) -> list[str]:
    if row is None:
        raise DataError(f"{path}: expected a header line and rows, got an empty file")
    names = [name.strip() for name in row]
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise DataError(f"{path}: expected columns separated by commas, got {names[0][:60]!r}")
    for position, name in enumerate(names, start=1):
        if not name:
            raise DataError(f"{path}: column {position} has no name in the header; name it or remove it")
        if names.count(name) > 1:
            raise DataError(f"{path}: the header names {name!r} twice; is the first line a header?")
    return names


def _column(name: str, cells: tuple[str, ...]) -> Column:
    stripped = [cell.strip() for cell in cells]
    column = observed_column(name, [None if cell in ("", "?") else cell for cell in stripped])
    if all(map(is_number, column.values)) and any(not float(value).is_integer() for value in column.values):
        return Column(name, "numeric", column.values, column.codes)
    return column
