"""Runs of numbers in vector registers."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from fedande_mpi import vectors

STRIDE, AT = 12, 3
CELLS = np.array([7, 2, 5, 2, 0], dtype=np.uint32)


def compiled(name, n_lanes):
    """The routine behind a function that can be called from here."""
    routine = getattr(vectors, f"{name}_{n_lanes}")
    if name in ("subtract", "scale"):
        return numba.njit(lambda values, at, number: routine(values, at, number))
    if name in ("total", "largest"):
        return numba.njit(lambda values, at: routine(values, at))
    if name == "count":
        return numba.njit(lambda values, at, factor, out, first: routine(values, at, factor, out, first))
    return numba.njit(lambda a, b, c, d, e, f, g, h: routine(a, b, c, d, e, f, g, h))


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(size=8 * STRIDE)


@pytest.mark.parametrize("n_lanes", [4, 8])
@pytest.mark.parametrize("name", ["add", "multiply"])
def test_cells_are_gathered_in_their_order(name, n_lanes, values):
    out = np.full(20, 9.0)
    compiled(name, n_lanes)(values, CELLS, 1, 3, STRIDE, 4, out, AT)
    runs = [values[cell * STRIDE + 4 :][:n_lanes] for cell in CELLS[1:4].astype(int)]
    expected = np.full(20, 9.0)
    expected[AT : AT + n_lanes] = (
        0.0 + runs[0] + runs[1] + runs[2] if name == "add" else runs[0] * runs[1] * runs[2]
    )
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("n_lanes", [4, 8])
def test_a_run_is_scattered_to_every_cell(n_lanes, values):
    run = np.random.default_rng(1).normal(size=20)
    expected = values.copy()
    for cell in CELLS[1:4].astype(int):
        expected[cell * STRIDE + 4 :][:n_lanes] += run[AT : AT + n_lanes]
    compiled("scatter", n_lanes)(run, AT, CELLS, 1, 3, STRIDE, 4, values)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("n_lanes", [4, 8])
def test_the_total_of_a_run(n_lanes, values):
    got = compiled("total", n_lanes)(values, AT)
    assert got == pytest.approx(values[AT : AT + n_lanes].sum(), rel=1e-14)


@pytest.mark.parametrize("n_lanes", [2, 4, 8])
def test_counts_are_rounded_to_even(n_lanes):
    values = np.array([9.0, 0.5, 1.5, 2.5, -0.5, 0.75, -1.5, 1e15, 3.0])
    out = np.arange(12)
    compiled("count", n_lanes)(values, 1, 2.0**3 / 8, out, 2)
    expected = np.arange(12)
    expected[2 : 2 + n_lanes] += np.rint(values[1 : 1 + n_lanes]).astype(int)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 11, 40])
@pytest.mark.parametrize("at", range(5))
def test_what_is_copied_past_the_caches_is_all_there_and_no_more(at, n, values):
    copy = numba.njit(lambda a, b, c, d, e: vectors.copy_past_caches(a, b, c, d, e))
    out = np.zeros(60)
    copy(values, 7, n, out, at)
    expected = np.zeros(60)
    expected[at : at + n] = values[7 : 7 + n]
    np.testing.assert_array_equal(out, expected)


def test_a_number_that_is_fetched_stays_as_it_is(values):
    fetch = numba.njit(lambda a, i: vectors.fetch(a, i))
    before = values.copy()
    fetch(values, values.size - 1)
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("n_lanes", [4, 8])
def test_the_largest_of_a_run(n_lanes, values):
    assert compiled("largest", n_lanes)(values, AT) == values[AT : AT + n_lanes].max()


@pytest.mark.parametrize("n_lanes", [4, 8])
@pytest.mark.parametrize("name", ["subtract", "scale"])
def test_a_run_is_changed_in_place(name, n_lanes, values):
    expected = values.copy()
    run = expected[AT : AT + n_lanes]
    run[:] = run - 0.3 if name == "subtract" else run * 0.3
    compiled(name, n_lanes)(values, AT, 0.3)
    np.testing.assert_array_equal(values, expected)
