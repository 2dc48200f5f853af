"""When a host scores: round by round as it trains, or at the end from the weights that it kept."""

from __future__ import annotations

import numpy as np
import pytest

from fedande_mpi import costs, scores, server
from fedande_mpi.federation import run_unit
from fedande_mpi.planning import arrange_unit
from fedande_mpi.serial import SerialComm
from fedande_mpi.unit import Where
from tests.small_data import make, make_unit, owners
from tests.test_checkpoint import same_bits


def unit_of(n_test=40, missing_share=0.0, **keys):
    return make_unit(
        make(3, m=100, d=5, o=3, missing=missing_share),
        owners(3, 100, 4, n_test),
        n=2,
        save=("predictions", "weights"),
        **keys,
    )


def last(unit, done=None):
    return scores.scored_last(unit, arrange_unit(unit, 1, done), 0)


def test_weights_are_kept_where_they_are_smaller_than_the_sums():
    assert last(unit_of(n_test=90, clients=4))
    assert not last(unit_of(n_test=4))


@pytest.mark.parametrize(
    "keys", [{"method": "hybrid", "epsilon": 1.0}, {"scope": "local"}, {"method": "generative"}], ids=str
)
def test_no_weights_are_kept_of_a_pooled_model_or_without_rounds(keys):
    assert not last(unit_of(n_test=90, **keys))


def test_what_goes_on_from_a_checkpoint_has_sums_and_keeps_no_weights():
    unit = unit_of(n_test=90)
    done = [True] + [False] * (len(unit.sets) - 1)
    assert not last(unit, np.array(done))


def run(unit, monkeypatch, *, late, chunk_bytes=2**24):
    monkeypatch.setattr(scores, "CHUNK_BYTES", chunk_bytes)
    for module in (scores, server):
        monkeypatch.setattr(module, "scored_last", lambda *_: late)
    shares: list[float] = []
    return run_unit(SerialComm(), unit, arrange_unit(unit, 1), got_on=shares.append), shares


@pytest.mark.parametrize("evaluate", ["all", "last"])
@pytest.mark.parametrize("block_mib", [64.0, 1e-6], ids=["one-block", "a-block-for-each-set"])
def test_scoring_last_changes_no_bit(block_mib, evaluate, monkeypatch):
    unit = unit_of(evaluate=evaluate, block_mib=block_mib)
    (at_once, early), (last, late) = (run(unit, monkeypatch, late=late) for late in (False, True))
    same_bits(at_once, last)
    rounds, blocks = unit.cell.solver.rounds, 1 if block_mib > 1 else len(unit.sets)
    assert [len(early), len(late)] == [rounds * blocks, rounds * blocks + len(unit.evaluated)]
    assert [sum(early), sum(late)] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("late", [False, True])
def test_some_clients_after_others_have_the_same_scores(late, monkeypatch):
    # rows with fewer than two values, on which no parent set has a say, are up to each client's own prior
    unit = unit_of(missing_share=0.6, missing="ignore", evaluate="all")
    assert ((unit.held_out.X >= 0).sum(axis=1) < 2).any()
    whole, _ = run(unit, monkeypatch, late=late)
    for of_clients in (1, 3):
        size = of_clients * scores.client_bytes(unit)
        same_bits(run(unit, monkeypatch, late=late, chunk_bytes=size)[0], whole)


class Hosts:
    """A link to hosts who are done at once and send zeros."""

    def __init__(self):
        self.asked = []

    def broadcast(self, numbers):
        yield True

    def gather(self, own, into, counts, ready=False):
        into[...] = 0
        yield True

    def total(self, numbers):
        self.asked.append(set(self.collection._running))
        yield True

    def tables(self, counts, width):
        return None


def test_a_shard_that_only_scores_is_not_waited_for_by_checkpoints(monkeypatch):
    unit, hosts = unit_of(shards=2, evaluate="all"), Hosts()
    monkeypatch.setattr(server, "scored_last", lambda *_: True)
    served = server.Server(unit, arrange_unit(unit, 3), Where(0))
    hosts.collection = served.collection
    for _ in served.shard(hosts, 0):
        pass
    rounds = len(unit.evaluated)
    assert hosts.asked[:-rounds] == [{0, 1}]  # at the end of its only block
    assert hosts.asked[-rounds:] == [{1}] * rounds


def test_scoring_that_would_take_a_good_part_of_the_time_between_checkpoints_is_not_put_off(monkeypatch):
    unit = unit_of(evaluate="all", block_mib=1e-6, checkpoint_minutes=1.0)
    done = []
    score_kept = scores.Scores._score_kept

    def counted(self):
        done.append(self.unscored.stop)
        yield from score_kept(self)

    monkeypatch.setattr(scores.Scores, "_score_kept", counted)
    whole, _ = run(unit, monkeypatch, late=True)
    assert done == []
    # a share of a minute in which two of the ten sets are scored
    seconds = 4 * 40 * 4 * 3 * costs.PER_SCORE * len(unit.evaluated)
    monkeypatch.setattr(scores, "SHARE_OF_INTERVAL", 1.5 * seconds / 60.0)
    same_bits(run(unit, monkeypatch, late=True)[0], whole)
    assert done == [2, 4, 6, 8]
