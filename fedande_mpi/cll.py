"""The compiled kernel: scores, the negative conditional log-likelihood (CLL) and its gradient.

`fedande_mpi.formulas` has the same in plain NumPy, and says what the score of a class is.

It works on differences to the last class, so that o - 1 numbers per cell are gathered in
the forward pass and scattered in the backward pass::

    u[cell, y] = w[cell, y] log theta[cell, y] - w[cell, o-1] log theta[cell, o-1]      y < o - 1
    z[row, y]  = sum of u[cell, y] over the row's cells                                 z[row, o-1] = 0
    R[cell, y] = sum of P(y | x) - [y = label] over the rows that use the cell
    d/dw[cell, y] = log theta[cell, y] R[cell, y],   d/dw[cell, o-1] = -log theta[cell, o-1] sum_y R[cell, y]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.jit import compiled, reducing
from fedande_mpi.softmax import CHUNK, softmax, stride
from fedande_mpi.vectors import add_4, add_8, scatter_4, scatter_8

_NO_CLASS = -400.0
"""A row's score in a lane that no class has: odds of nothing, and far from what is subnormal."""


@compiled
def differences(
    w: NDArray[np.float64],
    log_theta: NDArray[np.float64],
    child: NDArray[np.int64],
    cell_group: NDArray[np.int64],
    n_touched: int,
    o: int,
    u: NDArray[np.float64],
) -> None:
    """Fill ``u ((n_touched + 1) * stride)`` from the weights; the last cell stands for a missing value.

    ``w`` has one row of o weights per group of cells (``cell_group``): a group is one cell for granularity
    "parameter". The prior is folded into the parents cells, which every row uses.
    """
    h = o - 1
    lanes = stride(o)
    for c in range(n_touched):
        g = cell_group[c] * o
        last = w[g + h] * log_theta[c * o + h]
        for k in range(h):
            u[c * lanes + k] = w[g + k] * log_theta[c * o + k] - last
        for k in range(h, lanes):
            u[c * lanes + k] = _NO_CLASS if child[c] < 0 else 0.0  # every row lists one of these
    for k in range(lanes):
        u[n_touched * lanes + k] = 0.0
    for c in range(1, n_touched):
        if child[c] == -2:
            for k in range(h):
                u[c * lanes + k] += u[k]


@compiled
def forward(
    factors: NDArray[np.uint32],
    first: int,
    n: int,
    width: int,
    o: int,
    u: NDArray[np.float64],
    z: NDArray[np.float64],
) -> None:
    """Sum the differences of rows ``first .. first + n - 1`` into ``z (n * stride)``."""
    if o == 2:
        for r in range(n):
            at = (first + r) * width
            a = b = c = e = 0.0
            f = 0
            while f + 4 <= width:
                a += u[factors[at + f]]
                b += u[factors[at + f + 1]]
                c += u[factors[at + f + 2]]
                e += u[factors[at + f + 3]]
                f += 4
            while f < width:
                a += u[factors[at + f]]
                f += 1
            z[r] = (a + b) + (c + e)
    else:
        lanes = stride(o)
        for r in range(n):
            at, out = (first + r) * width, r * lanes
            k = 0
            while k + 8 <= lanes:
                add_8(u, factors, at, width, lanes, k, z, out + k)
                k += 8
            if k < lanes:
                add_4(u, factors, at, width, lanes, k, z, out + k)


@reducing
def _sum_of_first(z: NDArray[np.float64], labels: NDArray[np.int32]) -> float:
    total = 0.0
    for r in range(labels.size):
        total += z[r] if labels[r] == 0 else 0.0
    return total


@compiled
def value_and_residuals(
    factors: NDArray[np.uint32],
    labels: NDArray[np.int32],
    n_rows: int,
    width: int,
    n_touched: int,
    o: int,
    u: NDArray[np.float64],
    z: NDArray[np.float64],
    residuals: NDArray[np.float64],
) -> float:
    """Return -CLL of the rows and fill ``residuals ((n_touched + 1) * stride)``, the R of the module.

    ``z`` is a buffer of ``(CHUNK, stride + 2)`` numbers.
    """
    h = o - 1
    lanes = stride(o)
    last = z[CHUNK * lanes :]
    _clear(residuals, n_touched, o)
    value = 0.0
    for first in range(0, n_rows, CHUNK):
        n = min(CHUNK, n_rows - first)
        forward(factors, first, n, width, o, u, z)
        own = labels[first : first + n]
        # without a jump: labels are hard to foresee
        if o == 2:
            value -= _sum_of_first(z, own)
        else:
            for r in range(n):
                score = z[r * lanes + min(own[r], h - 1)]
                value -= score if own[r] < h else 0.0
        value += softmax(n, o, z, last)
        for r in range(n):
            z[r * lanes + min(own[r], h - 1)] -= 1.0 if own[r] < h else 0.0
        _scatter(factors, first, n, width, o, z, residuals)
    _join(residuals, n_touched, o)
    return value


@compiled
def _clear(residuals: NDArray[np.float64], n_touched: int, o: int) -> None:
    """Begin sums over rows.

    Neighbouring rows tend to use the same cells: with one number per cell, four sets of sums keep additions
    independent of each other, until `_join`.
    """
    copies = 4 if o == 2 else 1
    for i in range(copies * (n_touched + 1) * stride(o)):
        residuals[i] = 0.0


@compiled
def _join(residuals: NDArray[np.float64], n_touched: int, o: int) -> None:
    """Add the four sets of sums of two classes."""
    if o == 2:
        for i in range(n_touched + 1):
            residuals[i] = (residuals[4 * i] + residuals[4 * i + 1]) + (
                residuals[4 * i + 2] + residuals[4 * i + 3]
            )


@compiled
def _scatter(
    factors: NDArray[np.uint32],
    first: int,
    n: int,
    width: int,
    o: int,
    z: NDArray[np.float64],
    residuals: NDArray[np.float64],
) -> None:
    """Add every row's residual to the sums of its cells."""
    if o == 2:
        r = 0
        while r + 4 <= n:
            at = (first + r) * width
            p0, p1, p2, p3 = z[r], z[r + 1], z[r + 2], z[r + 3]
            for f in range(width):
                residuals[4 * np.int64(factors[at + f])] += p0
                residuals[4 * np.int64(factors[at + width + f]) + 1] += p1
                residuals[4 * np.int64(factors[at + 2 * width + f]) + 2] += p2
                residuals[4 * np.int64(factors[at + 3 * width + f]) + 3] += p3
            r += 4
        while r < n:
            for f in range(width):
                residuals[4 * np.int64(factors[(first + r) * width + f])] += z[r]
            r += 1
    else:
        lanes = stride(o)
        for r in range(n):
            at, own = (first + r) * width, r * lanes
            k = 0
            while k + 8 <= lanes:
                scatter_8(z, own + k, factors, at, width, lanes, k, residuals)
                k += 8
            if k < lanes:
                scatter_4(z, own + k, factors, at, width, lanes, k, residuals)


@compiled
def gradient(
    residuals: NDArray[np.float64],
    log_theta: NDArray[np.float64],
    child: NDArray[np.int64],
    cell_group: NDArray[np.int64],
    n_touched: int,
    n_groups: int,
    o: int,
    g: NDArray[np.float64],
) -> None:
    """Turn residuals into the gradient in w, ``g (n_groups * o)``."""
    h = o - 1
    lanes = stride(o)
    if n_touched > 1 and child[1] == -2:  # every row uses one parents cell and the prior
        for k in range(h):
            residuals[k] = 0.0
        for c in range(1, n_touched):
            if child[c] == -2:
                for k in range(h):
                    residuals[k] += residuals[c * lanes + k]
    for i in range(n_groups * o):
        g[i] = 0.0
    for c in range(n_touched):
        at = cell_group[c] * o
        total = 0.0
        for k in range(h):
            value = residuals[c * lanes + k]
            total += value
            g[at + k] += log_theta[c * o + k] * value
        g[at + h] -= log_theta[c * o + h] * total


class Problem(NamedTuple):
    """One client's objective under one parent set, as the compiled loops see it.

    Attributes
    ----------
    factors : (n_rows * width,) uint32
        The list of every row, see `fedande_mpi.bundles.index_rows`.
    labels : (n_rows,) int32
        Class codes, in the order of ``factors``.
    child : (n_touched,) int64
        Kind of every touched cell.
    cell_group : (n_touched,) int64
        Group of weights of every touched cell.
    log_theta : (n_touched * o,) float64
    centre : (n_groups * o,) float64
        The server's weights, which ``l2`` pulls to.
    u, z, residuals : float64
        Buffers of at least (n_touched + 1) stride, CHUNK (stride + 2) and (n_touched + 1) stride, four
        times that for two classes.
    members : (n_joint * n_members,) uint32
        Where rows list joint cells, the cells of each.
    joint_u, joint_residuals : float64
        As ``u`` and ``residuals``, of joint cells.
    """

    factors: NDArray[np.uint32]
    labels: NDArray[np.int32]
    n_rows: int
    width: int
    child: NDArray[np.int64]
    cell_group: NDArray[np.int64]
    n_touched: int
    n_groups: int
    o: int
    log_theta: NDArray[np.float64]
    centre: NDArray[np.float64]
    l2: float
    u: NDArray[np.float64]
    z: NDArray[np.float64]
    residuals: NDArray[np.float64]
    members: NDArray[np.uint32]
    n_members: int
    n_joint: int
    joint_u: NDArray[np.float64]
    joint_residuals: NDArray[np.float64]


@compiled
def objective(problem: Problem, w: NDArray[np.float64], g: NDArray[np.float64]) -> float:
    """Return -CLL (+ l2/2 ||w - centre||^2) at ``w (n_groups * o)`` and fill its gradient ``g``."""
    p = problem
    differences(w, p.log_theta, p.child, p.cell_group, p.n_touched, p.o, p.u)
    n_cells, u, residuals = p.n_touched, p.u, p.residuals
    if p.n_joint > 0:
        n_cells, u, residuals = p.n_joint, p.joint_u, p.joint_residuals
        forward(p.members, 0, p.n_joint, p.n_members, p.o, p.u, u)
    value = value_and_residuals(p.factors, p.labels, p.n_rows, p.width, n_cells, p.o, u, p.z, residuals)
    if p.n_joint > 0:
        _clear(p.residuals, p.n_touched, p.o)
        _scatter(p.members, 0, p.n_joint, p.n_members, p.o, residuals, p.residuals)
        _join(p.residuals, p.n_touched, p.o)
    gradient(p.residuals, p.log_theta, p.child, p.cell_group, p.n_touched, p.n_groups, p.o, g)
    if p.l2 > 0.0:
        value += 0.5 * p.l2 * squared_distance(p, w)
        for i in range(p.n_groups * p.o):
            g[i] += p.l2 * (w[i] - p.centre[i])
    return value


@compiled
def squared_distance(problem: Problem, w: NDArray[np.float64]) -> float:
    """Return ||w - centre||^2 over the touched weights; the others stay at the centre."""
    total = 0.0
    for i in range(problem.n_groups * problem.o):
        total += (w[i] - problem.centre[i]) ** 2
    return total
