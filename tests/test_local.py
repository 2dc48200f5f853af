"""What a client computes in a round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi import ande, cll, formulas, lbfgs, local
from tests import reference
from tests.small_data import Rows, make, own_log_theta, problem, setup, some

SIZES = [7, 13, 1, 19]


def run(given, pairs=None, limit=5, parts=1, more=0):
    """Run pairs in batches, all by default; the array of updates has about so many numbers more."""
    n_clients, n_sets = given.clients.start.size - 1, given.block.n_states.size
    if pairs is None:
        pairs = [(client, at) for client in range(n_clients) for at in range(n_sets)]
    width = given.weights.values.size
    updates = np.full((n_clients + more // width, width), np.nan)
    report = local.empty_report(n_clients, n_sets)
    for batch in np.array_split(np.array(pairs, dtype=np.int64), parts):
        local.run_pairs(
            *given[:4],
            np.ascontiguousarray(batch[:, 0]),
            np.ascontiguousarray(batch[:, 1]),
            limit,
            given.capacity,
            given.max_rows,
            updates,
            report,
        )
    return updates[:n_clients], report


def same_bits(a, b):
    assert a[0].tobytes() == b[0].tobytes()
    for one, other in zip(a[1], b[1], strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("granularity", ["parameter", "attribute"])
@pytest.mark.parametrize("smoothing", ["laplace", "m-estimate"])
@pytest.mark.parametrize("n", range(4))
def test_steps_equal_the_reference(n, smoothing, granularity):
    rows = make(n, m=40, missing=0.1)
    sets = ande.parent_sets(5, n)[:3]
    given = setup(rows, SIZES, sets, 0.3, granularity=granularity, smoothing=smoothing, l2=0.01)
    updates, report = run(given, limit=3)
    ends = [*given.weights.start[1:], given.weights.values.size]
    for client in range(4):
        own = slice(*given.clients.start[client : client + 2])
        for at, parents in enumerate(sets):
            counts = reference.counts(rows.X[own], rows.y[own], parents, rows.arity, rows.o)
            w = reference.filled(0.3, parents, rows.arity, rows.o, granularity)
            model = reference.SPnDE(parents, rows.arity, reference.theta(counts, smoothing), w)
            expected, value = reference.local_steps(rows.X[own], rows.y[own], model, 3, 0.01)
            part = updates[client, given.weights.start[at] : ends[at]]
            for name, table in ande.unpack(part, parents, rows.arity, rows.o).items():
                np.testing.assert_allclose(table, expected[name], atol=1e-9)
            # reported without the pull to the common weights
            assert report.objective[client, at] == pytest.approx(value, rel=1e-9)


@some
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_order_and_batches_of_pairs_change_no_bit(seed, parts):
    rows = make(3, m=40, missing=0.05)
    given = setup(rows, SIZES, ande.parent_sets(5, 1), 0.1)
    pairs = [(client, at) for client in range(4) for at in range(5)]
    shuffled = np.random.default_rng(seed).permutation(pairs)
    same_bits(run(given), run(given, shuffled, parts=parts))


def test_a_block_changes_no_bit():
    rows = make(4, m=40)
    sets = ande.parent_sets(5, 2)
    whole, _ = run(setup(rows, SIZES, sets))
    parts = [run(setup(rows, SIZES, sets[cut]))[0] for cut in (slice(0, 3), slice(3, 4), slice(4, None))]
    assert np.concatenate(parts, axis=1).tobytes() == whole.tobytes()


def test_rows_that_are_too_many_for_the_caches_have_the_same_bits():
    given = setup(make(9, m=40), SIZES, ande.parent_sets(5, 2))
    same_bits(run(given, more=local.LARGE + given.weights.values.size), run(given))


@pytest.mark.parametrize("many", [1, 50], ids=["cells", "joint-cells"])
@pytest.mark.parametrize(("granularity", "l2"), [("parameter", 0.0), ("attribute", 0.0), ("parameter", 0.1)])
def test_a_long_pair_bit_by_bit_is_a_pair_in_a_batch(granularity, l2, many):
    sizes = [many * size for size in SIZES]
    rows = make(5, m=sum(sizes))
    given = setup(rows, sizes, ande.parent_sets(5, 1), granularity=granularity, l2=l2)
    assert (problem(given)[0].n_joint > 0) == (many > 1)
    expected = run(given, limit=40)
    updates = np.full_like(expected[0], np.nan)
    report = local.empty_report(4, 5)
    ends = [*given.weights.start[1:], given.weights.values.size]
    for client in range(4):
        for at in range(5):
            made, state, scratch = problem(given, client, at)
            lbfgs.begin(state)
            while state.counters[lbfgs.STATUS] == lbfgs.RUNNING:
                lbfgs.advance(made, state, 40, int(state.counters[lbfgs.ITERATIONS]) + 3)
            local.finish(made, state, given.weights, client, at, ends[at], scratch, updates, report)
    same_bits((updates, report), expected)


def test_a_pair_reads_its_own_clients_rows_only():
    rows = make(6, m=40)
    given = setup(rows, SIZES, ande.parent_sets(5, 1))
    alone = setup(
        Rows(rows.X[7:20].copy(), rows.y[7:20].copy(), rows.arity, rows.o), [13], ande.parent_sets(5, 1)
    )
    assert run(given)[0][1].tobytes() == run(alone)[0][0].tobytes()


def test_weights_that_no_row_uses_keep_the_common_value():
    rows = make(7, m=6, d=5)
    parents = np.array([2])
    w = np.random.default_rng(0).normal(size=ande.n_cells(parents, rows.arity) * rows.o)
    updates, _ = run(setup(rows, [6], parents[None], w))
    counts = ande.count_tables(rows.X, rows.y, parents, rows.arity, rows.o)
    unused = np.repeat(counts.sum(axis=1) == 0, rows.o)
    assert unused.any()
    np.testing.assert_array_equal(updates[0, unused], w[unused])
    assert (updates[0, ~unused] != w[~unused]).any()


@pytest.mark.parametrize("granularity", ["parameter", "attribute"])
def test_the_report_is_of_the_clients_own_weights_after_its_steps(granularity):
    rows = make(8, m=40)
    parents = np.array([1, 3])
    given = setup(rows, SIZES, parents[None], granularity=granularity, l2=0.5)
    updates, report = run(given, limit=4)
    for client in range(4):
        own = slice(*given.clients.start[client : client + 2])
        value, _ = formulas.negative_cll(
            updates[client].reshape(-1, rows.o),
            rows.X[own],
            rows.y[own],
            parents,
            rows.arity,
            own_log_theta(rows, own, parents),
        )
        assert report.objective[client, 0] == pytest.approx(value, rel=1e-12)
    assert (report.iterations <= 4).all()
    assert (report.evaluations > report.iterations).all()


def test_a_strong_pull_keeps_the_weights_where_they_are():
    rows = make(9, m=40)
    given = setup(rows, SIZES, ande.parent_sets(5, 1), 0.4, l2=1e8)
    np.testing.assert_allclose(run(given)[0], 0.4, atol=1e-5)
    free, _ = run(setup(rows, SIZES, ande.parent_sets(5, 1), 0.4))
    assert np.abs(free - 0.4).max() > 0.1


def test_a_pooled_model_replaces_the_clients_own():
    rows = make(10, m=40, missing=0.1)
    sets = ande.parent_sets(5, 1)
    tables = [own_log_theta(rows, slice(None), parents) for parents in sets]
    pooled = np.concatenate([table.ravel() for table in tables])
    given = setup(rows, SIZES, sets, 1.0, pooled=pooled)
    for client in range(4):
        own = slice(*given.clients.start[client : client + 2])
        for at, parents in enumerate(sets):
            made, state, _ = problem(given, client, at)
            value = cll.objective(made, state.x, np.empty(state.x.size))
            w = np.ones_like(tables[at])
            expected, _ = formulas.negative_cll(w, rows.X[own], rows.y[own], parents, rows.arity, tables[at])
            assert value == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_scipys_steps_on_the_same_objective():
    rows = make(11, m=40)
    given = setup(rows, [40], np.array([[1]]))
    made, state, _ = problem(given)
    local.scipy_steps(made, state, 5)
    twin, expected, _ = problem(given)
    lbfgs.begin(expected)
    lbfgs.advance(twin, expected, 5, 5)
    size = made.n_groups * made.o
    np.testing.assert_allclose(state.x[:size], expected.x[:size], atol=1e-9)


@pytest.mark.parametrize("limit", [5, 15_000])
@pytest.mark.parametrize("o", [2, 3])
@pytest.mark.parametrize("n", range(4))
def test_clients_with_one_row_or_one_class_or_none_give_finite_weights(n, o, limit):
    rows = make(12, m=21, o=o, missing=0.05)
    rows.y[1:] = 1  # the first client has one row, the second none, the third one class
    updates, report = run(setup(rows, [1, 0, 20], ande.parent_sets(5, n)), limit=limit)
    assert np.isfinite(updates).all()
    assert np.isfinite(report.objective).all()
    np.testing.assert_array_equal(updates[1], 0.0)
    assert (report.objective[1] == 0.0).all()
    # converged, the one class of a client is certain
    if limit > 5:
        assert (report.objective[2] < 1e-3).all()
