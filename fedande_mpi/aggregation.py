"""Averages that do not depend on the order or grouping of their terms.

Every term is rounded to an integer on a scale agreed from the exact maximum of all terms, so that the sum
fits in 64 bits; integers are added, in any order, and converted once. The error of a mean of C weights is
below 2^-61 * C * max|w|. Both transports use this rule: under ``gather`` the server does all of it, under
``reduce`` the hosts agree on the maximum, round their own clients' terms and add them on the way up.
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.errors import FederationError
from fedande_mpi.jit import compiled
from fedande_mpi.magnitudes import largest_magnitude

FloatArray = NDArray[np.float64]

RULES = ("mean", "rows")
"""Averaging rules: every client counts the same, or by its number of rows."""


def client_factors(rule: str, n_rows: NDArray[np.integer]) -> tuple[FloatArray, float]:
    """Return what each client's weights are multiplied by, and what their sum is divided by.

    Parameters
    ----------
    rule : {"mean", "rows"}
        1/C over the clients that have rows, or proportional to the number of rows.
    n_rows : (C,) array of int
        Rows of each client.

    Returns
    -------
    factors : (C,) array of float64
    divisor : float

    Raises
    ------
    FederationError
        When no client has a row.
    """
    n_rows = np.asarray(n_rows)
    factors = (n_rows > 0).astype(np.float64) if rule == "mean" else n_rows.astype(np.float64)
    divisor = float(factors.sum())
    if divisor == 0.0:
        raise FederationError(
            f"expected a client with at least one row to average over, got {n_rows.size} clients with "
            "0 rows: the previous model is kept"
        )
    return factors, divisor


def largest_terms(rows: FloatArray, factors: FloatArray, start: NDArray[np.int64]) -> FloatArray:
    """Return the largest ``|factor * w|`` of every row and parent set.

    Parameters
    ----------
    rows : (C, width) array of float64
        Weights of every client, the sets of a block one after another.
    factors : (C,) array of float64
        See `client_factors`.
    start : (B + 1,) array of int64
        Bounds of the sets in a row.

    Returns
    -------
    (C, B) array of float64
        Not finite where a weight is not.
    """
    largest = np.empty((rows.shape[0], start.size - 1))
    _largest_terms(rows, factors, start, largest)
    return largest


@compiled
def _largest_terms(rows: FloatArray, factors: FloatArray, start: NDArray[np.int64], out: FloatArray) -> None:
    for c in range(rows.shape[0]):
        for b in range(start.size - 1):
            out[c, b] = factors[c] * largest_magnitude(rows[c, start[b] : start[b + 1]])


def refuse_not_finite(largest: FloatArray) -> None:
    """Raise `NotFinite` for the first row and set whose largest term ``(C, B)`` is not finite."""
    finite = np.isfinite(largest)
    if not finite.all():
        row, position = np.argwhere(~finite)[0]
        raise NotFinite(int(row), int(position))


@compiled
def add_terms(
    rows: FloatArray,
    factors: FloatArray,
    start: NDArray[np.int64],
    exponents: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Add every row's rounded terms to the integer sums ``out (width,)``."""
    # Slices, because loops that count from 0 run in vector registers: four times faster than the same over i + first.
    # Four rows at a time, because one stream of reads does not fill the bus: twice as fast again.
    stretch = 2**14  # sums that stay in the second-level cache while all rows are added
    n_rows = rows.shape[0]
    scale = np.empty(4)
    for b in range(start.size - 1):
        for first in range(start[b], start[b + 1], stretch):
            last = min(first + stretch, start[b + 1])
            part = out[first:last]
            for c in range(0, n_rows, 4):
                for k in range(4):
                    scale[k] = factors[c + k] * 2.0 ** exponents[b] if c + k < n_rows else 0.0
                f0, f1, f2, f3 = scale[0], scale[1], scale[2], scale[3]
                w0 = rows[c, first:last]
                if c + 1 == n_rows:
                    for i in range(part.size):
                        part[i] += np.int64(np.rint(w0[i] * f0))
                    continue
                w1 = rows[c + 1, first:last]
                w2 = rows[min(c + 2, n_rows - 1), first:last]
                w3 = rows[min(c + 3, n_rows - 1), first:last]
                for i in range(part.size):
                    two = np.int64(np.rint(w0[i] * f0)) + np.int64(np.rint(w1[i] * f1))
                    part[i] += two + np.int64(np.rint(w2[i] * f2)) + np.int64(np.rint(w3[i] * f3))


def exponents(largest: FloatArray, n_terms: int) -> NDArray[np.int64]:
    """Return e for every set: terms become integers when multiplied by 2^e and rounded.

    Parameters
    ----------
    largest : (B,) array of float64
        Exact maximum of all terms' absolute values.
    n_terms : int
        Number of terms to be added, C.
    """
    _, power = np.frexp(largest)
    e = 62 - ceil(log2(max(n_terms, 1))) - power.astype(np.int64)
    return np.minimum(np.where(largest > 0.0, e, 0), 900)


@compiled
def mean_of_sums(
    sums: NDArray[np.int64],
    start: NDArray[np.int64],
    exponents: NDArray[np.int64],
    divisor: float,
    out: FloatArray,
) -> None:
    """Convert integer sums ``(width,)`` to means ``out (width,)``."""
    for b in range(start.size - 1):
        unit = 2.0 ** -exponents[b]
        part, mean = sums[start[b] : start[b + 1]], out[start[b] : start[b + 1]]
        for i in range(part.size):
            mean[i] = part[i] * unit / divisor


def refuse(client: int, parents: tuple[int, ...], round_number: int) -> FederationError:
    """Return the error for an update that is not finite."""
    return FederationError(
        f"expected finite weights, got NaN or infinity from client {client} for parent set {parents} in "
        f"round {round_number}: the update is refused and nothing is averaged; look at that client's rows"
    )


def server_step(
    rows: FloatArray, factors: FloatArray, divisor: float, start: NDArray[np.int64]
) -> FloatArray:
    """Average the clients' rows exactly, whatever their order.

    Parameters
    ----------
    rows : (C, width) array of float64
        Weights of every client, the sets of a block one after another.
    factors : (C,) array of float64
    divisor : float
        See `client_factors`.
    start : (B + 1,) array of int64
        Bounds of the sets in a row; each set has a scale of its own.

    Returns
    -------
    (width,) array of float64

    Raises
    ------
    NotFinite
        When a weight is not finite; names the row and the set by their positions.
    """
    largest = largest_terms(rows, factors, start)
    refuse_not_finite(largest)
    exponent = exponents(largest.max(axis=0), rows.shape[0])
    sums = np.zeros(rows.shape[1], dtype=np.int64)
    add_terms(rows, factors, start, exponent, sums)
    mean = np.empty(sums.size)
    mean_of_sums(sums, start, exponent, divisor, mean)
    return mean


class NotFinite(FederationError):
    """An update with NaN or infinity, by position; `refuse` words it for the user."""

    def __init__(self, row: int, position: int) -> None:
        super().__init__(
            f"expected finite weights, got NaN or infinity in row {row}, parent set at {position}"
        )
        self.row = row
        self.position = position
