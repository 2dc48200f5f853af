"""The cells that rows touch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi import ande, touched
from tests import reference
from tests.small_data import indexed, make, some

cases = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(0, 3), st.integers(0, 25), st.sampled_from([0.0, 0.3])
)


def prepared(case):
    """Rows, a choice of them in random order, a parent set, and their index."""
    seed, n, m, missing = case
    rows = make(seed, m=m, missing=missing)
    rng = np.random.default_rng(seed)
    which = rng.permutation(m)[: rng.integers(0, m + 1)]
    parents = rng.choice(ande.parent_sets(5, n))
    return rows, which, parents, indexed(rows, which, parents)


def cell_numbers(rows, parents):
    """Number of every cell by its name and (state, value), as the tables are laid out."""
    numbers = np.arange(ande.n_cells(parents, rows.arity))
    return ande.unpack(np.repeat(numbers, rows.o), parents, rows.arity, rows.o)


@some
@given(cases)
def test_every_row_lists_the_cells_it_uses(case):
    rows, _, parents, index = prepared(case)
    numbers = cell_numbers(rows, parents)
    for row, factors in zip(index["order"], index["factors"], strict=True):
        state = reference.state(rows.X[row], parents, rows.arity)
        expected = [numbers["parents"][0, state] if parents.size else numbers["prior"][0]]
        for j in ande.children_of(parents, 5):
            value = rows.X[row, j]
            expected.append(numbers[f"child{j}"][0, state, value] if value >= 0 else -1)
        # the number of touched cells stands for a missing child
        assert np.append(index["cell"], -1)[factors].tolist() == expected


@some
@given(cases)
def test_the_capacity_is_enough(case):
    assert prepared(case)[3]["untouched"]


@some
@given(cases)
def test_rows_with_a_missing_parent_are_left_out_and_the_others_sorted_by_state(case):
    rows, which, parents, index = prepared(case)
    states = [reference.state(rows.X[row], parents, rows.arity) for row in which]
    kept = [(state, at) for at, state in enumerate(states) if state is not None]
    assert index["order"].tolist() == [which[at] for _, at in sorted(kept)]


@some
@given(cases)
def test_touched_cells_are_the_used_ones_once_each_and_ascending_by_state(case):
    rows, _, parents, index = prepared(case)
    used = {0} | {int(index["cell"][f]) for f in index["factors"].ravel() if f < index["n_touched"]}
    assert index["cell"][0] == 0
    assert set(index["cell"].tolist()) == used
    assert index["cell"].size == len(used)
    kinds = index["child"]
    assert kinds[0] == -1
    children = ande.children_of(parents, 5)
    numbers = cell_numbers(rows, parents)
    names = {cell: at for at, j in enumerate(children) for cell in numbers[f"child{j}"][0].ravel().tolist()}
    assert kinds[1:].tolist() == [names.get(int(cell), -2) for cell in index["cell"][1:]]


def test_capacity_is_reached_where_no_two_rows_share_a_cell():
    rows = make(3, m=4, d=3)
    X = np.array([[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]], dtype=np.int32)
    rows = rows._replace(X=X, arity=np.array([4, 4, 4]))
    index = indexed(rows, np.arange(4), np.array([0]))
    assert index["n_touched"] == index["room"] == 1 + 4 + 8


@pytest.mark.parametrize("smoothing", ["laplace", "m-estimate"])
@some
@given(cases)
def test_counts_and_log_theta_are_those_of_the_full_tables(smoothing, case):
    rows, which, parents, index = prepared(case)
    o, block = rows.o, index["block"]
    counts = index["counts"]
    full = ande.count_tables(rows.X[which], rows.y[which], parents, rows.arity, o)
    np.testing.assert_array_equal(counts[: index["n_touched"] * o].reshape(-1, o), full[index["cell"]])
    table, log_count, log_total = touched.log_tables(rows.arity, smoothing, 0.7, which.size)
    log_theta = np.empty(index["room"] * o)
    touched.log_theta_touched(
        counts,
        index["child"],
        index["n_touched"],
        o,
        block.n_states[0],
        block.children[0],
        table,
        ande.pseudocounts(smoothing, 0.7, o),
        ande.pseudocounts(smoothing, 0.7, int(block.n_states[0])),
        log_count,
        log_total,
        log_theta,
    )
    np.testing.assert_allclose(
        log_theta[: index["n_touched"] * o].reshape(-1, o),
        ande.log_theta(full, parents, rows.arity, smoothing, 0.7)[index["cell"]],
        rtol=1e-12,
        atol=1e-14,
    )


def test_log_tables_have_one_row_per_distinct_arity():
    table, log_count, log_total = touched.log_tables(np.array([3, 2, 3]), "m-estimate", 6.0, 4)
    assert table.tolist() == [1, 0, 1]
    np.testing.assert_allclose(log_count, np.log(np.arange(5) + np.array([[3.0], [2.0]])))
    np.testing.assert_allclose(log_total, np.log(np.arange(5) + np.array([[6.0], [6.0]])))
