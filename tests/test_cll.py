"""The compiled kernel against the plain formulas."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi import cll, formulas, softmax
from tests.small_data import Rows, case, problem, setup, some

ORDERS = range(4)
GRANULARITIES = ("parameter", "attribute")
seeds = st.integers(0, 2**32 - 1)
orders = st.integers(0, 3)
granularities = st.sampled_from(GRANULARITIES)


@numba.njit
def _exp(x, out):
    for i in range(x.size):
        out[i] = softmax.fast_exp(x[i])


def fast_exp(x):
    out = np.empty(x.size)
    _exp(x, out)
    return out


def test_exponential_equals_numpys_over_its_range():
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [
            -rng.uniform(0.0, 708.0, 100_000),
            rng.uniform(0.0, 709.0, 100_000),
            -(10.0 ** rng.uniform(-320.0, 0.0, 10_000)),
            -np.arange(1021) * np.log(2.0),  # where the argument reduction is exact or nearly so
            -(np.arange(1021) + 0.5) * np.log(2.0),
        ]
    )
    np.testing.assert_allclose(fast_exp(x), np.exp(x), rtol=1e-15)


def test_exponential_ends():
    assert fast_exp(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]
    bottom = fast_exp(np.array([-708.0, -709.0, -1e300, -np.inf]))
    np.testing.assert_allclose(bottom, np.exp(-708.0), rtol=1e-15)


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("o", [2, 3, 6])
@pytest.mark.parametrize("n", ORDERS)
def test_compiled_objective_equals_the_plain_one(n, o, granularity, missing):
    for m in (0, 1, 5, 43, 1500):  # the last in bundles
        rows, parents, log_theta, w = case(m + 100 * o, n, granularity, missing, m=m, o=o)
        given = setup(rows, [m], parents[None], w.ravel(), granularity=granularity)
        made, state, scratch = problem(given)
        assert n == 3 or (made.n_joint > 0) == (m == 1500)
        g = np.full(given.capacity * o, np.nan)
        value = cll.objective(made, state.x, g)
        expected, gradient = formulas.negative_cll(w, rows.X, rows.y, parents, rows.arity, log_theta)
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-12)
        got = np.zeros_like(gradient)
        got[scratch.group_cell[: made.n_groups]] = g[: made.n_groups * o].reshape(-1, o)
        # what no row touches has gradient zero
        np.testing.assert_allclose(got, gradient, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("o", [2, 5])
def test_likelihood_of_many_rows_does_not_overflow(o):
    # 2^900 and 5^900 are beyond the largest number kept as a product of probabilities
    rows, parents, _, _ = case(1, 1, m=900, o=o, missing=0.0)
    made, state, _ = problem(setup(rows, [900], parents[None]))
    assert cll.objective(made, state.x, np.empty(state.x.size)) == pytest.approx(900 * np.log(o), rel=1e-13)


@pytest.mark.parametrize("o", [2, 4])
def test_huge_weights_give_finite_values(o):
    rows, parents, log_theta, w = case(2, 1, o=o)
    made, state, _ = problem(setup(rows, [40], parents[None], 1e6 * w.ravel()))
    g = np.empty(state.x.size)
    value = cll.objective(made, state.x, g)
    expected, _ = formulas.negative_cll(1e6 * w, rows.X, rows.y, parents, rows.arity, log_theta)
    assert value == pytest.approx(expected, rel=1e-12)
    assert np.isfinite(g[: made.n_groups * o]).all()


@some
@given(seeds, orders, granularities, st.floats(0.01, 100.0))
def test_pull_to_the_common_weights(seed, n, granularity, l2):
    rows, parents, _, w = case(seed, n, granularity)
    made, state, _ = problem(setup(rows, [40], parents[None], w.ravel(), granularity=granularity, l2=l2))
    free, _, _ = problem(setup(rows, [40], parents[None], w.ravel(), granularity=granularity))
    size = made.n_groups * rows.o
    moved = state.x.copy()
    step = np.random.default_rng(seed).normal(size=size)
    moved[:size] += step
    g, g_free = np.empty(moved.size), np.empty(moved.size)
    value, value_free = cll.objective(made, moved, g), cll.objective(free, moved, g_free)
    penalty = 0.5 * l2 * np.sum(step**2)
    assert value - value_free == pytest.approx(penalty, rel=1e-9, abs=1e-9)
    assert 0.5 * l2 * cll.squared_distance(made, moved) == pytest.approx(penalty, rel=1e-12)
    np.testing.assert_allclose(g[:size] - g_free[:size], l2 * step, rtol=1e-8, atol=1e-8)


def test_order_of_rows_does_not_matter_beyond_rounding():
    rows, parents, _, w = case(7, 1, o=3)
    order = np.random.default_rng(0).permutation(40)
    shuffled = Rows(rows.X[order], rows.y[order], rows.arity, rows.o)
    values = []
    for some_rows in (rows, shuffled):
        made, state, _ = problem(setup(some_rows, [40], parents[None], w.ravel()))
        values.append(cll.objective(made, state.x, np.empty(state.x.size)))
    assert values[0] == pytest.approx(values[1], rel=1e-13)
