"""Folds, owners, and the streams they are drawn from."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi import partition
from fedande_mpi.errors import ConfigError
from tests.small_data import some

seeds = st.integers(0, 2**32 - 1)


def labels(seed, m, o):
    return np.minimum(np.random.default_rng(seed).geometric(0.4, m) - 1, o - 1).astype(np.int32)


Y = labels(0, 100, 3)


def folds(y=Y, n_folds=5, *, seed=1, repeat=0):
    return partition.stratified_folds(y, n_folds, seed=seed, repeat=repeat)


def owners(y=Y, *, fold=0, n_clients=7, seed=1, repeat=0, **keys):
    test_fold = folds(y, seed=seed, repeat=0)
    return partition.client_owners(y, test_fold, fold, n_clients, seed=seed, repeat=repeat, **keys)


def spread(part, n_parts):
    counts = np.bincount(part, minlength=n_parts)
    assert counts.size == n_parts
    return counts.max() - counts.min()


@some
@given(seeds, st.integers(2, 120), st.integers(1, 6), st.integers(2, 10))
def test_folds_are_even_in_all_rows_and_in_each_class(seed, m, o, n_folds):
    y = labels(seed, m, o)
    n_folds = min(n_folds, m)
    fold = folds(y, n_folds, seed=seed)
    assert spread(fold, n_folds) <= 1
    for k in range(o):
        assert spread(fold[y == k], n_folds) <= 1


@some
@given(seeds, st.integers(20, 120), st.integers(1, 6), st.integers(1, 16), st.integers(0, 4))
def test_owners_are_even_and_every_training_row_has_exactly_one(seed, m, o, n_clients, fold):
    y = labels(seed, m, o)
    test_fold = folds(y, seed=seed)
    owner = partition.client_owners(y, test_fold, fold, n_clients, seed=seed, repeat=0)
    np.testing.assert_array_equal(owner == partition.HELD_OUT, test_fold == fold)
    assert spread(owner[owner >= 0], n_clients) <= 1
    for k in range(o):
        assert spread(owner[(owner >= 0) & (y == k)], n_clients) <= 1


def test_a_class_code_that_nobody_uses_drops_nothing():
    y = np.array([0, 2] * 20)
    owner = owners(y, n_clients=4)
    assert np.bincount(owner[owner >= 0]).tolist() == [8] * 4
    for k in (0, 2):
        assert np.bincount(owner[(owner >= 0) & (y == k)]).tolist() == [4] * 4


def test_rows_of_a_class_are_shuffled():
    y = np.zeros(60, dtype=np.int32)
    fold = folds(y)
    assert fold.tolist() != sorted(fold.tolist())
    assert len({tuple(block) for block in fold.reshape(-1, 5)}) > 1


def test_no_fold_or_client_gets_the_odd_rows_every_time():
    small = np.zeros(11, dtype=np.int32)
    longest = {int(np.bincount(folds(small, seed=seed), minlength=5).argmax()) for seed in range(40)}
    assert longest == set(range(5))


def test_fewer_rows_than_folds_are_refused():
    with pytest.raises(ConfigError, match="got 3 rows for 5 folds"):
        folds(np.zeros(3, dtype=np.int32))


def test_more_clients_than_training_rows_are_refused_with_the_numbers():
    with pytest.raises(ConfigError, match=r"81 clients for 80 training rows in fold 0.*allow_empty"):
        owners(n_clients=81)
    assert spread(owners(n_clients=80)[owners(n_clients=80) >= 0], 80) == 0


def test_empty_clients_may_be_allowed():
    owner = owners(n_clients=100, allow_empty=True)
    counts = np.bincount(owner[owner >= 0], minlength=100)
    assert counts.sum() == 80
    assert counts.max() == 1


# ------------------------------------------------------------------ streams


@pytest.mark.parametrize("change", [{"seed": 0}, {"seed": 2}, {"repeat": 1}])
def test_other_seeds_and_repeats_give_other_folds(change):
    np.testing.assert_array_equal(folds(), folds())
    assert (folds(**change) != folds()).any()


@pytest.mark.parametrize("change", [{"seed": 0}, {"repeat": 1}, {"fold": 1}, {"n_clients": 8}])
def test_other_keys_give_other_owners(change):
    np.testing.assert_array_equal(owners(), owners())
    assert (owners(**change) != owners()).any()


def test_purposes_have_streams_of_their_own():
    key = (3, 4)
    draws = [
        partition.stream(1, purpose, *key).integers(0, 2**62, 4).tolist()
        for purpose in (partition.FOLDS, partition.OWNERS, partition.NOISE)
    ]
    assert len({tuple(draw) for draw in draws}) == 3


def test_owners_do_not_depend_on_what_was_drawn_before():
    expected = owners(fold=3, n_clients=5)
    for n_clients in (2, 9):
        owners(fold=1, n_clients=n_clients)
    np.testing.assert_array_equal(owners(fold=3, n_clients=5), expected)


def test_global_generators_play_no_part():
    expected = folds(), owners()
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tobytes()  # noqa: NPY002
    np.testing.assert_array_equal(folds(), expected[0])
    np.testing.assert_array_equal(owners(), expected[1])
    after = random.getstate(), np.random.get_state()[1].tobytes()  # noqa: NPY002
    assert before == after


def test_the_streams_are_pinned():
    """Results made today can be continued tomorrow."""
    y = np.array([0, 1] * 6)
    fold = partition.stratified_folds(y, 3, seed=1, repeat=0)
    owner = partition.client_owners(y, fold, 0, 3, seed=1, repeat=0)
    assert fold.tolist() == [1, 0, 2, 1, 1, 2, 0, 2, 2, 0, 0, 1]
    assert owner.tolist() == [0, -1, 1, 1, 2, 0, -1, 1, 0, -1, -1, 2]
