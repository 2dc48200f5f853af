"""One unit of work and how ranks account for it."""

from __future__ import annotations

import numpy as np
import pytest

from fedande_mpi import ande
from fedande_mpi.unit import Clock, Where
from tests.small_data import make, make_unit, owners

ROWS = make(50, m=30, d=4)
OWNER = owners(50, 30, 4, 6)


def test_rows_per_client_count_the_empty_ones_too():
    owner = np.where(OWNER == 2, 0, OWNER)
    unit = make_unit(ROWS, owner, clients=6, allow_empty=True)
    assert unit.n_rows.tolist() == [(owner == c).sum() for c in range(6)]
    assert unit.n_rows.tolist()[2::2] == [0, 0]


def test_test_rows_are_those_without_an_owner_in_their_order():
    held_out = make_unit(ROWS, OWNER).held_out
    np.testing.assert_array_equal(held_out.X, ROWS.X[OWNER < 0])
    np.testing.assert_array_equal(held_out.y, ROWS.y[OWNER < 0])


@pytest.mark.parametrize(
    ("method", "scope", "pools"),
    [
        ("discriminative", "federated", False),
        ("generative", "federated", True),
        ("hybrid", "federated", True),
        ("generative", "local", False),
        ("discriminative", "local", False),
    ],
)
def test_who_pools_counts(method, scope, pools):
    assert make_unit(ROWS, OWNER, method=method, scope=scope).pools is pools


@pytest.mark.parametrize(
    ("keys", "positions"),
    [
        ({"rounds": 3}, (0, 1, 2, 3)),
        ({"rounds": 3, "evaluate": "last"}, (3,)),
        ({"method": "hybrid", "rounds": 2}, (0, 1, 2)),
        ({"method": "generative"}, (0,)),
        ({"scope": "local"}, (0,)),
    ],
)
def test_rounds_that_are_scored(keys, positions):
    assert make_unit(ROWS, OWNER, **keys).evaluated == positions


@pytest.mark.parametrize("granularity", ["parameter", "attribute"])
def test_bounds_are_those_of_the_weights(granularity):
    unit = make_unit(ROWS, OWNER, n=2, granularity=granularity)
    sizes = [ande.n_cells(parents, ROWS.arity, granularity) * ROWS.o for parents in unit.sets]
    assert unit.bounds(unit.sets, unit.granularity).tolist() == [0, *np.cumsum(sizes)]


def test_counts_have_a_number_for_every_parameter():
    assert make_unit(ROWS, OWNER, method="generative").granularity == "parameter"


def test_the_clock_books_seconds_also_when_something_raises():
    clock = Clock(2)
    with pytest.raises(KeyError), clock("local", 1):
        raise KeyError
    assert clock.seconds["local"][1] > 0
    assert clock.seconds["local"][0] == clock.seconds["wait"].sum() == 0


def test_waiting_passes_on_what_a_program_yields():
    clock = Clock(1)
    assert list(clock.waiting((step for step in (False, True)), 0)) == [False, True]
    assert clock.seconds["wait"][0] > 0


def test_the_place_names_what_is_known():
    where = Where(3)
    assert str(where) == "rank 3"
    where.client, where.parents, where.round = 0, (), 2
    assert str(where) == "rank 3, client 0, parent set (), round 2"
