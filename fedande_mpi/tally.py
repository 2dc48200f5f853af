"""What is reported of local steps: sums over the parent sets, in integers, so that no order matters.

A term of the objective is cut into four parts of 40 bits, in units from 2^40 to 2^-80: of terms of 2^-27 and more
nothing is lost, of smaller ones less than 2^-80. Sums of up to 2^23 parent sets fit.
"""

from __future__ import annotations

from math import fsum

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.local import Report

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_UNITS = tuple(2.0**power for power in (40, 0, -40, -80))
ITERATIONS, EVALUATIONS = 4, 5
"""Columns of a tally; those before are the parts of the objective."""
_SUMS, _STOP, _BEYOND = slice(0, 6), 6, 7
COLUMNS = 8

_LARGEST = 2.0**80
_INFINITE, _UNDEFINED = 1, 2


def empty(n_rounds: int, n_clients: int) -> IntArray:
    """Return tallies of nothing, ``(rounds, C, COLUMNS)``."""
    return np.zeros((n_rounds, n_clients, COLUMNS), dtype=np.int64)


def add(tally: IntArray, report: Report) -> None:
    """Add the reports of some parent sets to a round's tally ``(C, COLUMNS)``."""
    term = report.objective
    beyond = ~(np.abs(term) < _LARGEST)
    if beyond.any():
        kind = np.where(np.isnan(term), _UNDEFINED, np.where(beyond, _INFINITE, 0)).max(axis=1)
        np.maximum(tally[:, _BEYOND], kind, out=tally[:, _BEYOND])
        term = np.where(beyond, 0.0, term)
    for column, unit in enumerate(_UNITS):
        part = np.trunc(term / unit)  # exact: units are powers of two
        tally[:, column] += part.astype(np.int64).sum(axis=1)
        term = term - part * unit
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

    Infinity where a term was too large to be added, 2^80, and NaN where one was not a number.
    """
    sums = [fsum(int(part) * unit for part, unit in zip(row, _UNITS, strict=False)) for row in tally]
    return np.choose(tally[:, _BEYOND], [np.array(sums), np.inf, np.nan])


def stop_reason(tally: IntArray) -> IntArray:
    """Return the largest reason to stop, see `fedande_mpi.lbfgs`, ``(C,)``."""
    return tally[:, _STOP]
