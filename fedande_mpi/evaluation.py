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

from fedande_mpi import cll, odds, touched
from fedande_mpi.indexing import Index, Indices, index_of
from fedande_mpi.jit import compiled, inlined
from fedande_mpi.local import Clients, Theta
from fedande_mpi.metrics import Sums
from fedande_mpi.odds import Own, Table
from fedande_mpi.softmax import CHUNK, fast_exp, stride
from fedande_mpi.touched import Layout
from fedande_mpi.vectors import count_2, count_4, count_8, fetch, multiply_4, multiply_8, total_4, total_8

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_CACHE = 2**20
"""Bytes of sorted rows that are worked on together."""


_NEAR = 2**15
"""Numbers of a client's sums that stay close at hand while it is scored. Of more, those that the next rows add to are
fetched ahead: sorted by parent state, rows are anywhere in them."""


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
    joint : (n_joint * stride,) float64
        Of the client in work, where rows list joint cells: their odds, or their scores for the maxima.
    """

    rows: Index
    w: FloatArray
    shared: Table
    table: Table
    joint: FloatArray


@compiled
def score(
    indices: Indices,
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
    """Add posteriors of test rows to the sums, for a range of parent sets, whose indices these are, and of clients.

    With ``maxima_only`` (the first pass of ``combine = "joint"``) only the largest log joint of every row is
    kept, in ``top (C, m)``; the sums are left alone.
    """
    o = block.n_classes
    # joints are not normalised: differences to a class more, whose score is 0, are the scores themselves
    compared = o + 1 if scoring.joint else o
    lanes = stride(compared)
    n_children = block.children.shape[1]
    pooled = theta.pooled.size > 0
    sets = []
    most_cells = most_states = 0
    for at in range(set_first, set_last):
        index = index_of(indices, at - set_first)
        n_touched = index.cell.size
        shared = odds.allocate(n_touched, lanes)
        table = shared if pooled else odds.allocate(n_touched, lanes)
        joint = np.empty(index.n_joint * lanes)
        sets.append(Prepared(index, np.empty(n_touched * o), shared, table, joint))
        most_cells = max(most_cells, n_touched + 1)
        most_states = max(most_states, index.begin.size - 1)
    seen = np.empty(most_states, dtype=np.bool_)
    for s in range(most_states):
        seen[s] = False
    own = Own(
        np.empty(2 * o, dtype=np.int64),
        touched.zeros(most_cells * o),
        touched.zeros(most_states * n_children * o),
        seen,
    )
    z = np.empty(CHUNK * (lanes + 3))
    rounded = np.empty((4, CHUNK), dtype=np.int64)
    for c in range(client_first, client_last):  # outside, so that its sums stay in the cache
        for at in range(set_first, set_last):
            index, w, shared, table, joint = sets[at - set_first]
            if c == client_first or scoring.weights.shape[0] > 1:
                given = scoring.weights[c if scoring.weights.shape[0] > 1 else 0]
                odds.share(index, block, at, theta, given, scoring.start[at], scoring.joint, w, shared)
                odds.copy(shared, table)
            if not pooled:
                odds.count_own(index, clients, c, block, at, own)
                odds.add_own(index, block, at, theta, scoring.joint, own, w, table)
            u, e = table.u, table.e
            if maxima_only:
                if index.n_joint > 0:
                    cll.forward(index.members, 0, index.n_joint, index.n_members, compared, table.u, joint)
                    u = joint
                _raise_maxima(index, o, compared, u, z, top[c])
            else:
                if index.n_joint > 0:
                    _multiply(index.members, 0, index.n_joint, index.n_members, lanes, table.e, joint)
                    e = joint
                posterior, rest = sums.posterior[c], sums.rest[c]
                _add_rows(index, o, compared, u, e, z, rounded, scoring.bits, top[c], posterior, rest)
            if not pooled:
                odds.forget_own(index, o, compared - 1, n_children, shared, own, table)


_PIECE = 1e8
"""Factors times classes of a piece of test rows: a tenth of a second."""


def pieces(block: Layout, n_rows: int) -> list[tuple[int, int]]:
    """Cut test rows into pieces that are scored in one call each: first row and end.

    The last bit of a product depends on how rows are bundled, and that on the rows of a call: they are cut alike
    wherever and however they are scored.
    """
    some = max(1, int(_PIECE / ((block.children.shape[1] + 1) * block.n_classes)))
    return [(first, min(first + some, n_rows)) for first in range(0, n_rows, some)]


def together(block: Layout, n_rows: int, most: int) -> list[slice]:
    """Cut a block into runs of at most so many parent sets, whose sorted rows fit the cache next to a client's sums."""
    per_row = 4 * (block.children.shape[1] + 1)
    some = min(most, max(1, _CACHE // (per_row * max(1, n_rows))))
    n_sets = len(block.n_states)
    return [slice(at, min(at + some, n_sets)) for at in range(0, n_sets, some)]


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
    u: FloatArray,
    e: FloatArray,
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
    n_used = order.size
    width = factors.size // max(1, n_used)
    h = compared - 1
    joint = h == o
    lanes = stride(compared)
    # where a lane is left, the last class has it, with odds of 1
    spare = lanes > h and not joint
    counted = o if spare else h
    far = posterior.size > _NEAR
    unit = 2.0**bits
    inverse = 1.0 / unit  # powers of two: exact
    # slices once, as each counts references; from 0, as only such loops run in vector registers
    at = CHUNK * lanes
    factor, last, own = z[at : at + CHUNK], z[at + CHUNK : at + 2 * CHUNK], z[at + 2 * CHUNK :]
    whole, whole_last, coarse, fine = rounded[0], rounded[1], rounded[2], rounded[3]
    for start in range(0, n_used, CHUNK):
        n = min(CHUNK, n_used - start)
        for r in range(n if far else 0):
            row = order[start + r]
            for k in range(0, o, 8):
                fetch(posterior, row * o + k)
            fetch(rest, row * 2)
        _multiply(factors, start, n, width, lanes, e, z)
        if lanes == 1:
            for r in range(n):
                last[r] = 1.0 + z[r]
        else:
            for r in range(n):
                total = 0.0 if spare else 1.0
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
                factor[r] = fast_exp(-top[order[start + r]])
        for r in range(n if out_of_range else 0):
            if last[r] != last[r]:
                factor[r] = 1.0
                largest = top[order[start + r]] if joint else 0.0
                last[r] = _by_logarithms(index, start + r, width, h, u, joint, largest, z, r * lanes)
                if spare:
                    z[r * lanes + h] = last[r]
        for r in range(n):
            label = labels[start + r]
            among = z[r * lanes + min(label, counted - 1)] * factor[r]  # no jump: labels are hard to foresee
            own[r] = among if label < counted else last[r]
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
        for r in range(n):
            row = order[start + r]
            if lanes > 1:
                scale = factor[r] * unit
                k = 0
                while k + 8 <= counted:
                    count_8(z, r * lanes + k, scale, posterior, row * o + k)
                    k += 8
                if k + 4 <= counted:
                    count_4(z, r * lanes + k, scale, posterior, row * o + k)
                    k += 4
                if k + 2 <= counted:
                    count_2(z, r * lanes + k, scale, posterior, row * o + k)
                    k += 2
                if k < counted:
                    posterior[row, k] += np.int64(np.rint(z[r * lanes + k] * scale))
            if not (joint or spare):
                posterior[row, h] += whole_last[r]
            if coarse[r] | fine[r] != 0:
                rest[row, 0] += coarse[r]
                rest[row, 1] += fine[r]


@inlined
def _by_logarithms(
    index: Index,
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
    lanes = stride(h + 1)
    n_members = max(1, index.n_members)
    for k in range(h):
        z[at + k] = 0.0
        for f in range(r * width, (r + 1) * width):
            for i in range(n_members):
                cell = index.factors[f]
                if index.n_joint > 0:
                    cell = index.members[cell * n_members + i]
                z[at + k] += u[np.int64(cell) * lanes + k]
    if not joint:
        top = 0.0
        for k in range(h):
            top = max(top, z[at + k])
    last = 0.0 if joint else fast_exp(-top)
    total = last
    for k in range(h):
        z[at + k] = fast_exp(z[at + k] - top)
        total += z[at + k]
    if not joint:
        for k in range(h):
            z[at + k] /= total
    return last / total


@inlined
def _raise_maxima(index: Index, o: int, compared: int, u: FloatArray, z: FloatArray, top: FloatArray) -> None:
    """Raise ``top (m,)`` to the largest score of each row."""
    order, factors = index.order, index.factors
    lanes = stride(compared)
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
