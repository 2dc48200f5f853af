"""The largest magnitude is exact, whatever the numbers are."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi.magnitudes import largest_magnitude
from tests.small_data import some


@numba.njit
def called(a):
    return largest_magnitude(a)


@some
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=40))
def test_it_is_the_maximum_of_the_absolute_values(values):
    assert called(np.array(values)) == np.abs(values).max()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], 0.0),
        ([-0.0], 0.0),
        ([1.0, -np.inf], np.inf),
        ([np.inf, np.nan, 1.0], np.nan),
        ([-np.nan], np.nan),
    ],
)
def test_what_is_not_finite_shows(values, expected):
    np.testing.assert_equal(called(np.array(values, dtype=np.float64)), expected)
