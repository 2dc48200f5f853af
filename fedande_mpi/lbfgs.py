"""L-BFGS without bounds, compiled: SciPy's L-BFGS-B iterates without its Python.

The same algorithm as ``scipy.optimize.minimize(method="L-BFGS-B")`` on an unconstrained problem, with the
same constants, evaluation counts and stopping rules (Byrd, Lu, Nocedal and Zhu, SIAM J. Sci. Comput. 16,
1995; `fedande_mpi.line_search`). The direction comes from the two-loop recursion
(Nocedal, Math. Comp. 35, 1980), which equals the compact form of L-BFGS-B up to rounding.

What it costs beside the objective is passes over memory: a step makes as few as it can, each doing all that the
numbers it reads are needed for. The state is kept in arrays, so a long minimisation can be continued call by call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import line_search
from fedande_mpi.cll import Problem, objective
from fedande_mpi.jit import bits_float, compiled, float_bits, inlined, reducing
from fedande_mpi.line_search import STEP_MAX
from fedande_mpi.magnitudes import without_sign

MEMORY = 10
FTOL = 2.220446049250313e-09
GTOL = 1e-5
MAX_LINE_SEARCH = 20

RUNNING, STEP_LIMIT, GRADIENT_SMALL, OBJECTIVE_FLAT, SEARCH_FAILED = -1, 0, 1, 2, 3
"""Why a minimisation stopped."""

ITERATIONS, EVALUATIONS, STORED, NEWEST, STATUS, PENDING = 0, 1, 2, 3, 4, 5
"""Positions in `State.counters`."""

_SLOTS = MEMORY + 1
_VALUE, _SCALE, _CURVATURE, _DECREASE = 0, 1, 2, 3

_EPSILON = float(np.finfo(np.float64).eps)


class State(NamedTuple):
    """Where a minimisation of N variables stands, and its buffers.

    Attributes
    ----------
    x, g : (N,) float64
        Where it stands, and the gradient there.
    x_other, g_other : (N,) float64
        Of the step before, and of the next.
    s, y : (MEMORY + 1, N) float64
        Ring buffers of steps and gradient changes; the free place of ``s`` is where the next step's direction is
        made, which becomes the step.
    rho, alpha : (MEMORY + 1,) float64
        1 / (s'y) of every pair; scratch.
    value : (4,) float64
        Objective at ``x``; scale y'y / s'y of the initial Hessian; s'y and -s'g of the pair of the last step.
    counters : (6,) int64
        ``PENDING`` says that the last step's pair is to be stored: its ``s`` is made, its ``y`` is not.
    """

    x: NDArray[np.float64]
    g: NDArray[np.float64]
    x_other: NDArray[np.float64]
    g_other: NDArray[np.float64]
    s: NDArray[np.float64]
    y: NDArray[np.float64]
    rho: NDArray[np.float64]
    alpha: NDArray[np.float64]
    value: NDArray[np.float64]
    counters: NDArray[np.int64]


@compiled
def allocate(capacity: int) -> State:
    """Return a state with room for `capacity` variables."""
    counters = np.empty(6, dtype=np.int64)
    for i in range(counters.size):
        counters[i] = 0
    return State(
        np.empty(capacity),
        np.empty(capacity),
        np.empty(capacity),
        np.empty(capacity),
        np.empty((_SLOTS, capacity)),
        np.empty((_SLOTS, capacity)),
        np.empty(_SLOTS),
        np.empty(_SLOTS),
        np.empty(4),
        counters,
    )


@compiled
def begin(state: State) -> None:
    """Forget everything but ``state.x``, where the next `advance` begins."""
    for i in range(state.counters.size):
        state.counters[i] = 0
    state.counters[STATUS] = RUNNING
    state.value[_SCALE] = 1.0


@compiled
def advance(problem: Problem, state: State, max_iterations: int, until: int) -> None:
    """Minimise from ``state.x`` until a stopping rule holds or iteration `until`, where it can go on.

    A state whose counters are 0 (see `begin`) first evaluates the objective.
    """
    n = problem.n_groups * problem.o
    # a step goes from one pair of buffers to the other, which then change places
    x, g, x_new, g_new = state.x, state.g, state.x_other, state.g_other
    counters, value = state.counters, state.value
    if counters[STATUS] != RUNNING:
        return
    swapped = False
    searching = counters[EVALUATIONS] > 0
    if not searching:
        x_new, g_new = x, g
    while counters[ITERATIONS] < until:
        step = 1.0
        slope = 0.0
        tries = 0
        there = True  # x_new is where the objective is to be evaluated
        if searching:
            slope = _direction(state, x, g, x_new, g_new, n)
            there = counters[STORED] > 0
            if counters[ITERATIONS] == 0:
                step = min(1.0 / np.sqrt(-slope), STEP_MAX)
            if slope >= 0.0:
                tries = MAX_LINE_SEARCH
        d = state.s[_free(counters)]
        old_slope = slope
        old_value = value[_VALUE]
        new_value = old_value
        top = 0.0
        search = line_search.begin(old_value, slope, step)
        found = False
        # the only place that evaluates the objective, so that it is compiled into this loop once: the first
        # time at x, then along the search direction
        while tries < MAX_LINE_SEARCH:
            if not there:
                _move(x, step, d, x_new, n)
            there = False
            new_value = objective(problem, x_new, g_new)
            counters[EVALUATIONS] += 1
            tries += 1
            slope, top = _dot_and_largest(g_new, d, n)
            found = not searching
            if searching:
                found, step, search = line_search.judge(new_value, slope, step, search)
            if found:
                break
        if not found:
            value[_SCALE] = 1.0
            if counters[STORED] == 0:
                counters[STATUS] = SEARCH_FAILED
                counters[ITERATIONS] += 1
                break
            counters[STORED] = 0
            continue
        value[_VALUE] = new_value
        if searching:
            x, g, x_new, g_new = x_new, g_new, x, g
            swapped = not swapped
            counters[ITERATIONS] += 1
            if counters[ITERATIONS] >= max_iterations:
                counters[STATUS] = STEP_LIMIT
                break
        else:
            x_new, g_new = state.x_other, state.g_other
        if top <= GTOL:
            counters[STATUS] = GRADIENT_SMALL
            break
        if searching:
            if old_value - new_value <= FTOL * max(abs(old_value), abs(new_value), 1.0):
                counters[STATUS] = OBJECTIVE_FLAT
                break
            _keep(state, d, step, slope, old_slope, n)
        searching = True
    if swapped:
        for i in range(n):
            state.x[i] = x[i]
        if counters[STATUS] == RUNNING:
            for i in range(n):
                g_new[i], g[i] = g[i], g_new[i]


@inlined
def _free(counters: NDArray[np.int64]) -> int:
    """Return the place in ``s`` of the next direction."""
    return (counters[NEWEST] + 1) % _SLOTS  # type: ignore[no-any-return]


@compiled
def _keep(state: State, d: NDArray[np.float64], step: float, slope: float, old_slope: float, n: int) -> None:
    """Make the direction that was taken the ``s`` of a pair, unless its curvature is not positive enough."""
    curvature = (slope - old_slope) * step
    if curvature <= _EPSILON * -old_slope * step:
        return
    if step != 1.0:
        for i in range(n):
            d[i] *= step
    state.value[_CURVATURE] = curvature
    state.value[_DECREASE] = -slope * step
    state.counters[PENDING] = 1


@compiled
def _direction(
    state: State,
    x: NDArray[np.float64],
    g: NDArray[np.float64],
    x_new: NDArray[np.float64],
    g_old: NDArray[np.float64],
    n: int,
) -> float:
    """Store the pair of the last step and make the direction d = -H g by the two-loop recursion; return g'd.

    Where any pairs are stored, ``x_new`` becomes x + d. Each pass adds one pair and takes the inner product with the
    next; the first makes the newest pair's y as well, whose s'g is known from the line search.
    """
    counters, value, rho, alpha = state.counters, state.value, state.rho, state.alpha
    pending = counters[PENDING] == 1
    if pending:
        counters[NEWEST] = _free(counters)
        counters[STORED] = min(counters[STORED] + 1, MEMORY)
        counters[PENDING] = 0
    stored, newest = counters[STORED], counters[NEWEST]
    d = state.s[_free(counters)]
    if stored == 0:
        return -_descend(d, g, n)
    before = state.s[(newest - 1) % _SLOTS]
    last = state.y[newest]
    if pending:
        rho[newest] = 1.0 / value[_CURVATURE]
        alpha[newest] = rho[newest] * value[_DECREASE]
        square, product = _make_pair(last, g, g_old, d, -alpha[newest], before if stored > 1 else g, n)
        if stored == 1:
            product = _dot(last, d, n)
        value[_SCALE] = square / value[_CURVATURE]
    else:
        _descend(d, g, n)
        alpha[newest] = rho[newest] * _dot(state.s[newest], d, n)
        product = _add_and_dot(d, 1.0, -alpha[newest], last, before if stored > 1 else last, n)
    for back in range(1, stored):
        at = (newest - back) % _SLOTS
        alpha[at] = rho[at] * product
        other = state.s[(at - 1) % _SLOTS] if back + 1 < stored else state.y[at]
        product = _add_and_dot(d, 1.0, -alpha[at], state.y[at], other, n)
    scale = 1.0 / value[_SCALE]
    product *= scale
    for back in range(stored - 1, 0, -1):
        at = (newest - back) % _SLOTS
        beta = alpha[at] - rho[at] * product
        product = _add_and_dot(d, scale, beta, state.s[at], state.y[(at + 1) % _SLOTS], n)
        scale = 1.0
    beta = alpha[newest] - rho[newest] * product
    return _finish_direction(d, scale, beta, state.s[newest], g, x, x_new, n)


@reducing
def _dot(a: NDArray[np.float64], b: NDArray[np.float64], n: int) -> float:
    total = 0.0
    for i in range(n):
        total += a[i] * b[i]
    return total


@reducing
def _dot_and_largest(g: NDArray[np.float64], d: NDArray[np.float64], n: int) -> tuple[float, float]:
    """Return g'd, and the largest ``|g[i]|``, see `fedande_mpi.magnitudes`."""
    total = 0.0
    top = np.int64(0)
    for i in range(n):
        total += g[i] * d[i]
        top = max(top, without_sign(float_bits(g[i])))
    return total, bits_float(top)


@inlined
def _move(
    x: NDArray[np.float64], step: float, d: NDArray[np.float64], x_new: NDArray[np.float64], n: int
) -> None:
    """Set x_new to x + step d."""
    for i in range(n):
        x_new[i] = x[i] + step * d[i]


@reducing
def _descend(d: NDArray[np.float64], g: NDArray[np.float64], n: int) -> float:
    """Set d to -g and return g'g."""
    total = 0.0
    for i in range(n):
        d[i] = -g[i]
        total += g[i] * g[i]
    return total


@reducing
def _make_pair(
    y: NDArray[np.float64],
    g: NDArray[np.float64],
    g_old: NDArray[np.float64],
    d: NDArray[np.float64],
    factor: float,
    w: NDArray[np.float64],
    n: int,
) -> tuple[float, float]:
    """Set y to g - g_old and d to factor y - g; return y'y and w'd."""
    square = 0.0
    total = 0.0
    for i in range(n):
        change = g[i] - g_old[i]
        y[i] = change
        square += change * change
        value = factor * change - g[i]
        d[i] = value
        total += w[i] * value
    return square, total


@reducing
def _add_and_dot(
    d: NDArray[np.float64],
    scale: float,
    factor: float,
    v: NDArray[np.float64],
    w: NDArray[np.float64],
    n: int,
) -> float:
    """Replace d by scale d + factor v and return w'd."""
    total = 0.0
    for i in range(n):
        value = scale * d[i] + factor * v[i]
        d[i] = value
        total += w[i] * value
    return total


@reducing
def _finish_direction(
    d: NDArray[np.float64],
    scale: float,
    factor: float,
    v: NDArray[np.float64],
    g: NDArray[np.float64],
    x: NDArray[np.float64],
    x_new: NDArray[np.float64],
    n: int,
) -> float:
    """Replace d by scale d + factor v, set x_new to x + d and return g'd."""
    total = 0.0
    for i in range(n):
        value = scale * d[i] + factor * v[i]
        d[i] = value
        x_new[i] = x[i] + value
        total += g[i] * value
    return total
