"""Which columns of a table are the attributes, which is the class, and what is refused."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Sequence
from dataclasses import replace

from fedande_mpi.errors import DataError
from fedande_mpi.table import Column, Table


def default_target(table: Table) -> str:
    """Return the name of the class unless the user chooses another: the source's, else the last."""
    return table.target or [column.name for column in table.columns if column.name not in table.drop][-1]


def choose_columns(
    name: str, table: Table, target: str | None, bins: int | None, nominal: Collection[str]
) -> tuple[list[Column], Column]:
    """Return the attributes, nominal or numeric, and the class, nominal.

    Parameters
    ----------
    name : str
        The data set, for messages.
    table : Table
        All columns of the source.
    target : str or None
        The class, if it is not the usual one.
    bins : int or None
        Numeric attributes are refused if None.
    nominal : collection of str
        Columns to use as they are, whatever their type.

    Raises
    ------
    DataError
        If a column is missing, or has a type that nothing allows.
    """
    columns = [column for column in table.columns if column.name not in table.drop or column.name == target]
    names = [column.name for column in columns]
    if len(columns) < 2:
        raise DataError(f"{name}: expected attributes and a class, got {len(columns)} column")
    for wanted in nominal:
        if wanted not in names:
            raise DataError(f"{name}: nominal: there is no column {wanted!r}{_near(wanted, names)}")
    columns = [replace(c, kind="nominal") if c.name in nominal else c for c in columns]
    wanted = target or default_target(table)
    if wanted not in names:
        raise DataError(f"{name}: there is no column {wanted!r} to be the class{_near(wanted, names)}")
    label = columns.pop(names.index(wanted))
    if label.kind != "nominal":
        raise DataError(
            f"{name}: expected a nominal class, got {label.name!r} of type {label.kind}; "
            f"choose another by target, or set nominal = [{json.dumps(label.name)}]"
        )
    if len(label.values) < 2:
        raise DataError(
            f"{name}: expected a class of two values or more, {label.name!r} has {len(label.values)}; "
            "choose another by target"
        )
    _refuse_types(name, columns, bins)
    return columns, label


def _refuse_types(name: str, columns: Sequence[Column], bins: int | None) -> None:
    numeric = [repr(column.name) for column in columns if column.kind == "numeric"]
    other = [f"{column.name!r} ({column.kind})" for column in columns if column.kind in ("string", "date")]
    if other:
        raise DataError(
            f"{name}: expected nominal or numeric attributes, got {_some(other)}; "
            "remove them, or list them in nominal to use each text as a category"
        )
    if numeric and bins is None:
        raise DataError(
            f"{name}: expected nominal attributes, got numeric {_some(numeric)}; "
            "set bins = k to cut them, or list them in nominal"
        )


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _near(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; the columns are {_some([repr(name) for name in names], most=10)}"
