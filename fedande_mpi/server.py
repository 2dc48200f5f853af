"""Rank 0's side of a shard: broadcast weights, gather updates, average them; pool counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import aggregation
from fedande_mpi.arrangement import Arrangement, row_pieces
from fedande_mpi.comm import Link
from fedande_mpi.programs import Program
from fedande_mpi.unit import Clock, Unit, Where

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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
    """Told the share of the unit's weights that a round has just averaged."""

    def __post_init__(self) -> None:
        self.clock = Clock(len(self.unit.cell.rounds))
        self.keep_weights = "weights" in self.unit.cell.save
        self.all_weights = int(self.unit.bounds(self.unit.sets, self.unit.granularity)[-1])

    def _stamp(self) -> tuple[float, float]:
        return time.process_time(), time.perf_counter()

    def shard(self, link: Link, shard: int) -> Program[None]:
        """Serve one shard: its blocks one after another, the rounds of a block inside."""
        unit, arrangement = self.unit, self.arrangement
        counts = [len(arrangement.clients(group)) for group in range(arrangement.n_groups)]
        for _ in range(2 if unit.cell.combine == "joint" else 1):
            for block in arrangement.blocks[shard]:
                at = arrangement.shards[shard][block]
                sets = unit.sets[at]
                if unit.pools:
                    yield from self._pool(link, sets)
                if unit.cell.in_rounds:
                    yield from self._rounds(link, counts, at, sets)
                elif unit.cell.weighted and self.keep_weights:
                    bounds = unit.bounds(sets, unit.granularity)
                    rows = np.empty((sum(counts), int(bounds[-1])))
                    yield from link.gather(None, rows, counts)
                    self._keep(at, bounds, rows)

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

    def _rounds(self, link: Link, counts: list[int], at: IntArray, sets: IntArray) -> Program[None]:
        unit = self.unit
        solver = unit.cell.solver
        bounds = unit.bounds(sets, unit.granularity)
        weights = np.full(int(bounds[-1]), solver.initial_weight)
        factors, divisor = aggregation.client_factors(solver.aggregation, unit.n_rows)
        # used round after round: fresh memory costs as much as what is done with it
        rows = np.empty((sum(row_pieces(counts, weights.size)[0][0]), weights.size))
        sums = np.empty(weights.size, dtype=np.int64)
        if self.first_broadcast is None:
            self.first_broadcast = self._stamp()
        yield from link.broadcast(weights)
        for round_number in range(1, solver.rounds + 1):
            sums.fill(0)
            exponents = yield from self._add_up(link, counts, bounds, factors, round_number, sets, rows, sums)
            with self.clock("aggregate", round_number):
                aggregation.mean_of_sums(sums, bounds, exponents, divisor, weights)
            self.last_gather = self._stamp()
            self.got_on(float(bounds[-1]) / self.all_weights / solver.rounds)
            yield from link.broadcast(weights)
        if self.keep_weights:
            self._keep(at, bounds, weights[None])

    def _add_up(
        self,
        link: Link,
        counts: list[int],
        bounds: IntArray,
        factors: FloatArray,
        round_number: int,
        sets: IntArray,
        rows: FloatArray,
        sums: IntArray,
    ) -> Program[IntArray]:
        """Receive the clients' rows, or their sum, into `sums`; return the scale of each set."""
        self.where.round = round_number
        width = int(bounds[-1])
        if self.unit.cell.transport == "reduce":
            top = np.zeros(bounds.size - 1)
            yield from link.maximum(top)
            exponents = aggregation.exponents(top, factors.size)
            yield from link.total(sums)
        else:
            largest = np.empty((sum(counts), bounds.size - 1))
            yield from link.gather(None, largest, counts)
            try:
                aggregation.refuse_not_finite(largest)
            except aggregation.NotFinite as error:
                parents = tuple(int(j) for j in sets[error.position])
                raise aggregation.refuse(error.row, parents, round_number) from None
            exponents = aggregation.exponents(largest.max(axis=0), factors.size)
            # a few rows at a time: they are added while they are in the cache, and never all in memory
            for some, clients in row_pieces(counts, width):
                here = rows[: sum(some)]
                yield from link.gather(None, here, some, ready=True)
                with self.clock("aggregate", round_number):
                    aggregation.add_terms(here, factors[clients], bounds, exponents, sums)
        return exponents
