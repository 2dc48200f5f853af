"""Rows as lists of joint cells are rows as lists of cells."""

from __future__ import annotations

import numpy as np
import pytest

from fedande_mpi import ande, bundles
from tests.small_data import indexed, make


def bundled(seed, n, missing, m=1500, o=3):
    """Rows with few values, a parent set, and their index."""
    rows = make(seed, m=m, o=o, missing=missing)
    which = np.random.default_rng(seed).permutation(m)
    parents = np.random.default_rng(seed).choice(ande.parent_sets(5, n))
    return rows, which, parents, indexed(rows, which, parents)


def plain(rows, which, parents):
    """The index of the same rows, few enough at a time for them to list their cells."""
    return [indexed(rows, which[at : at + 3], parents) for at in range(0, which.size, 3)]


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("n", range(4))
@pytest.mark.parametrize("seed", range(6))
def test_joint_cells_stand_for_the_cells_that_rows_use(seed, n, missing):
    rows, which, parents, index = bundled(seed, n, missing)
    assert index["untouched"]
    listed = {}
    for row, cells in zip(index["order"], index["factors"], strict=True):
        listed[int(row)] = sorted(index["cell"][cells[cells < index["n_touched"]]].tolist())
    expected = {}
    for few in plain(rows, which, parents):
        assert few["lists"].n_joint == 0
        for row, cells in zip(few["order"], few["factors"], strict=True):
            expected[int(row)] = sorted(few["cell"][cells[cells < few["n_touched"]]].tolist())
    assert listed == expected


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("n", range(4))
def test_cells_and_counts_are_those_of_the_full_tables(n, missing):
    rows, which, parents, index = bundled(7, n, missing)
    full = ande.count_tables(rows.X[which], rows.y[which], parents, rows.arity, rows.o)
    got = index["counts"][: index["n_touched"] * rows.o].reshape(-1, rows.o)
    np.testing.assert_array_equal(got, full[index["cell"]])
    assert got.sum() == full.sum()


def test_bundles_are_made_where_many_rows_have_few_combinations_and_not_elsewhere():
    assert bundled(0, 1, 0.0)[3]["lists"].n_joint > 0
    assert bundled(0, 1, 0.1)[3]["lists"].n_joint > 0
    assert bundled(0, 1, 0.0, m=20)[3]["lists"].n_joint == 0
    # as many values as rows
    rows = make(1, m=400)
    rows = rows._replace(
        X=np.random.default_rng(1).integers(0, 90, rows.X.shape).astype(np.int32), arity=np.full(5, 90)
    )
    assert indexed(rows, np.arange(400), np.array([0]))["lists"].n_joint == 0


def test_bundles_that_turn_out_to_be_many_are_given_up():
    # few values each, but all combinations occur about as often as there is room for
    rng = np.random.default_rng(2)
    rows = make(2, m=300, d=9)
    rows = rows._replace(X=rng.integers(0, 4, (300, 9)).astype(np.int32), arity=np.full(9, 4))
    few = rows._replace(X=np.where(rng.random((300, 9)) < 0.98, 0, rows.X).astype(np.int32))
    none = np.zeros(0, dtype=np.int64)
    assert indexed(rows, np.arange(300), none)["lists"].n_joint == 0
    assert indexed(few, np.arange(300), none)["lists"].n_joint > 0


def test_a_row_lists_less():
    _, _, _, index = bundled(0, 1, 0.0)
    lists = index["lists"]
    assert lists.length < 5
    assert lists.n_joint * 4 < lists.n_used * lists.length


def test_a_bundle_has_few_members_and_buffers_stay_small():
    X = np.zeros((3000, 20), dtype=np.int32)
    X[::7, ::3] = 1
    rows = make(3, m=3000)._replace(X=X, arity=np.repeat([2, 1, 1, 2], 5))
    index = indexed(rows, np.arange(3000), np.array([19]))
    assert index["untouched"]
    assert 0 < index["lists"].n_members <= bundles.MOST_CHILDREN + 1
    for o in (2, 18, 1000):
        assert bundles.joint_capacity(10**9, 100, o) * 24 * o < bundles.MOST_BYTES


def test_so_many_states_that_their_combinations_would_fill_memory_are_left_alone():
    rng = np.random.default_rng(4)
    m, q = 40_000, 400
    X = np.column_stack([np.arange(m) % q, rng.integers(0, 2, (m, 100))]).astype(np.int32)
    rows = make(4, m=m)._replace(X=X, arity=np.array([q] + [2] * 100))
    few = rows._replace(X=X[:, :13].copy(), arity=rows.arity[:13])
    assert indexed(few, np.arange(m), np.array([0]))["lists"].n_joint > 0
    assert indexed(rows, np.arange(m), np.array([0]))["lists"].n_joint == 0
