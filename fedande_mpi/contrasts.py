"""Statements about accuracies as weighted sums of cells, and their tests on one data set or over several.

A statement is made of parts. Each part is a sum of weight x accuracy over cells of one data set, plus an offset;
it is true when the sum is positive. An alternative is true when all its parts are (its p-value is the largest
of theirs, an intersection-union test), and a statement when one of its alternatives is (the least p-value
times their number, Bonferroni). Weights of the cells never depend on accuracies.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedande_mpi.selection import Scores, common_units
from fedande_mpi.statistics import FloatArray, Paired, paired_t, signed_rank

LEAST_DATA_SETS = 3
LEAST_UNITS = 2


class Place(NamedTuple):
    """What tells the cells of one data set apart; ``clients`` is 1 when centralised."""

    n: int
    method: str
    scope: str
    clients: int


Sum = dict[Place, float]
"""Weight of each cell."""


@dataclass(frozen=True)
class Part:
    """One inequality: the weighted sum plus the offset is positive.

    Attributes
    ----------
    weights : dict of Place to float
    offset : float
    alternative, label : Hashable
        The alternative it belongs to, and what it is called there: equal on every data set.
    """

    weights: Sum
    offset: float = 0.0
    alternative: Hashable = ""
    label: Hashable = ""


@dataclass(frozen=True)
class Outcome:
    """The test of a statement.

    Attributes
    ----------
    p : float or None
        One-sided; None without enough data.
    effect, low, high : float or None
        Of the part that decides: the weakest one of the best alternative; the interval is two-sided, 95 %.
    cells : int
        Cells that the statement used, or found where they are too few.
    """

    p: float | None
    effect: float | None
    low: float | None
    high: float | None
    cells: int


def add(*terms: tuple[float, Mapping[Place, float]]) -> Sum:
    """Add up weighted sums, given as (factor, sum)."""
    total: Sum = {}
    for factor, weights in terms:
        for place, weight in weights.items():
            total[place] = total.get(place, 0.0) + factor * weight
    return total


def minus(a: Mapping[Place, float], b: Mapping[Place, float]) -> Sum:
    """Return a - b."""
    return add((1.0, a), (-1.0, b))


def mean(sums: Iterable[Mapping[Place, float]]) -> Sum:
    """Return the mean of some sums; empty of none."""
    each = list(sums)
    return add(*((1 / len(each), one) for one in each))


def growth(points: Mapping[float, Mapping[Place, float]]) -> Sum:
    """Return the rise of the least-squares line through points from the first x to the last.

    Parameters
    ----------
    points : Mapping of float to sum
        From x to its value; at least two. With two, it is their difference; with three evenly spaced, that
        of the first and the last.
    """
    x = np.array(sorted(points), dtype=np.float64)
    centred = x - x.mean()
    slopes = centred / (centred @ centred) * (x[-1] - x[0])
    return add(*((float(slope), points[at]) for slope, at in zip(slopes, sorted(points), strict=True)))


@dataclass(frozen=True)
class _Measured:
    """A part on one data set: its value for each unit, and what bounds their variance from below."""

    part: Part
    units: FloatArray
    ratio: float
    resolution: float
    cells: frozenset[tuple[str, Place]]

    @property
    def error(self) -> float:
        """Variance of the mean over the units, by Nadeau and Bengio, plus that of a single row's score."""
        k = len(self.units)
        spread = float(self.units.var(ddof=1)) * (1 / k + self.ratio) if k > 1 else 0.0
        return spread + (self.resolution / k) ** 2


def evaluate(
    data_sets: Mapping[str, tuple[Mapping[Place, Scores], Iterable[Part]]], *, over: bool, rank_from: int
) -> Outcome:
    """Test a statement.

    Parameters
    ----------
    data_sets : Mapping of str to (Mapping of Place to Scores, iterable of Part)
        For each data set its cells, and the parts of the statement on it.
    over : bool
        Whether it is about data sets in general. Then a part needs three of them (parts with fewer are left
        out), and is tested on its means over the units: by Wilcoxon's signed-rank test from `rank_from`
        data sets on, where that can reach any level asked for, else by Student's t with a variance not
        below what the units of each data set suggest. Else all parts need two units, and each is tested by
        t over the units with the Nadeau-Bengio correction.
    rank_from : int

    Returns
    -------
    Outcome
    """
    measured: dict[Hashable, dict[Hashable, list[_Measured]]] = {}
    for name, (cells, parts) in data_sets.items():
        for one in _measure(name, cells, parts):
            alternative = measured.setdefault(one.part.alternative, {})
            alternative.setdefault(one.part.label, []).append(one)
    found = frozenset[tuple[str, Place]]().union(
        *(one.cells for labels in measured.values() for ones in labels.values() for one in ones)
    )
    tested: list[Paired] = []
    used: set[tuple[str, Place]] = set()
    for labels in measured.values():
        groups = [ones for ones in labels.values() if _enough(ones, over)]
        if not groups or (not over and len(groups) < len(labels)):
            continue
        results = [_over_data_sets(ones, rank_from) if over else _over_units(ones[0]) for ones in groups]
        tested.append(max(results, key=lambda result: (float(result.p), -float(result.mean))))
        used.update(*(one.cells for ones in groups for one in ones))
    if not tested:
        return Outcome(None, None, None, None, len(found))
    best = min(tested, key=lambda result: float(result.p))
    p = min(1.0, len(tested) * float(best.p))
    return Outcome(p, float(best.mean), float(best.low), float(best.high), len(used))


def _measure(name: str, cells: Mapping[Place, Scores], parts: Iterable[Part]) -> Iterator[_Measured]:
    for part in parts:
        # A growth over three points has no weight on the middle one, up to rounding.
        places = [place for place, weight in part.weights.items() if abs(weight) > 1e-12]
        scores = common_units([cells[place] for place in places])  # (cells, units)
        if not scores.shape[1]:
            continue
        first = cells[places[0]]
        units = np.array([part.weights[place] for place in places]) @ scores + part.offset
        yield _Measured(
            part,
            units,
            1 / (first.n_folds - 1),
            first.n_folds / first.n_rows,
            frozenset((name, place) for place in places),
        )


def _enough(ones: list[_Measured], over: bool) -> bool:
    return len(ones) >= LEAST_DATA_SETS if over else len(ones[0].units) >= LEAST_UNITS


def _over_units(one: _Measured) -> Paired:
    least = one.resolution**2
    return paired_t(one.units, one.ratio, alternative="greater", least_variance=least)


def _over_data_sets(ones: list[_Measured], rank_from: int) -> Paired:
    means = np.array([one.units.mean() for one in ones])
    least = np.mean([one.error for one in ones])
    result = paired_t(means, alternative="greater", least_variance=least)
    if len(ones) < rank_from:
        return result
    p = np.asarray(signed_rank(means, alternative="greater"))
    return Paired(result.mean, result.low, result.high, p)
