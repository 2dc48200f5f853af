"""What a client's theta makes of the cells that test rows touch: scores, and the odds that rows multiply.

Clients share the cells of every state of which a client has no row, as theta is uniform there. Each adds its first
cells, the prior and the parents' probabilities, and in the states it has rows of the classes it has seen there.

Fields of tuples and slices are taken before loops: in a loop that branches, each would count references.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import touched
from fedande_mpi.indexing import Index
from fedande_mpi.jit import inlined, settled
from fedande_mpi.local import Clients, Theta
from fedande_mpi.softmax import fast_exp, stride
from fedande_mpi.touched import Layout

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LARGEST = 700.0
"""Products of numbers stay between the exponentials of minus this and this, whatever their order."""


class Table(NamedTuple):
    """What the touched cells contribute, ``((n_touched + 1) * stride,)`` each; the last cell is a missing value's.

    Attributes
    ----------
    u : float64
        Scores as differences to the last class (joint: the scores).
    e : float64
        Their exponentials, NaN where out of range. Lanes without a class are 0 in the first cells of the states,
        so that they are 0 in every product; the last class, if there is a lane for it, has 1.
    """

    u: FloatArray
    e: FloatArray


class Own(NamedTuple):
    """What is counted of one client; but for ``classes`` all zero between clients.

    Attributes
    ----------
    classes : (2 * o,) int64
        Its rows of each class, and those without a missing parent.
    counts : ((n_touched + 1) * o,) int64
        Its rows of each class that use a cell; for a state's first cell, all its rows of the state. Cells that no
        test row touches are counted as cell n_touched, which is not read.
    absent : (n_occurring * n_children * o,) int64
        Those of a state whose child is missing.
    seen : (n_occurring,) bool
        States it has rows of.

    All have room for the largest of several parent sets.
    """

    classes: IntArray
    counts: IntArray
    absent: IntArray
    seen: NDArray[np.bool_]


@inlined
def allocate(n_touched: int, lanes: int) -> Table:
    """Return an empty table, whose last cell, a missing value's, changes nothing."""
    size = (n_touched + 1) * lanes
    u, e = np.empty(size), np.empty(size)
    for i in range(size):
        u[i] = 0.0
        e[i] = 0.0 if i < n_touched * lanes else 1.0
    return Table(u, e)


@inlined
def copy(source: Table, to: Table) -> None:
    """Copy one table to another."""
    u, e, to_u, to_e = source.u, source.e, to.u, to.e
    for i in range(u.size):
        to_u[i] = u[i]
        to_e[i] = e[i]


@inlined
def exponentials(u: FloatArray, e: FloatArray, largest: float) -> None:
    """Fill ``e`` with e^u, NaN beyond +-largest."""
    for i in range(u.size):
        value = fast_exp(u[i])
        e[i] = value if abs(u[i]) <= largest else np.nan


@inlined
def share(
    index: Index,
    block: Layout,
    at: int,
    theta: Theta,
    given: FloatArray,
    start: int,
    joint: bool,
    w: FloatArray,
    shared: Table,
) -> None:
    """Fill the table of a client without rows, but for its first cells; of a pooled model the whole table.

    Parameters
    ----------
    index, block, at, theta
        The test rows, and the parent set.
    given : (width,) float64
        Weights of the block's sets one after another; empty where all are 1.
    start : int
        Where the set begins.
    joint : bool
        Scores instead of differences to the last class.
    w : (n_touched * o,) float64, out
        The weights of the touched cells.
    shared : Table, out
    """
    children, cell, child, weight = block.children[at], index.cell, index.child, index.weight
    u, e = shared.u, shared.e
    pooled, rows_of, log_count, log_total = theta.pooled, theta.table, theta.log_count, theta.log_total
    o = block.n_classes
    compared = o + 1 if joint else o
    lanes = stride(compared)
    from_pool = theta.pooled_start[at]
    score = np.empty(o + 1)
    score[o] = 0.0
    for i in range(cell.size):
        j = child[i]
        for k in range(o):
            w[i * o + k] = given[start + weight[i] * o + k] if given.size > 0 else 1.0
            score[k] = 0.0
            if pooled.size > 0:
                score[k] = settled(w[i * o + k] * pooled[from_pool + cell[i] * o + k])
                if j == -2:
                    score[k] += settled(w[k] * pooled[from_pool + k])
            elif j >= 0:
                t = rows_of[children[j]]
                score[k] = settled(w[i * o + k] * (log_count[t, 0] - log_total[t, 0]))
        for k in range(compared - 1):
            u[i * lanes + k] = score[k] - score[compared - 1]
    n = cell.size * lanes
    exponentials(u[:n], e[:n], LARGEST / (children.size + 1))
    # of the lanes beyond the compared classes the first is the last class's, whose odds are 1
    for i in range(cell.size):
        if child[i] < 0:
            for k in range(compared - 1 if joint else compared, lanes):
                e[i * lanes + k] = 0.0


@inlined
def _changed(counts: IntArray, here: int, o: int, h: int, classes: IntArray) -> int:
    """List the classes whose scores in a state are not the shared ones, then the last where it is compared to."""
    n = 0
    everyone = h < o and counts[here + h] > 0  # being differences to the last
    for k in range(h):
        if everyone or counts[here + k] > 0:
            classes[n] = k
            n += 1
    if h < o:
        classes[n] = h
    return n


@inlined
def forget_own(index: Index, o: int, h: int, n_children: int, shared: Table, own: Own, table: Table) -> None:
    """Take out what the last client filled in; first cells stay, as every client fills them in."""
    begin = index.begin
    counts, absent, seen = own.counts, own.absent, own.seen
    u, e, shared_u, shared_e = table.u, table.e, shared.u, shared.e
    lanes = stride(h + 1)
    changed = np.empty(o, dtype=np.int64)
    for s in range(begin.size - 1):
        if not seen[s]:
            continue
        seen[s] = False
        n_changed = _changed(counts, begin[s] * o, o, h, changed)
        for i in range(begin[s + 1] - 1, begin[s], -1):
            for q in range(n_changed):
                k = changed[q]
                u[i * lanes + k] = shared_u[i * lanes + k]
                e[i * lanes + k] = shared_e[i * lanes + k]
            for q in range(n_changed + o - h):
                counts[i * o + changed[q]] = 0
        for q in range(n_changed + o - h):
            k = changed[q]
            counts[begin[s] * o + k] = 0
            for j in range(n_children):
                absent[(s * n_children + j) * o + k] = 0
    for i in range(index.cell.size * o, (index.cell.size + 1) * o):
        counts[i] = 0


@inlined
def count_own(index: Index, clients: Clients, c: int, block: Layout, at: int, own: Own) -> None:
    """Count the client's rows."""
    X, y, arity = clients.X, clients.y, block.arity
    parents, children, offsets = block.parents[at], block.children[at], block.offsets[at]
    position, begin, number = index.position, index.begin, index.number
    classes, counts, absent, seen = own.classes, own.counts, own.absent, own.seen
    o, n_children, n_values = block.n_classes, children.size, block.n_values[at]
    first_child = 1 + block.n_states[at] if parents.size > 0 else 1
    for k in range(2 * o):
        classes[k] = 0
    for r in range(clients.start[c], clients.start[c + 1]):
        label = y[r]
        classes[label] += 1
        state = touched.parent_state(X, r, parents, arity)
        if state < 0:
            continue
        classes[o + label] += 1
        s = position[state]
        if s < 0:
            continue
        seen[s] = True
        counts[begin[s] * o + label] += 1
        base = first_child + state * n_values
        for j in range(n_children):
            value = X[r, children[j]]
            if value >= 0:
                counts[number[base + offsets[j] + value] * o + label] += 1
            else:
                absent[(s * n_children + j) * o + label] += 1


@inlined
def add_own(
    index: Index,
    block: Layout,
    at: int,
    theta: Theta,
    joint: bool,
    own: Own,
    w: FloatArray,
    table: Table,
) -> None:
    """Fill in the cells whose theta depends on the client's rows."""
    children, child, begin = block.children[at], index.child, index.begin
    classes, counts, absent, seen = own.classes, own.counts, own.absent, own.seen
    u, e = table.u, table.e
    rows_of, log_count, log_total = theta.table, theta.log_count, theta.log_total
    o, n_children = block.n_classes, children.size
    h = o if joint else o - 1
    lanes = stride(h + 1)
    largest = LARGEST / (n_children + 1)
    score = np.empty(o + 1)
    score[o] = 0.0
    total = np.empty(o)
    changed = np.empty(o, dtype=np.int64)
    for s in range(begin.size - 1):
        if not seen[s]:
            continue
        here = begin[s] * o
        n_changed = _changed(counts, here, o, h, changed)
        j = -1
        t = 0
        for i in range(begin[s] + 1, begin[s + 1]):
            if child[i] != j:
                j = child[i]
                t = rows_of[children[j]]
                for q in range(n_changed + o - h):
                    k = changed[q]
                    total[k] = log_total[t, counts[here + k] - absent[(s * n_children + j) * o + k]]
            if not joint:
                score[h] = settled(w[i * o + h] * (log_count[t, counts[i * o + h]] - total[h]))
            for q in range(n_changed):
                k = changed[q]
                x = settled(w[i * o + k] * (log_count[t, counts[i * o + k]] - total[k]))
                u[i * lanes + k] = x - score[h]
        first, last = (begin[s] + 1) * lanes, begin[s + 1] * lanes
        exponentials(u[first:last], e[first:last], largest)
    # the first cell of every state: the prior, with n > 0 times the parents' probability
    n_rows = 0
    for k in range(o):
        n_rows += classes[k]
    prior = np.empty(o)
    base = np.empty(o)
    pseudo = theta.pseudo_parents[at]
    n_parents = block.parents.shape[1]
    for k in range(o):
        log_theta = np.log(classes[k] + theta.pseudo_prior) - np.log(n_rows + theta.pseudo_prior * o)
        prior[k] = settled(w[k] * log_theta)
        base[k] = np.log(classes[o + k] + pseudo * block.n_states[at])
    unseen = np.log(pseudo)
    score[h] = 0.0
    for s in range(begin.size - 1):
        i = begin[s]
        for k in range(o):
            score[k] = prior[k]
            if n_parents > 0:
                count = counts[i * o + k]
                log = np.log(count + pseudo) if count > 0 else unseen
                score[k] += settled(w[i * o + k] * (log - base[k]))
        first = i * lanes
        for k in range(h):
            u[first + k] = score[k] - score[h]
        exponentials(u[first : first + h], e[first : first + h], largest)
