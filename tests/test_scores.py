"""When a host scores: round by round as it trains, or at the end from the weights that it kept."""

from __future__ import annotations

import numpy as np
import pytest

from fedande_mpi import scores, server
from fedande_mpi.federation import run_unit
from fedande_mpi.planning import arrange_unit
from fedande_mpi.serial import SerialComm
from tests.small_data import make, make_unit, owners
from tests.test_checkpoint import same_bits


def unit_of(n_test=40, **keys):
    return make_unit(
        make(3, m=100, d=5, o=3), owners(3, 100, 4, n_test), n=2, save=("predictions", "weights"), **keys
    )


def last(unit, done=None):
    return scores.scored_last(unit, arrange_unit(unit, 1, done), 0)


def test_weights_are_kept_where_they_are_smaller_than_the_sums():
    assert last(unit_of(n_test=90, clients=4))
    assert not last(unit_of(n_test=4))


@pytest.mark.parametrize(
    "keys", [{"evaluate": "last"}, {"method": "hybrid", "epsilon": 1.0}, {"scope": "local"}], ids=str
)
def test_no_weights_are_kept_of_one_scored_round_or_of_a_pooled_model(keys):
    assert not last(unit_of(n_test=90, **keys))


def test_what_goes_on_from_a_checkpoint_has_sums_and_keeps_no_weights():
    unit = unit_of(n_test=90)
    done = [True] + [False] * (len(unit.sets) - 1)
    assert not last(unit, np.array(done))


@pytest.mark.parametrize("block_mib", [64.0, 1e-6], ids=["one-block", "a-block-for-each-set"])
def test_scoring_last_changes_no_bit(block_mib, monkeypatch):
    unit = unit_of(evaluate="all", block_mib=block_mib)
    results, shares = [], []
    for late in (False, True):
        for module in (scores, server):
            monkeypatch.setattr(module, "scored_last", lambda *_, late=late: late)
        told: list[float] = []
        results.append(run_unit(SerialComm(), unit, arrange_unit(unit, 1), got_on=told.append))
        shares.append(told)
    same_bits(*results)
    rounds, blocks = unit.cell.solver.rounds, 1 if block_mib > 1 else len(unit.sets)
    assert [len(told) for told in shares] == [rounds * blocks, rounds * blocks + rounds + 1]
    assert [sum(told) for told in shares] == pytest.approx([1.0, 1.0])
