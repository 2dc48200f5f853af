"""The line search of More and Thuente (ACM TOMS 20, 1994), as SciPy's L-BFGS-B has it: a trial step at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedande_mpi.jit import inlined

_FTOL, _GTOL, _XTOL = 1e-3, 0.9, 0.1

STEP_MAX = 1e10
"""The longest step."""


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
def begin(value: float, slope: float, step: float) -> Search:
    """Begin at step 0, where the objective and its slope along the direction are given, with a first trial."""
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
        STEP_MAX,
        2.0 * STEP_MAX,
    )


@inlined
def judge(value: float, slope: float, step: float, search: Search) -> tuple[bool, float, Search]:
    """Judge a trial step; return (accepted, next step, interval)."""
    bracketed, first_stage = search.bracketed, search.first_stage
    x, fx, gx = search.x, search.value_x, search.slope_x
    y, fy, gy = search.y, search.value_y, search.slope_y
    low, high, width, width_before = search.low, search.high, search.width, search.width_before
    decrease = _FTOL * search.slope_0
    enough = search.value_0 + step * decrease
    if first_stage and value <= enough and slope >= 0.0:
        first_stage = False
    rounding = bracketed and (step <= low or step >= high or high - low <= _XTOL * high)
    at_bound = (step == STEP_MAX and value <= enough and slope <= decrease) or (
        step == 0.0 and (value > enough or slope >= decrease)
    )
    wolfe = value <= enough and abs(slope) <= _GTOL * -search.slope_0
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
    trial = min(max(trial, 0.0), STEP_MAX)
    if bracketed and (trial <= low or trial >= high or high - low <= _XTOL * high):
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
