"""Who computes what: every pair once, within the budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi import arrangement
from tests.small_data import some


def costs(seed, size):
    return np.random.default_rng(seed).uniform(0.01, 1.0, size) ** 3


@some
@given(
    seed=st.integers(0, 2**32 - 1),
    n_hosts=st.integers(1, 40),
    n_clients=st.integers(1, 30),
    n_sets=st.integers(1, 50),
    shards=st.none() | st.integers(1, 60),
    rows=st.booleans(),
    budget=st.sampled_from([1.0, 5e3, 1e5, 1e9]),
    shared=st.sampled_from([0.0, 0.7]),
)
def test_every_pair_is_computed_once_within_the_budget(
    seed, n_hosts, n_clients, n_sets, shards, rows, budget, shared
):
    widths = np.random.default_rng(seed).integers(1, 200, n_sets)
    made = arrangement.arrange(
        n_hosts,
        costs(seed, n_clients),
        costs(seed + 1, n_sets),
        widths,
        shared_share=shared,
        shards=shards,
        rows=rows,
        block_bytes=budget,
    )
    computed = np.zeros((n_clients, n_sets), dtype=int)
    for group in range(made.n_groups):
        assert len(made.clients(group)) > 0
        for shard in range(made.n_shards):
            for block in made.blocks[shard]:
                sets = made.shards[shard][block]
                assert sets.size > 0
                computed[np.ix_(made.clients(group), sets)] += 1
    assert (computed == 1).all()
    assert made.n_groups * made.n_shards + made.idle == n_hosts
    assert made.idle >= 0
    if shards is not None:
        assert made.n_shards == min(shards, n_hosts, n_sets)
    held = (max(np.diff(made.client_start)) if rows else 1) + 2
    held = max(held, (made.n_groups + 2) * made.n_shards)
    for shard in range(made.n_shards):
        assert (np.diff(made.shards[shard]) > 0).all()
        for block in made.blocks[shard]:
            size = widths[made.shards[shard][block]]
            assert size.size == 1 or size.sum() * 8 * held <= budget


@pytest.mark.parametrize(
    ("n_hosts", "n_clients", "n_sets", "grid", "idle"),
    [
        (1, 20, 15, (1, 1), 0),
        (4, 20, 15, (4, 1), 0),  # clients divide evenly, parent sets do not
        (5, 4, 15, (1, 5), 0),  # and the other way round
        (6, 2, 3, (2, 3), 0),
        (20, 2, 3, (2, 3), 14),  # more hosts than pairs
        (7, 5, 1, (5, 1), 2),
    ],
)
def test_the_grid_with_the_shortest_longest_work_is_chosen(n_hosts, n_clients, n_sets, grid, idle):
    made = arrangement.arrange(n_hosts, np.ones(n_clients), np.ones(n_sets), np.ones(n_sets, dtype=np.int64))
    assert ((made.n_groups, made.n_shards), made.idle) == (grid, idle)


def test_work_done_once_per_shard_favours_shards():
    ones = np.ones(16)
    widths = np.ones(16, dtype=np.int64)
    assert arrangement.arrange(8, ones, ones, widths, shared_share=0.7).n_shards == 8
    assert arrangement.arrange(8, ones, ones, widths).n_shards == 1


def test_more_shards_than_communicators_are_never_made():
    many = np.ones(1500)
    made = arrangement.arrange(1500, np.ones(1), many, many.astype(np.int64), shards=1400)
    assert made.n_shards == arrangement.MAX_SHARDS


@some
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.data())
def test_rows_of_costs_are_cut_into_parts_none_of_them_empty(seed, size, data):
    n_parts = data.draw(st.integers(1, size))
    cost = costs(seed, size)
    bounds = arrangement.split_evenly(cost, n_parts)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, size, n_parts + 1)
    assert (np.diff(bounds) > 0).all()
    largest = np.add.reduceat(cost, bounds[:-1]).max()
    assert largest <= cost.sum() / n_parts + 2 * cost.max()


@some
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 12))
def test_items_are_dealt_to_the_part_with_the_least(seed, size, n_parts):
    cost = costs(seed, size)
    parts = arrangement.deal_by_cost(cost, n_parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(size))
    assert max(cost[part].sum() for part in parts) <= cost.sum() / n_parts + cost.max()


def test_a_block_has_at_least_one_set():
    widths = np.array([100, 1, 1, 100, 1])
    assert arrangement.cut_blocks(widths, 5, 8 * 5 * 2) == (
        slice(0, 1),
        slice(1, 3),
        slice(3, 4),
        slice(4, 5),
    )


def test_a_block_is_no_dearer_than_its_limit_but_for_a_single_set():
    cost = np.array([1.0, 1.0, 1.0, 5.0, 1.0])
    blocks = arrangement.cut_blocks(np.ones(5, dtype=np.int64), 1, 1e9, cost, 2.0)
    assert blocks == (slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5))


@some
@given(st.lists(st.floats(0.0, 3.0), max_size=30), st.sampled_from([0.0, 0.5, 4.0]))
def test_batches_are_consecutive_and_no_dearer_than_the_limit(cost, limit):
    cuts = arrangement.batches(cost, limit)
    assert [at for cut in cuts for at in range(cut.start, cut.stop)] == list(range(len(cost)))
    for cut in cuts:
        assert cut.stop > cut.start
        # the sum is made in the same order here and there
        assert cut.stop - cut.start == 1 or sum(cost[cut], 0.0) <= limit
