"""What is reported of local steps: sums over the parent sets, in integers, so that no order matters.

A term of the objective is cut into its whole part and two more of 40 bits each: what is lost is below 2^-81, and
nothing of terms of 2^-27 and more. Sums of up to 2^23 parent sets fit.
"""

from __future__ import annotations

from math import fsum

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.local import Report

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ITERATIONS, EVALUATIONS = 3, 4
"""Columns of a tally; the first three are the parts of the objective."""
_SUMS, _STOP, _TOO_LARGE = slice(0, 5), 5, 6
COLUMNS = 7

_PART = 2.0**40
_LARGEST = 2.0**52


def empty(n_rounds: int, n_clients: int) -> IntArray:
    """Return tallies of nothing, ``(rounds, C, COLUMNS)``."""
    return np.zeros((n_rounds, n_clients, COLUMNS), dtype=np.int64)


def add(tally: IntArray, report: Report) -> None:
    """Add the reports of some parent sets to a round's tally ``(C, COLUMNS)``."""
    term = report.objective
    beyond = ~(np.abs(term) < _LARGEST)
    if beyond.any():  # or not a number
        tally[beyond.any(axis=1), _TOO_LARGE] = 1
        term = np.where(beyond, 0.0, term)
    for column in range(3):
        part = np.floor(term) if column < 2 else np.rint(term)
        tally[:, column] += part.astype(np.int64).sum(axis=1)
        term = (term - part) * _PART
    tally[:, ITERATIONS] += report.iterations.sum(axis=1)
    tally[:, EVALUATIONS] += report.evaluations.sum(axis=1)
    np.maximum(tally[:, _STOP], report.stop_reason.max(axis=1), out=tally[:, _STOP])


def join(tally: IntArray, other: IntArray) -> None:
    """Add a tally of other parent sets to one of the same clients and rounds."""
    tally[..., _SUMS] += other[..., _SUMS]
    np.maximum(tally[..., _STOP:], other[..., _STOP:], out=tally[..., _STOP:])


def since(tally: IntArray, before: IntArray) -> IntArray:
    """Return what makes a tally of an earlier one when it is joined to that."""
    later = tally.copy()
    later[..., _SUMS] -= before[..., _SUMS]
    return later


def objective(tally: IntArray) -> FloatArray:
    """Return the objective of a round's tally, ``(C,)``: its exact sum rounded once.

    Infinity where a term was too large to be added, 2^52, or not a number.
    """
    units = (1.0, 1.0 / _PART, 1.0 / _PART**2)
    sums = [fsum(float(part) * unit for part, unit in zip(row, units, strict=False)) for row in tally]
    return np.where(tally[:, _TOO_LARGE] > 0, np.inf, np.array(sums))


def stop_reason(tally: IntArray) -> IntArray:
    """Return the largest reason to stop, see `fedande_mpi.lbfgs`, ``(C,)``."""
    return tally[:, _STOP]
