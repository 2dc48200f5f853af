"""Test rows sorted by their parent state, and the cells they touch: the same for all clients and rounds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import bundles, touched
from fedande_mpi.jit import compiled, inlined
from fedande_mpi.touched import Layout

IntArray = NDArray[np.int64]


class Index(NamedTuple):
    """Test rows sorted by their state under one parent set, and the cells they touch.

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
    """The `Index` of several parent sets, as Python can keep it.

    Attributes
    ----------
    bounds : (S + 1, 7) int64
        Where each set begins in ``order`` and ``labels``, ``factors``, ``members``, ``cell``, ``child`` and
        ``weight``, ``position``, ``begin``, ``number``.
    joint : (S, 2) int64
        ``n_joint`` and ``n_members`` of each.
    whole : Index
        Its arrays, those of one set after another's.
    """

    bounds: IntArray
    joint: IntArray
    whole: Index

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(getattr(field, "nbytes", 0) for field in (self.bounds, self.joint, *self.whole))


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
    whole = Index(
        np.empty(end[0], dtype=np.int64),
        np.empty(end[0], dtype=np.int32),
        np.empty(end[1], dtype=np.uint32),
        np.empty(end[2], dtype=np.uint32),
        0,
        0,
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
    return Indices(bounds, joint, whole)


@inlined
def _put(part: NDArray[Any], whole: NDArray[Any], first: int) -> None:
    for i in range(part.size):
        whole[first + i] = part[i]


@inlined
def index_of(indices: Indices, i: int) -> Index:
    """Return the index of one of the parent sets."""
    at, end, whole = indices.bounds[i], indices.bounds[i + 1], indices.whole
    return Index(
        whole.order[at[0] : end[0]],
        whole.labels[at[0] : end[0]],
        whole.factors[at[1] : end[1]],
        whole.members[at[2] : end[2]],
        indices.joint[i, 0],
        indices.joint[i, 1],
        whole.cell[at[3] : end[3]],
        whole.child[at[3] : end[3]],
        whole.weight[at[3] : end[3]],
        whole.position[at[4] : end[4]],
        whole.begin[at[5] : end[5]],
        whole.number[at[6] : end[6]],
    )
