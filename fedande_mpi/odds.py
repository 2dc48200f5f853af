"""What a client's theta makes of the cells that test rows touch: scores, and the odds that rows multiply.

Clients share the cells of every state of which a client has no row, as theta is uniform there. Each adds its first
cells, the prior and the parents' probabilities, and in the states it has rows of the classes it has seen there.

Fields of tuples and slices are taken before loops: in a loop that branches, each would count references.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import bundles, cll, touched
from fedande_mpi.cll import fast_exp
from fedande_mpi.jit import compiled, inlined, settled
from fedande_mpi.local import Clients, Theta
from fedande_mpi.touched import Layout

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LARGEST = 700.0
"""Products of numbers stay between the exponentials of minus this and this, whatever their order."""


class Index(NamedTuple):
    """Test rows sorted by their state under one parent set, and the cells they touch; the same for all clients.

    Attributes
    ----------
    order, labels : (n_used,) int64, int32
        The rows used (no parent missing) and their classes.
    factors : (n_used * width,) uint32
        The list of every row, see `fedande_mpi.bundles.index_rows`.
    members : (n_joint * n_members,) uint32
        Where rows list joint cells, the cells of each.
    n_joint, n_members : int
    cell, child, weight : (n_touched,) int64
        Position of each cell among those of the parent set, its kind, and the position of its weight.
    position : (n_states,) int64
        Number of every state among those that occur, -1 for the others.
    begin : (n_occurring + 1,) int64
        First touched cell of every state that occurs: its parents cell, for n = 0 the prior.
    number : (n_cells,) int64
        Touched cell of each cell of the parent set; n_touched for the others.
    """

    order: IntArray
    labels: NDArray[np.int32]
    factors: NDArray[np.uint32]
    members: NDArray[np.uint32]
    n_joint: int
    n_members: int
    cell: IntArray
    child: IntArray
    weight: IntArray
    position: IntArray
    begin: IntArray
    number: IntArray


class Indices(NamedTuple):
    """The `Index` of several parent sets one after another, as Python can keep it.

    Attributes
    ----------
    bounds : (S + 1, 7) int64
        Where each set begins in ``order`` and ``labels``, ``factors``, ``members``, ``cell``, ``child`` and
        ``weight``, ``position``, ``begin``, ``number``.
    joint : (S, 2) int64
        ``n_joint`` and ``n_members`` of each.
    """

    bounds: IntArray
    joint: IntArray
    order: IntArray
    labels: NDArray[np.int32]
    factors: NDArray[np.uint32]
    members: NDArray[np.uint32]
    cell: IntArray
    child: IntArray
    weight: IntArray
    position: IntArray
    begin: IntArray
    number: IntArray


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
def index_rows(
    X: NDArray[np.int32],
    y: NDArray[np.int32],
    first: int,
    last: int,
    block: Layout,
    at: int,
    per_attribute: bool,
) -> Index:
    """Sort test rows ``first .. last - 1`` by their state under a parent set, and list the cells they touch."""
    o = block.n_classes
    children, parents = block.children[at], block.parents[at]
    n_children = children.size
    n_states, n_values = block.n_states[at], block.n_values[at]
    rows = np.empty(last - first, dtype=np.int64)
    for r in range(rows.size):
        rows[r] = first + r
    width = n_children + 1
    order = np.empty(rows.size, dtype=np.int64)
    factors = np.empty(rows.size * width, dtype=np.uint32)
    states = min(n_states, rows.size)
    room = 2 + states + min(states * n_values, rows.size * n_children)
    cell = np.empty(room, dtype=np.int64)
    child = np.empty(room, dtype=np.int64)
    counts = np.empty(room * o, dtype=np.int64)
    members = np.empty(bundles.member_capacity(rows.size, n_children, o), dtype=np.uint32)
    lists = bundles.index_rows(X, y, rows, block, at, order, factors, members, cell, child, counts)
    n_used, n_touched = lists.n_used, lists.n_touched
    first_child = 1 + n_states if parents.size > 0 else 1
    number = np.empty(first_child + n_states * n_values, dtype=np.int64)
    for i in range(number.size):
        number[i] = n_touched
    weight = np.empty(n_touched, dtype=np.int64)
    position = np.empty(n_states, dtype=np.int64)
    for s in range(n_states):
        position[s] = -1
    begin = touched.zeros(states + 2)
    n_here = 0
    if parents.size == 0 and n_used > 0:
        position[0] = 0
        n_here = 1
    for i in range(n_touched):
        number[cell[i]] = i
        if child[i] == -2:
            position[cell[i] - 1] = n_here
            begin[n_here] = i
            n_here += 1
        weight[i] = cell[i]
        if per_attribute and child[i] == -2:
            weight[i] = 1
        elif per_attribute and child[i] >= 0:
            state = (cell[i] - first_child) // n_values
            weight[i] = (2 if parents.size > 0 else 1) + state * n_children + child[i]
    begin[n_here] = n_touched
    labels = np.empty(n_used, dtype=np.int32)
    for r in range(n_used):
        labels[r] = y[order[r]]
    return Index(
        order[:n_used],
        labels,
        factors[: n_used * lists.length].copy(),  # the buffers are for the longest lists
        members[: lists.n_joint * lists.n_members].copy(),
        lists.n_joint,
        lists.n_members,
        cell[:n_touched],
        child[:n_touched],
        weight,
        position,
        begin[: n_here + 1],
        number,
    )


@compiled
def index_sets(
    X: NDArray[np.int32],
    y: NDArray[np.int32],
    first: int,
    last: int,
    block: Layout,
    set_first: int,
    set_last: int,
    per_attribute: bool,
) -> Indices:
    """Index test rows ``first .. last - 1`` under a range of parent sets."""
    n = set_last - set_first
    found = []
    bounds = np.empty((n + 1, 7), dtype=np.int64)
    joint = np.empty((n, 2), dtype=np.int64)
    for k in range(7):
        bounds[0, k] = 0
    for i in range(n):
        index = index_rows(X, y, first, last, block, set_first + i, per_attribute)
        found.append(index)
        bounds[i + 1, 0] = bounds[i, 0] + index.order.size
        bounds[i + 1, 1] = bounds[i, 1] + index.factors.size
        bounds[i + 1, 2] = bounds[i, 2] + index.members.size
        bounds[i + 1, 3] = bounds[i, 3] + index.cell.size
        bounds[i + 1, 4] = bounds[i, 4] + index.position.size
        bounds[i + 1, 5] = bounds[i, 5] + index.begin.size
        bounds[i + 1, 6] = bounds[i, 6] + index.number.size
        joint[i, 0], joint[i, 1] = index.n_joint, index.n_members
    end = bounds[n]
    whole = Indices(
        bounds,
        joint,
        np.empty(end[0], dtype=np.int64),
        np.empty(end[0], dtype=np.int32),
        np.empty(end[1], dtype=np.uint32),
        np.empty(end[2], dtype=np.uint32),
        np.empty(end[3], dtype=np.int64),
        np.empty(end[3], dtype=np.int64),
        np.empty(end[3], dtype=np.int64),
        np.empty(end[4], dtype=np.int64),
        np.empty(end[5], dtype=np.int64),
        np.empty(end[6], dtype=np.int64),
    )
    for i in range(n):
        index, at = found[i], bounds[i]
        _put(index.order, whole.order, at[0])
        _put(index.labels, whole.labels, at[0])
        _put(index.factors, whole.factors, at[1])
        _put(index.members, whole.members, at[2])
        _put(index.cell, whole.cell, at[3])
        _put(index.child, whole.child, at[3])
        _put(index.weight, whole.weight, at[3])
        _put(index.position, whole.position, at[4])
        _put(index.begin, whole.begin, at[5])
        _put(index.number, whole.number, at[6])
    return whole


@inlined
def _put(part: NDArray[Any], whole: NDArray[Any], first: int) -> None:
    for i in range(part.size):
        whole[first + i] = part[i]


@inlined
def index_of(indices: Indices, i: int) -> Index:
    """Return the index of one of the parent sets."""
    at, end = indices.bounds[i], indices.bounds[i + 1]
    return Index(
        indices.order[at[0] : end[0]],
        indices.labels[at[0] : end[0]],
        indices.factors[at[1] : end[1]],
        indices.members[at[2] : end[2]],
        indices.joint[i, 0],
        indices.joint[i, 1],
        indices.cell[at[3] : end[3]],
        indices.child[at[3] : end[3]],
        indices.weight[at[3] : end[3]],
        indices.position[at[4] : end[4]],
        indices.begin[at[5] : end[5]],
        indices.number[at[6] : end[6]],
    )


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
    lanes = cll.stride(compared)
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
    lanes = cll.stride(h + 1)
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
    lanes = cll.stride(h + 1)
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
