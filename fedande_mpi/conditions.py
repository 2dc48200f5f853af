"""The small language that selects cells, for every command that reads results.

A selection is ``PATH`` or ``PATH:KEY=VALUE,...``: the cells found there whose keys have these values. Keys are
the columns of ``fedande table`` and every other setting; ``C`` stands for ``clients``. A key may have several
values, and text may hold the wildcards ``*`` and ``?``::

    results/paper:method=generative,epsilon=1,n=0,1
    results/paper:model=A2DE-w,scope=federated,dataset=kr-*
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedande_mpi.celldata import CellData, CellInfo
from fedande_mpi.errors import ResultsError
from fedande_mpi.formatting import value_text
from fedande_mpi.merging import read_cells
from fedande_mpi.schema import FIELDS, Field

Selections = str | Path | Iterable[str | Path]
Conditions = tuple[tuple[str, str], ...]

_KEY = re.compile(r"[A-Za-z_][A-Za-z_.0-9]*")


def known_epsilon(info: CellInfo) -> float | None:
    """Epsilon of a cell: infinite for exact counts, None for a discriminative model."""
    if info.method == "discriminative":
        return None
    return math.inf if info.epsilon is None else info.epsilon


def n_clients(info: CellInfo) -> int:
    """Count the clients; a centralised model has one."""
    return 1 if info.scope == "centralised" else info.n_clients


def cell_keys(info: CellInfo) -> dict[str, Any]:
    """Return what a cell can be selected by.

    Parameters
    ----------
    info : CellInfo

    Returns
    -------
    dict
        ``dataset, dataset_sha256, model, n, method, scope``, ``clients`` (none when centralised), ``epsilon``
        (none for discriminative models), and every other setting.
    """
    keys = dict(info.settings)
    keys |= {"dataset": info.dataset, "dataset_sha256": info.dataset_sha256, "model": info.model, "n": info.n}
    keys |= {"method": info.method, "scope": info.scope, "clients": info.n_clients}
    if info.scope == "centralised":
        del keys["clients"]
    epsilon = known_epsilon(info)
    if epsilon is not None:
        keys["epsilon"] = epsilon
    return keys


def split_selection(text: str | Path) -> tuple[str | Path, Conditions]:
    """Split a selection into its path and its (key, value) conditions.

    Raises
    ------
    ResultsError
        If what follows the last colon has an equals sign but is no list of conditions.
    """
    path, colon, conditions = str(text).rpartition(":")
    if not colon or Path(text).exists() or "=" not in conditions:
        return text, ()
    pairs = [part.strip().partition("=") for part in conditions.split(",")]
    if not path or not all(equals and _KEY.fullmatch(key) for key, equals, _ in pairs):
        raise ResultsError(f"{text}: expected PATH:KEY=VALUE,..., could not read '{conditions}'")
    return path, tuple((_plain(key), value) for key, _, value in pairs)


def _plain(key: str) -> str:
    """Return a key as `cell_keys` has it."""
    key = key.rpartition(".")[2]
    return "clients" if key == "C" else key


def read_selected(selections: Selections, fields: Iterable[Field] = FIELDS) -> list[CellData]:
    """Read the selected cells.

    Parameters
    ----------
    selections : str, Path or iterable of them
        Files, directories or patterns, each with conditions if need be.
    fields : iterable of Field, optional
        Read only these; ``/complete`` must be among them.

    Returns
    -------
    list of CellData
        Each cell once, in the order found.

    Raises
    ------
    ResultsError
        If a file cannot be read, a key is unknown, or a selection selects nothing.
    """
    fields = tuple(fields)
    given = [selections] if isinstance(selections, str | Path) else list(selections)
    groups: dict[Conditions, list[str | Path]] = {}
    for path, conditions in map(split_selection, given):
        groups.setdefault(conditions, []).append(path)
    found: dict[tuple[object, ...], CellData] = {}
    for conditions, paths in (groups or {(): []}).items():
        cells = read_cells(paths, fields)
        chosen = _select(cells, conditions)
        if not chosen:
            written = f"{' '.join(map(str, paths))}:{','.join(f'{key}={value}' for key, value in conditions)}"
            raise ResultsError(
                f"{written}: expected cells with these keys, found none among {len(cells)}; "
                "'fedande table' shows what is there"
            )
        for cell in chosen:
            found.setdefault(cell.info.identity, cell)
    return list(found.values())


def _select(cells: list[CellData], conditions: Conditions) -> list[CellData]:
    if not conditions:
        return cells
    keys = [cell_keys(cell.info) for cell in cells]
    known = sorted({key for each in keys for key in each})
    wanted: dict[str, list[str]] = {}
    for key, value in conditions:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(known)}"
            raise ResultsError(f"{key}={value}: expected a key of the results, got '{key}'; {hint}")
        wanted.setdefault(key, []).append(value)
    return [cell for cell, each in zip(cells, keys, strict=True) if _fits(each, wanted)]


def _fits(keys: Mapping[str, Any], wanted: Mapping[str, Sequence[str]]) -> bool:
    return all(any(_agrees(keys.get(key), text) for text in texts) for key, texts in wanted.items())


def _agrees(value: Any, text: str) -> bool:
    if value is None:
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return fnmatchcase(value_text(value), text)
