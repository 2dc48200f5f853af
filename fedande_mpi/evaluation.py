"""Scoring test rows: sums of posteriors over parent sets, the same whoever computes them, and metrics.

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

from fedande_mpi import ande, cll, touched
from fedande_mpi.ande import count_tables
from fedande_mpi.cll import exp_nonpositive
from fedande_mpi.jit import compiled
from fedande_mpi.local import Clients, Theta
from fedande_mpi.touched import Layout


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


class HeldOut(NamedTuple):
    """The fold's test rows, common to all clients: ``X (m, d) int32``, ``y (m,) int32``."""

    X: NDArray[np.int32]
    y: NDArray[np.int32]


class Scoring(NamedTuple):
    """Which weights score.

    Attributes
    ----------
    weights : (1 or C, width) float64
        Common weights, or one row per client; empty for the generative model (all weights 1).
    start : (B,) int64
        Where each set begins in a row of ``weights``.
    per_attribute : bool
        Granularity "attribute".
    bits : int
        k, see `scale_bits`.
    joint : bool
        Sum joints (``top`` holds the rows' maxima) instead of posteriors.
    """

    weights: NDArray[np.float64]
    start: NDArray[np.int64]
    per_attribute: bool
    bits: int
    joint: bool


def scale_bits(n_sets: int) -> int:
    """Return k: posteriors are rounded to multiples of 2^-k, so that `n_sets` of them sum below 2^63."""
    return 62 - ceil(log2(n_sets))


@compiled
def score(
    test: HeldOut,
    first: int,
    last: int,
    clients: Clients,
    block: Layout,
    theta: Theta,
    scoring: Scoring,
    at: int,
    client_first: int,
    client_last: int,
    maxima_only: bool,
    top: NDArray[np.float64],
    sums: Sums,
) -> None:
    """Add one parent set's posteriors of test rows ``first .. last - 1`` for a range of clients to the sums.

    With ``maxima_only`` (the first pass of ``combine = "joint"``) only the largest log joint of every row is
    kept, in ``top (C, m)``; the sums are left alone.
    """
    o = block.n_classes
    children = block.children[at]
    n_children = children.size
    n_states, n_values = block.n_states[at], block.n_values[at]
    parents = block.parents[at]
    offsets = block.offsets[at]
    rows = np.arange(first, last)
    width = n_children + 1
    # the cells the test rows touch; everything per client happens on these alone
    order = np.empty(rows.size, dtype=np.int64)
    factors = np.empty(rows.size * width, dtype=np.uint32)
    states = min(n_states, rows.size)
    room = 2 + states + min(states * n_values, rows.size * n_children)
    cell = np.empty(room, dtype=np.int64)
    child = np.empty(room, dtype=np.int64)
    counts = np.empty(room * o, dtype=np.int64)
    n_used, n_touched = touched.index_rows(
        test.X,
        test.y,
        o,
        rows,
        parents,
        children,
        offsets,
        n_states,
        n_values,
        block.arity,
        order,
        factors,
        cell,
        child,
        counts,
    )
    pooled = theta.pooled.size > 0
    number = np.full(0 if pooled else 1 + (n_states if parents.size > 0 else 0) + n_states * n_values, -1)
    for c in range(n_touched if not pooled else 0):
        number[cell[c]] = c
    totals = np.empty(n_states * n_children * o if not pooled else 0, dtype=np.int64)
    log_theta = np.empty((n_touched + 1) * o)
    # joints are not normalised: differences to a class more, whose score is 0, are the scores themselves
    compared = o + 1 if scoring.joint else o
    lanes = cll.stride(compared)
    u = np.empty((n_touched + 1) * lanes)
    z = np.empty(cll.CHUNK * (lanes + 1))
    for c in range(client_first, client_last):
        if pooled:
            start = theta.pooled_start[at]
            for i in range(n_touched):
                for k in range(o):
                    log_theta[i * o + k] = theta.pooled[start + cell[i] * o + k]
        else:
            _client_theta(
                clients, c, block, at, theta, number, cell, child, n_touched, counts, totals, log_theta
            )
        _score_table(
            scoring, c, at, cell, child, n_touched, parents.size, n_states, n_values, n_children, o, log_theta
        )
        for i in range(n_touched):
            reference = 0.0 if scoring.joint else log_theta[i * o + o - 1]
            for k in range(compared - 1):
                u[i * lanes + k] = log_theta[i * o + k] - reference
            for k in range(compared - 1, lanes):
                u[i * lanes + k] = 0.0
        for k in range(lanes):
            u[n_touched * lanes + k] = 0.0
        for i in range(1, n_touched):
            if child[i] == -2:
                for k in range(lanes):
                    u[i * lanes + k] += u[k]
        for start in range(0, n_used, cll.CHUNK):
            n = min(cll.CHUNK, n_used - start)
            cll.forward(factors, start, n, width, compared, u, z)
            used = order[start : start + n]
            if maxima_only:
                _raise_maxima(used, n, o, lanes, z, top[c])
            elif scoring.joint:
                _add_joints(
                    used, n, test.y, o, lanes, z, top[c], scoring.bits, sums.posterior[c], sums.rest[c]
                )
            else:
                cll.softmax(n, o, z, z[cll.CHUNK * lanes :])
                _add_posteriors(used, n, test.y, o, lanes, z, scoring.bits, sums.posterior[c], sums.rest[c])


@compiled
def _client_theta(
    clients: Clients,
    c: int,
    block: Layout,
    at: int,
    theta: Theta,
    number: NDArray[np.int64],
    cell: NDArray[np.int64],
    child: NDArray[np.int64],
    n_touched: int,
    counts: NDArray[np.int64],
    totals: NDArray[np.int64],
    log_theta: NDArray[np.float64],
) -> None:
    """Fill the client's own log-probabilities of the cells that the test rows touch."""
    o = block.n_classes
    children = block.children[at]
    n_children = children.size
    parents = block.parents[at]
    offsets = block.offsets[at]
    n_states, n_values = block.n_states[at], block.n_values[at]
    first_child_cell = 1 + n_states if parents.size > 0 else 1
    for i in range(counts.size):
        counts[i] = 0
    for i in range(totals.size):
        totals[i] = 0
    prior = np.zeros(o, dtype=np.int64)
    present = np.zeros(o, dtype=np.int64)
    for r in range(clients.start[c], clients.start[c + 1]):
        label = clients.y[r]
        prior[label] += 1
        state = touched.parent_state(clients.X, r, parents, block.arity)
        if state < 0:
            continue
        present[label] += 1
        if parents.size > 0:
            i = number[1 + state]
            if i < 0:
                continue
            counts[i * o + label] += 1
        base = first_child_cell + state * n_values
        for j in range(n_children):
            value = clients.X[r, children[j]]
            if value >= 0:
                totals[(state * n_children + j) * o + label] += 1
                i = number[base + offsets[j] + value]
                if i >= 0:
                    counts[i * o + label] += 1
    n_rows = 0
    for k in range(o):
        n_rows += prior[k]
    for k in range(o):
        log_theta[k] = np.log(prior[k] + theta.pseudo_prior) - np.log(n_rows + theta.pseudo_prior * o)
    pseudo = theta.pseudo_parents[at]
    base_parents = np.empty(o)
    for k in range(o):
        base_parents[k] = np.log(present[k] + pseudo * n_states)
    for i in range(1, n_touched):
        j = child[i]
        if j == -2:
            for k in range(o):
                log_theta[i * o + k] = np.log(counts[i * o + k] + pseudo) - base_parents[k]
        else:
            state = (cell[i] - first_child_cell) // n_values
            t = theta.table[children[j]]
            for k in range(o):
                total = totals[(state * n_children + j) * o + k]
                log_theta[i * o + k] = theta.log_count[t, counts[i * o + k]] - theta.log_total[t, total]


@compiled
def _score_table(
    scoring: Scoring,
    c: int,
    at: int,
    cell: NDArray[np.int64],
    child: NDArray[np.int64],
    n_touched: int,
    n_parents: int,
    n_states: int,
    n_values: int,
    n_children: int,
    o: int,
    log_theta: NDArray[np.float64],
) -> None:
    """Multiply the log-probabilities by their weights, in place."""
    if scoring.weights.size == 0:
        return
    w = scoring.weights[c if scoring.weights.shape[0] > 1 else 0]
    start = scoring.start[at]
    first_cell = 1 + n_states if n_parents > 0 else 1
    first_group = 2 if n_parents > 0 else 1
    for i in range(n_touched):
        where = cell[i]
        if scoring.per_attribute and child[i] >= 0:
            where = first_group + (cell[i] - first_cell) // n_values * n_children + child[i]
        elif scoring.per_attribute and child[i] == -2:
            where = 1
        for k in range(o):
            log_theta[i * o + k] *= w[start + where * o + k]


@compiled
def _raise_maxima(
    rows: NDArray[np.int64], n: int, o: int, lanes: int, z: NDArray[np.float64], top: NDArray[np.float64]
) -> None:
    for r in range(n):
        for k in range(o):
            top[rows[r]] = max(top[rows[r]], z[r * lanes + k])


@compiled
def _add_joints(
    rows: NDArray[np.int64],
    n: int,
    y: NDArray[np.int32],
    o: int,
    lanes: int,
    z: NDArray[np.float64],
    top: NDArray[np.float64],
    bits: int,
    posterior: NDArray[np.int64],
    rest: NDArray[np.int64],
) -> None:
    unit = 2.0**bits
    for r in range(n):
        row = rows[r]
        for k in range(o):
            p = exp_nonpositive(z[r * lanes + k] - top[row])
            posterior[row, k] += np.int64(np.rint(p * unit))
            if k == y[row]:
                _add_rest(p, unit, rest[row])


@compiled
def _add_posteriors(
    rows: NDArray[np.int64],
    n: int,
    y: NDArray[np.int32],
    o: int,
    lanes: int,
    z: NDArray[np.float64],
    bits: int,
    posterior: NDArray[np.int64],
    rest: NDArray[np.int64],
) -> None:
    unit = 2.0**bits
    last = cll.CHUNK * lanes
    for r in range(n):
        row = rows[r]
        for k in range(o - 1):
            posterior[row, k] += np.int64(np.rint(z[r * lanes + k] * unit))
        posterior[row, o - 1] += np.int64(np.rint(z[last + r] * unit))
        label = y[row]
        _add_rest(z[r * lanes + label] if label < o - 1 else z[last + r], unit, rest[row])


@compiled
def _add_rest(p: float, unit: float, rest: NDArray[np.int64]) -> None:
    """Add what rounding p to a multiple of 1 / unit leaves, at the next two scales."""
    left = p - np.rint(p * unit) / unit
    if left != 0.0:
        part = np.rint(left * unit * unit)
        left -= part / unit / unit
        rest[0] += np.int64(part)
        rest[1] += np.int64(np.rint(left * unit * unit * unit))


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
    unit = 2.0**bits
    smallest = 0.5 / unit / unit / unit
    hits = np.empty((3, o), dtype=np.int64)  # true positives, predicted, actual
    for c in range(n_clients):
        for k in range(o):
            hits[0, k] = hits[1, k] = hits[2, k] = 0
        correct = 0
        log_likelihood = 0.0
        brier = 0.0
        for r in range(m):
            best = 0
            whole = 0.0
            for k in range(o):
                whole += sums.posterior[c, r, k] / unit
                if sums.posterior[c, r, k] > sums.posterior[c, r, best]:
                    best = k
            if not joint:
                whole = float(usable[r])
            label = y[r]
            hits[1, best] += 1
            hits[2, label] += 1
            if best == label:
                correct += 1
                hits[0, best] += 1
            own = (
                sums.posterior[c, r, label] / unit
                + sums.rest[c, r, 0] / unit / unit
                + sums.rest[c, r, 1] / unit / unit / unit
            )
            log_likelihood += min(np.log(max(own, smallest) / whole), 0.0)
            for k in range(o):
                p = sums.posterior[c, r, k] / unit / whole
                brier += (p - (1.0 if k == label else 0.0)) ** 2
        f1 = 0.0
        seen = 0
        for k in range(o):
            if hits[1, k] + hits[2, k] > 0:
                seen += 1
                f1 += 2.0 * hits[0, k] / (hits[1, k] + hits[2, k])
        out[0, c] = correct / m
        out[1, c] = log_likelihood / m
        out[2, c] = brier / m
        out[3, c] = f1 / seen


METRICS = ("accuracy", "cll", "brier", "macro_f1")
"""Names of the rows of `metrics`."""


def metrics(
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
            scores, states = cll.scores(rows[left], parents, arity, np.array(1.0), theta)
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
