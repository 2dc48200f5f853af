"""What a cell takes, before anything starts."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest

from fedande_mpi import costs, jobs, planning
from fedande_mpi.cell import Cell
from fedande_mpi.errors import ConfigError
from tests.small_data import Rows, make, make_unit, owners

# d = 3 attributes with 2, 3 and 2 values, o = 2 classes, 4 clients
ROWS = make(90, m=40, d=3, o=2)._replace(X=np.zeros((40, 3), dtype=np.int32), arity=np.array([2, 3, 2]))
OWNER = owners(90, 40, 4, 8)
A1DE = 2 * (1 + 2 + 2 * 5 + 1 + 3 + 3 * 4 + 1 + 2 + 2 * 5)
"""Weights of A1DE: a prior, a parents table and the child tables for each of three parent sets."""


def unit_of(**keys):
    return make_unit(ROWS, OWNER, **keys)


def bytes_of(**keys):
    down, up = planning.communication_bytes(unit_of(**keys))
    return down.tolist(), up.tolist()


def test_weights_go_up_and_down_in_every_round():
    assert bytes_of(rounds=2) == ([0, A1DE * 8 * 4, A1DE * 8 * 4],) * 2


def test_weights_of_naive_bayes():
    weights = 2 * (1 + 7)
    assert bytes_of(n=0, rounds=1) == ([0, weights * 8 * 4],) * 2


def test_weights_of_granularity_attribute():
    weights = 2 * (1 + 1 + 2 * 2 + 1 + 1 + 3 * 2 + 1 + 1 + 2 * 2)
    assert bytes_of(granularity="attribute", rounds=1) == ([0, weights * 8 * 4],) * 2


def test_counts_go_up_once_with_the_class_counts_once():
    numbers = A1DE - 2 * 2
    assert bytes_of(method="generative") == ([numbers * 8 * 4], [numbers * 8 * 4])


def test_joint_release_sends_fewer_counts():
    numbers = 2 * (6 + 4 + 6)
    down, up = bytes_of(method="generative", sensitivity="joint", epsilon=1.0)
    assert up == [numbers * 8 * 4]
    assert down == [(A1DE - 2 * 2) * 8 * 4]


def test_hybrid_sends_counts_then_weights():
    counts = (A1DE - 4) * 8 * 4
    assert bytes_of(method="hybrid", rounds=2) == ([counts, A1DE * 32, A1DE * 32],) * 2


@pytest.mark.parametrize("method", ["discriminative", "generative"])
@pytest.mark.parametrize("scope", ["local", "centralised"])
def test_without_federation_nothing_is_sent(method, scope):
    assert bytes_of(method=method, scope=scope) == ([0], [0])


def test_clients_without_rows_send_nothing():
    many = bytes_of(clients=7, allow_empty=True, rounds=1)
    assert many == bytes_of(rounds=1)


def test_transport_is_no_part_of_the_federations_cost():
    assert bytes_of(transport="reduce") == bytes_of()


def test_a_plan_says_what_the_model_has():
    plan = planning.plan_unit(unit_of(rounds=3), 1)
    assert (plan.n_sets, plan.n_weights) == (3, A1DE)
    assert plan.bytes_per_round == 2 * A1DE * 8 * 4
    assert plan.seconds > 0


@pytest.mark.parametrize(("n_ranks", "grid", "idle"), [(1, (1, 1), 0), (2, (1, 1), 0), (5, (4, 1), 0)])
def test_all_ranks_but_the_first_host(n_ranks, grid, idle):
    made = planning.arrange_unit(unit_of(), n_ranks)
    assert ((made.n_groups, made.n_shards), made.idle) == (grid, idle)


def test_ranks_beyond_the_pairs_are_idle():
    made = planning.arrange_unit(unit_of(), 31)
    assert made.n_groups * made.n_shards == 12
    assert made.idle == 18


def test_shards_may_be_chosen():
    assert planning.arrange_unit(unit_of(shards=3), 7).n_shards == 3


@pytest.mark.parametrize("method", ["discriminative", "generative"])
def test_blocks_keep_to_the_budget(method):
    rows = {"generative": 3, "discriminative": 6}[method]  # one sum of counts, or a row per client; and two
    unit = unit_of(method=method, block_mib=rows * A1DE * 8 / 2**20 / 2)
    made = planning.arrange_unit(unit, 1)
    widths = np.diff(unit.bounds(unit.sets, "parameter"))
    for block in made.blocks[0]:
        assert block.stop - block.start == 1 or widths[block].sum() * 8 * rows <= unit.cell.block_mib * 2**20
    assert len(made.blocks[0]) > 1


@pytest.fixture(scope="module")
def large():
    """As large as splice with n = 2 at C = 100: more than 2^31 - 1 bytes in one gather."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (3190, 60)).astype(np.int32)
    rows = Rows(X, rng.integers(0, 3, 3190).astype(np.int32), np.full(60, 4), 3)
    return make_unit(rows, owners(0, 3190, 100, 638), n=2, clients=100)


def test_planning_allocates_nothing_of_the_size_of_the_work(large):
    tracemalloc.start()
    plan = planning.plan_unit(large, 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.n_weights * 8 * 100 > 2**31
    assert peak < 20 * 2**20


def test_memory_is_bounded_by_blocks_and_not_by_the_model(large):
    plan = planning.plan_unit(large, 3)
    rows = plan.n_weights * 8 * 100
    assert max(plan.server_bytes, plan.host_bytes) < rows / 20
    cell = dataclasses.replace(large.cell, block_mib=1e6, checkpoint_minutes=0.0)
    whole = planning.plan_unit(dataclasses.replace(large, cell=cell), 3)
    assert whole.host_bytes > rows / 2  # each of two hosts has the rows of half the clients
    assert whole.server_bytes < rows / 10  # they arrive a piece at a time


def test_a_fold_longer_than_the_time_between_checkpoints_has_blocks_that_end_in_between(large):
    def with_minutes(minutes, block_mib=1e6):
        cell = dataclasses.replace(large.cell, block_mib=block_mib, checkpoint_minutes=minutes)
        return planning.plan_unit(dataclasses.replace(large, cell=cell), 3)

    never = with_minutes(0.0)
    minutes = never.seconds / 2 / 60  # of two hosts
    assert len(never.arrangement.blocks[0]) == len(with_minutes(10 * minutes).arrangement.blocks[0]) == 1
    assert len(with_minutes(minutes / 10).arrangement.blocks[0]) >= 40
    # a checkpoint is put together at rank 0, and hosts remember what they have handed over
    seldom, once = with_minutes(11 * minutes, 64.0), with_minutes(9 * minutes, 64.0)
    sums = 100 * 638 * 5 * 8
    assert once.server_bytes >= seldom.server_bytes + sums
    assert once.host_bytes >= seldom.host_bytes + sums // 2


def test_scoring_every_round_takes_more_memory_than_the_last(large):
    cell = dataclasses.replace(large.cell, evaluate="last")
    last = planning.plan_unit(dataclasses.replace(large, cell=cell), 3)
    assert last.host_bytes < planning.plan_unit(large, 3).host_bytes


def test_a_plan_beyond_the_memory_is_refused_by_name():
    unit = unit_of()
    plan = dataclasses.replace(planning.plan_unit(unit, 4), server_bytes=400 * 2**20, host_bytes=300 * 2**20)
    planning.refuse_too_large([(unit.cell, plan)], 2, 1000 * 2**20)
    with pytest.raises(
        ConfigError, match=r"within 1,000 MiB of free memory, got 1,300 MiB for small A1DE-w"
    ) as caught:
        planning.refuse_too_large([(unit.cell, plan)], 3, 1000 * 2**20)
    assert 'evaluate = "last"' in str(caught.value)


def test_where_nothing_says_how_much_is_free_nothing_is_refused():
    unit = unit_of()
    planning.refuse_too_large([(unit.cell, planning.plan_unit(unit, 4))], 10**9, None)


def test_free_memory_is_a_number_of_bytes_where_it_is_known():
    free = planning.available_memory()
    assert free is None or free > 2**20


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max", 8192 * 1024), ("4000000", 4000000 - 3000000 + 500000), (None, 8192 * 1024)],
)
def test_the_memory_that_is_free_is_the_machines_or_the_control_groups(
    tmp_path, monkeypatch, limit, expected
):
    (tmp_path / "meminfo").write_text("MemTotal:  16384 kB\nMemAvailable:   8192 kB\nHugePages_Total:  0\n")
    (tmp_path / "own").write_text("0::/job/step\n")
    (tmp_path / "job" / "step").mkdir(parents=True)
    if limit is not None:  # as a batch system sets it, above the process's own group
        (tmp_path / "job" / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "job" / "memory.current").write_text("3000000\n")
        (tmp_path / "job" / "memory.stat").write_text("anon 2000000\ninactive_file 500000\n")
    monkeypatch.setattr(planning, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(planning, "_CGROUP", tmp_path)
    monkeypatch.setattr(planning, "_OWN_CGROUP", tmp_path / "own")
    assert planning.available_memory() == expected


@pytest.mark.parametrize("method", ["discriminative", "generative"])
def test_rows_that_are_only_declared_are_planned_like_rows(method):
    values = {"n": 1, "method": method, "scope": "federated", "clients": 4}
    cell = Cell(dataset="synthetic:m=100,d=4,o=3,arity=3", **values)
    declared = jobs.outline(cell)
    made, _ = jobs.make_unit(cell, jobs.load_for(cell), 0, 0)
    assert declared is not None
    np.testing.assert_array_equal(np.sort(declared.n_rows), np.sort(made.n_rows))
    expected, got = (dataclasses.asdict(planning.plan_unit(unit, 3)) for unit in (made, declared))
    assert expected.pop("arrangement")["client_start"] == got.pop("arrangement")["client_start"]
    assert got == expected
    assert jobs.outline(dataclasses.replace(cell, dataset="tic-tac-toe")) is None


def test_a_billion_rows_are_planned_without_making_one():
    cell = Cell(
        dataset="synthetic:m=1000000000,d=50",
        n=1,
        method="discriminative",
        scope="federated",
        clients=1000,
        evaluate="last",
    )
    tracemalloc.start()
    plan = planning.plan_unit(jobs.outline(cell), 9)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 2**20
    assert plan.host_bytes > 10**9 * 50 * 4


def test_noise_is_priced_once_for_each_number_whatever_the_clients():
    def plan(clients, epsilon):
        return planning.plan_unit(
            make_unit(make(1), owners(1, 40, clients, 10), method="generative", epsilon=epsilon), 1
        )

    exact, few, many = plan(3, float("inf")), plan(3, 1.0), plan(9, 1.0)
    assert exact.draws == 0
    assert few.draws == many.draws > 0
    assert few.seconds == pytest.approx(exact.seconds + few.draws * costs.PER_DRAW)
