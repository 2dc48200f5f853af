"""Largest magnitudes, found in vector registers: the exact maximum has no order to keep."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.jit import bits_float, inlined


@inlined
def without_sign(bits: np.int64) -> np.int64:
    """Return the bits of a number's magnitude, given its own: they are ordered as the numbers are."""
    return bits & np.int64(0x7FFFFFFFFFFFFFFF)


@inlined
def largest_magnitude(a: NDArray[np.float64]) -> float:
    """Return the largest ``|a[i]|``, 0 of none; infinity or NaN where one is not finite, NaN before infinity."""
    # without their sign, the bits of numbers are ordered as the numbers are, then infinity, then NaN; a maximum of
    # floating-point numbers is not found in vector registers, because of NaN
    bits = a.view(np.int64)
    top = np.int64(0)
    for i in range(bits.size):
        top = max(top, without_sign(bits[i]))
    return bits_float(top)  # type: ignore[no-any-return]
