"""Rows as short lists of cells: what rows of one parent state have in common is added up once.

A row's score is a sum over its cells, one for each child. Rows of one parent state that agree on a few children
share that part of the sum, and where children have few values there are few such combinations. So neighbouring
children go into a **bundle**, the combinations that occur become **joint cells** with the cells they stand for as their
**members**, and a row is a short list of joint cells. The kernels need not know: a list of members is to its joint
cell what a row's list of cells is to the row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import touched
from fedande_mpi.jit import compiled, inlined

ROWS_PER_CELL = 4
"""So many rows there must be for each combination that a bundle may have."""

LARGEST = 256
"""Combinations of a bundle: the sums of one state's joint cells are to stay in the second-level cache."""

MOST_CHILDREN = 8
"""Children of a bundle."""

MOST_BYTES = 2**24
"""Of buffers for the joint cells of a parent set: they stay small however many rows and classes there are."""

_OVERHEAD = 4
"""What a list costs beyond its entries, in entries."""

_WORTH = 0.75
"""Most of the cost of plain lists that joint cells may have to be used."""

NONE = np.uint32(0xFFFFFFFF)


class Lists(NamedTuple):
    """How rows list their cells.

    Attributes
    ----------
    n_used, n_touched : int
        Rows that have a parent state; cells they touch.
    length : int
        Entries of a row's list: its cells, or its joint cells.
    n_joint, n_members : int
        Joint cells and members of each; (0, 0) where rows list their cells.
    """

    n_used: int
    n_touched: int
    length: int
    n_joint: int
    n_members: int


@compiled
def joint_capacity(n_rows: int, n_children: int, o: int) -> int:
    """Return the most joint cells that rows are bundled into."""
    # their members, counts, differences and residuals
    return min(MOST_BYTES // (128 + 24 * o), n_rows * n_children // ROWS_PER_CELL)


@compiled
def member_capacity(n_rows: int, n_children: int, o: int) -> int:
    """Return the most members that all their joint cells have."""
    return joint_capacity(n_rows, n_children, o) * (min(n_children, MOST_CHILDREN) + 1)


@inlined
def _plan(
    sizes: NDArray[np.int64], n_states: int, largest: int, most: int, begin: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Put neighbouring children of these ``sizes`` into bundles of at most `largest` combinations, or of one child.

    Returns the number of bundles, which start at ``begin``, the most members and the most combinations of one; no
    bundles where they are not worth it or too large.
    """
    n_bundles = n_members = widest = 0
    product = 1
    for j in range(sizes.size):
        if j == 0 or product * sizes[j] > largest or j - begin[n_bundles - 1] == MOST_CHILDREN:
            begin[n_bundles] = j
            n_bundles += 1
            product = 1
        product *= sizes[j]
        widest = max(widest, product)
        # the first has the parents cell too
        n_members = max(n_members, j + 1 - begin[n_bundles - 1] + int(n_bundles == 1))
    begin[n_bundles] = sizes.size
    if 4 * n_bundles > 3 * (sizes.size + 1) or widest > largest or n_states * n_bundles * widest > most:
        return 0, 0, 0
    return n_bundles, n_members, widest


@compiled
def index_rows(
    X: NDArray[np.int32],
    y: NDArray[np.int32],
    rows: NDArray[np.int64],
    block: touched.Layout,
    at: int,
    order: NDArray[np.int64],
    factors: NDArray[np.uint32],
    members: NDArray[np.uint32],
    cell: NDArray[np.int64],
    child: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> Lists:
    """Sort rows by parent state, list the touched cells that each uses, and count the classes in every cell.

    Parameters
    ----------
    X, y : (m, d), (m,) int32
        Attribute codes, -1 where missing, and class codes.
    rows : (k,) int64
        The rows to index.
    block : Layout
    at : int
        The parent set.
    order : (k,) int64, out
        The rows used (no parent missing), sorted by parent state, stable.
    factors : (k * (d - n + 1),) uint32, out
        For each used row its list. Of cells: its parents cell (the prior for n = 0), then one per child; the
        number of touched cells stands for a missing child. Of joint cells: one per bundle, the parents cell among
        the members of the first.
    members : (member_capacity,) uint32, out
        For each joint cell its cells, of which the number of touched cells stands for none.
    cell : (capacity,) int64, out
        Position of each touched cell among the cells of the parent set.
    child : (capacity,) int64, out
        Position of the cell's attribute in ``children``; -1 for the prior, -2 for a parents cell.
    counts : ((capacity + 1) * o,) int64, out
        Rows of each class that use the cell; the prior counts all rows, also those with a missing parent.

    Returns
    -------
    Lists
        See `touched` for the order of cells.
    """
    o = block.n_classes
    children = block.children[at]
    n_states = block.n_states[at]
    start = np.empty(n_states + 1, dtype=np.int64)
    n_used = touched.sort_by_state(X, rows, block.parents[at], n_states, block.arity, order, start)
    cell[0] = 0
    child[0] = -1
    for c in range(o):
        counts[c] = 0
    for r in range(rows.size):
        counts[y[rows[r]]] += 1
    n_occurring = 0
    for s in range(n_states):
        n_occurring += int(start[s + 1] > start[s])
    largest = min(LARGEST, n_used // (ROWS_PER_CELL * max(1, n_occurring)))
    most = joint_capacity(n_used, children.size, o)
    begin = np.empty(children.size + 1, dtype=np.int64)
    slots = block.arity[children]
    n_bundles, n_members, widest = _plan(slots, n_occurring, largest, most, begin)
    if n_bundles > 0:
        signs = 0
        for r in range(rows.size):
            for j in range(X.shape[1]):
                signs |= X[rows[r], j]
        if signs < 0:  # a missing value is one more
            for j in range(children.size):
                slots[j] += 1
            n_bundles, n_members, widest = _plan(slots, n_occurring, largest, most, begin)
    if n_bundles > 0:
        n_touched, n_joint = _list_joint_cells(
            X,
            y,
            block,
            at,
            order,
            start,
            begin[: n_bundles + 1],
            slots,
            n_members,
            widest,
            factors,
            members,
            cell,
            child,
            counts,
        )
        if n_joint > 0:
            return Lists(n_used, n_touched, n_bundles, n_joint, n_members)
    n_touched = _list_cells(X, y, block, at, order, start, factors, cell, child, counts)
    return Lists(n_used, n_touched, children.size + 1, 0, 0)


@inlined
def _begin_state(
    state: int,
    labels: NDArray[np.int32],
    rows: NDArray[np.int64],
    n_touched: int,
    o: int,
    cell: NDArray[np.int64],
    child: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Make a state's parents cell the next one, and count the classes of its rows."""
    cell[n_touched] = 1 + state
    child[n_touched] = -2
    for c in range(o):
        counts[n_touched * o + c] = 0
    for r in range(rows.size):
        counts[n_touched * o + labels[rows[r]]] += 1


@compiled
def _list_cells(
    X: NDArray[np.int32],
    y: NDArray[np.int32],
    block: touched.Layout,
    at: int,
    order: NDArray[np.int64],
    start: NDArray[np.int64],
    factors: NDArray[np.uint32],
    cell: NDArray[np.int64],
    child: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> int:
    """List the cells of every row; return how many are touched."""
    o = block.n_classes
    children, offsets = block.children[at], block.offsets[at]
    n_states, n_values = block.n_states[at], block.n_values[at]
    n_children, has_parents = children.size, block.parents.shape[1] > 0
    sizes = block.arity[children]
    width = n_children + 1
    number = np.empty(n_values, dtype=np.int64)
    tally = touched.zeros(n_values * o)
    first_child_cell = 1 + n_states if has_parents else 1
    n_touched = 1
    n_missing = 0
    for s in range(n_states):
        lo, hi = start[s], start[s + 1]
        if lo == hi:
            continue
        parents_cell = 0
        if has_parents:
            parents_cell = n_touched
            _begin_state(s, y, order[lo:hi], n_touched, o, cell, child, counts)
            n_touched += 1
        for r in range(lo, hi):
            row = order[r]
            label = y[row]
            for j in range(n_children):
                value = X[row, children[j]]
                if value < 0:
                    n_missing += 1
                    continue
                tally[(offsets[j] + value) * o + label] += 1
        first_cell = first_child_cell + s * n_values
        n_touched = touched.number_cells(
            tally, first_cell, n_touched, o, offsets, sizes, number, cell, child, counts
        )
        for r in range(lo, hi):
            row = order[r]
            factors[r * width] = parents_cell
            for j in range(n_children):
                value = X[row, children[j]]
                missing = value < 0
                factors[r * width + 1 + j] = NONE if missing else number[offsets[j] + value]
    if n_missing > 0:
        for i in range(start[n_states] * width):
            if factors[i] == NONE:
                factors[i] = n_touched
    return n_touched


@compiled
def _list_joint_cells(
    X: NDArray[np.int32],
    y: NDArray[np.int32],
    block: touched.Layout,
    at: int,
    order: NDArray[np.int64],
    start: NDArray[np.int64],
    begin: NDArray[np.int64],
    slots: NDArray[np.int64],
    n_members: int,
    widest: int,
    factors: NDArray[np.uint32],
    members: NDArray[np.uint32],
    cell: NDArray[np.int64],
    child: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[int, int]:
    """List the joint cells of every row, and their members; return how many cells are touched and joint cells.

    Gives up, and returns 0 joint cells, when the first quarter of the rows shows that it is not worth it.
    """
    o = block.n_classes
    children, offsets = block.children[at], block.offsets[at]
    n_states, n_values = block.n_states[at], block.n_values[at]
    n_children, has_parents = children.size, block.parents.shape[1] > 0
    sizes = block.arity[children]
    n_bundles = begin.size - 1
    n_used = start[n_states]
    # a combination as one number, the first child most significant
    scale = np.empty(n_children, dtype=np.int64)
    for b in range(n_bundles):
        scale[begin[b + 1] - 1] = 1
        for j in range(begin[b + 1] - 2, begin[b] - 1, -1):
            scale[j] = scale[j + 1] * slots[j + 1]
    found = np.empty(n_bundles * widest, dtype=np.int64)
    for i in range(found.size):
        found[i] = -1
    most = joint_capacity(n_used, n_children, o)
    code_of = np.empty(most, dtype=np.int64)
    bundle_of = np.empty(most, dtype=np.int64)
    joint_counts = np.empty(most * o, dtype=np.int64)
    number = np.empty(n_values, dtype=np.int64)
    tally = touched.zeros(n_values * o)
    first_child_cell = 1 + n_states if has_parents else 1
    n_touched = 1
    n_joint = 0
    judged = False
    for s in range(n_states):
        lo, hi = start[s], start[s + 1]
        if lo == hi:
            continue
        parents_cell = 0
        if has_parents:
            parents_cell = n_touched
            _begin_state(s, y, order[lo:hi], n_touched, o, cell, child, counts)
            n_touched += 1
        first = n_joint
        for r in range(lo, hi):
            row = order[r]
            label = y[row]
            for b in range(n_bundles):
                code = np.int64(0)
                for j in range(begin[b], begin[b + 1]):
                    value = np.int64(X[row, children[j]])
                    code += scale[j] * (value if value >= 0 else sizes[j])
                joint = found[b * widest + code]
                if joint < first:
                    joint = n_joint
                    found[b * widest + code] = joint
                    code_of[joint] = code
                    bundle_of[joint] = b
                    for c in range(o):
                        joint_counts[joint * o + c] = 0
                    n_joint += 1
                factors[r * n_bundles + b] = joint
                joint_counts[joint * o + label] += 1
        if not judged and 4 * hi >= n_used:
            judged = True
            runs = (o + 6) // 8  # of numbers in registers, for each entry
            plain = hi * ((n_children + 1) * runs + _OVERHEAD)
            rows_now, joint_now = (
                hi * (n_bundles * runs + _OVERHEAD),
                n_joint * (n_members * runs + _OVERHEAD),
            )
            if rows_now + joint_now > _WORTH * plain:
                return 0, 0
        for joint in range(first, n_joint):
            b, code = bundle_of[joint], code_of[joint]
            place = joint * n_members
            for j in range(begin[b], begin[b + 1]):
                value = code // scale[j]
                code -= value * scale[j]
                members[place] = NONE
                if value < sizes[j]:
                    v = offsets[j] + value
                    members[place] = v
                    for c in range(o):
                        tally[v * o + c] += joint_counts[joint * o + c]
                place += 1
            for i in range(place, (joint + 1) * n_members):
                members[i] = NONE
        first_cell = first_child_cell + s * n_values
        n_touched = touched.number_cells(
            tally, first_cell, n_touched, o, offsets, sizes, number, cell, child, counts
        )
        for i in range(first * n_members, n_joint * n_members):
            if members[i] != NONE:
                members[i] = number[members[i]]
        for joint in range(first, n_joint):
            if bundle_of[joint] == 0:  # its last place is free
                members[(joint + 1) * n_members - 1] = parents_cell
    for i in range(n_joint * n_members):
        if members[i] == NONE:
            members[i] = n_touched
    return n_touched, n_joint
