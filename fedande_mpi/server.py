"""Rank 0's side of a shard: broadcast weights, gather updates, average them; pool counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import aggregation, costs, tally
from fedande_mpi.arrangement import Arrangement, row_pieces
from fedande_mpi.links import Link
from fedande_mpi.partial import Collection, Keeper, KeepsNothing, looks_back, scored_counts
from fedande_mpi.programs import Program
from fedande_mpi.scores import scored_last
from fedande_mpi.unit import Clock, Unit, Where

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Buffers:
    """What is used round after round for a block of parent sets: fresh memory costs as much as what is done with it."""

    sets: IntArray
    bounds: IntArray
    factors: FloatArray
    """Of every client, see `aggregation.client_factors`."""
    seen: list[tuple[FloatArray, FloatArray]] | None
    """Where the server sees the rows of every host, with its clients' factors, if it does."""
    pieces: list[tuple[list[int], FloatArray]]
    """Where it does not, how many rows of every host come at a time, with their clients' factors."""
    rows: FloatArray
    largest: FloatArray
    sums: IntArray


@dataclass
class Server:
    """Rank 0's side of every shard."""

    unit: Unit
    arrangement: Arrangement
    where: Where
    weights: dict[int, FloatArray] = field(default_factory=dict)
    first_broadcast: tuple[float, float] | None = None
    last_gather: tuple[float, float] = (0.0, 0.0)
    got_on: Callable[[float], None] = lambda share: None
    """Told the share of the unit's work that a round has just been."""
    keeper: Keeper = field(default_factory=KeepsNothing)

    def __post_init__(self) -> None:
        self.clock = Clock(len(self.unit.cell.rounds))
        self.all_weights = int(self.unit.bounds(self.unit.sets, self.unit.granularity)[-1])
        self.collection = Collection(self.unit, self.keeper, self.arrangement.n_shards)

    def _stamp(self) -> tuple[float, float]:
        return time.process_time(), time.perf_counter()

    def _scoring_share(self) -> float:
        """Return how much of the work is scoring, about."""
        unit, cell = self.unit, self.unit.cell
        steps = cell.solver.local_steps or costs.TYPICAL_ITERATIONS
        n_rows = float(unit.n_rows.sum())
        training = cell.solver.rounds * (1 + steps * costs.EVALUATIONS) * n_rows * costs.PER_STEP
        scoring = len(unit.evaluated) * cell.clients * (unit.y.size - n_rows) * costs.PER_SCORE
        return scoring / (training + scoring)

    def shard(self, link: Link, shard: int) -> Program[None]:
        """Serve one shard: its blocks one after another, the rounds of a block inside."""
        unit, arrangement = self.unit, self.arrangement
        counts = arrangement.counts
        resumed = arrangement.n_sets < len(unit.sets)
        if resumed:
            yield from self._hand_out(link, shard)
        scores_last = scored_last(unit, arrangement, shard)
        scoring = self._scoring_share() if scores_last else 0.0
        since: list[IntArray] = []
        for last_pass in (False, True) if unit.cell.combine == "joint" and not resumed else (True,):
            for number, block in enumerate(arrangement.blocks[shard]):
                at = arrangement.shards[shard][block]
                sets = unit.sets[at]
                if unit.pools:
                    yield from self._pool(link, sets)
                if unit.cell.in_rounds:
                    yield from self._rounds(link, counts, at, sets, 1.0 - scoring)
                elif self.unit.keeps_weights:
                    bounds = unit.bounds(sets, unit.granularity)
                    rows = np.empty((sum(counts), int(bounds[-1])))
                    yield from link.gather(None, rows, counts)
                    self._keep(at, bounds, rows)
                if last_pass:
                    since.append(at)
                    if looks_back(unit, arrangement, shard, number):
                        last = number == len(arrangement.blocks[shard]) - 1
                        yield from self._look_back(link, shard, since, last=last)
        self.collection.ended(shard)  # to hand over no more, though the others may still train
        if scores_last:
            weights = unit.bounds(unit.sets[arrangement.shards[shard]], unit.granularity)[-1]
            share = scoring * float(weights) / self.all_weights / len(unit.evaluated)
            for _ in unit.evaluated:
                yield from link.total(np.zeros(1, dtype=np.int64))
                self.got_on(share)

    def _look_back(self, link: Link, shard: int, since: list[IntArray], *, last: bool) -> Program[None]:
        """Ask the hosts for what they have done since the last checkpoint, if one is due."""
        # every host says that it is done with the block: rank 0 may have had nothing to do with it until now
        yield from link.total(np.zeros(1, dtype=np.int64))
        wanted = np.array([self.collection.wants(shard, last=last)], dtype=np.int64)
        yield from link.broadcast(wanted)
        if wanted[0]:
            yield from self._collect(link, np.concatenate(since))
            self.collection.handed_over(shard)
            since.clear()

    def _collect(self, link: Link, at: IntArray) -> Program[None]:
        """Add what the hosts of a shard have done since they were last asked, which is the sets `at`."""
        partial = self.collection.whole()
        scored = scored_counts(self.unit, self.arrangement)
        for sums in partial.sums:
            for whole in sums:
                rows = np.empty((whole.shape[0], whole.shape[1] * whole.shape[2]), dtype=np.int64)
                yield from link.gather(None, rows, scored)
                whole += rows.reshape(whole.shape)
        if self.unit.cell.combine == "joint":
            yield from link.gather(None, partial.top, scored)
        if self.unit.trained:
            clients = sum(self.arrangement.counts)
            rows = np.empty((clients, partial.tally.size // clients), dtype=np.int64)
            yield from link.gather(None, rows, self.arrangement.counts)
            tally.join(partial.tally, rows.reshape(clients, -1, tally.COLUMNS).swapaxes(0, 1))
        if self.unit.keeps_weights:
            partial.weights |= {int(index): self.weights[int(index)] for index in at}
        partial.done[at] = True

    def _hand_out(self, link: Link, shard: int) -> Program[None]:
        """Give the hosts what an earlier start has left of their clients: the sums to the first shard."""
        partial = self.collection.whole()
        first = 0
        for count in scored_counts(self.unit, self.arrangement):
            part = slice(first, first + count)
            if shard == 0:
                for sums in partial.sums:
                    for whole in sums:
                        yield from link.broadcast(whole[part])
            if self.unit.cell.combine == "joint":
                yield from link.broadcast(partial.top[part])
            first += count
        self.collection.handed_out(shard)

    def _keep(self, at: IntArray, bounds: IntArray, rows: FloatArray) -> None:
        for position, index in enumerate(at):
            self.weights[int(index)] = rows[:, bounds[position] : bounds[position + 1]].copy()

    def _pool(self, link: Link, sets: IntArray) -> Program[None]:
        """Add the clients' counts and send the sums back; what is released of them is up to the hosts.

        Whole numbers add exactly in any grouping: each host sends the sum over its clients.
        """
        sums = np.zeros(int(self.unit.bounds(sets, "parameter")[-1]), dtype=np.int64)
        yield from link.total(sums)
        yield from link.broadcast(sums)

    def _rounds(
        self, link: Link, counts: list[int], at: IntArray, sets: IntArray, training: float
    ) -> Program[None]:
        unit = self.unit
        solver = unit.cell.solver
        bounds = unit.bounds(sets, unit.granularity)
        share = training * float(bounds[-1]) / self.all_weights / solver.rounds
        weights = np.full(int(bounds[-1]), solver.initial_weight)
        factors, divisor = aggregation.client_factors(solver.aggregation, unit.n_rows)
        block = self._buffers(link, counts, sets, bounds, factors)
        sums = block.sums
        if self.first_broadcast is None:
            self.first_broadcast = self._stamp()
        yield from link.broadcast(weights)
        for round_number in range(1, solver.rounds + 1):
            sums.fill(0)
            exponents = yield from self._add_up(link, counts, block, round_number)
            with self.clock("aggregate", round_number):
                aggregation.mean_of_sums(sums, bounds, exponents, divisor, weights)
            self.last_gather = self._stamp()
            self.got_on(share)
            yield from link.broadcast(weights)
        if self.unit.keeps_weights:
            self._keep(at, bounds, weights[None])

    def _buffers(
        self, link: Link, counts: list[int], sets: IntArray, bounds: IntArray, factors: FloatArray
    ) -> Buffers:
        width = int(bounds[-1])
        tables = link.tables(counts, width)
        cut = row_pieces(counts, width) if tables is None else []
        return Buffers(
            sets,
            bounds,
            factors,
            None
            if tables is None
            else list(zip(tables, np.split(factors, np.cumsum(counts)[:-1]), strict=True)),
            [(some, factors[clients]) for some, clients in cut],
            np.empty((sum(cut[0][0]) if cut else 0, width)),
            np.empty((sum(counts), len(sets))),
            np.empty(width, dtype=np.int64),
        )

    def _add_up(self, link: Link, counts: list[int], block: Buffers, round_number: int) -> Program[IntArray]:
        """Receive the clients' rows, or their sum, into the block's sums; return the scale of each set."""
        self.where.round = round_number
        sums, bounds, n_clients = block.sums, block.bounds, block.factors.size
        if self.unit.cell.transport == "reduce":
            top = np.zeros(len(block.sets))
            yield from link.maximum(top)
            exponents = aggregation.exponents(top, n_clients)
            yield from link.total(sums)
            return exponents
        yield from link.gather(None, block.largest, counts)
        try:
            aggregation.refuse_not_finite(block.largest)
        except aggregation.NotFinite as error:
            parents = tuple(int(j) for j in block.sets[error.position])
            raise aggregation.refuse(error.row, parents, round_number) from None
        exponents = aggregation.exponents(block.largest.max(axis=0), n_clients)
        if block.seen is not None:
            for rows, factors in block.seen:
                with self.clock("aggregate", round_number):
                    aggregation.add_terms(rows, factors, bounds, exponents, sums)
                yield True
            return exponents
        # a few rows at a time: they are added while they are in the cache, and never all in memory
        for some, factors in block.pieces:
            here = block.rows[: sum(some)]
            yield from link.gather(None, here, some, ready=True)
            with self.clock("aggregate", round_number):
                aggregation.add_terms(here, factors, bounds, exponents, sums)
        return exponents
