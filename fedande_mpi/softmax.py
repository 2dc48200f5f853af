"""The exponential, and the softmax of some rows at a time, in vector registers.

A row has o - 1 differences to the last class, in lanes of which some may be free, see `stride`. Sums and products over
rows are functions of their own: they may be reassociated, and the loops without them run in vector registers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.jit import bits_float, compiled, float_bits, inlined, reducing
from fedande_mpi.vectors import (
    largest_4,
    largest_8,
    scale_4,
    scale_8,
    subtract_4,
    subtract_8,
    total_4,
    total_8,
)

_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the nearest integer in the low bits
_SMALLEST = -708.0


@inlined
def fast_exp(x: float) -> float:
    """Return e^x for x <= 709, below -708 as e^-708; branch-free, so that a loop over it vectorises.

    Two-part argument reduction by ln 2 and a polynomial of degree 12: error below 1 ulp or so.
    """
    x = max(x, _SMALLEST)
    shifted = x * _LOG2E + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    scale: float = bits_float((float_bits(shifted) + 1023) << 52)
    return p * scale


CHUNK = 64
"""Rows whose scores are worked on together: they stay in the first-level cache."""


@compiled
def stride(o: int) -> int:
    """Return how many numbers a cell takes in ``u`` and ``residuals``.

    1 for two classes, otherwise o - 1 rounded up to a multiple of 4, in runs of 8 and at most one of 4:
    `fedande_mpi.vectors` does a run at a time.
    """
    return 1 if o == 2 else max(4, (o + 2) // 4 * 4)


@reducing
def _sum(a: NDArray[np.float64], n: int) -> float:
    total = 0.0
    for r in range(n):
        total += a[r]
    return total


@reducing
def _product(a: NDArray[np.float64], n: int) -> float:
    product = 1.0
    for r in range(n):
        product *= a[r]
    return product


@reducing
def _sum_of_positive(z: NDArray[np.float64], n: int) -> float:
    total = 0.0
    for r in range(n):
        total += max(z[r], 0.0)
    return total


@reducing
def _product_of_larger(a: NDArray[np.float64], b: NDArray[np.float64], n: int) -> float:
    product = 1.0
    for r in range(n):
        product *= max(a[r], b[r])
    return product


@compiled
def softmax(n: int, o: int, z: NDArray[np.float64], last: NDArray[np.float64]) -> float:
    """Turn the differences of n rows into probabilities, the last class's into ``last (2 * CHUNK,)``, half a buffer.

    Returns the sum over the rows of log(sum over classes of e^z), z = 0 for the last class.
    """
    lanes = stride(o)
    if o == 2:
        value = _sum_of_positive(z, n)
        # sums and products in an order of their own: this loop, without them, runs in vector registers
        for r in range(n):
            s = z[r]
            e = fast_exp(-abs(s))
            large = 1.0 / (1.0 + e)
            small = e * large
            z[r] = large if s >= 0.0 else small
            last[r] = small if s >= 0.0 else large
        # 1 + e is the inverse of the larger: CHUNK of them, each at most 2
        return value - float(np.log(_product_of_larger(z, last, n)))
    total = last[CHUNK:]
    for r in range(n):
        top = 0.0
        k = 0
        while k + 8 <= lanes:
            top = max(top, largest_8(z, r * lanes + k))
            k += 8
        if k < lanes:
            top = max(top, largest_4(z, r * lanes + k))
        k = 0
        while k + 8 <= lanes:
            subtract_8(z, r * lanes + k, top)
            k += 8
        if k < lanes:
            subtract_4(z, r * lanes + k, top)
        last[r] = -top
    value = -_sum(last, n)
    for i in range(n * lanes):
        z[i] = fast_exp(z[i])
    for r in range(n):
        last[r] = fast_exp(last[r])
    for r in range(n):
        one = last[r]
        k = 0
        while k + 8 <= lanes:
            one += total_8(z, r * lanes + k)
            k += 8
        if k < lanes:
            one += total_4(z, r * lanes + k)
        total[r] = one
    # CHUNK factors of at most o each, in two halves
    half = n // 2
    value += float(np.log(_product(total, half))) + float(np.log(_product(total[half:], n - half)))
    for r in range(n):
        total[r] = 1.0 / total[r]
    for r in range(n):
        last[r] *= total[r]
    for r in range(n):
        k = 0
        while k + 8 <= lanes:
            scale_8(z, r * lanes + k, total[r])
            k += 8
        if k < lanes:
            scale_4(z, r * lanes + k, total[r])
    return value
