"""The cells that a set of rows touches, and the rows as lists of those cells.

A weight whose probability no row uses has zero gradient for good, so everything that loops over rows works
on the touched cells alone, renumbered from 0: cell 0 is the prior, then for every parent state that occurs
(ascending) its parents cell and the child values that occur with it (attributes and values ascending). Rows
are sorted by parent state, which keeps the cells in use in the first-level cache.

Everything here is compiled and works in buffers that the caller allocates once per batch (`capacity`);
`fedande_mpi.bundles` puts it together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import ande
from fedande_mpi.jit import compiled, inlined


class Layout(NamedTuple):
    """What the compiled loops know of a block of B parent sets of one order n.

    Attributes
    ----------
    parents : (B, n) int64
        Attribute indices.
    children : (B, d - n) int64
        Attributes outside the parent set.
    offsets : (B, d - n) int64
        Position of a child's first value in a state's block of child values.
    n_states, n_values : (B,) int64
        q and V of each set.
    arity : (d,) int64
        Number of values of each attribute.
    n_classes : int
        o.
    """

    parents: NDArray[np.int64]
    children: NDArray[np.int64]
    offsets: NDArray[np.int64]
    n_states: NDArray[np.int64]
    n_values: NDArray[np.int64]
    arity: NDArray[np.int64]
    n_classes: int


def layout(sets: NDArray[np.int64], arity: NDArray[np.integer], n_classes: int) -> Layout:
    """Describe a block of parent sets, shape ``(B, n)``, for the compiled loops."""
    # what may not be written, such as a model mapped into memory, is another type to Numba, and would be compiled for
    arities = np.require(arity, np.int64, ["C", "W", "E"])
    children = np.array([ande.children_of(parents, arities.size) for parents in sets], dtype=np.int64)
    sizes = arities[children]
    return Layout(
        parents=np.require(sets, np.int64, ["C", "W", "E"]),
        children=children,
        offsets=np.cumsum(sizes, axis=1) - sizes,
        n_states=np.array([ande.n_parent_states(parents, arities) for parents in sets], dtype=np.int64),
        n_values=sizes.sum(axis=1),
        arity=arities,
        n_classes=n_classes,
    )


def capacity(block: Layout, n_rows: int) -> int:
    """Return how many cells `n_rows` rows can touch at most, over the sets of a block."""
    n_children = block.children.shape[1]
    states = np.minimum(block.n_states, n_rows)
    return int((1 + states + np.minimum(states * block.n_values, n_rows * n_children)).max())


@inlined
def zeros(n: int) -> NDArray[np.int64]:
    """Return `n` zeros; of ``np.zeros``, as of ``np.full`` and ``np.arange``, Numba compiles several functions."""
    out = np.empty(n, dtype=np.int64)
    for i in range(n):
        out[i] = 0
    return out


@inlined
def parent_state(
    X: NDArray[np.int32], row: int, parents: NDArray[np.int64], arity: NDArray[np.int64]
) -> np.int64:
    """Code one row's parent values, mixed-radix, first parent most significant; -1 where one is missing."""
    code = np.int64(0)
    for p in range(parents.size):
        value = X[row, parents[p]]
        if value < 0:
            return np.int64(-1)
        code = code * arity[parents[p]] + value
    return code


@inlined
def sort_by_state(
    X: NDArray[np.int32],
    rows: NDArray[np.int64],
    parents: NDArray[np.int64],
    n_states: int,
    arity: NDArray[np.int64],
    order: NDArray[np.int64],
    start: NDArray[np.int64],
) -> int:
    """Sort rows by parent state into ``order (k,)``, state s from ``start[s]`` on; return how many have one.

    A counting sort, stable; ``start`` is ``(n_states + 1,)``.
    """
    k = rows.size
    state = np.empty(k, dtype=np.int64)
    n_used = 0
    for s in range(n_states + 1):
        start[s] = 0
    for r in range(k):
        code = parent_state(X, rows[r], parents, arity)
        state[r] = code
        if code >= 0:
            start[code + 1] += 1
            n_used += 1
    for s in range(n_states):
        start[s + 1] += start[s]
    place = start.copy()
    for r in range(k):
        code = state[r]
        if code >= 0:
            order[place[code]] = rows[r]
            place[code] += 1
    return n_used


@inlined
def number_cells(
    tally: NDArray[np.int64],
    first: int,
    touched: int,
    o: int,
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    number: NDArray[np.int64],
    cell: NDArray[np.int64],
    child: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> int:
    """Give the child values of a state that occur the next numbers, and move their counts out of ``tally``.

    Numbers go on from `touched`; the state's values are the cells from `first` on of the parent set. Returns the
    number that comes next.
    """
    for j in range(sizes.size):
        for v in range(offsets[j], offsets[j] + sizes[j]):
            total = 0
            for c in range(o):
                counts[touched * o + c] = tally[v * o + c]
                total += tally[v * o + c]
                tally[v * o + c] = 0
            if total > 0:
                number[v] = touched
                cell[touched] = first + v
                child[touched] = j
                touched += 1
    return touched


@compiled
def log_theta_touched(
    counts: NDArray[np.int64],
    child: NDArray[np.int64],
    n_touched: int,
    o: int,
    n_states: int,
    children: NDArray[np.int64],
    table: NDArray[np.int64],
    pseudo_prior: float,
    pseudo_parents: float,
    log_count: NDArray[np.float64],
    log_total: NDArray[np.float64],
    log_theta: NDArray[np.float64],
) -> None:
    """Turn the counts of touched cells into log-probabilities, `ande.log_theta`'s rule.

    ``log_count[t, k] = log(k + a)`` and ``log_total[t, k] = log(k + a * arity)`` with ``t = table[j]`` come
    from `log_tables`: a count is a small whole number, and a look-up costs a tenth of a logarithm.
    """
    total = zeros(o)
    for k in range(o):
        total[0] += counts[k]
    base = np.log(total[0] + pseudo_prior * o)
    for k in range(o):
        log_theta[k] = np.log(counts[k] + pseudo_prior) - base
    # parents: normalised over all states of the class
    for k in range(o):
        total[k] = 0
    for c in range(1, n_touched):
        if child[c] == -2:
            for k in range(o):
                total[k] += counts[c * o + k]
    bases = np.empty(o)
    for k in range(o):
        bases[k] = np.log(total[k] + pseudo_parents * n_states)
    c = 1
    while c < n_touched:
        if child[c] == -2:
            for k in range(o):
                log_theta[c * o + k] = np.log(counts[c * o + k] + pseudo_parents) - bases[k]
            c += 1
            continue
        # the touched values of one child in one state stand together (a parents cell or another child
        # follows); the untouched ones have count 0
        j = child[c]
        end = c
        for k in range(o):
            total[k] = 0
        while end < n_touched and child[end] == j:
            for k in range(o):
                total[k] += counts[end * o + k]
            end += 1
        a = table[children[j]]
        for i in range(c, end):
            for k in range(o):
                log_theta[i * o + k] = log_count[a, counts[i * o + k]] - log_total[a, total[k]]
        c = end


def log_tables(
    arity: NDArray[np.integer], smoothing: str, pseudocount: float, max_count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Tabulate log(k + a) and log(k + a * arity) for k = 0 .. max_count, once per distinct arity.

    Returns
    -------
    table : (d,) array of int64
        The row of the tables that belongs to each attribute.
    log_count, log_total : (n_distinct, max_count + 1) array of float64
    """
    distinct, table = np.unique(arity, return_inverse=True)
    k = np.arange(max_count + 1)
    added = np.array([ande.pseudocounts(smoothing, pseudocount, int(size)) for size in distinct])
    return table.astype(np.int64), np.log(k + added[:, None]), np.log(k + (added * distinct)[:, None])
