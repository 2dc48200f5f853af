"""Scoring test rows at many clients: sums of posteriors over parent sets, the same whoever computes them.

The score of a class is a sum over the cells that a row uses, so the odds of the classes are products::

    e[cell, y] = exp(w[cell, y] log theta[cell, y] - w[cell, o-1] log theta[cell, o-1])      y < o - 1
    P(y | x, P) / P(o-1 | x, P) = product of e[cell, y] over the row's cells

Exponentials are taken once per cell and client, not once per row. A cell that could take a product out of the
range of floating-point numbers is NaN: its rows are scored by sums of logarithms, as `fedande_mpi.cll` does.

The clients share the test rows, sorted by parent state once for all, and, under common weights, the cells of
every state of which a client has no row: theta is uniform there. What is left to each is a product per test row,
its parents cells, and for the states it has rows of the classes it has seen in them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import cll, touched
from fedande_mpi.cll import CHUNK, exp_nonpositive
from fedande_mpi.jit import compiled, inlined, settled
from fedande_mpi.local import Clients, Theta
from fedande_mpi.metrics import Sums
from fedande_mpi.touched import Layout
from fedande_mpi.vectors import count_4, count_8, multiply_4, multiply_8, total_4, total_8

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_CACHE = 2**20
"""Bytes of sorted rows that are worked on together."""

_LARGEST = 700.0
"""Products of numbers stay between the exponentials of minus this and this, whatever their order."""


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
        k, see `fedande_mpi.metrics.scale_bits`.
    joint : bool
        Sum joints (``top`` holds the rows' maxima) instead of posteriors.
    """

    weights: FloatArray
    start: IntArray
    per_attribute: bool
    bits: int
    joint: bool


class Index(NamedTuple):
    """Test rows sorted by their state under one parent set, and the cells they touch; the same for all clients.

    Attributes
    ----------
    order, labels : (n_used,) int64, int32
        The rows used (no parent missing) and their classes.
    factors : (n_used * width,) uint32
        Touched cells of every row, see `fedande_mpi.touched.index_rows`.
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
        so that they are 0 in every product.
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


class Prepared(NamedTuple):
    """One parent set, ready for any client.

    Attributes
    ----------
    rows : Index
    w : (n_touched * o,) float64
        Weights of the touched cells.
    shared : Table
        Of a client without rows, or of the pooled model.
    table : Table
        Of the client in work; between clients as ``shared``.
    """

    rows: Index
    w: FloatArray
    shared: Table
    table: Table


@compiled
def score(
    test: HeldOut,
    first: int,
    last: int,
    clients: Clients,
    block: Layout,
    theta: Theta,
    scoring: Scoring,
    set_first: int,
    set_last: int,
    client_first: int,
    client_last: int,
    maxima_only: bool,
    top: FloatArray,
    sums: Sums,
) -> None:
    """Add posteriors of test rows ``first .. last - 1`` to the sums, for a range of parent sets and of clients.

    With ``maxima_only`` (the first pass of ``combine = "joint"``) only the largest log joint of every row is
    kept, in ``top (C, m)``; the sums are left alone.
    """
    o = block.n_classes
    # joints are not normalised: differences to a class more, whose score is 0, are the scores themselves
    compared = o + 1 if scoring.joint else o
    lanes = cll.stride(compared)
    n_children = block.children.shape[1]
    pooled = theta.pooled.size > 0
    sets = []
    most_cells = most_states = 0
    for at in range(set_first, set_last):
        index = _index_rows(test, first, last, block, at, scoring.per_attribute)
        n_touched = index.cell.size
        shared = _allocate(n_touched, lanes)
        table = shared if pooled else _allocate(n_touched, lanes)
        sets.append(Prepared(index, np.empty(n_touched * o), shared, table))
        most_cells = max(most_cells, n_touched + 1)
        most_states = max(most_states, index.begin.size - 1)
    own = Own(
        np.empty(2 * o, dtype=np.int64),
        np.zeros(most_cells * o, dtype=np.int64),
        np.zeros(most_states * n_children * o, dtype=np.int64),
        np.zeros(most_states, dtype=np.bool_),
    )
    z = np.empty(CHUNK * (lanes + 3))
    rounded = np.empty((4, CHUNK), dtype=np.int64)
    for c in range(client_first, client_last):  # outside, so that its sums stay in the cache
        for at in range(set_first, set_last):
            index, w, shared, table = sets[at - set_first]
            if c == client_first or scoring.weights.shape[0] > 1:
                _share(index, block, at, theta, scoring, c, w, shared)
                _copy(shared, table)
            if not pooled:
                _count_own(index, clients, c, block, at, own)
                _add_own(index, block, at, theta, scoring.joint, own, w, table)
            if maxima_only:
                _raise_maxima(index, o, compared, table.u, z, top[c])
            else:
                posterior, rest = sums.posterior[c], sums.rest[c]
                _add_rows(index, o, compared, table, z, rounded, scoring.bits, top[c], posterior, rest)
            if not pooled:
                _forget_own(index, o, compared - 1, n_children, shared, own, table)


def together(block: Layout, n_rows: int) -> list[slice]:
    """Cut a block into runs of parent sets whose sorted rows fit the cache next to a client's sums."""
    per_row = 4 * (block.children.shape[1] + 1)
    some = max(1, _CACHE // (per_row * max(1, n_rows)))
    n_sets = len(block.n_states)
    return [slice(at, min(at + some, n_sets)) for at in range(0, n_sets, some)]


@inlined
def _index_rows(test: HeldOut, first: int, last: int, block: Layout, at: int, per_attribute: bool) -> Index:
    o = block.n_classes
    children, parents = block.children[at], block.parents[at]
    n_children = children.size
    n_states, n_values = block.n_states[at], block.n_values[at]
    rows = np.arange(first, last)
    width = n_children + 1
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
        block.offsets[at],
        n_states,
        n_values,
        block.arity,
        order,
        factors,
        cell,
        child,
        counts,
    )
    first_child = 1 + n_states if parents.size > 0 else 1
    number = np.full(first_child + n_states * n_values, n_touched)
    weight = np.empty(n_touched, dtype=np.int64)
    position = np.full(n_states, -1)
    begin = np.zeros(states + 2, dtype=np.int64)
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
    y = test.y
    labels = np.empty(n_used, dtype=np.int32)
    for r in range(n_used):
        labels[r] = y[order[r]]
    return Index(
        order[:n_used],
        labels,
        factors[: n_used * width],
        cell[:n_touched],
        child[:n_touched],
        weight,
        position,
        begin[: n_here + 1],
        number,
    )


@inlined
def _allocate(n_touched: int, lanes: int) -> Table:
    table = Table(np.zeros((n_touched + 1) * lanes), np.zeros((n_touched + 1) * lanes))
    e = table.e
    for i in range(n_touched * lanes, (n_touched + 1) * lanes):
        e[i] = 1.0
    return table


@inlined
def _copy(source: Table, to: Table) -> None:
    u, e, to_u, to_e = source.u, source.e, to.u, to.e
    for i in range(u.size):
        to_u[i] = u[i]
        to_e[i] = e[i]


@inlined
def _exponentials(u: FloatArray, e: FloatArray, largest: float) -> None:
    """Fill ``e`` with e^u, NaN beyond +-largest."""
    for i in range(u.size):
        value = exp_nonpositive(u[i])
        e[i] = value if abs(u[i]) <= largest else np.nan


@inlined
def _share(
    index: Index,
    block: Layout,
    at: int,
    theta: Theta,
    scoring: Scoring,
    c: int,
    w: FloatArray,
    shared: Table,
) -> None:
    """Fill the weights ``w (n_touched * o)`` and the table of a client without rows, but for its first cells.

    Of a pooled model the whole table.
    """
    # fields are taken out of their tuples once: in a loop, each would cost a count of references
    children, cell, child, weight = block.children[at], index.cell, index.child, index.weight
    u, e = shared.u, shared.e
    pooled, rows_of, log_count, log_total = theta.pooled, theta.table, theta.log_count, theta.log_total
    o = block.n_classes
    compared = o + 1 if scoring.joint else o
    lanes = cll.stride(compared)
    start, from_pool = scoring.start[at], theta.pooled_start[at]
    given = scoring.weights[c if scoring.weights.shape[0] > 1 else 0]
    score = np.zeros(o + 1)
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
    _exponentials(u[:n], e[:n], _LARGEST / (children.size + 1))
    for i in range(cell.size):
        if child[i] < 0:
            for k in range(compared - 1, lanes):
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
def _forget_own(index: Index, o: int, h: int, n_children: int, shared: Table, own: Own, table: Table) -> None:
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
def _count_own(index: Index, clients: Clients, c: int, block: Layout, at: int, own: Own) -> None:
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
def _add_own(
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
    largest = _LARGEST / (n_children + 1)
    score = np.zeros(o + 1)
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
        _exponentials(u[first:last], e[first:last], largest)
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
        _exponentials(u[first : first + h], e[first : first + h], largest)


@inlined
def _multiply(
    factors: NDArray[np.uint32], start: int, n: int, width: int, lanes: int, e: FloatArray, z: FloatArray
) -> None:
    """Multiply the numbers of the cells of rows ``start .. start + n - 1`` into ``z (n * stride)``."""
    if lanes == 1:
        for r in range(n):
            at = (start + r) * width
            a = b = c = d = 1.0
            f = 0
            while f + 4 <= width:
                a *= e[factors[at + f]]
                b *= e[factors[at + f + 1]]
                c *= e[factors[at + f + 2]]
                d *= e[factors[at + f + 3]]
                f += 4
            while f < width:
                a *= e[factors[at + f]]
                f += 1
            z[r] = (a * b) * (c * d)
        return
    for r in range(n):
        at, out = (start + r) * width, r * lanes
        k = 0
        while k + 8 <= lanes:
            multiply_8(e, factors, at, width, lanes, k, z, out + k)
            k += 8
        if k < lanes:
            multiply_4(e, factors, at, width, lanes, k, z, out + k)


@inlined
def _add_rows(
    index: Index,
    o: int,
    compared: int,
    table: Table,
    z: FloatArray,
    rounded: IntArray,
    bits: int,
    top: FloatArray,
    posterior: IntArray,
    rest: IntArray,
) -> None:
    """Add the posteriors (joint: the joints relative to e^top) of all rows, rounded, to a client's sums.

    Of the row's own class what rounding leaves is added at the next two scales.
    """
    order, labels, factors = index.order, index.labels, index.factors
    u, e = table.u, table.e
    n_used = order.size
    width = factors.size // max(1, n_used)
    h = compared - 1
    joint = h == o
    lanes = cll.stride(compared)
    unit = 2.0**bits
    inverse = 1.0 / unit  # powers of two: exact
    # slices once, as each counts references; from 0, as only such loops run in vector registers
    at = CHUNK * lanes
    factor, last, own = z[at : at + CHUNK], z[at + CHUNK : at + 2 * CHUNK], z[at + 2 * CHUNK :]
    whole, whole_last, coarse, fine = rounded[0], rounded[1], rounded[2], rounded[3]
    for start in range(0, n_used, CHUNK):
        n = min(CHUNK, n_used - start)
        _multiply(factors, start, n, width, lanes, e, z)
        if lanes == 1:
            for r in range(n):
                last[r] = 1.0 + z[r]
        else:
            for r in range(n):
                total = 1.0
                k = 0
                while k + 8 <= lanes:
                    total += total_8(z, r * lanes + k)
                    k += 8
                if k < lanes:
                    total += total_4(z, r * lanes + k)
                last[r] = total
        out_of_range = 0
        for r in range(n):
            factor[r] = 1.0 / last[r]
            last[r] = factor[r]
            out_of_range |= int(last[r] != last[r])
        if joint:
            for r in range(n):
                factor[r] = exp_nonpositive(-top[order[start + r]])
        for r in range(n if out_of_range else 0):
            if last[r] != last[r]:
                factor[r] = 1.0
                largest = top[order[start + r]] if joint else 0.0
                last[r] = _by_logarithms(factors, start + r, width, h, u, joint, largest, z, r * lanes)
        for r in range(n):
            label = labels[start + r]
            among = z[r * lanes + min(label, h - 1)] * factor[r]  # no jump: labels are hard to foresee
            own[r] = among if label < h else last[r]
        for r in range(n):
            whole_last[r] = np.int64(np.rint(last[r] * unit))
            left = own[r] - np.rint(own[r] * unit) * inverse
            part = np.rint(left * unit * unit)
            left -= part * inverse * inverse
            coarse[r] = np.int64(part)
            fine[r] = np.int64(np.rint(left * unit * unit * unit))
        if lanes == 1:
            for r in range(n):
                whole[r] = np.int64(np.rint(z[r] * (factor[r] * unit)))
            for r in range(n):
                posterior[order[start + r], 0] += whole[r]
        else:
            for r in range(n):
                row = order[start + r]
                scale = factor[r] * unit
                k = 0
                while k + 8 <= h:
                    count_8(z, r * lanes + k, scale, posterior, row * o + k)
                    k += 8
                if k + 4 <= h:
                    count_4(z, r * lanes + k, scale, posterior, row * o + k)
                    k += 4
                while k < h:
                    posterior[row, k] += np.int64(np.rint(z[r * lanes + k] * scale))
                    k += 1
        if not joint:
            for r in range(n):
                posterior[order[start + r], h] += whole_last[r]
        for r in range(n):
            if coarse[r] | fine[r] != 0:
                row = order[start + r]
                rest[row, 0] += coarse[r]
                rest[row, 1] += fine[r]


@inlined
def _by_logarithms(
    factors: NDArray[np.uint32],
    r: int,
    width: int,
    h: int,
    u: FloatArray,
    joint: bool,
    top: float,
    z: FloatArray,
    at: int,
) -> float:
    """Compute a row's posterior, or its joints relative to e^top, from sums of scores; return the last class's."""
    lanes = cll.stride(h + 1)
    for k in range(h):
        z[at + k] = 0.0
        for f in range(r * width, (r + 1) * width):
            z[at + k] += u[np.int64(factors[f]) * lanes + k]
    if not joint:
        top = 0.0
        for k in range(h):
            top = max(top, z[at + k])
    last = 0.0 if joint else exp_nonpositive(-top)
    total = last
    for k in range(h):
        z[at + k] = exp_nonpositive(z[at + k] - top)
        total += z[at + k]
    if not joint:
        for k in range(h):
            z[at + k] /= total
    return last / total


@inlined
def _raise_maxima(index: Index, o: int, compared: int, u: FloatArray, z: FloatArray, top: FloatArray) -> None:
    """Raise ``top (m,)`` to the largest score of each row."""
    order, factors = index.order, index.factors
    lanes = cll.stride(compared)
    n_used = order.size
    width = factors.size // max(1, n_used)
    for start in range(0, n_used, CHUNK):
        n = min(CHUNK, n_used - start)
        cll.forward(factors, start, n, width, compared, u, z)
        for r in range(n):
            largest = top[order[start + r]]
            for k in range(o):
                largest = max(largest, z[r * lanes + k])
            top[order[start + r]] = largest
