"""Scores of test rows: sums over parent sets, metrics, and rows on which no parent set has a say."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi import ande, evaluation, formulas, indexing, metrics
from tests import reference
from tests.small_data import assert_metrics, indexed, make, missing_as_value, own_log_theta, setup, some

SIZES = [12, 1, 17]
M = 20
"""Test rows: the last ones."""


def scored(
    rows,
    sets,
    weights,
    *,
    joint=False,
    pooled=None,
    granularity="parameter",
    plan=None,
    smoothing="laplace",
    sizes=SIZES,
    m=M,
):
    """Add up all sets; ``plan`` lists (first set, last set, first row, last row, first client, last client)."""
    given = setup(rows, sizes, sets, granularity=granularity, pooled=pooled, smoothing=smoothing)
    n_clients = 1 if pooled is not None else len(sizes)
    test = evaluation.HeldOut(rows.X[-m:].copy(), rows.y[-m:].copy())
    bits = metrics.scale_bits(len(sets))
    scoring = evaluation.Scoring(weights, given.weights.start, granularity == "attribute", bits, joint)
    sums = metrics.empty_sums(n_clients, m, rows.o)
    top = np.full((n_clients, m if joint else 0), -np.inf)
    plan = plan or [(0, len(sets), 0, m, 0, n_clients)]
    for maxima_only in [True, False] if joint else [False]:
        for at, stop, first, last, c, end in plan:
            index = indexing.index_sets(
                test.X, test.y, first, last, given.block, at, stop, scoring.per_attribute
            )
            evaluation.score(
                index,
                given.clients,
                given.block,
                given.theta,
                scoring,
                at,
                stop,
                c,
                end,
                maxima_only,
                top,
                sums,
            )
    return sums, bits, metrics.usable_sets(test.X, sets), test


def random_weights(rows, sets, n_rows, granularity="parameter", seed=0):
    width = int(ande.cells_per_set(sets, rows.arity, granularity).sum()) * rows.o
    return np.random.default_rng(seed).normal(0.5, 1.0, (n_rows, width))


def models(rows, sets, client, weights, granularity, smoothing, sizes=SIZES):
    """The client's models, for the reference."""
    ends = np.cumsum([0, *sizes])
    own = slice(ends[client], ends[client + 1])
    first, made = 0, []
    for parents in sets:
        counts = reference.counts(rows.X[own], rows.y[own], parents, rows.arity, rows.o)
        w = reference.filled(1.0, parents, rows.arity, rows.o)
        if weights.size:
            size = ande.n_cells(parents, rows.arity, granularity) * rows.o
            row = weights[client if weights.shape[0] > 1 else 0]
            w = ande.unpack(row[first : first + size], parents, rows.arity, rows.o)
            first += size
        made.append(reference.SPnDE(parents, rows.arity, reference.theta(counts, smoothing), w))
    return made


def check(rows, sets, kind, smoothing, weights=None, sizes=SIZES, m=M, *, measured=True):
    """Compare what the clients make of the test rows with the loops."""
    granularity = "attribute" if kind == "attribute" else "parameter"
    n_rows = {"common": 1, "own": len(sizes), "attribute": 1}.get(kind)
    if weights is None:
        weights = np.zeros((1, 0)) if n_rows is None else random_weights(rows, sets, n_rows, granularity)
    joint = kind == "joint"
    sums, bits, usable, test = scored(
        rows, sets, weights, joint=joint, granularity=granularity, smoothing=smoothing, sizes=sizes, m=m
    )
    assert usable.tolist() == [
        sum(reference.state(row, parents, rows.arity) is not None for parents in sets) for row in test.X
    ]
    kept = np.flatnonzero(usable)
    part = metrics.Sums(sums.posterior[:, kept], sums.rest[:, kept])
    posterior = metrics.posteriors(part, usable[kept], bits, joint)
    got = metrics.of_sums(part, usable[kept], bits, joint, test.y[kept])
    combine = reference.ensemble_joint if joint else reference.ensemble_mean
    for client in range(len(sizes)):
        made = models(rows, sets, client, weights, granularity, smoothing, sizes)
        expected = [combine(test.X[row], made) for row in kept]
        np.testing.assert_allclose(posterior[client], expected, rtol=1e-9, atol=1e-14)
        if measured:
            assert_metrics(got[:, client], expected, test.y[kept])


@pytest.mark.parametrize("mode", ["complete", "ignore", "value"])
@pytest.mark.parametrize("smoothing", ["laplace", "m-estimate"])
@pytest.mark.parametrize("kind", ["common", "own", "attribute", "generative", "joint"])
@pytest.mark.parametrize("n", range(4))
def test_posteriors_and_metrics_equal_the_loops(n, kind, smoothing, mode):
    rows = make(n + 20, m=sum(SIZES) + M, missing=0.0 if mode == "complete" else 0.1)
    rows = missing_as_value(rows) if mode == "value" else rows
    if n:
        rows.X[-1, :3] = np.maximum(rows.X[-1, :3], 0)
    check(rows, ande.parent_sets(5, n), kind, smoothing)


@pytest.mark.parametrize("smoothing", ["laplace", "m-estimate"])
@pytest.mark.parametrize("kind", ["common", "attribute", "joint"])
@pytest.mark.parametrize("o", [2, 3, 6, 13, 18])
def test_many_clients_that_know_little(o, kind, smoothing):
    """One after another they leave no trace: few have seen the same states and classes, some have no rows."""
    sizes = [0, 9, 2, 0, 1, 4, 1, 3, 0, 2, 1]
    rows = make(o, m=sum(sizes) + M, missing=0.1, o=o)
    rows.y[: sum(sizes)] = np.random.default_rng(o).integers(0, o, sum(sizes))
    check(rows, ande.parent_sets(5, 2), kind, smoothing, sizes=sizes)


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["own", "attribute", "generative", "joint"])
@pytest.mark.parametrize("o", [2, 3, 13])
def test_many_test_rows_go_in_bundles(o, kind, missing):
    m, sizes = 600, [9, 0, 30]
    rows = make(4, m=sum(sizes) + m, missing=missing, o=o)
    sets = ande.parent_sets(5, 1)
    assert sum(indexed(rows, np.arange(39, 39 + m), parents)["lists"].n_joint > 0 for parents in sets) > 2
    check(rows, sets, kind, "laplace", sizes=sizes, m=m)


@pytest.mark.parametrize("m", [M, 400], ids=["cells", "joint-cells"])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("o", [2, 3, 13])
def test_rows_whose_odds_are_out_of_range_are_scored_by_logarithms(o, joint, m):
    rows = make(36, m=sum(SIZES) + m, d=5, o=o)
    sets = ande.parent_sets(5, 1)
    weights = random_weights(rows, sets, 1)
    far = np.random.default_rng(1).random(weights.shape) < 0.1
    weights[far] *= 400.0
    weights = np.abs(weights) if joint else weights
    # the logarithms of some of these probabilities are beyond what is kept of them
    check(rows, sets, "joint" if joint else "common", "laplace", weights, m=m, measured=False)


def test_a_pooled_model_scores_once_for_all():
    rows = make(30, m=sum(SIZES) + M, missing=0.05)
    sets = ande.parent_sets(5, 1)
    tables = [own_log_theta(rows, slice(0, -M), parents) for parents in sets]
    w = random_weights(rows, sets, 1)
    sums, bits, usable, test = scored(rows, sets, w, pooled=np.concatenate([t.ravel() for t in tables]))
    terms = []
    for at, parents in enumerate(sets):
        first = sum(table.size for table in tables[:at])
        part = w[0, first : first + tables[at].size].reshape(-1, rows.o)
        terms.append(formulas.predict_proba(test.X, parents, rows.arity, part, tables[at]))
    np.testing.assert_allclose(
        metrics.posteriors(sums, usable, bits, False)[0],
        np.nansum(terms, axis=0) / usable[:, None],
        rtol=1e-9,
    )


@pytest.mark.parametrize("joint", [False, True])
@some
@given(seed=st.integers(0, 2**32 - 1))
def test_order_and_grouping_change_no_bit(joint, seed):
    rows = make(31, m=sum(SIZES) + M, missing=0.05)
    sets = ande.parent_sets(5, 2)
    weights = np.zeros((1, 0)) if joint else random_weights(rows, sets, 1)
    expected, *_ = scored(rows, sets, weights, joint=joint)
    rng = np.random.default_rng(seed)
    plan = []
    for at, stop in pairwise(sorted({0, len(sets), *rng.integers(0, len(sets), 4).tolist()})):
        row = sorted({0, M, *rng.integers(0, M, 2).tolist()})
        client = sorted({0, 3, int(rng.integers(0, 3))})
        plan += [(at, stop, *r, *c) for r in pairwise(row) for c in pairwise(client)]
    rng.shuffle(plan)
    got, *_ = scored(rows, sets, weights, joint=joint, plan=[tuple(map(int, step)) for step in plan])
    np.testing.assert_array_equal(got.posterior, expected.posterior)
    np.testing.assert_array_equal(got.rest, expected.rest)


@pytest.mark.parametrize("n_sets", [1, 2, 3, 1000, 1024, 1025, 1770])
def test_the_largest_sum_fits(n_sets):
    bits = metrics.scale_bits(n_sets)
    assert n_sets * 2**bits < 2**63
    assert 2 * n_sets * 2**bits > 2**62  # and the scale is no coarser than it must be


@pytest.mark.parametrize("n_sets", [1, 4])
@pytest.mark.parametrize("exponent", [3, 10, 20, 30, 40])
def test_log_likelihood_of_small_probabilities(exponent, n_sets):
    """Probabilities as small as 1e-40 for the own class keep their logarithm."""
    rows = make(32, m=sum(SIZES) + M, d=4, o=2)
    sets = ande.parent_sets(4, 0 if n_sets == 1 else 1)
    w = np.zeros((1, int(ande.cells_per_set(sets, rows.arity).sum()) * 2))
    given = setup(rows, SIZES, sets)
    rows.y[-M:] = 1
    # the prior alone decides: its weight makes the odds of class 1 what they should be
    client_prior = (rows.y[:12].sum() + 1) / (12 + 2)
    for position, start in enumerate(given.weights.start):
        w[0, start + 1] = -(exponent + 0.3 * position) * np.log(10) / np.log(client_prior)
    sums, bits, usable, test = scored(rows, sets, w)
    p = [10.0 ** -(exponent + 0.3 * at) for at in range(n_sets)]
    expected = np.log(np.mean([value / (1 + value) for value in p]))
    got = metrics.of_sums(sums, usable, bits, False, test.y)
    assert got[1, 0] == pytest.approx(expected, rel=1e-6)


def test_probabilities_beyond_the_scale_count_as_half_its_unit():
    sums = metrics.empty_sums(1, 1, 2)
    sums.posterior[0, 0, 0] = 2**62
    got = metrics.of_sums(sums, np.array([1]), 62, False, np.array([1], dtype=np.int32))
    assert got[1, 0] == pytest.approx(-187 * np.log(2))


def test_no_log_likelihood_is_above_zero():
    # three posteriors of 1, each rounded up by the scale
    sums = metrics.empty_sums(1, 1, 2)
    sums.posterior[0, 0, 0] = 3 * 2**60 + 1
    got = metrics.of_sums(sums, np.array([3]), 60, False, np.array([0], dtype=np.int32))
    assert got[1, 0] == 0.0


def test_ties_go_to_the_lowest_class():
    rows = make(33, m=sum(SIZES) + M, o=4)
    sets = ande.parent_sets(5, 1)
    weights = 0.0 * random_weights(rows, sets, 1)
    sums, bits, usable, test = scored(rows, sets, weights)
    accuracy, log_likelihood, brier, _ = metrics.of_sums(sums, usable, bits, False, test.y)
    np.testing.assert_array_equal(accuracy, np.mean(test.y == 0))
    np.testing.assert_allclose(log_likelihood, -np.log(4), rtol=1e-12)
    np.testing.assert_allclose(brier, 0.75, rtol=1e-12)


@some
@given(st.integers(0, 2**32 - 1), st.integers(1, 15), st.integers(2, 6))
def test_metrics_equal_scikit_learn_with_absent_classes(seed, m, o):
    from sklearn.metrics import accuracy_score, f1_score

    rng = np.random.default_rng(seed)
    y = rng.integers(0, rng.integers(1, o + 1), m).astype(np.int32)
    p = rng.dirichlet(np.full(o, 0.3), m)
    sums = metrics.empty_sums(1, m, o)
    sums.posterior[0] = np.rint(p * 2.0**62)
    got = metrics.of_sums(sums, np.ones(m, dtype=np.int64), 62, False, y)[:, 0]
    predicted = p.argmax(axis=1)
    assert got[0] == pytest.approx(accuracy_score(y, predicted))
    assert got[2] == pytest.approx(np.mean(((p - np.eye(o)[y]) ** 2).sum(axis=1)))
    # scikit-learn averages over the classes that occur in labels or predictions
    assert got[3] == pytest.approx(f1_score(y, predicted, average="macro"))


def test_without_test_rows_every_metric_is_undefined():
    sums = metrics.empty_sums(3, 0, 2)
    got = metrics.of_sums(sums, np.zeros(0, dtype=np.int64), 62, False, np.zeros(0, dtype=np.int32))
    assert got.shape == (4, 3)
    assert np.isnan(got).all()


@pytest.mark.parametrize("smoothing", ["laplace", "m-estimate"])
@pytest.mark.parametrize("combine", ["mean", "joint"])
def test_rows_without_a_complete_parent_set_fall_back_to_lower_orders(combine, smoothing):
    rows = make(34, m=40, missing=0.15)
    incomplete = np.full((4, 5), -1, dtype=np.int32)
    incomplete[0, [1, 3]] = 0  # A2DE has a say
    incomplete[1, 2] = 0  # A1DE has, A2DE has not
    incomplete[3] = 0
    for order in (2, 1, 0):
        got = metrics.fall_back(
            incomplete,
            rows.X,
            rows.y,
            rows.arity,
            rows.o,
            order=order,
            rule=(smoothing, 0.5),
            joint=combine == "joint",
        )
        for row, p in zip(incomplete, got, strict=True):
            expected = reference.generative(
                row, rows.X, rows.y, order, rows.arity, rows.o, combine, smoothing, 0.5
            )
            np.testing.assert_allclose(p, expected, rtol=1e-10)


def test_weighted_models_fall_back_to_the_prior():
    rows = make(35, m=10)
    missing = np.full((2, 5), -1, dtype=np.int32)
    common = {"order": -1, "rule": ("laplace", 1.0), "joint": False}
    got = metrics.fall_back(missing, rows.X, rows.y, rows.arity, rows.o, **common)
    expected = (np.bincount(rows.y, minlength=rows.o) + 1) / (10 + rows.o)
    np.testing.assert_allclose(got, [expected, expected])
    given = np.array([0.2, 0.3, 0.5])
    got = metrics.fall_back(missing, rows.X, rows.y, rows.arity, rows.o, **common, prior=given)
    np.testing.assert_array_equal(got, [given, given])
