"""A host's side: counts and local steps of a group of clients on a shard, and the scores of its models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import aggregation, costs, lbfgs, local, tally, touched
from fedande_mpi.arrangement import Arrangement, batches, row_pieces
from fedande_mpi.block import Block, make_block, theta_of
from fedande_mpi.links import Link
from fedande_mpi.partial import looks_back
from fedande_mpi.programs import Program, together
from fedande_mpi.release import pooled_release
from fedande_mpi.scores import Scores
from fedande_mpi.unit import Clock, Unit, Where

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """The local steps of a block, the same in every round: its (client, set) pairs, in calls of bounded length."""

    weights: local.Weights
    clients: IntArray
    positions: IntArray
    calls: list[tuple[slice, bool]]
    """Which pairs, and whether it is one that does some iterations per call."""
    max_iterations: int
    capacity: int


class Host:
    """A group of clients on a shard of the parent sets."""

    def __init__(self, unit: Unit, arrangement: Arrangement, group: int, shard: int, where: Where) -> None:
        self.unit, self.arrangement, self.where = unit, arrangement, where
        self.group, self.shard = group, shard
        cell = unit.cell
        self.members = arrangement.clients(group)
        rows = np.flatnonzero((unit.owner >= self.members.start) & (unit.owner < self.members.stop))
        rows = rows[np.argsort(unit.owner[rows], kind="stable")]
        counts = unit.n_rows[self.members.start : self.members.stop]
        self.clients = local.Clients(
            np.ascontiguousarray(unit.X[rows]),
            np.ascontiguousarray(unit.y[rows]),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        )
        self.clock = Clock(len(cell.rounds))
        self.max_rows = max(1, int(counts.max()))
        self.scores = Scores(unit, arrangement, group, shard, self.clients, self.clock)
        self.resumed = arrangement.n_sets < len(unit.sets)
        self.tally = tally.empty(len(cell.rounds), len(self.members))
        self.handed_over = self.tally.copy()
        """What of it is in a checkpoint."""
        self.release = pooled_release(unit) if unit.pools else None

    def run(self, link: Link, group_link: Link) -> Program[None]:
        """Compute the shard's blocks, then add the sums of the shards for this group of clients."""
        if self.resumed:
            yield from self.scores.take_up(link)
        elif self.unit.cell.combine == "joint":
            yield from self._blocks(link, maxima_only=True)
            yield from group_link.maximum(self.scores.top)
        yield from self._blocks(link, maxima_only=False)
        yield from self.scores.finish(link, group_link)

    def _blocks(self, link: Link, *, maxima_only: bool) -> Program[None]:
        unit = self.unit
        indices = self.arrangement.shards[self.shard]
        for number, block in enumerate(self.arrangement.blocks[self.shard]):
            state = make_block(unit, indices[block], self.max_rows)
            if unit.pools:
                yield from self._pool(link, state)
            if not unit.cell.weighted:
                yield from self.scores.score(state, np.zeros((1, 0)), 0, maxima_only=maxima_only)
            elif unit.cell.in_rounds:
                yield from self._rounds(link, state, block)
            else:
                yield from self._converge(link, state)
            if not maxima_only and looks_back(unit, self.arrangement, self.shard, number):
                yield from self._look_back(link)

    def _look_back(self, link: Link) -> Program[None]:
        """Hand over what has been done since the last checkpoint, if the server asks for it."""
        yield from self.scores.catch_up()
        yield from self.clock.waiting(link.total(np.zeros(1, dtype=np.int64)), -1)
        wanted = np.zeros(1, dtype=np.int64)
        yield from self.clock.waiting(link.broadcast(wanted), -1)
        if not wanted[0]:
            return
        yield from self.scores.hand_over(link)
        if self.unit.trained:
            rows = tally.since(self.tally, self.handed_over).swapaxes(0, 1).reshape(len(self.members), -1)
            yield from self.clock.waiting(link.gather(rows, None, self.arrangement.counts), -1)
            self.handed_over = self.tally.copy()

    def _pool(self, link: Link, block: Block) -> Program[None]:
        """Send the sum of the clients' counts, receive the sum over all clients, and make the pooled model."""
        assert self.release is not None
        bounds = self.unit.bounds(block.sets, "parameter")
        n_sets = len(block.sets)
        everyone = self.clients._replace(start=self.clients.start[[0, -1]])
        row = np.zeros((1, int(bounds[-1])))
        cost = self.clients.y.size * (block.layout.children.shape[1] + 1) * costs.PER_COUNT
        for batch in batches([cost] * n_sets, costs.CALL_SECONDS):
            sets = np.arange(batch.start, batch.stop)
            with self.clock("local", 0):
                local.count_pairs(everyone, block.layout, np.zeros_like(sets), sets, bounds[:-1], row)
            yield True
        sums = row[0].astype(np.int64)
        yield from self.clock.waiting(link.total(sums), 0)
        yield from self.clock.waiting(link.broadcast(sums), 0)
        pooled = np.empty(sums.size)
        for position, parents in enumerate(block.sets):
            part = slice(int(bounds[position]), int(bounds[position + 1]))
            counts = sums[part].astype(np.float64).reshape(-1, self.unit.n_classes)
            with self.clock("aggregate", 0):
                pooled[part] = self.release(int(block.at[position]), parents, counts).ravel()
            yield True
        block.theta = theta_of(self.unit, block.layout, self.max_rows, pooled)
        self.scores.pooled_prior = np.exp(pooled[: self.unit.n_classes])

    def _rounds(self, link: Link, block: Block, part: slice) -> Program[None]:
        unit = self.unit
        solver = unit.cell.solver
        factors, _ = aggregation.client_factors(solver.aggregation, unit.n_rows)
        mine = factors[self.members.start : self.members.stop]
        weights = np.empty(int(block.bounds[-1]))
        counts = self.arrangement.counts
        seen, pieces = None, []
        if unit.cell.transport == "gather":
            seen = link.tables(counts, weights.size)
            # where the server sees the rows none are sent
            pieces = [some for some, _ in row_pieces(counts, weights.size)] if seen is None else []
        updates = np.empty((len(self.members), weights.size)) if seen is None else seen[self.group]
        max_iterations = solver.local_steps or unit.cell.max_iterations
        work = self._work(block, weights, max_iterations, to_convergence=not solver.local_steps)
        for round_number in range(solver.rounds + 1):
            yield from self.clock.waiting(link.broadcast(weights), round_number)
            score = self.scores.after_round(block, part, weights, round_number)
            if round_number == solver.rounds:
                yield from score
                break
            self.where.round = round_number + 1
            yield from self._steps(block, work, updates, round_number + 1)
            # scored while the server averages
            send = self._send(link, updates, block, mine, pieces, round_number + 1)
            yield from together(send, score)

    def _converge(self, link: Link, block: Block) -> Program[None]:
        """Minimise every client's own objective to the end, from the initial weights."""
        unit = self.unit
        weights = np.full(int(block.bounds[-1]), unit.cell.solver.initial_weight)
        updates = np.empty((len(self.members), weights.size))
        work = self._work(block, weights, unit.cell.max_iterations, to_convergence=True)
        yield from self._steps(block, work, updates, 0)
        yield from self.scores.score(block, updates, 0)
        if unit.keeps_weights:
            yield from self.clock.waiting(link.gather(updates, None, self.arrangement.counts), 0)

    def _send(
        self,
        link: Link,
        rows: FloatArray,
        block: Block,
        factors: FloatArray,
        pieces: list[list[int]],
        round_number: int,
    ) -> Program[None]:
        bounds = block.bounds
        largest = aggregation.largest_terms(rows, factors, bounds)
        if self.unit.cell.transport == "gather":
            yield from self.clock.waiting(link.gather(largest, None, self.arrangement.counts), round_number)
            first = 0
            for some in pieces:
                here = rows[first : first + some[self.group]]
                yield from self.clock.waiting(link.gather(here, None, some, ready=True), round_number)
                first += some[self.group]
            return
        try:
            aggregation.refuse_not_finite(largest)
        except aggregation.NotFinite as error:
            parents = tuple(int(j) for j in block.sets[error.position])
            raise aggregation.refuse(self.members.start + error.row, parents, round_number) from None
        top = largest.max(axis=0)
        yield from self.clock.waiting(link.maximum(top), round_number)
        sums = np.zeros(int(bounds[-1]), dtype=np.int64)
        exponents = aggregation.exponents(top, self.unit.cell.clients)
        aggregation.add_terms(rows, factors, bounds, exponents, sums)
        yield from self.clock.waiting(link.total(sums), round_number)

    def _work(self, block: Block, weights: FloatArray, max_iterations: int, *, to_convergence: bool) -> Work:
        """Cut the local steps of a block, from `weights` as they are in each round, into calls."""
        unit = self.unit
        capacity = touched.capacity(block.layout, self.max_rows)
        n_sets = len(block.sets)
        rows = np.diff(self.clients.start).astype(np.float64)
        width = block.layout.children.shape[1] + 1
        iterations = min(max_iterations, 15_000)
        loads = np.repeat(costs.pair_seconds(rows, width, unit.n_classes, capacity, iterations), n_sets)
        one_by_one = to_convergence or unit.cell.optimizer == "scipy"
        cut = batches(loads, 0.0 if one_by_one else costs.CALL_SECONDS)
        return Work(
            local.Weights(
                weights, block.bounds[:-1], unit.granularity == "attribute", float(unit.cell.solver.l2)
            ),
            np.repeat(np.arange(len(self.members)), n_sets),
            np.tile(np.arange(n_sets), len(self.members)),
            [(batch, one_by_one or bool(loads[batch.start] > 2 * costs.CALL_SECONDS)) for batch in cut],
            max_iterations,
            capacity,
        )

    def _steps(self, block: Block, work: Work, updates: FloatArray, position: int) -> Program[None]:
        """Do local steps for all clients and sets of the block."""
        report = local.empty_report(len(self.members), len(block.sets))
        for batch, is_long in work.calls:
            client, at = int(work.clients[batch.start]), int(work.positions[batch.start])
            self.where.client = self.members.start + client
            self.where.parents = tuple(block.sets[at].tolist())
            with self.clock("local", position):
                if is_long:
                    yield from self._long_pair(block, work, (client, at), updates, report)
                else:
                    local.run_pairs(
                        self.clients,
                        block.layout,
                        block.theta,
                        work.weights,
                        work.clients[batch],
                        work.positions[batch],
                        work.max_iterations,
                        work.capacity,
                        self.max_rows,
                        updates,
                        report,
                    )
            yield True
        self.where.client = self.where.parents = None
        tally.add(self.tally[position], report)

    def _long_pair(
        self,
        block: Block,
        work: Work,
        pair: tuple[int, int],
        updates: FloatArray,
        report: local.Report,
    ) -> Program[None]:
        """Do the steps of one pair, some iterations per call."""
        client, at = pair
        n_children, o = block.layout.children.shape[1], self.unit.n_classes
        weights, max_iterations = work.weights, work.max_iterations
        scratch = local.allocate(work.capacity, self.max_rows, n_children, o)
        state = lbfgs.allocate(work.capacity * o)
        problem = local.prepare(
            self.clients, block.layout, block.theta, weights, client, at, scratch, state.x
        )
        if self.unit.cell.optimizer == "scipy":
            local.scipy_steps(problem, state, max_iterations)
        else:
            lbfgs.begin(state)
            seconds = costs.PER_STEP * problem.n_rows * (n_children + 1) * max(1, o - 1) + 1e-6
            stride = max(1, int(costs.CALL_SECONDS / (costs.EVALUATIONS * seconds)))
            while state.counters[lbfgs.STATUS] == lbfgs.RUNNING:
                until = int(state.counters[lbfgs.ITERATIONS]) + stride
                lbfgs.advance(problem, state, max_iterations, until)
                yield True
        local.finish(problem, state, weights, client, at, int(block.bounds[at + 1]), scratch, updates, report)

    # ------------------------------------------------------------ what leaves the host

    def summary(self) -> dict[str, Any]:
        """Return what rank 0 needs: reports of training, seconds, and what the scores have to say."""
        summary: dict[str, Any] = {
            "group": self.group,
            "shard": self.shard,
            "seconds": self.clock.seconds,
            "tally": tally.since(self.tally, self.handed_over),
        }
        return summary | self.scores.summary()
