"""Scores, posterior, the negative conditional log-likelihood and its gradient, against slow loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi import ande, formulas
from tests import reference
from tests.small_data import case, make, missing_as_value, own_log_theta, some

ORDERS = range(4)
GRANULARITIES = ("parameter", "attribute")
seeds = st.integers(0, 2**32 - 1)
orders = st.integers(0, 3)
granularities = st.sampled_from(GRANULARITIES)


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
        got = formulas.predict_proba(rows.X, parents, rows.arity, w, log_theta)
        for row, p in zip(rows.X, got, strict=True):
            expected = reference.posterior(row, model)
            if expected is None:
                assert np.isnan(p).all()
            else:
                np.testing.assert_allclose(p, expected, rtol=1e-11)
        value, gradient = formulas.negative_cll(w, rows.X, rows.y, parents, rows.arity, log_theta)
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
        return formulas.negative_cll(w + step * direction, rows.X, rows.y, parents, rows.arity, log_theta)[0]

    gradient = formulas.negative_cll(w, rows.X, rows.y, parents, rows.arity, log_theta)[1]
    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    assert slope == pytest.approx(np.sum(gradient * direction), rel=1e-5, abs=1e-5)


@some
@given(seeds, orders, granularities, st.floats(0.01, 0.99))
def test_objective_is_convex_along_every_line(seed, n, granularity, t):
    rows, parents, log_theta, a = case(seed, n, granularity)
    b = np.random.default_rng(seed + 1).normal(0.0, 3.0, a.shape)

    def value(w):
        return formulas.negative_cll(w, rows.X, rows.y, parents, rows.arity, log_theta)[0]

    chord = t * value(a) + (1 - t) * value(b)
    assert value(t * a + (1 - t) * b) <= chord + 1e-9 * (1 + chord)


@some
@given(seeds, orders, granularities)
def test_zero_weights_are_uniform(seed, n, granularity):
    rows, parents, log_theta, w = case(seed, n, granularity, missing=0.0)
    posterior = formulas.predict_proba(rows.X, parents, rows.arity, 0.0 * w, log_theta)
    np.testing.assert_array_equal(posterior, np.full(posterior.shape, 1 / rows.o))
    value, _ = formulas.negative_cll(0.0 * w, rows.X, rows.y, parents, rows.arity, log_theta)
    assert value == pytest.approx(rows.y.size * np.log(rows.o), rel=1e-12)


@some
@given(seeds, orders, granularities)
def test_unit_weights_are_the_generative_model(seed, n, granularity):
    rows, parents, log_theta, w = case(seed, n, granularity)
    ones = formulas.predict_proba(rows.X, parents, rows.arity, np.ones_like(w), log_theta)
    np.testing.assert_array_equal(ones, formulas.predict_proba(rows.X, parents, rows.arity, 1.0, log_theta))
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
    spread = w[ande.cell_groups(parents, rows.arity)]
    np.testing.assert_array_equal(
        formulas.predict_proba(rows.X, parents, rows.arity, w, log_theta),
        formulas.predict_proba(rows.X, parents, rows.arity, spread, log_theta),
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
        formulas.predict_proba(rows.X, [], rows.arity, 1.0, log_theta), nb.predict_proba(rows.X), rtol=1e-10
    )
