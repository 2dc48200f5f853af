"""A host's scores of the test rows: sums of posteriors over its parent sets, and metrics when they are whole.

The sums of a round are whole when all parent sets have been trained that far, and blocks of sets are trained one after
another, all rounds of each. Either a host holds the sums of every round until then, or the shard's weights of every
round: then it scores at the end, some clients after others in the same memory.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import costs, evaluation, indexing, local, metrics
from fedande_mpi.arrangement import Arrangement, batches
from fedande_mpi.block import Block, make_block
from fedande_mpi.links import Link
from fedande_mpi.partial import scored_counts
from fedande_mpi.programs import Program
from fedande_mpi.unit import Clock, Unit

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


CHUNK_BYTES = 2**24
"""Of the sums of the clients that are scored together at the end: they stay in the cache."""


SHARE_OF_INTERVAL = 0.25
"""Of the time between checkpoints: as much scoring as may be put off, by an estimate."""


def client_bytes(unit: Unit) -> int:
    """Return the bytes of the sums of a client and a round."""
    n_test = unit.y.size - int(unit.n_rows.sum())
    return n_test * (unit.n_classes + 2) * 8


def scored_last(unit: Unit, arrangement: Arrangement, shard: int) -> bool:
    """Say whether the hosts of a shard keep the weights of every round and score them when all are trained.

    They do where the weights take less memory than the sums of all clients. What goes on from a checkpoint has such
    sums already, and a pooled model has one for all clients.
    """
    if not unit.cell.in_rounds or unit.pools or arrangement.n_sets < len(unit.sets):
        return False
    weights = int(unit.bounds(unit.sets[arrangement.shards[shard]], unit.granularity)[-1])
    return weights * 8 <= max(arrangement.counts) * client_bytes(unit)


class Scores:
    """The scores of a group of clients on a shard of the parent sets."""

    def __init__(
        self,
        unit: Unit,
        arrangement: Arrangement,
        group: int,
        shard: int,
        clients: local.Clients,
        clock: Clock,
    ) -> None:
        self.unit, self.arrangement, self.group, self.shard = unit, arrangement, group, shard
        self.clients, self.clock = clients, clock
        self.held_out = unit.held_out
        self.bits = metrics.scale_bits(len(unit.sets))
        self.joint = unit.cell.combine == "joint"
        self.max_rows = max(1, int(np.diff(clients.start).max()))
        self.last = scored_last(unit, arrangement, shard)
        self.n_scored = scored_counts(unit, arrangement)[group]
        n_rounds = len(unit.evaluated)
        self.sums = [self._empty(self.n_scored) for _ in range(0 if self.last else n_rounds)]
        """Of every scored round; where it scores last, there are none until a checkpoint asks for them."""
        self.metrics: list[FloatArray] = []
        """Of every scored round, in the first shard."""
        self.handed_over: list[metrics.Sums] | None = None
        """What of the sums is in a checkpoint; made with the first."""
        self.pooled_prior: FloatArray | None = None
        """Class probabilities of the pooled model, once there is one."""
        self.top = np.full((self.n_scored, self.held_out.y.size if self.joint else 0), -np.inf)
        sets = unit.sets[arrangement.shards[shard]]
        self.bounds = unit.bounds(sets, unit.granularity)
        self.kept = np.empty((n_rounds if self.last else 0, int(self.bounds[-1])))
        """Weights of the shard's sets in every scored round."""
        self.posterior: list[FloatArray] = []
        """Of the last round, some clients after others, in the first shard and where they are asked for."""
        self.unscored = slice(0, 0)
        """Those of the shard's sets whose kept weights are still to be scored."""

    def _empty(self, n_clients: int) -> metrics.Sums:
        return metrics.empty_sums(n_clients, self.held_out.y.size, self.unit.n_classes)

    def after_round(self, block: Block, part: slice, weights: FloatArray, position: int) -> Program[None]:
        """Score the weights of a block, which is some of the shard's sets, or keep them until later."""
        if position in self.unit.evaluated and self.n_scored:
            at = self.unit.evaluated.index(position)
            if self.last:
                self.kept[at, self.bounds[part.start] : self.bounds[part.stop]] = weights
                self.unscored = slice(self.unscored.start, part.stop)
            else:
                yield from self.score(block, weights[None], position)
        yield True

    def score(
        self, block: Block, weights: FloatArray, position: int, *, maxima_only: bool = False
    ) -> Program[None]:
        """Add a block's posteriors to the sums of a round, or raise the rows' maxima."""
        sums = self.sums[self.unit.evaluated.index(position)]
        return self._add(block, weights, position, sums, slice(0, self.n_scored), maxima_only=maxima_only)

    def _add(
        self,
        block: Block,
        weights: FloatArray,
        position: int,
        sums: metrics.Sums,
        some: slice,
        *,
        maxima_only: bool = False,
    ) -> Program[None]:
        """Add posteriors of all test rows at some clients, whose sums these are, in calls of bounded length."""
        unit = self.unit
        clients = self.clients
        if some.stop - some.start < self.n_scored:
            clients = clients._replace(start=clients.start[some.start : some.stop + 1])
        scoring = evaluation.Scoring(
            weights, block.bounds[:-1], unit.granularity == "attribute", self.bits, self.joint
        )
        width = block.layout.children.shape[1] + 1
        per_row = costs.PER_SCORE * width * unit.n_classes
        pieces = evaluation.pieces(block.layout, self.held_out.y.size)
        most = max((last - first for first, last in pieces), default=0)
        # of a call for one client
        longest = self.max_rows * costs.PER_SCORE * width + most * per_row
        some_sets = max(1, int(costs.CALL_SECONDS / max(longest, 1e-9)))
        rows = np.diff(clients.start) if not unit.pools else np.zeros(1)
        loads = np.asarray(rows * costs.PER_SCORE * width + most * per_row)[: some.stop - some.start]
        for sets in evaluation.together(block.layout, most, some_sets):
            for first, last in pieces:
                with self.clock("evaluate", position):
                    indices = self._indices(block, sets, first, last)
                for batch in batches(loads * (sets.stop - sets.start), costs.CALL_SECONDS):
                    with self.clock("evaluate", position):
                        evaluation.score(
                            indices,
                            clients,
                            block.layout,
                            block.theta,
                            scoring,
                            sets.start,
                            sets.stop,
                            batch.start,
                            batch.stop,
                            maxima_only,
                            self.top,
                            sums,
                        )
                    yield True

    def _indices(self, block: Block, sets: slice, first: int, last: int) -> indexing.Indices:
        """Return the index of some test rows under some of a block's sets; kept for other rounds while it is small."""
        key = first, sets.start, sets.stop
        found = block.indices.get(key)
        if found is None:
            X, y = self.held_out
            per_attribute = self.unit.granularity == "attribute"
            found = indexing.index_sets(X, y, first, last, block.layout, sets.start, sets.stop, per_attribute)
            if block.indexed + found.nbytes <= self.unit.cell.block_mib * 2**20:
                block.indices[key] = found
                block.indexed += found.nbytes
        return found

    def _kept_block(self) -> Block | None:
        """Return the parent sets whose weights are kept and not scored, if there are any."""
        if self.unscored.start == self.unscored.stop:
            return None
        return make_block(self.unit, self.arrangement.shards[self.shard][self.unscored], self.max_rows)

    def _add_kept(self, block: Block | None, at: int, sums: metrics.Sums, some: slice) -> Program[None]:
        """Score the kept weights of a round, by its place among the scored ones, at some clients."""
        if block is not None:
            weights = self.kept[at, self.bounds[self.unscored.start] : self.bounds[self.unscored.stop]]
            yield from self._add(block, weights[None], self.unit.evaluated[at], sums, some)

    def finish(self, link: Link, group_link: Link) -> Program[None]:
        """Make the sums of each round whole, and metrics of them; all hosts of the group at the same time."""
        kept = self._kept_block()
        step = max(1, CHUNK_BYTES // max(1, client_bytes(self.unit)))
        buffer = None if self.sums else self._empty(min(step, self.n_scored))
        for at, position in enumerate(self.unit.evaluated):
            parts = []
            for first in range(0, max(1, self.n_scored), step):  # the same in all shards
                some = slice(first, min(first + step, self.n_scored))
                if buffer is None:
                    sums = metrics.Sums(*(numbers[some] for numbers in self.sums[at]))
                else:
                    sums = metrics.Sums(*(numbers[: some.stop - first] for numbers in buffer))
                    for numbers in sums:
                        numbers.fill(0)
                yield from self._add_kept(kept, at, sums, some)
                yield from self.clock.waiting(group_link.total(sums.posterior), -1)
                yield from self.clock.waiting(group_link.total(sums.rest), -1)
                if self.shard == 0:
                    with self.clock("evaluate", position):
                        parts.append(self._measure(sums, first, last=position == self.unit.evaluated[-1]))
                    yield True
            if self.shard == 0:
                self.metrics.append(np.concatenate(parts, axis=1))
            if self.last:  # so that rank 0 knows how far it is
                yield from self.clock.waiting(link.total(np.zeros(1, dtype=np.int64)), -1)

    # ------------------------------------------------------------------ checkpoints

    def catch_up(self) -> Program[None]:
        """Score what is kept where that takes a good part of the time between checkpoints.

        Else a checkpoint would wait for it, and what is lost without one would be all that has been scored since.
        """
        sets, (m, d) = self.unscored.stop - self.unscored.start, self.held_out.X.shape
        per_set = self.n_scored * m * (d - self.unit.cell.n + 1) * self.unit.n_classes * costs.PER_SCORE
        interval = 60.0 * self.unit.cell.checkpoint_minutes
        if 0.0 < SHARE_OF_INTERVAL * interval < per_set * sets * len(self.unit.evaluated):
            yield from self._score_kept()

    def _score_kept(self) -> Program[None]:
        """Score what is kept into sums of every round and all clients."""
        if not self.sums:
            self.sums = [self._empty(self.n_scored) for _ in self.unit.evaluated]
        kept = self._kept_block()
        for at, sums in enumerate(self.sums):
            yield from self._add_kept(kept, at, sums, slice(0, self.n_scored))
        self.unscored = slice(self.unscored.stop, self.unscored.stop)

    def hand_over(self, link: Link) -> Program[None]:
        """Send what has been scored since the last checkpoint."""
        yield from self._score_kept()
        before = self.handed_over or [metrics.Sums(*map(np.zeros_like, sums)) for sums in self.sums]
        scored = scored_counts(self.unit, self.arrangement)
        for sums, earlier in zip(self.sums, before, strict=True):
            for now, then in zip(sums, earlier, strict=True):
                rows = (now - then).reshape(now.shape[0], now.shape[1] * now.shape[2])
                yield from self.clock.waiting(link.gather(rows, None, scored), -1)
                then[...] = now
        self.handed_over = before
        if self.joint:
            yield from self.clock.waiting(link.gather(self.top, None, scored), -1)

    def take_up(self, link: Link) -> Program[None]:
        """Go on from what an earlier start has left: the group's sums in the first shard."""
        for group, count in enumerate(scored_counts(self.unit, self.arrangement)):
            mine = group == self.group
            if self.shard == 0:
                for sums in self.sums:
                    for own in sums:
                        buffer = own if mine else np.empty((count, *own.shape[1:]), dtype=np.int64)
                        yield from self.clock.waiting(link.broadcast(buffer), -1)
            if self.joint:
                buffer = self.top if mine else np.empty((count, self.top.shape[1]))
                yield from self.clock.waiting(link.broadcast(buffer), -1)
        if self.shard == 0:
            self.handed_over = [metrics.Sums(*map(np.copy, sums)) for sums in self.sums]

    # ---------------------------------------------------------------------- metrics

    @cached_property
    def usable(self) -> IntArray:
        """Parent sets that have a say on each test row, shape ``(m,)``."""
        return metrics.usable_sets(self.held_out.X, self.unit.sets)

    def _measure(self, sums: metrics.Sums, first: int, *, last: bool) -> FloatArray:
        """Give the rows on which no parent set has a say a posterior; return the metrics of whole sums.

        They are of client `first` and those that follow. The posteriors of the last round are kept if asked for.
        """
        unit, cell = self.unit, self.unit.cell
        rows = np.flatnonzero(self.usable == 0)
        for c in range(sums.posterior.shape[0]) if rows.size else ():
            own = slice(self.clients.start[first + c], self.clients.start[first + c + 1])
            X, y = self.clients.X[own], self.clients.y[own]
            if unit.pools:
                X, y = unit.X[unit.owner >= 0], unit.y[unit.owner >= 0]
            exact = not unit.pools or cell.epsilon == float("inf")
            posterior = metrics.fall_back(
                self.held_out.X[rows],
                X,
                y,
                unit.arity,
                unit.n_classes,
                # weighted models and noisy counts have nothing of lower order to fall back on but the prior
                order=cell.n - 1 if exact and not cell.weighted else -1,
                rule=(cell.smoothing, cell.pseudocount),
                joint=self.joint,
                prior=self.pooled_prior,
            )
            sums.posterior[c, rows] = np.rint(posterior * 2.0**self.bits).astype(np.int64)
        usable = np.maximum(self.usable, 1)
        if last and "predictions" in cell.save:
            self.posterior.append(metrics.posteriors(sums, usable, self.bits, self.joint))
        return metrics.of_sums(sums, usable, self.bits, self.joint, self.held_out.y)

    def summary(self) -> dict[str, Any]:
        """Return what rank 0 needs from the first shard: metrics, and the last round's posteriors if asked for."""
        if self.shard != 0:
            return {}
        summary: dict[str, Any] = {"metrics": self.metrics}
        if self.posterior:
            summary["posterior"] = np.concatenate(self.posterior)
        return summary
