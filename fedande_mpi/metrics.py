"""Metrics of integer sums of posteriors, and posteriors of rows on which no parent set has a say.

P(y|x) is the mean of P(y | x, P, w_P) over the parent sets. Each term is rounded to a multiple of 2^-k with
k = 62 - ceil(log2 |P|) and added as a 64-bit integer, so the sum is the same for every order, grid and block.
The log-likelihood needs more: a probability of 1e-30 is 0 at that scale. For the row's own class two more
integers hold what rounding left over, at scales 2^-2k and 2^-3k; probabilities down to about 2^-3k (below
1e-46 for any |P| up to 2,000) keep their logarithm, and smaller ones count as half of that unit.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import ande, formulas
from fedande_mpi.ande import count_tables
from fedande_mpi.jit import compiled, inlined, reducing


class Sums(NamedTuple):
    """Integer sums over parent sets.

    Attributes
    ----------
    posterior : (C, m, o) int64
        Sum of P(y | x, P) in units of 2^-k; under ``combine = "joint"`` of P(x, y | P) relative to the
        row's largest.
    rest : (C, m, 2) int64
        What rounding left of the row's own class, in units of 2^-2k and 2^-3k.
    """

    posterior: NDArray[np.int64]
    rest: NDArray[np.int64]


def scale_bits(n_sets: int) -> int:
    """Return k: posteriors are rounded to multiples of 2^-k, so that `n_sets` of them sum below 2^63."""
    return 62 - ceil(log2(n_sets))


def empty_sums(n_clients: int, n_rows: int, n_classes: int) -> Sums:
    """Return sums of zero parent sets."""
    return Sums(
        np.zeros((n_clients, n_rows, n_classes), dtype=np.int64),
        np.zeros((n_clients, n_rows, 2), dtype=np.int64),
    )


def usable_sets(X: NDArray[np.int32], sets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the parent sets without a missing attribute in each row, shape ``(m,)``."""
    if not (X < 0).any():
        return np.full(X.shape[0], len(sets), dtype=np.int64)
    usable = np.zeros(X.shape[0], dtype=np.int64)
    present = X >= 0
    for parents in sets:
        usable += present[:, parents].all(axis=1)
    return usable


@compiled
def _metrics(
    sums: Sums,
    usable: NDArray[np.int64],
    bits: int,
    joint: bool,
    y: NDArray[np.int32],
    out: NDArray[np.float64],
) -> None:
    n_clients, m, o = sums.posterior.shape
    unit = 2.0**-bits  # multiplying by a power of two is exact, and several times faster than dividing
    smallest = 0.5 * unit * unit * unit
    hits = np.empty((3, o), dtype=np.int64)  # true positives, predicted, actual
    for c in range(n_clients):
        rest = sums.rest[c]
        for k in range(o):
            hits[0, k] = hits[1, k] = hits[2, k] = 0
        log_likelihood = 0.0
        likelihood = 1.0  # of the rows whose logarithm is still to be taken, all at once
        brier = 0.0
        for r in range(m):
            row, label = sums.posterior[c, r], y[r]
            whole = _total(row) * unit if joint else float(usable[r])
            best = _first_largest(row)
            hits[1, best] += 1
            hits[2, label] += 1
            hits[0, best] += best == label
            own = row[label] * unit + rest[r, 0] * unit * unit + rest[r, 1] * unit * unit * unit
            likelihood *= min(max(own, smallest) / whole, 1.0)
            if likelihood < 1e-200:  # a row's is above 1e-60
                log_likelihood += np.log(likelihood)
                likelihood = 1.0
            brier += _squares(row, unit, label, whole) / (whole * whole)
        correct = 0
        f1 = 0.0
        seen = 0
        for k in range(o):
            correct += hits[0, k]
            if hits[1, k] + hits[2, k] > 0:
                seen += 1
                f1 += 2.0 * hits[0, k] / (hits[1, k] + hits[2, k])
        out[0, c] = correct / m
        out[1, c] = (log_likelihood + np.log(likelihood)) / m
        out[2, c] = brier / m
        out[3, c] = f1 / seen


@inlined
def _total(row: NDArray[np.int64]) -> float:
    total = 0.0
    for k in range(row.size):
        total += row[k]
    return total


@inlined
def _first_largest(row: NDArray[np.int64]) -> int:
    largest, at = row[0], 0
    if row.size <= 8:  # without a jump: where it is, is hard to foresee
        for k in range(1, row.size):
            more = row[k] > largest
            largest = row[k] if more else largest
            at = k if more else at
        return at
    for k in range(1, row.size):
        largest = max(largest, row[k])
    while row[at] != largest:
        at += 1
    return at


@reducing
def _squares(row: NDArray[np.int64], unit: float, label: int, whole: float) -> float:
    """Return the sum of (P - [y])^2 times the square of `whole`, which P is to be divided by."""
    total = 0.0
    for k in range(row.size):
        difference = row[k] * unit - (whole if k == label else 0.0)
        total += difference * difference
    return total


METRICS = ("accuracy", "cll", "brier", "macro_f1")
"""Names of the rows of `of_sums`."""


def of_sums(
    sums: Sums, usable: NDArray[np.int64], bits: int, joint: bool, y: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Compute the metrics of every client from its sums.

    Parameters
    ----------
    sums : Sums
        (C, m, o) and (C, m, 2) integers.
    usable : (m,) array of int64
        Parent sets that had a say on each row (all of them without missing values), at least 1.
    bits : int
        k, see `scale_bits`.
    joint : bool
        Whether the sums are of joints, which are normalised by their own total.
    y : (m,) array of int32
        Class codes.

    Returns
    -------
    (4, C) array of float64
        In the order of `METRICS`: accuracy (ties to the lowest class); mean log P(y|x) in nats; Brier score,
        the mean of the sum over classes of (P - [y])^2; F1 averaged over the classes that occur among the
        labels or the predictions. NaN throughout without a test row.
    """
    out = np.full((len(METRICS), sums.posterior.shape[0]), np.nan)
    if y.size:
        _metrics(sums, usable, bits, joint, y, out)
    return out


def posteriors(sums: Sums, usable: NDArray[np.int64], bits: int, joint: bool) -> NDArray[np.float64]:
    """Return P(y|x), shape (C, m, o), from the integer sums."""
    p = sums.posterior / 2.0**bits
    if joint:
        return np.asarray(p / p.sum(axis=2, keepdims=True))
    return np.asarray(p / usable[None, :, None])


def fall_back(
    rows: NDArray[np.int32],
    X: NDArray[np.int32],
    y: NDArray[np.int32],
    arity: NDArray[np.int64],
    n_classes: int,
    *,
    order: int,
    rule: tuple[str, float],
    joint: bool,
    prior: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Score rows with so many missing values that no parent set of the model's order is complete.

    Lower orders are tried in turn, down to NB, which always has a say; with ``order = -1`` the prior decides.

    Parameters
    ----------
    rows : (k, d) array of int32
        The rows to score.
    X, y : (m, d), (m,) array of int32
        Training rows of the model.
    arity : (d,) array of int64
    n_classes : int
    order : int
        First order to try, or -1.
    rule : (str, float)
        Smoothing and pseudocount.
    joint : bool
        Sum joints instead of posteriors.
    prior : (o,) array of float64, optional
        Class probabilities, instead of those of the training rows.

    Returns
    -------
    (k, o) array of float64
    """
    posterior = np.zeros((rows.shape[0], n_classes))
    if order < 0:
        if prior is None:
            a = ande.pseudocounts(rule[0], rule[1], n_classes)
            smoothed = np.bincount(y, minlength=n_classes) + a
            prior = np.asarray(smoothed / smoothed.sum(), dtype=np.float64)
        posterior[:] = prior
        return posterior
    left = np.arange(rows.shape[0])
    for n in range(order, -1, -1):
        sets = ande.parent_sets(arity.size, n)
        terms = []
        for parents in sets:
            theta = ande.log_theta(count_tables(X, y, parents, arity, n_classes), parents, arity, *rule)
            scores, states = formulas.scores(rows[left], parents, arity, np.array(1.0), theta)
            scores[states < 0] = -np.inf
            terms.append(scores)
        stack = np.array(terms)  # (|P|, k, o)
        usable = np.isfinite(stack[:, :, 0]).sum(axis=0)
        done = usable > 0
        top = stack[:, done].max(axis=2 if not joint else (0, 2), keepdims=True)
        weight = np.exp(stack[:, done] - np.where(np.isfinite(top), top, 0.0))
        if not joint:
            weight /= np.maximum(weight.sum(axis=2, keepdims=True), 1e-300)
        total = weight.sum(axis=0)
        posterior[left[done]] = total / total.sum(axis=1, keepdims=True)
        left = left[~done]
        if not left.size:
            break
    return posterior
