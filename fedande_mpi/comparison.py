"""Are two models different? Are several? ``fedande compare``.

``compare A B`` pairs the cells of two selections (:mod:`fedande_mpi.selection`). What is compared are the keys on
which all cells of A agree, all cells of B agree, and the two differ, as the method in::

    fedande compare results/paper:method=discriminative results/paper:method=generative

Two cells are a pair when they have the same value for every other key that both have. A centralised cell has
no number of clients, and so pairs with every C.

``compare A`` compares all models of one selection over its data sets (:func:`compare_models`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedande_mpi.errors import ResultsError
from fedande_mpi.formatting import Row, Table, value_text
from fedande_mpi.selection import LOWER_IS_BETTER, Scores, Selections, common_units, differing, read_scores
from fedande_mpi.statistics import friedman, holm, paired_t, signed_rank

LEAST_DATA_SETS = 3
ALL = "(all)"

_FIRST = ("n", "method", "scope", "clients", "epsilon")
# Settings that may belong to a data set, and then tell no models apart.
_OF_DATA = {"target", "bins", "nominal"}

Place = tuple[Any, ...]


def compare(a: Selections, b: Selections | None = None, metric: str = "accuracy") -> Table:
    """Compare two selections of cells, or all the models of one.

    Parameters
    ----------
    a, b : str, Path or iterable of them
        Selections; without `b` see :func:`compare_models`.
    metric : {"accuracy", "cll", "brier", "macro_f1"}

    Returns
    -------
    Table
        A row for each pair of cells: ``dataset``, the keys that differ among the pairs, ``data_sets`` (1),
        ``units``, the means ``a`` and ``b`` over the units that both have, their ``difference`` a - b, its 95 %
        interval ``low, high`` and its two-sided ``p`` (paired t over repeats x folds with the Nadeau-Bengio
        correction; empty for one unit). Then, for each setting of the other keys that at least three data
        sets share, a row whose data set is ``(all)``: means over the data sets, the t interval of their
        mean difference, and ``p`` of Wilcoxon's signed-rank test. ``p_holm`` is adjusted by Holm's rule,
        within the rows of single data sets and within the rows over data sets.

    Raises
    ------
    ResultsError
        If a selection selects nothing, nothing pairs, or a cell has several partners.
    """
    if b is None:
        return compare_models(a, metric)
    pairs = _pairs(read_scores(a, metric), read_scores(b, metric))
    cells = [each for pair in pairs for each in pair]
    keys = [key for key in _keys(cells) if len({_shared(pair, key) for pair in pairs}) > 1]
    blocks: dict[Place, list[Row]] = {}
    for pair in pairs:
        both = common_units(pair)
        if not both.shape[1]:
            continue
        place = tuple(_shared(pair, key) for key in keys)
        found = paired_t(both[0] - both[1], 1 / (pair[0].n_folds - 1))
        row: Row = {"dataset": pair[0].keys["dataset"], **dict(zip(keys, place, strict=True))}
        row |= {"data_sets": 1, "units": both.shape[1], "a": both[0].mean(), "b": both[1].mean()}
        row |= {"difference": found.mean, "low": found.low, "high": found.high, "p": found.p}
        block = blocks.setdefault(place, [])
        if any(other["dataset"] == row["dataset"] for other in block):
            raise ResultsError(
                f"compare: expected one content for data set {row['dataset']}, found two; leave one out"
            )
        block.append(row)
    if not blocks:
        raise ResultsError("compare: expected folds that both have, found none; run the same folds of both")
    places = sorted(blocks, key=lambda place: [_value_order(value) for value in place])
    single = [row for place in places for row in sorted(blocks[place], key=lambda row: row["dataset"])]
    single.sort(key=lambda row: row["dataset"])
    over = [_over_data_sets(blocks[place]) for place in places if len(blocks[place]) >= LEAST_DATA_SETS]
    for family in (single, over):
        for row, adjusted in zip(family, holm([row["p"] for row in family]), strict=True):
            row["p_holm"] = adjusted
    numbers = ("data_sets", "units", "a", "b", "difference", "low", "high", "p", "p_holm")
    columns = ("dataset", *keys, *numbers)
    return Table(columns, [{name: plain(row[name]) for name in columns} for row in (*single, *over)])


def _over_data_sets(rows: list[Row]) -> Row:
    differences = np.array([row["difference"] for row in rows])
    found = paired_t(differences)
    return rows[0] | {
        "dataset": ALL,
        "data_sets": len(rows),
        "units": sum(row["units"] for row in rows),
        "a": np.mean([row["a"] for row in rows]),
        "b": np.mean([row["b"] for row in rows]),
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "p": signed_rank(differences),
    }


def _pairs(first: list[Scores], second: list[Scores]) -> list[tuple[Scores, Scores]]:
    """Pair cells that differ in nothing but what is compared."""
    compared = _compared(first, second)
    if not compared:
        raise ResultsError(
            "compare: expected two selections that differ in a key on which each of them agrees, found none; "
            "select, for example A:method=discriminative and B:method=generative"
        )
    free = compared | {"model"}  # the model follows from n and method
    pairs = [
        (x, y)
        for x in first
        for y in second
        if all(x.keys[key] == y.keys[key] for key in (x.keys.keys() & y.keys.keys()) - free)
    ]
    if not pairs:
        shared = set.union(*(set(x.keys) for x in first)) & set.union(*(set(y.keys) for y in second)) - free
        disjoint = [
            key
            for key in sorted(shared)
            if key != "dataset_sha256"
            and not {x.keys.get(key) for x in first} & {y.keys.get(key) for y in second}
        ]
        raise ResultsError(
            f"compare: expected cells that differ in {', '.join(sorted(compared - {'model'}))} only, found none; "
            f"they also differ in {', '.join(disjoint) or 'combinations of other keys'}; select cells that do not"
        )
    # A cell may have several partners on one side only: C = 5 and 20 against one centralised model.
    partners_of_first = _partners(pairs, 0)
    partners_of_second = _partners(pairs, 1)
    for x, y in pairs:
        if len(partners_of_first[id(x)]) > 1 and len(partners_of_second[id(y)]) > 1:
            unclear = differing(partners_of_first[id(x)]) or differing(partners_of_second[id(y)])
            raise ResultsError(
                f"compare: expected one partner for {x.name}, found {len(partners_of_first[id(x)])} that "
                f"differ in {', '.join(unclear)}; select one value in A and in B"
            )
    return pairs


def _partners(pairs: list[tuple[Scores, Scores]], side: int) -> dict[int, list[Scores]]:
    found: dict[int, list[Scores]] = {}
    for pair in pairs:
        found.setdefault(id(pair[side]), []).append(pair[1 - side])
    return found


def _compared(first: list[Scores], second: list[Scores]) -> set[str]:
    """Name the keys with one value in each selection, and not the same."""

    def values(scores: list[Scores], key: str) -> set[Any]:
        return {each.keys[key] for each in scores if key in each.keys}

    names = {key for each in (*first, *second) for key in each.keys}
    return {
        key
        for key in names
        if len(values(first, key)) == len(values(second, key)) == 1
        and values(first, key) != values(second, key)
    } - {"dataset_sha256"}


def _shared(pair: tuple[Scores, Scores], key: str) -> Any:
    """Return the value of a key that the two agree on, or that one of them has alone; None if it is compared."""
    values = {each.keys[key] for each in pair if key in each.keys}
    return values.pop() if len(values) == 1 else None


def compare_models(selection: Selections, metric: str = "accuracy") -> Table:
    """Compare all models of a selection over its data sets, for each number of clients.

    A model here is whatever has one value for every key but the data set and C: ``A1DE`` federated with
    epsilon 1 is one, local ``A1DE`` another. Centralised models take part at every C.

    Parameters
    ----------
    selection : str, Path or iterable of them
    metric : {"accuracy", "cll", "brier", "macro_f1"}

    Returns
    -------
    Table
        For each C a row for each model, best first: ``clients, model`` and the keys that differ among the
        models, ``data_sets`` (those on which all the models have results), ``mean``, ``rank`` (average over
        the data sets, 1 is best), ``critical_difference`` (Nemenyi, 0.05), ``behind`` (whether the rank is
        further than that from the best), and ``p`` of Friedman's test for this C, with ``p_holm`` over all C.

    Raises
    ------
    ResultsError
        If at no C three models share three data sets.
    """
    scores = read_scores(selection, metric)
    keys = [key for key in _keys(scores) if key != "clients"]
    counts = sorted({each.keys["clients"] for each in scores if "clients" in each.keys}) or [None]
    tests: list[tuple[list[Row], float]] = []
    for clients in counts:
        grid: dict[Place, dict[str, float]] = {}
        for each in scores:
            if each.keys.get("clients", clients) == clients:
                place = (each.keys["model"], *(each.keys.get(key) for key in keys))
                sets = grid.setdefault(place, {})
                if each.keys["dataset"] in sets:
                    raise ResultsError(
                        f"compare: expected one content for data set {each.keys['dataset']}, found two; "
                        "leave one out"
                    )
                sets[each.keys["dataset"]] = each.mean
        names = sorted(set.intersection(*(set(sets) for sets in grid.values())))
        if len(grid) < 3 or len(names) < LEAST_DATA_SETS:
            continue
        table = np.array([[sets[name] for sets in grid.values()] for name in names])
        found = friedman(-table if metric in LOWER_IS_BETTER else table)
        rows: list[Row] = []
        for at in np.argsort(found.ranks, kind="stable"):
            place = list(grid)[at]
            row: Row = {"clients": clients, "model": place[0], **dict(zip(keys, place[1:], strict=True))}
            row |= {"data_sets": len(names), "mean": table[:, at].mean(), "rank": found.ranks[at]}
            row |= {"critical_difference": found.critical_difference, "p": found.p}
            row["behind"] = bool(found.ranks[at] - found.ranks.min() > found.critical_difference)
            rows.append(row)
        tests.append((rows, found.p))
    if not tests:
        raise ResultsError(
            "compare: expected three models with results on the same three data sets, found fewer; give two "
            "selections A and B to compare two models"
        )
    for (rows, _), adjusted in zip(tests, holm([p for _, p in tests]), strict=True):
        for row in rows:
            row["p_holm"] = adjusted
    # what the model's name already says
    shown = [key for key in keys if key not in ("n", "method") or _ambiguous(tests, key)]
    numbers = ("data_sets", "mean", "rank", "critical_difference", "behind", "p", "p_holm")
    columns = ("clients", "model", *shown, *numbers)
    return Table(columns, [{name: plain(row[name]) for name in columns} for rows, _ in tests for row in rows])


def _keys(scores: Sequence[Scores]) -> list[str]:
    """Name the keys that tell settings apart, in their order."""
    keys = set(differing(scores)) - {"dataset", "dataset_sha256"}
    for key in _OF_DATA & keys:
        seen: dict[str, set[Any]] = {}
        for each in scores:
            seen.setdefault(each.keys["dataset"], set()).add(each.keys.get(key))
        if all(len(values) == 1 for values in seen.values()):
            keys.remove(key)
    return sorted(keys, key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key))


def _ambiguous(tests: list[tuple[list[Row], float]], key: str) -> bool:
    """Whether models of one name differ in a key."""
    seen: dict[str, set[Any]] = {}
    for rows, _ in tests:
        for row in rows:
            seen.setdefault(row["model"], set()).add(row[key])
    return any(len(values) > 1 for values in seen.values())


def _value_order(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, value_text(value))


def plain(value: Any) -> Any:
    """Return a number as Python has it, with the digits that mean something, and None for NaN."""
    if isinstance(value, bool) or not isinstance(value, float | np.floating | np.ndarray):
        return value
    number = float(value)
    return None if np.isnan(number) else float(f"{number:.4g}") if abs(number) < 1e-3 else round(number, 6)
