"""L-BFGS without bounds, compiled: SciPy's L-BFGS-B iterates without its Python.

The same algorithm as ``scipy.optimize.minimize(method="L-BFGS-B")`` on an unconstrained problem, with the
same constants, evaluation counts and stopping rules (Byrd, Lu, Nocedal and Zhu, SIAM J. Sci. Comput. 16,
1995; line search of More and Thuente, ACM TOMS 20, 1994). The direction comes from the two-loop recursion
(Nocedal, Math. Comp. 35, 1980), which equals the compact form of L-BFGS-B up to rounding.

The state is kept in arrays, so a long minimisation can be continued call by call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.cll import Problem, objective
from fedande_mpi.jit import compiled, inlined, reducing
from fedande_mpi.magnitudes import largest_magnitude

MEMORY = 10
FTOL = 2.220446049250313e-09
GTOL = 1e-5
MAX_LINE_SEARCH = 20

RUNNING, STEP_LIMIT, GRADIENT_SMALL, OBJECTIVE_FLAT, SEARCH_FAILED = -1, 0, 1, 2, 3
"""Why a minimisation stopped."""

ITERATIONS, EVALUATIONS, STORED, NEWEST, STATUS = 0, 1, 2, 3, 4
"""Positions in `State.counters`."""

_EPSILON = float(np.finfo(np.float64).eps)
_SEARCH_FTOL, _SEARCH_GTOL, _SEARCH_XTOL, _STEP_MAX = 1e-3, 0.9, 0.1, 1e10


class State(NamedTuple):
    """Where a minimisation of N variables stands, and its buffers.

    Attributes
    ----------
    x, g, direction, x_old, g_old : (N,) float64
    s, y : (MEMORY, N) float64
        Ring buffers of steps and gradient changes.
    rho, alpha : (MEMORY,) float64
        1 / (s'y) of every pair; scratch.
    value : (2,) float64
        Objective at ``x``; scale of the initial Hessian.
    counters : (5,) int64
    """

    x: NDArray[np.float64]
    g: NDArray[np.float64]
    direction: NDArray[np.float64]
    x_old: NDArray[np.float64]
    g_old: NDArray[np.float64]
    s: NDArray[np.float64]
    y: NDArray[np.float64]
    rho: NDArray[np.float64]
    alpha: NDArray[np.float64]
    value: NDArray[np.float64]
    counters: NDArray[np.int64]


@compiled
def allocate(capacity: int) -> State:
    """Return a state with room for `capacity` variables."""
    counters = np.empty(5, dtype=np.int64)
    for i in range(counters.size):
        counters[i] = 0
    return State(
        np.empty(capacity),
        np.empty(capacity),
        np.empty(capacity),
        np.empty(capacity),
        np.empty(capacity),
        np.empty((MEMORY, capacity)),
        np.empty((MEMORY, capacity)),
        np.empty(MEMORY),
        np.empty(MEMORY),
        np.empty(2),
        counters,
    )


@reducing
def _dot(a: NDArray[np.float64], b: NDArray[np.float64], n: int) -> float:
    total = 0.0
    for i in range(n):
        total += a[i] * b[i]
    return total


@compiled
def begin(state: State) -> None:
    """Forget everything but ``state.x``, where the next `advance` begins."""
    for i in range(state.counters.size):
        state.counters[i] = 0
    state.counters[STATUS] = RUNNING
    state.value[1] = 1.0


@compiled
def advance(problem: Problem, state: State, max_iterations: int, until: int) -> None:
    """Minimise from ``state.x`` until a stopping rule holds or iteration `until`, where it can go on.

    A state whose counters are 0 (see `begin`) first evaluates the objective.
    """
    n = problem.n_groups * problem.o
    x, g, d, x_old, g_old = state.x, state.g, state.direction, state.x_old, state.g_old
    counters = state.counters
    if counters[STATUS] != RUNNING:
        return
    step = 0.0
    slope = 0.0
    old_slope = 0.0
    old_value = 0.0
    search = _begin_search(0.0, 0.0, 0.0)
    searching = counters[EVALUATIONS] > 0
    while counters[ITERATIONS] < until:
        tries = 0
        found = not searching
        if searching:
            slope = _direction(state, n)
            old_slope = slope
            old_value = state.value[0]
            for i in range(n):
                x_old[i] = x[i]
            step = 1.0
            if counters[ITERATIONS] == 0:
                step = min(1.0 / np.sqrt(_dot(d, d, n)), _STEP_MAX)
            search = _begin_search(old_value, slope, step)
            if slope >= 0.0:
                tries = MAX_LINE_SEARCH
        # the only place that evaluates the objective, so that it is compiled into this loop once: the first
        # time at x, then along the search direction
        while tries < MAX_LINE_SEARCH:
            if searching:
                for i in range(n):
                    x[i] = x_old[i] + (d[i] if step == 1.0 else step * d[i])
            state.value[0] = objective(problem, x, g)
            counters[EVALUATIONS] += 1
            tries += 1
            if searching:
                slope = _dot(g, d, n)
                found, step, search = _search(state.value[0], slope, step, search)
            if found:
                break
        if not found:
            for i in range(n):
                x[i] = x_old[i]
                g[i] = g_old[i]
            state.value[0] = old_value
            state.value[1] = 1.0
            if counters[STORED] == 0:
                counters[STATUS] = SEARCH_FAILED
                counters[ITERATIONS] += 1
                return
            counters[STORED] = 0
            continue
        if searching:
            counters[ITERATIONS] += 1
            if counters[ITERATIONS] >= max_iterations:
                counters[STATUS] = STEP_LIMIT
                return
        if largest_magnitude(g[:n]) <= GTOL:
            counters[STATUS] = GRADIENT_SMALL
            return
        if searching:
            if old_value - state.value[0] <= FTOL * max(abs(old_value), abs(state.value[0]), 1.0):
                counters[STATUS] = OBJECTIVE_FLAT
                return
            _remember(state, n, step, slope, old_slope)
        searching = True


@compiled
def _direction(state: State, n: int) -> float:
    """Fill ``direction = -H g`` by the two-loop recursion, the newest pair first, and ``g_old``; return g'd.

    Each loop subtracts one pair and takes the inner product with the next in the same pass over memory.
    """
    d, g, g_old, rho, alpha = state.direction, state.g, state.g_old, state.rho, state.alpha
    stored, newest = state.counters[STORED], state.counters[NEWEST]
    for i in range(n):
        g_old[i] = g[i]
        d[i] = -g[i]
    if stored == 0:
        return _dot(g, d, n)
    product = _dot(state.s[newest], d, n)
    for back in range(stored):
        at = (newest - back) % MEMORY
        alpha[at] = rho[at] * product
        if back + 1 < stored:
            product = _add_and_dot(d, -alpha[at], state.y[at], state.s[(at - 1) % MEMORY], n)
        else:
            product = _add_scale_and_dot(d, -alpha[at], state.y[at], 1.0 / state.value[1], n)
    for back in range(stored - 1, -1, -1):
        at = (newest - back) % MEMORY
        beta = alpha[at] - rho[at] * product
        product = _add_and_dot(d, beta, state.s[at], state.y[(at + 1) % MEMORY] if back > 0 else g, n)
    return product


@reducing
def _add_and_dot(
    d: NDArray[np.float64], factor: float, v: NDArray[np.float64], w: NDArray[np.float64], n: int
) -> float:
    """Add factor * v to d and return w'd."""
    total = 0.0
    for i in range(n):
        value = d[i] + factor * v[i]
        d[i] = value
        total += w[i] * value
    return total


@reducing
def _add_scale_and_dot(
    d: NDArray[np.float64], factor: float, v: NDArray[np.float64], scale: float, n: int
) -> float:
    """Replace d by scale * (d + factor * v) and return v'd."""
    total = 0.0
    for i in range(n):
        value = scale * (d[i] + factor * v[i])
        d[i] = value
        total += v[i] * value
    return total


@reducing
def _subtract_and_dot(
    y: NDArray[np.float64], a: NDArray[np.float64], b: NDArray[np.float64], n: int
) -> float:
    """Set y to a - b and return y'y."""
    total = 0.0
    for i in range(n):
        value = a[i] - b[i]
        y[i] = value
        total += value * value
    return total


@compiled
def _remember(state: State, n: int, step: float, slope: float, old_slope: float) -> None:
    """Store the pair s = step d, y = g - g_old, unless its curvature is not positive enough."""
    counters = state.counters
    curvature = (slope - old_slope) * step
    if curvature <= _EPSILON * -old_slope * step:
        return
    at = (counters[NEWEST] + 1) % MEMORY if counters[STORED] > 0 else 0
    s = state.s[at]
    for i in range(n):
        s[i] = step * state.direction[i]
    state.value[1] = _subtract_and_dot(state.y[at], state.g, state.g_old, n) / curvature
    state.rho[at] = 1.0 / curvature
    counters[NEWEST] = at
    counters[STORED] = min(counters[STORED] + 1, MEMORY)


class Search(NamedTuple):
    """The interval of a line search: best step x, other end y, and the bounds of the next trial."""

    bracketed: bool
    first_stage: bool
    value_0: float
    slope_0: float
    x: float
    value_x: float
    slope_x: float
    y: float
    value_y: float
    slope_y: float
    low: float
    high: float
    width: float
    width_before: float


@inlined
def _begin_search(value: float, slope: float, step: float) -> Search:
    return Search(
        False,
        True,
        value,
        slope,
        0.0,
        value,
        slope,
        0.0,
        value,
        slope,
        0.0,
        5.0 * step,
        _STEP_MAX,
        2.0 * _STEP_MAX,
    )


@inlined
def _search(value: float, slope: float, step: float, search: Search) -> tuple[bool, float, Search]:
    """Judge a trial step; return (accepted, next step, interval)."""
    bracketed, first_stage = search.bracketed, search.first_stage
    x, fx, gx = search.x, search.value_x, search.slope_x
    y, fy, gy = search.y, search.value_y, search.slope_y
    low, high, width, width_before = search.low, search.high, search.width, search.width_before
    decrease = _SEARCH_FTOL * search.slope_0
    enough = search.value_0 + step * decrease
    if first_stage and value <= enough and slope >= 0.0:
        first_stage = False
    rounding = bracketed and (step <= low or step >= high or high - low <= _SEARCH_XTOL * high)
    at_bound = (step == _STEP_MAX and value <= enough and slope <= decrease) or (
        step == 0.0 and (value > enough or slope >= decrease)
    )
    wolfe = value <= enough and abs(slope) <= _SEARCH_GTOL * -search.slope_0
    if rounding or at_bound or wolfe:
        return True, step, search
    if first_stage and value <= fx and value > enough:
        # the modified function f - decrease * step still has to fall
        x, fm, gm, y, fn, gn, trial, bracketed = _next_step(
            x,
            fx - x * decrease,
            gx - decrease,
            y,
            fy - y * decrease,
            gy - decrease,
            step,
            value - step * decrease,
            slope - decrease,
            bracketed,
            low,
            high,
        )
        fx, gx = fm + x * decrease, gm + decrease
        fy, gy = fn + y * decrease, gn + decrease
    else:
        x, fx, gx, y, fy, gy, trial, bracketed = _next_step(
            x, fx, gx, y, fy, gy, step, value, slope, bracketed, low, high
        )
    if bracketed:
        if abs(y - x) >= 0.66 * width_before:
            trial = x + 0.5 * (y - x)
        width_before, width = width, abs(y - x)
        low, high = min(x, y), max(x, y)
    else:
        low, high = trial + 1.1 * (trial - x), trial + 4.0 * (trial - x)
    trial = min(max(trial, 0.0), _STEP_MAX)
    if bracketed and (trial <= low or trial >= high or high - low <= _SEARCH_XTOL * high):
        trial = x
    return (
        False,
        trial,
        Search(
            bracketed,
            first_stage,
            search.value_0,
            search.slope_0,
            x,
            fx,
            gx,
            y,
            fy,
            gy,
            low,
            high,
            width,
            width_before,
        ),
    )


@inlined
def _next_step(
    x: float,
    fx: float,
    gx: float,
    y: float,
    fy: float,
    gy: float,
    t: float,
    ft: float,
    gt: float,
    bracketed: bool,
    low: float,
    high: float,
) -> tuple[float, float, float, float, float, float, float, bool]:
    """Choose the next trial step by safeguarded cubic and quadratic interpolation, and move the interval.

    The four cases of More and Thuente's section 4.
    """
    opposite = gt * (gx / abs(gx)) < 0.0
    if ft > fx:  # 1: higher value, the minimum is bracketed
        theta = 3.0 * (fx - ft) / (t - x) + gx + gt
        size = max(abs(theta), abs(gx), abs(gt))
        gamma = size * np.sqrt((theta / size) ** 2 - (gx / size) * (gt / size))
        if t < x:
            gamma = -gamma
        ratio = ((gamma - gx) + theta) / (((gamma - gx) + gamma) + gt)
        cubic = x + ratio * (t - x)
        quadratic = x + ((gx / ((fx - ft) / (t - x) + gx)) / 2.0) * (t - x)
        new = cubic if abs(cubic - x) < abs(quadratic - x) else cubic + (quadratic - cubic) / 2.0
        bracketed = True
    elif opposite:  # 2: lower value, slopes of opposite sign
        theta = 3.0 * (fx - ft) / (t - x) + gx + gt
        size = max(abs(theta), abs(gx), abs(gt))
        gamma = size * np.sqrt((theta / size) ** 2 - (gx / size) * (gt / size))
        if t > x:
            gamma = -gamma
        ratio = ((gamma - gt) + theta) / (((gamma - gt) + gamma) + gx)
        cubic = t + ratio * (x - t)
        secant = t + (gt / (gt - gx)) * (x - t)
        new = cubic if abs(cubic - t) > abs(secant - t) else secant
        bracketed = True
    elif abs(gt) < abs(gx):  # 3: lower value, the slope shrinks
        theta = 3.0 * (fx - ft) / (t - x) + gx + gt
        size = max(abs(theta), abs(gx), abs(gt))
        gamma = size * np.sqrt(max(0.0, (theta / size) ** 2 - (gx / size) * (gt / size)))
        if t > x:
            gamma = -gamma
        ratio = ((gamma - gt) + theta) / ((gamma + (gx - gt)) + gamma)
        if ratio < 0.0 and gamma != 0.0:
            cubic = t + ratio * (x - t)
        elif t > x:
            cubic = high
        else:
            cubic = low
        secant = t + (gt / (gt - gx)) * (x - t)
        if bracketed:
            new = cubic if abs(cubic - t) < abs(secant - t) else secant
            bound = t + 0.66 * (y - t)
            new = min(bound, new) if t > x else max(bound, new)
        else:
            new = cubic if abs(cubic - t) > abs(secant - t) else secant
            new = max(low, min(high, new))
    elif bracketed:  # 4: lower value, the slope does not shrink
        theta = 3.0 * (ft - fy) / (y - t) + gy + gt
        size = max(abs(theta), abs(gy), abs(gt))
        gamma = size * np.sqrt((theta / size) ** 2 - (gy / size) * (gt / size))
        if t > y:
            gamma = -gamma
        ratio = ((gamma - gt) + theta) / (((gamma - gt) + gamma) + gy)
        new = t + ratio * (y - t)
    elif t > x:
        new = high
    else:
        new = low
    if ft > fx:
        y, fy, gy = t, ft, gt
    else:
        if opposite:
            y, fy, gy = x, fx, gx
        x, fx, gx = t, ft, gt
    return x, fx, gx, y, fy, gy, new, bracketed
