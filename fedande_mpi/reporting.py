"""Tables of accuracies, and what result files hold in a few numbers (``fedande table`` and ``show``)."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedande_mpi.celldata import CellData, CellInfo
from fedande_mpi.conditions import Selections, known_epsilon, n_clients, read_selected
from fedande_mpi.errors import ResultsError
from fedande_mpi.formatting import DIGITS, Row, Table, value_text
from fedande_mpi.schema import FIELDS
from fedande_mpi.settings import cell_settings

COLUMNS = ("dataset", "model", "method", "scope", "clients", "epsilon")
STATISTICS = ("repeats", "folds", "accuracy", "accuracy_sd", "cll")

FloatArray = npt.NDArray[np.float64]
_FIELDS = tuple(f for f in FIELDS if f.path in ("/complete", "/test/accuracy", "/test/cll"))
# Settings that a column of the table already shows.
_SHOWN = frozenset((*COLUMNS, "folds"))


@dataclass(frozen=True)
class CellSummary:
    """A cell in a few numbers.

    Attributes
    ----------
    info : CellInfo
        With the resolved configuration in its ``config``.
    created : str
        ISO 8601, UTC.
    complete, total : int
        Units, a (repeat, fold) each.
    accuracy : list of (int, float, float or None)
        For each evaluated round: its number, and mean and sample standard deviation over the units of the
        mean over clients; the latter is None for a single unit.
    """

    info: CellInfo
    created: str
    complete: int
    total: int
    accuracy: list[tuple[int, float, float | None]]


def nan_mean(values: FloatArray, axis: int) -> FloatArray:
    """Mean of what is not NaN along an axis, and NaN where nothing is; infinities count."""
    present = ~np.isnan(values)
    count = present.sum(axis=axis)
    total = np.where(present, values, 0.0).sum(axis=axis)
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def statistics(cell: CellData) -> list[Row]:
    """Mean accuracy and CLL of every evaluated round of a cell.

    Parameters
    ----------
    cell : CellData

    Returns
    -------
    list of dict
        With ``round`` and the keys of ``STATISTICS``, over the complete units; ``accuracy_sd`` is None for
        a single unit.
    """
    units = cell.complete_units()
    if not units:
        return []
    repeats, folds = (np.array(numbers) for numbers in zip(*units, strict=True))
    accuracy = nan_mean(cell.arrays["/test/accuracy"][repeats, folds], axis=-1)  # (units, rounds)
    cll = nan_mean(cell.arrays["/test/cll"][repeats, folds], axis=-1)
    rows: list[Row] = []
    for index, number in enumerate(cell.info.rounds):
        scored = accuracy[:, index][~np.isnan(accuracy[:, index])]
        if scored.size == 0:
            continue
        rows.append(
            {
                "round": number,
                "repeats": len(set(repeats.tolist())),
                "folds": len(set(folds.tolist())),
                "accuracy": float(scored.mean()),
                "accuracy_sd": float(scored.std(ddof=1)) if scored.size > 1 else None,
                "cll": float(nan_mean(cll[:, index], axis=0)),
            }
        )
    return rows


def summarise(paths: Selections) -> list[CellSummary]:
    """Describe every cell in files, merged files and directories.

    Parameters
    ----------
    paths : str, Path or iterable of them
        Files, directories, glob patterns; as ``PATH:KEY=VALUE,...`` some of their cells.

    Returns
    -------
    list of CellSummary
        In the order found.
    """
    return [
        CellSummary(
            cell.info,
            cell.created,
            len(cell.complete_units()),
            cell.info.n_repeats * cell.info.n_folds,
            [(row["round"], row["accuracy"], row["accuracy_sd"]) for row in statistics(cell)],
        )
        for cell in read_selected(paths, _FIELDS)
    ]


def show_text(paths: Selections) -> str:
    """Return the state of every cell as text: its settings, what is complete, accuracy by round."""
    parts = []
    for cell in summarise(paths):
        settings = cell_settings(tomllib.loads(cell.info.config), cell.info.method)
        lines = [
            cell.info.name,
            f"  {cell.complete} of {cell.total} folds complete, begun {cell.created}",
            "  "
            + ", ".join(
                f"{key} = {value_text(value)}" for key, value in settings.items() if value not in ("", ())
            ),
        ]
        for number, mean, deviation in cell.accuracy:
            spread = "" if deviation is None else f" (sd {deviation:.4f} over folds)"
            lines.append(f"  round {number:>3}: accuracy {mean:.4f}{spread}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def table(paths: Selections, rounds: bool = False, by: Sequence[str] | str | None = None) -> Table:
    """Tabulate accuracies, one row for each cell.

    Parameters
    ----------
    paths : str, Path or iterable of them
        Files, directories, glob patterns; as ``PATH:KEY=VALUE,...`` some of their cells.
    rounds : bool
        One row for every evaluated round, instead of the last one.
    by : sequence of str, or str with commas, optional
        Pivot: one row for each combination of these keys (columns or settings; ``n`` stands for the model
        whether weighted or not), one column for each combination of the other keys that differ,
        accuracies in the cells. By data sets alone it has mean ranks too, see :func:`mean_ranks`.

    Returns
    -------
    Table
        Sorted by its keys. Without `by`, the columns are ``COLUMNS``, round and ``STATISTICS``, then every
        other setting that has several values among the rows. Cells without a complete unit are left out.

    Raises
    ------
    ResultsError
        If a file cannot be read, nothing is complete, or a key of `by` is unknown.
    """
    cells = read_selected(paths, _FIELDS)
    rows: list[Row] = []
    for cell in cells:
        info = cell.info
        other = {key: value for key, value in info.settings.items() if key not in _SHOWN}
        keys: Row = {"dataset": info.dataset, "model": info.model, "method": info.method, "scope": info.scope}
        keys |= {"clients": n_clients(info), "epsilon": known_epsilon(info), "n": info.n}
        found = statistics(cell)
        rows += [
            {**other, "dataset_sha256": info.dataset_sha256, **keys, **row}
            for row in (found if rounds else found[-1:])
        ]
    if not rows:
        raise ResultsError(
            f"expected results of at least one fold, found none in {len(cells)} cells; run them"
        )
    fixed = (*COLUMNS, "round", *STATISTICS)
    columns = (*fixed, *_differing(rows, (*fixed, "n")))
    if by is not None:
        return _pivot(rows, columns, by, rounds)
    rows = [{name: row.get(name) for name in columns} for row in rows]
    rows.sort(key=lambda row: [_order(row[name]) for name in (*COLUMNS, "round", *columns[len(fixed) :])])
    return Table(columns, rows)


def _differing(rows: list[Row], fixed: tuple[str, ...]) -> list[str]:
    """Name the further keys with several values among the rows that have them, in their usual order."""
    seen: dict[str, set[Any]] = {}
    for row in rows:
        for key, value in row.items():
            # Only a data set that changed under its name needs its digest.
            seen.setdefault(key, set()).add((row["dataset"], value) if key == "dataset_sha256" else value)
    names = {row["dataset"] for row in rows}
    limit = {"dataset_sha256": len(names)}
    return [
        key for key, values in sorted(seen.items()) if key not in fixed and len(values) > limit.get(key, 1)
    ]


def _order(value: Any) -> tuple[int, Any]:
    """Sort key that takes values of several types: nothing, then numbers, then text."""
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, str(value))


def _pivot(rows: list[Row], columns: tuple[str, ...], by: Sequence[str] | str, rounds: bool) -> Table:
    known = sorted({key for row in rows for key in row} - set(STATISTICS))
    wanted = [part.strip().rpartition(".")[2] for part in (by.split(",") if isinstance(by, str) else by)]
    for key in wanted:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(known)}"
            raise ResultsError(f"--by: expected a key of the results, got '{key}'; {hint}")
    dropped = {*STATISTICS, *wanted, *(() if rounds else ("round",)), *(("model",) if "n" in wanted else ())}
    others = [
        key for key in columns if key not in dropped and len({row.get(key) for row in rows} - {None}) > 1
    ]
    if "epsilon" in others and not rounds:
        # Where it follows from the other keys (noise has only what is federated) it would only be noise here.
        rest = [key for key in (*wanted, *others) if key != "epsilon"]
        if len({tuple(row.get(key) for key in rest) for row in rows}) == len(rows):
            others.remove("epsilon")
    labels: dict[tuple[Any, ...], str] = {}
    for place in _sorted({tuple(row.get(key) for key in others) for row in rows}):
        parts = [_label(k, v) for k, v in zip(others, place, strict=True) if v is not None]
        labels[place] = " ".join(parts) or "accuracy"
    pivoted: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        entry = pivoted.setdefault(tuple(row.get(key) for key in wanted), {})
        entry[labels[tuple(row.get(key) for key in others)]] = row["accuracy"]
    names = tuple(labels.values())
    result = [
        dict(zip(wanted, place, strict=True)) | {name: pivoted[place].get(name) for name in names}
        for place in _sorted(pivoted)
    ]
    ranks = mean_ranks(result, names) if wanted == ["dataset"] else None
    return Table((*wanted, *names), result, names, ranks)


def mean_ranks(rows: list[Row], names: Sequence[str]) -> Row | None:
    """Rank columns in every row, 1 the highest, and average over the rows that have all of them.

    Parameters
    ----------
    rows : list of dict
        One for each data set.
    names : sequence of str
        The columns to rank. Numbers equal to the digits that tables show are equal, and share the mean of
        their ranks.

    Returns
    -------
    dict or None
        With the number of rows in ``dataset``; None for fewer than two complete rows or two columns.
    """
    complete = [[row[name] for name in names] for row in rows if all(row[name] is not None for name in names)]
    if len(complete) < 2 or len(names) < 2:
        return None
    accuracy = np.round(np.array(complete, dtype=np.float64), DIGITS)
    above = (accuracy[:, None, :] > accuracy[:, :, None]).sum(axis=2)
    equal = (accuracy[:, None, :] == accuracy[:, :, None]).sum(axis=2)
    ranks = (above + (equal + 1) / 2).mean(axis=0)
    label = f"mean rank ({len(complete)} data sets)"
    return {"dataset": label} | dict(zip(names, ranks.tolist(), strict=True))


def _sorted(places: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(places, key=lambda place: [_order(value) for value in place])


def _label(key: str, value: Any) -> str:
    if key in ("dataset", "model", "method", "scope"):
        return str(value)
    return f"C={value}" if key == "clients" else f"{key}={value_text(value)}"


def table_rows(paths: Selections, rounds: bool = False, by: Sequence[str] | str | None = None) -> list[Row]:
    """Rows of :func:`table`, as dictionaries."""
    return table(paths, rounds, by).rows
