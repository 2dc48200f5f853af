"""A unit that is done for some of its parent sets: what a checkpoint holds.

The ensemble is a sum over parent sets, so this is the set of those that are done and exact integer sums: the
same for every number of ranks, grid and block size, and another arrangement can go on from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import tally
from fedande_mpi.arrangement import Arrangement
from fedande_mpi.metrics import Sums, empty_sums
from fedande_mpi.unit import Unit


@dataclass(eq=False)
class Partial:
    """What is known of a unit so far, on rank 0.

    Attributes
    ----------
    done : (|P|,) bool
        Parent sets that are in the sums.
    sums : list of Sums
        For every scored position in ``cell.rounds`` the sums of all scored models; see `metrics.Sums`.
    top : (N, m) float64
        Under ``combine = "joint"`` the largest log joint of each of the N scored models and test rows over all
        parent sets, done or not; (N, 0) otherwise.
    tally : (rounds, C, `tally.COLUMNS`) int64
        Sums of what is reported of local steps.
    weights : dict of int to ndarray
        Weights of parent sets after the last round, (1 or C, size), when asked for.
    seconds : float
        Seconds on the clock that were spent on it.
    """

    done: NDArray[np.bool_]
    sums: list[Sums]
    top: NDArray[np.float64]
    tally: NDArray[np.int64]
    weights: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    seconds: float = 0.0


def empty_partial(unit: Unit) -> Partial:
    """Return a unit of which nothing is done."""
    m = unit.held_out.y.size
    n_scored = 1 if unit.pools else unit.cell.clients
    return Partial(
        done=np.zeros(len(unit.sets), dtype=bool),
        sums=[empty_sums(n_scored, m, unit.n_classes) for _ in unit.evaluated],
        top=np.full((n_scored, m if unit.cell.combine == "joint" else 0), -np.inf),
        tally=tally.empty(len(unit.cell.rounds), unit.cell.clients),
    )


def scored_counts(unit: Unit, arrangement: Arrangement) -> list[int]:
    """Return how many models each client group scores: a pooled one is the same for all, and scored once."""
    if unit.pools:
        return [int(group == 0) for group in range(arrangement.n_groups)]
    return arrangement.counts


def looks_back(unit: Unit, arrangement: Arrangement, shard: int, block: int) -> bool:
    """Say whether a shard may be asked for what it has done when it comes to the end of a block.

    Not after the last block of the only shard: then the unit is complete.
    """
    return unit.cell.checkpoint_minutes > 0.0 and (
        arrangement.n_shards > 1 or block < len(arrangement.blocks[shard]) - 1
    )


class Keeper(Protocol):
    """Who keeps the checkpoints of a unit, on rank 0."""

    partial: Partial | None
    """What an earlier start has left, if anything."""

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""

    def keep(self, partial: Partial) -> None:
        """Put one on disk."""


class KeepsNothing:
    """No checkpoints."""

    partial: Partial | None = None

    def due(self) -> bool:
        """Return False."""
        return False

    def keep(self, partial: Partial) -> None:
        """Do nothing."""


class Collection:
    """When the shards of a unit hand over what they have done since the last checkpoint.

    When one is due, each shard does so once, at the end of the block that it is in; with the last of them the
    checkpoint is complete. A shard that ends hands over once more, if there has been a checkpoint.
    """

    def __init__(self, unit: Unit, keeper: Keeper, n_shards: int) -> None:
        self.unit, self.keeper = unit, keeper
        self.partial = keeper.partial
        self._outstanding: set[int] = set()
        self._running = set(range(n_shards))
        # until then what is handed out is not to be changed
        self._to_hand_out = set(range(n_shards)) if self.partial is not None else set()

    def wants(self, shard: int, *, last: bool) -> bool:
        """Whether a shard that has come to the end of a block, its last one or not, hands over."""
        if self._to_hand_out or (last and self._running == {shard}):
            return False
        if not self._outstanding and self.keeper.due():
            self._outstanding = set(self._running)
        return shard in self._outstanding or (last and self.partial is not None)

    def handed_out(self, shard: int) -> None:
        """Note that a shard has got what an earlier start has left."""
        self._to_hand_out.discard(shard)

    def whole(self) -> Partial:
        """Return what the shards' work is added to; made with the first checkpoint."""
        if self.partial is None:
            self.partial = empty_partial(self.unit)
        return self.partial

    def ended(self, shard: int) -> None:
        """Note that a shard has no more blocks."""
        self._running.discard(shard)
        self.handed_over(shard)

    def handed_over(self, shard: int) -> None:
        """Note that what a shard had is in; with the last one's there is a checkpoint."""
        if shard in self._outstanding:
            self._outstanding.remove(shard)
            if not self._outstanding and self.partial is not None and not self.partial.done.all():
                self.keeper.keep(self.partial)
