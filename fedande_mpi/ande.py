"""AnDE: parent sets, parent states, count tables and log-probabilities.

One SPnDE (super-parent n-dependence estimator) of parent set P has the tables P(y), P(x_P | y) and
P(x_j | y, x_P) for every j outside P (Webb et al., *Learning by extrapolation from marginal to full-
multivariate probability distributions*, Mach. Learn. 86, 2012; the paper's equation 2).

All of them are kept in one array of **cells**, shape ``(n_cells, o)``, classes contiguous::

    cell 0                    prior
    cells 1 .. q              parents, by parent state (absent for n = 0)
    then q blocks of V        child values, by parent state; within a block the attributes outside P in
                              ascending order, each with its values (V = sum of their arities)

`unpack` gives the named tables as views. Weights and log-probabilities have the same layout as counts.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedande_mpi.errors import ConfigError

IntArray = NDArray[np.integer]
FloatArray = NDArray[np.float64]


def parent_sets(n_attributes: int, n: int) -> NDArray[np.int64]:
    """List the parent sets of an AnDE.

    Parameters
    ----------
    n_attributes : int
        Number of attributes d.
    n : int
        Dependence order, 0 <= n < d.

    Returns
    -------
    (C(d, n), n) array of int64
        Ascending attribute indices, in lexicographic order; one empty set for n = 0.

    Raises
    ------
    ConfigError
        When n is negative or not below d.
    """
    if not 0 <= n < n_attributes:
        raise ConfigError(f"expected 0 <= n < d, got n = {n} for d = {n_attributes} attributes: lower n")
    sets = np.array(list(combinations(range(n_attributes), n)), dtype=np.int64)
    return sets.reshape(comb(n_attributes, n), n)


def children_of(parents: ArrayLike, n_attributes: int) -> NDArray[np.int64]:
    """Return the attributes outside a parent set, ascending, shape ``(d - n,)``."""
    return np.setdiff1d(np.arange(n_attributes), np.asarray(parents, dtype=np.int64))


def n_parent_states(parents: ArrayLike, arity: IntArray) -> int:
    """Return q, the product of the parents' arities (1 for n = 0)."""
    return int(np.prod(arity[np.asarray(parents, dtype=np.int64)], dtype=np.int64))


def parent_states(X: IntArray, parents: ArrayLike, arity: IntArray) -> NDArray[np.int64]:
    """Code the parents' values of every row, mixed-radix, first parent most significant.

    Parameters
    ----------
    X : (m, d) array of int
        Attribute codes, -1 where missing.
    parents : (n,) sequence of int
        Attribute indices.
    arity : (d,) array of int
        Number of values of each attribute.

    Returns
    -------
    (m,) array of int64
        State in [0, q), or -1 where a parent is missing.
    """
    state = np.zeros(X.shape[0], dtype=np.int64)
    missing = np.zeros(X.shape[0], dtype=bool)
    for j in np.asarray(parents, dtype=np.int64):
        state = state * int(arity[j]) + X[:, j]
        missing |= X[:, j] < 0
    state[missing] = -1
    return state


def n_cells(parents: ArrayLike, arity: IntArray, granularity: str = "parameter") -> int:
    """Return the number of cells of one SPnDE; each holds one number per class.

    ``granularity = "attribute"`` counts the cells of the weights of the paper's index set: one for the
    prior, one for the parents, and one per parent state and child.
    """
    return int(cells_per_set(np.asarray(parents, dtype=np.int64)[None], arity, granularity)[0])


def cells_per_set(sets: IntArray, arity: IntArray, granularity: str = "parameter") -> NDArray[np.int64]:
    """Return `n_cells` of many parent sets ``(|P|, n)`` at once, shape ``(|P|,)``."""
    q = np.prod(arity[sets], axis=1, dtype=np.int64)
    n = sets.shape[1]
    if granularity == "attribute":
        return np.asarray(1 + (n > 0) + q * (arity.size - n))
    values = arity.sum() - arity[sets].sum(axis=1, dtype=np.int64)
    return np.asarray(1 + (q if n else 0) + q * values)


def count_tables(X: IntArray, y: IntArray, parents: ArrayLike, arity: IntArray, n_classes: int) -> FloatArray:
    """Count the tables of one SPnDE.

    A table counts the rows in which all of its attributes are present.

    Parameters
    ----------
    X : (m, d) array of int
        Attribute codes, -1 where missing.
    y : (m,) array of int
        Class codes.
    parents : (n,) sequence of int
        The parent set P.
    arity : (d,) array of int
        Number of values of each attribute.
    n_classes : int
        Number of classes o.

    Returns
    -------
    (n_cells, o) array of float64
        Whole numbers, in the layout of the module.
    """
    parents = np.asarray(parents, dtype=np.int64)
    o = n_classes
    q = n_parent_states(parents, arity)
    counts = np.zeros((n_cells(parents, arity), o))
    counts[0] = np.bincount(y, minlength=o)
    state = parent_states(X, parents, arity)
    first = 1
    if parents.size:
        here = state >= 0
        counts[1 : 1 + q] = np.bincount(state[here] * o + y[here], minlength=q * o).reshape(q, o)
        first += q
    children = children_of(parents, arity.size)
    values = int(arity[children].sum())
    blocks = counts[first:].reshape(q, values, o)
    start = 0
    for j in children:
        here = (state >= 0) & (X[:, j] >= 0)
        code = (state[here] * int(arity[j]) + X[here, j]) * o + y[here]
        table = np.bincount(code, minlength=q * int(arity[j]) * o).reshape(q, int(arity[j]), o)
        blocks[:, start : start + int(arity[j])] = table
        start += int(arity[j])
    return counts


def pseudocounts(smoothing: str, pseudocount: float, cells: int) -> float:
    """Return what is added to each of the ``cells`` counts of a table that is normalised as one.

    ``"laplace"`` adds the pseudocount to each, ``"m-estimate"`` spreads it over them.
    """
    return pseudocount if smoothing == "laplace" else pseudocount / cells


def log_theta(
    counts: FloatArray,
    parents: ArrayLike,
    arity: IntArray,
    smoothing: str = "laplace",
    pseudocount: float = 1.0,
) -> FloatArray:
    """Turn count tables into log-probabilities.

    Each table is normalised by the sum of the very table being normalised::

        P(x_j | y, x_P) = (N(y, x_P, x_j) + a) / (sum over x_j of N(y, x_P, x_j) + a * arity_j)

    and likewise the parents over x_P and the prior over y. An unseen parent state is uniform.

    Parameters
    ----------
    counts : (n_cells, o) array of float64
        Non-negative counts in the layout of the module.
    parents : (n,) sequence of int
        The parent set P.
    arity : (d,) array of int
        Number of values of each attribute.
    smoothing : {"laplace", "m-estimate"}
        a is the pseudocount, or the pseudocount over the table's number of values.
    pseudocount : float
        Positive.

    Returns
    -------
    (n_cells, o) array of float64
        Natural logarithms.
    """
    parents = np.asarray(parents, dtype=np.int64)
    o = counts.shape[1]
    q = n_parent_states(parents, arity)
    theta = np.empty_like(counts)
    a = pseudocounts(smoothing, pseudocount, o)
    theta[0] = np.log(counts[0] + a) - np.log(counts[0].sum() + a * o)
    first = 1
    if parents.size:
        a = pseudocounts(smoothing, pseudocount, q)
        table = counts[1 : 1 + q]
        theta[1 : 1 + q] = np.log(table + a) - np.log(table.sum(axis=0) + a * q)
        first += q
    sizes = arity[children_of(parents, arity.size)]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    blocks = counts[first:].reshape(q, int(sizes.sum()), o)
    added = np.array([pseudocounts(smoothing, pseudocount, int(size)) for size in sizes])
    totals = np.add.reduceat(blocks, starts, axis=1) + (added * sizes)[:, None]
    theta[first:] = (
        np.log(blocks + np.repeat(added, sizes)[:, None]) - np.repeat(np.log(totals), sizes, axis=1)
    ).reshape(-1, o)
    return theta


def unpack(flat: FloatArray, parents: ArrayLike, arity: IntArray, n_classes: int) -> dict[str, FloatArray]:
    """Name the tables of one SPnDE.

    Parameters
    ----------
    flat : (n_cells * o,) or (n_cells, o) array
        Counts, log-probabilities or weights in the layout of the module; weights of granularity
        ``"attribute"`` are recognised by their size.
    parents : (n,) sequence of int
        The parent set P.
    arity : (d,) array of int
        Number of values of each attribute.
    n_classes : int
        Number of classes o.

    Returns
    -------
    dict of str to array
        Views: ``prior (o,)``, ``parents (o, q)`` (absent for n = 0), ``child{j} (o, q, arity_j)``; for
        granularity ``"attribute"`` ``parents (o,)`` and ``child{j} (o, q)``.
    """
    parents = np.asarray(parents, dtype=np.int64)
    cells = flat.reshape(-1, n_classes)
    q = n_parent_states(parents, arity)
    children = children_of(parents, arity.size)
    full = cells.shape[0] == n_cells(parents, arity)
    tables = {"prior": cells[0]}
    first = 1
    if parents.size:
        tables["parents"] = cells[1 : 1 + q].T if full else cells[1]
        first += q if full else 1
    blocks = cells[first:].reshape(q, -1, n_classes)
    start = 0
    for position, j in enumerate(children):
        if full:
            tables[f"child{j}"] = blocks[:, start : start + int(arity[j])].transpose(2, 0, 1)
        else:
            tables[f"child{j}"] = blocks[:, position].T
        start += int(arity[j])
    return tables


def cell_groups(parents: ArrayLike, arity: IntArray) -> NDArray[np.int64]:
    """Return the weight cell of granularity "attribute" that each cell belongs to, shape ``(n_cells,)``."""
    parents = np.asarray(parents, dtype=np.int64)
    q = n_parent_states(parents, arity)
    children = children_of(parents, arity.size)
    values = np.repeat(np.arange(children.size), arity[children])
    first = 1 + (parents.size > 0)
    blocks = first + np.arange(q)[:, None] * children.size + values
    head = np.concatenate([[0], np.ones(q, dtype=np.int64)]) if parents.size else np.zeros(1, dtype=np.int64)
    return np.concatenate([head, blocks.ravel()]).astype(np.int64)
