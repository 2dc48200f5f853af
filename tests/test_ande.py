"""Parent sets, parent states, count tables and log-probabilities."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi import ande
from fedande_mpi.errors import ConfigError
from tests import reference
from tests.small_data import make, missing_as_value, some

ORDERS = range(4)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(("d", "n"), [(1, 0), (4, 0), (5, 1), (5, 2), (6, 3), (4, 3)])
def test_parent_sets_are_the_combinations_in_lexicographic_order(d, n):
    sets = ande.parent_sets(d, n)
    assert sets.shape[1] == n
    assert [tuple(row) for row in sets] == list(combinations(range(d), n))


@pytest.mark.parametrize(("d", "n"), [(3, 3), (3, 4), (3, -1)])
def test_an_order_that_leaves_no_child_is_refused(d, n):
    with pytest.raises(ConfigError, match=rf"0 <= n < d, got n = {n} for d = {d}"):
        ande.parent_sets(d, n)


def test_the_first_parent_is_most_significant():
    X = np.array([[1, 9, 2], [0, 9, 1]], dtype=np.int32)
    assert ande.parent_states(X, [0, 2], np.array([2, 10, 3])).tolist() == [5, 1]


def test_a_missing_parent_has_no_state_whatever_the_others_are():
    X = np.array([[-1, 2], [1, -1], [-1, -1], [1, 2]], dtype=np.int32)
    assert ande.parent_states(X, [0, 1], np.array([2, 3])).tolist() == [-1, -1, -1, 5]


@pytest.mark.parametrize("mode", ["complete", "ignore", "value"])
@pytest.mark.parametrize("n", ORDERS)
def test_counts_and_theta_equal_the_loops(n, mode):
    rows = make(n, m=50, missing=0.0 if mode == "complete" else 0.2)
    rows = missing_as_value(rows) if mode == "value" else rows
    for parents in ande.parent_sets(5, n):
        counts = ande.count_tables(rows.X, rows.y, parents, rows.arity, rows.o)
        expected = reference.counts(rows.X, rows.y, parents, rows.arity, rows.o)
        got = ande.unpack(counts, parents, rows.arity, rows.o)
        assert list(got) == list(expected)
        for name, table in expected.items():
            np.testing.assert_array_equal(got[name], table)
        for smoothing, pseudocount in [("laplace", 1.0), ("laplace", 0.25), ("m-estimate", 1.0)]:
            log_theta = ande.log_theta(counts, parents, rows.arity, smoothing, pseudocount)
            got = ande.unpack(log_theta, parents, rows.arity, rows.o)
            for name, table in reference.theta(expected, smoothing, pseudocount).items():
                np.testing.assert_allclose(got[name], np.log(table), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("granularity", ["parameter", "attribute"])
@pytest.mark.parametrize("n", ORDERS)
def test_numbers_of_cells_are_those_of_the_tables(n, granularity):
    arity = np.array([3, 1, 2, 4, 2])
    sets = ande.parent_sets(5, n)
    expected = [
        sum(table.size for table in reference.filled(0.0, parents, arity, 3, granularity).values()) // 3
        for parents in sets
    ]
    assert ande.cells_per_set(sets, arity, granularity).tolist() == expected
    assert [ande.n_cells(parents, arity, granularity) for parents in sets] == expected


@pytest.mark.parametrize("n", ORDERS)
def test_weights_of_granularity_attribute_have_the_papers_index_set(n):
    arity = np.array([3, 1, 2, 4, 2])
    for parents in ande.parent_sets(5, n):
        flat = np.arange(3.0 * ande.n_cells(parents, arity, "attribute"))
        got = ande.unpack(flat, parents, arity, 3)
        expected = reference.filled(0.0, parents, arity, 3, "attribute")
        assert {name: table.shape for name, table in got.items()} == {
            name: table.shape for name, table in expected.items()
        }
        assert sorted(reference.flat(got)) == sorted(flat)


def test_named_tables_are_views():
    arity = np.array([2, 3])
    flat = np.zeros(ande.n_cells([0], arity) * 2)
    for table in ande.unpack(flat, [0], arity, 2).values():
        table += 1.0
    assert (flat == 1.0).all()


@some
@given(seeds, st.integers(0, 3), st.integers(0, 60), st.integers(1, 6))
def test_counts_add_over_any_partition_of_the_rows(seed, n, m, parts):
    rows = make(seed, m=m, missing=0.1)
    part = np.random.default_rng(seed).integers(0, parts, m)
    parents = ande.parent_sets(5, n)[seed % 5 if n else 0]
    whole = ande.count_tables(rows.X, rows.y, parents, rows.arity, rows.o)
    pieces = [
        ande.count_tables(rows.X[part == p], rows.y[part == p], parents, rows.arity, rows.o)
        for p in range(parts)
    ]
    np.testing.assert_array_equal(sum(pieces), whole)


@some
@given(seeds, st.integers(0, 3), st.sampled_from(["laplace", "m-estimate"]), st.floats(1e-3, 1e3))
def test_every_table_sums_to_one_also_after_noise(seed, n, smoothing, pseudocount):
    rows = make(seed, m=30, missing=0.1)
    parents = ande.parent_sets(5, n)[-1]
    counts = ande.count_tables(rows.X, rows.y, parents, rows.arity, rows.o)
    noisy = np.maximum(counts + np.random.default_rng(seed).laplace(0.0, 20.0, counts.shape), 0.0)
    for table in (counts, noisy):
        log_theta = ande.log_theta(table, parents, rows.arity, smoothing, pseudocount)
        for probabilities in ande.unpack(np.exp(log_theta), parents, rows.arity, rows.o).values():
            np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("smoothing", ["laplace", "m-estimate"])
def test_an_unseen_parent_state_is_uniform(smoothing):
    X = np.array([[0, 1, 0], [0, 2, 1]], dtype=np.int32)
    arity = np.array([2, 3, 2])
    counts = ande.count_tables(X, np.array([0, 1]), [0], arity, 2)
    theta = ande.unpack(np.exp(ande.log_theta(counts, [0], arity, smoothing)), [0], arity, 2)
    np.testing.assert_allclose(theta["child1"][:, 1], 1 / 3)
    np.testing.assert_allclose(theta["child2"][:, 1], 1 / 2)


@some
@given(seeds, st.integers(0, 3))
def test_relabelling_values_reorders_the_tables_and_changes_nothing_else(seed, n):
    rows = make(seed, missing=0.1)
    rng = np.random.default_rng(seed)
    new_code = [rng.permutation(size) for size in rows.arity]
    X = rows.X.copy()
    for j in range(5):
        X[:, j] = np.where(rows.X[:, j] < 0, -1, new_code[j][rows.X[:, j]])
    parents = ande.parent_sets(5, n)[-1]

    def tables(X):
        counts = ande.count_tables(X, rows.y, parents, rows.arity, rows.o)
        return ande.unpack(ande.log_theta(counts, parents, rows.arity), parents, rows.arity, rows.o)

    before, after = tables(rows.X), tables(X)
    sizes = [int(rows.arity[j]) for j in parents]
    states = np.ix_(*(new_code[j] for j in parents))
    for j in ande.children_of(parents, 5):
        cube = after[f"child{j}"].reshape(rows.o, *sizes, -1)
        for k in range(rows.o):
            relabelled = cube[k][states] if n else cube[k]
            np.testing.assert_array_equal(
                relabelled[..., new_code[j]].reshape(-1, rows.arity[j]), before[f"child{j}"][k]
            )
