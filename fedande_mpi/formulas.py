"""One SPnDE in plain NumPy: scores, posterior, the negative conditional log-likelihood (CLL) and its gradient.

The score of class y is the sum of w * log theta over the factors a row uses, and P(y | x, P, w) is the softmax of
the scores (the paper's equation 4; w = 1 is the generative model).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedande_mpi import ande
from fedande_mpi.ande import FloatArray, IntArray


def scores(
    X: IntArray, parents: ArrayLike, arity: IntArray, w: FloatArray, log_theta: FloatArray
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return the scores (m, o) of one SPnDE and the parent states (m,); a missing child adds nothing."""
    o = log_theta.shape[-1]
    product = ande.unpack(log_theta * _per_cell(w, parents, arity, o), parents, arity, o)
    state = ande.parent_states(X, parents, arity)
    score = np.tile(product["prior"], (X.shape[0], 1))
    here = state >= 0
    if "parents" in product:
        score[here] += product["parents"].T[state[here]]
    for j in ande.children_of(parents, arity.size):
        used = here & (X[:, j] >= 0)
        score[used] += product[f"child{j}"][:, state[used], X[used, j]].T
    return score, state


def _per_cell(w: FloatArray, parents: ArrayLike, arity: IntArray, n_classes: int) -> FloatArray:
    """Give every cell its weight: granularity "attribute" has one for all values of a child."""
    w = np.asarray(w, dtype=np.float64)
    if w.ndim == 0:
        return np.full((ande.n_cells(parents, arity), n_classes), float(w))
    w = w.reshape(-1, n_classes)
    if w.shape[0] == ande.n_cells(parents, arity):
        return w
    return w[ande.cell_groups(parents, arity)]


def predict_proba(
    X: IntArray, parents: ArrayLike, arity: IntArray, w: ArrayLike, log_theta: FloatArray
) -> FloatArray:
    """Return P(y | x, P, w) of one SPnDE (the paper's equation 4).

    Parameters
    ----------
    X : (m, d) array of int
        Attribute codes, -1 where missing: a missing child drops its factor.
    parents : (n,) sequence of int
        The parent set P.
    arity : (d,) array of int
        Number of values of each attribute.
    w : (n_weight_cells, o) array or float
        Weights in the layout of `fedande_mpi.ande`, of either granularity; 1.0 is the generative model.
    log_theta : (n_cells, o) array of float64
        Log-probabilities, see `fedande_mpi.log_theta`.

    Returns
    -------
    (m, o) array of float64
        Rows sum to 1; NaN for a row with a missing parent, on which this SPnDE has no say.
    """
    score, state = scores(X, parents, arity, np.asarray(w, dtype=np.float64), log_theta)
    score -= score.max(axis=1, keepdims=True)
    posterior = np.exp(score)
    posterior /= posterior.sum(axis=1, keepdims=True)
    posterior[state < 0] = np.nan
    return posterior


def negative_cll(
    w: ArrayLike,
    X: IntArray,
    y: IntArray,
    parents: ArrayLike,
    arity: IntArray,
    log_theta: FloatArray,
) -> tuple[float, FloatArray]:
    """Return the negative conditional log-likelihood of one SPnDE and its gradient in the weights.

    Parameters
    ----------
    w : (n_weight_cells, o) array of float64
        Weights in the layout of `fedande_mpi.ande`, of either granularity.
    X, y : (m, d), (m,) array of int
        Attribute codes (-1 where missing) and class codes. Rows with a missing parent do not count.
    parents : (n,) sequence of int
        The parent set P.
    arity : (d,) array of int
        Number of values of each attribute.
    log_theta : (n_cells, o) array of float64
        Log-probabilities, held fixed.

    Returns
    -------
    value : float
        -sum of log P(y | x, P, w) over the rows, in nats. Convex in w.
    gradient : (n_weight_cells, o) array of float64

    Notes
    -----
    Plain NumPy, for one parent set at a time; the federation runs the compiled kernel of
    `fedande_mpi.cll`, which the tests hold against this function.
    """
    w = np.asarray(w, dtype=np.float64)
    o = log_theta.shape[-1]
    score, state = scores(X, parents, arity, w, log_theta)
    used = np.flatnonzero(state >= 0)
    score = score[used] - score[used].max(axis=1, keepdims=True)
    log_norm = np.log(np.exp(score).sum(axis=1))
    value = float(np.sum(log_norm - score[np.arange(used.size), y[used]]))
    residual = np.exp(score - log_norm[:, None])
    residual[np.arange(used.size), y[used]] -= 1.0
    per_cell = np.empty((ande.n_cells(parents, arity), o))
    for k in range(o):
        per_cell[:, k] = _weighted_counts(X[used], state[used], residual[:, k], parents, arity)
    per_cell *= log_theta
    w_cells = w.reshape(-1, o)
    if w_cells.shape[0] == per_cell.shape[0]:
        return value, per_cell.reshape(w.shape)
    grouped = np.zeros_like(w_cells)
    np.add.at(grouped, ande.cell_groups(parents, arity), per_cell)
    return value, grouped.reshape(w.shape)


def _weighted_counts(
    X: IntArray, state: NDArray[np.int64], amount: FloatArray, parents: ArrayLike, arity: IntArray
) -> FloatArray:
    """Sum an amount per row over the rows of every cell, shape ``(n_cells,)``."""
    parents = np.asarray(parents, dtype=np.int64)
    q = ande.n_parent_states(parents, arity)
    children = ande.children_of(parents, arity.size)
    parts = []
    for j in children:
        here = X[:, j] >= 0
        code = state[here] * int(arity[j]) + X[here, j]
        parts.append(np.bincount(code, amount[here], q * int(arity[j])).reshape(q, int(arity[j])))
    head = [np.array([amount.sum()])]
    if parents.size:
        head.append(np.bincount(state, amount, q))
    return np.concatenate([*head, np.concatenate(parts, axis=1).ravel()])
