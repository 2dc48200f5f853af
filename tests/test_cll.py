"""Scores, the negative conditional log-likelihood, its gradient, and the compiled kernel of both."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi import ande, cll
from tests import reference
from tests.small_data import Rows, make, missing_as_value, own_log_theta, problem, setup, some

ORDERS = range(4)
GRANULARITIES = ("parameter", "attribute")
seeds = st.integers(0, 2**32 - 1)
orders = st.integers(0, 3)
granularities = st.sampled_from(GRANULARITIES)


def case(seed, n, granularity="parameter", missing=0.1, **shape):
    """Rows, a parent set, their log-probabilities and random weights."""
    rows = make(seed, missing=missing, **shape)
    rng = np.random.default_rng(seed)
    parents = rng.choice(ande.parent_sets(5, n))
    w = rng.normal(0.5, 1.0, (ande.n_cells(parents, rows.arity, granularity), rows.o))
    return rows, parents, own_log_theta(rows, slice(None), parents), w


def twin(rows, parents, log_theta, w):
    """Build the same model for the reference."""
    theta = ande.unpack(np.exp(log_theta), parents, rows.arity, rows.o)
    return reference.SPnDE(parents, rows.arity, theta, ande.unpack(w, parents, rows.arity, rows.o))


@pytest.mark.parametrize("mode", ["complete", "ignore", "value"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("n", ORDERS)
def test_posterior_objective_and_gradient_equal_the_loops(n, granularity, mode):
    rows = make(n, missing=0.0 if mode == "complete" else 0.15)
    rows = missing_as_value(rows) if mode == "value" else rows
    rng = np.random.default_rng(n)
    for parents in ande.parent_sets(5, n)[:3]:
        log_theta = own_log_theta(rows, slice(None), parents, "m-estimate")
        w = rng.normal(0.5, 1.0, (ande.n_cells(parents, rows.arity, granularity), rows.o))
        model = twin(rows, parents, log_theta, w)
        got = cll.predict_proba(rows.X, parents, rows.arity, w, log_theta)
        for row, p in zip(rows.X, got, strict=True):
            expected = reference.posterior(row, model)
            if expected is None:
                assert np.isnan(p).all()
            else:
                np.testing.assert_allclose(p, expected, rtol=1e-11)
        value, gradient = cll.negative_cll(w, rows.X, rows.y, parents, rows.arity, log_theta)
        expected_value, expected_gradient = reference.negative_cll(rows.X, rows.y, model)
        assert value == pytest.approx(expected_value, rel=1e-12)
        named = ande.unpack(gradient, parents, rows.arity, rows.o)
        for name, table in expected_gradient.items():
            np.testing.assert_allclose(named[name], table, rtol=1e-10, atol=1e-12)


@some
@given(seeds, orders, granularities)
def test_gradient_is_the_finite_difference(seed, n, granularity):
    rows, parents, log_theta, w = case(seed, n, granularity)
    direction = np.random.default_rng(seed + 1).normal(size=w.shape)
    direction /= np.linalg.norm(direction)

    def value(step):
        return cll.negative_cll(w + step * direction, rows.X, rows.y, parents, rows.arity, log_theta)[0]

    gradient = cll.negative_cll(w, rows.X, rows.y, parents, rows.arity, log_theta)[1]
    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    assert slope == pytest.approx(np.sum(gradient * direction), rel=1e-5, abs=1e-5)


@some
@given(seeds, orders, granularities, st.floats(0.01, 0.99))
def test_objective_is_convex_along_every_line(seed, n, granularity, t):
    rows, parents, log_theta, a = case(seed, n, granularity)
    b = np.random.default_rng(seed + 1).normal(0.0, 3.0, a.shape)

    def value(w):
        return cll.negative_cll(w, rows.X, rows.y, parents, rows.arity, log_theta)[0]

    chord = t * value(a) + (1 - t) * value(b)
    assert value(t * a + (1 - t) * b) <= chord + 1e-9 * (1 + chord)


@some
@given(seeds, orders, granularities)
def test_zero_weights_are_uniform(seed, n, granularity):
    rows, parents, log_theta, w = case(seed, n, granularity, missing=0.0)
    posterior = cll.predict_proba(rows.X, parents, rows.arity, 0.0 * w, log_theta)
    np.testing.assert_array_equal(posterior, np.full(posterior.shape, 1 / rows.o))
    value, _ = cll.negative_cll(0.0 * w, rows.X, rows.y, parents, rows.arity, log_theta)
    assert value == pytest.approx(rows.y.size * np.log(rows.o), rel=1e-12)


@some
@given(seeds, orders, granularities)
def test_unit_weights_are_the_generative_model(seed, n, granularity):
    rows, parents, log_theta, w = case(seed, n, granularity)
    ones = cll.predict_proba(rows.X, parents, rows.arity, np.ones_like(w), log_theta)
    np.testing.assert_array_equal(ones, cll.predict_proba(rows.X, parents, rows.arity, 1.0, log_theta))
    theta = ande.unpack(np.exp(log_theta), parents, rows.arity, rows.o)
    for row, p in zip(rows.X, ones, strict=True):
        state = reference.state(row, parents, rows.arity)
        if state is None:
            continue
        joint = theta["prior"].copy()
        joint *= theta["parents"][:, state] if parents.size else 1.0
        for j in ande.children_of(parents, 5):
            joint *= theta[f"child{j}"][:, state, row[j]] if row[j] >= 0 else 1.0
        np.testing.assert_allclose(p, joint / joint.sum(), rtol=1e-11)


def test_weights_of_a_table_may_be_given_once_for_all_its_values():
    rows, parents, log_theta, w = case(5, 2, "attribute")
    spread = w[cll.cell_groups(parents, rows.arity)]
    np.testing.assert_array_equal(
        cll.predict_proba(rows.X, parents, rows.arity, w, log_theta),
        cll.predict_proba(rows.X, parents, rows.arity, spread, log_theta),
    )


@pytest.mark.parametrize("pseudocount", [1.0, 0.5])
def test_naive_bayes_equals_scikit_learn(pseudocount):
    from sklearn.naive_bayes import CategoricalNB

    rows = make(11, m=120, d=5, o=4)
    nb = CategoricalNB(alpha=pseudocount, min_categories=rows.arity).fit(rows.X, rows.y)
    log_theta = own_log_theta(rows, slice(None), np.zeros(0, dtype=np.int64), pseudocount=pseudocount)
    tables = ande.unpack(log_theta, [], rows.arity, rows.o)
    for j, table in enumerate(nb.feature_log_prob_):
        np.testing.assert_allclose(tables[f"child{j}"][:, 0], table, rtol=1e-12)
    # scikit-learn does not smooth the prior: give both the same one
    nb.class_log_prior_ = tables["prior"]
    np.testing.assert_allclose(
        cll.predict_proba(rows.X, [], rows.arity, 1.0, log_theta), nb.predict_proba(rows.X), rtol=1e-10
    )


# ------------------------------------------------------------------ compiled


@numba.njit
def _exp(x, out):
    for i in range(x.size):
        out[i] = cll.exp_nonpositive(x[i])


def exp_nonpositive(x):
    out = np.empty(x.size)
    _exp(x, out)
    return out


def test_exponential_equals_numpys_over_its_range():
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [
            -rng.uniform(0.0, 708.0, 100_000),
            -(10.0 ** rng.uniform(-320.0, 0.0, 10_000)),
            -np.arange(1021) * np.log(2.0),  # where the argument reduction is exact or nearly so
            -(np.arange(1021) + 0.5) * np.log(2.0),
        ]
    )
    np.testing.assert_allclose(exp_nonpositive(x), np.exp(x), rtol=1e-15)


def test_exponential_ends():
    assert exp_nonpositive(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]
    bottom = exp_nonpositive(np.array([-708.0, -709.0, -1e300, -np.inf]))
    np.testing.assert_allclose(bottom, np.exp(-708.0), rtol=1e-15)


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("o", [2, 3, 6])
@pytest.mark.parametrize("n", ORDERS)
def test_compiled_objective_equals_the_plain_one(n, o, granularity, missing):
    for m in (0, 1, 5, 43):
        rows, parents, log_theta, w = case(m + 100 * o, n, granularity, missing, m=m, o=o)
        given = setup(rows, [m], parents[None], w.ravel(), granularity=granularity)
        made, state, scratch = problem(given)
        g = np.full(given.capacity * o, np.nan)
        value = cll.objective(made, state.x, g)
        expected, gradient = cll.negative_cll(w, rows.X, rows.y, parents, rows.arity, log_theta)
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
    expected, _ = cll.negative_cll(1e6 * w, rows.X, rows.y, parents, rows.arity, log_theta)
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
    assert cll.penalty(made, moved) == pytest.approx(penalty, rel=1e-12)
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
