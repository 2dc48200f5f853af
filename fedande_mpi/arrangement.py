"""Who computes what: hosts in a grid of client groups x shards of the parent sets, and blocks of sets.

Nothing here changes a result; it only decides where and when each (client, parent set) pair is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_SHARDS = 1000
"""Each shard is an MPI communicator of rank 0, and MPICH has about 2,046 of them."""


@dataclass(frozen=True)
class Arrangement:
    """The grid of hosts and the order of work.

    Attributes
    ----------
    client_start : tuple of int
        Group g hosts clients client_start[g] .. client_start[g + 1] - 1.
    shards : tuple of (k,) int64 arrays
        Positions of each shard's parent sets, ascending.
    blocks : tuple of tuple of slice
        For each shard, the slices of its sets that are computed together.
    idle : int
        Hosts without work.
    """

    client_start: tuple[int, ...]
    shards: tuple[NDArray[np.int64], ...]
    blocks: tuple[tuple[slice, ...], ...]
    idle: int

    @property
    def n_groups(self) -> int:
        """Number of client groups G."""
        return len(self.client_start) - 1

    @property
    def n_shards(self) -> int:
        """Number of shards S."""
        return len(self.shards)

    @property
    def counts(self) -> list[int]:
        """Number of clients of each group."""
        return [len(self.clients(group)) for group in range(self.n_groups)]

    @property
    def n_sets(self) -> int:
        """Number of parent sets that are to be computed."""
        return sum(shard.size for shard in self.shards)

    def clients(self, group: int) -> range:
        """Return the clients of a group."""
        return range(self.client_start[group], self.client_start[group + 1])


def split_evenly(costs: NDArray[np.float64], n_parts: int) -> tuple[int, ...]:
    """Cut a row of costs into contiguous parts whose largest is small.

    Parameters
    ----------
    costs : (C,) array of float64
    n_parts : int
        At most C.

    Returns
    -------
    tuple of int
        n_parts + 1 bounds; no part is empty.
    """
    total = np.concatenate([[0.0], np.cumsum(costs)])
    bounds = [0]
    for part in range(1, n_parts):
        target = total[bounds[-1]] + (total[-1] - total[bounds[-1]]) / (n_parts - part + 1)
        at = int(np.searchsorted(total, target))
        if at > 0 and abs(total[at - 1] - target) <= abs(total[min(at, costs.size)] - target):
            at -= 1
        bounds.append(min(max(at, bounds[-1] + 1), costs.size - (n_parts - part)))
    return (*bounds, costs.size)


def deal_by_cost(costs: NDArray[np.float64], n_parts: int) -> tuple[NDArray[np.int64], ...]:
    """Deal items to parts, the dearest first, each to the part with the least so far."""
    load = np.zeros(n_parts)
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    for item in np.argsort(-costs, kind="stable"):
        part = int(np.argmin(load))
        load[part] += costs[item]
        parts[part].append(int(item))
    return tuple(np.array(sorted(part), dtype=np.int64) for part in parts)


def cut_blocks(
    widths: NDArray[np.int64],
    n_rows: int,
    budget: float,
    costs: NDArray[np.float64] | None = None,
    limit: float = 0.0,
) -> tuple[slice, ...]:
    """Cut a shard's sets into blocks of which `n_rows` rows take at most `budget` bytes, at least one set each.

    Parameters
    ----------
    widths : (k,) array of int64
        Numbers per set in a row.
    n_rows : int
        Rows gathered.
    budget : float
        Bytes.
    costs : (k,) array of float64, optional
        Cost of each set.
    limit : float
        Largest cost of a block.
    """
    costs = np.zeros(widths.size) if costs is None else costs
    blocks = []
    first, size, load = 0, 0, 0.0
    for at, width in enumerate(widths):
        more = int(width) * 8 * n_rows
        if at > first and (size + more > budget or load + costs[at] > limit):
            blocks.append(slice(first, at))
            first, size, load = at, 0, 0.0
        size += more
        load += costs[at]
    blocks.append(slice(first, widths.size))
    return tuple(blocks)


def arrange(
    n_hosts: int,
    client_costs: NDArray[np.float64],
    set_costs: NDArray[np.float64],
    set_widths: NDArray[np.int64],
    *,
    shared_share: float = 0.0,
    shards: int | None = None,
    rows: bool = True,
    block_bytes: float = 64 * 2**20,
    block_share: float = float("inf"),
) -> Arrangement:
    """Choose the grid that minimises the longest host's work.

    Parameters
    ----------
    n_hosts : int
        Hosts available.
    client_costs : (C,) array of float64
        Cost of each client, relative.
    set_costs : (|P|,) array of float64
        Cost of each parent set, relative.
    set_widths : (|P|,) array of int64
        Numbers that travel per parent set and client.
    shared_share : float
        Share of the work that is done once per shard, whatever the number of client groups.
    shards : int, optional
        Number of shards, instead of the best.
    rows : bool
        Whether a host holds a row of numbers for each of its clients, or a single sum.
    block_bytes : float
        Budget of a block on each host, and at rank 0 for all shards together.
    block_share : float
        Largest share of the whole work, on one host, that is in a block.

    Returns
    -------
    Arrangement
    """
    n_clients, n_sets = client_costs.size, set_costs.size
    limit = min(n_hosts, n_sets, MAX_SHARDS)
    candidates = range(1, limit + 1) if shards is None else [min(shards, limit)]
    best: tuple[float, int] | None = None
    for n_shards in candidates:
        n_groups = min(n_hosts // n_shards, n_clients)
        bounds = split_evenly(client_costs, n_groups)
        group_load = np.add.reduceat(client_costs, bounds[:-1]).max() / client_costs.sum()
        # dealt by cost, a shard carries at most the average and one set
        shard_load = max(1.0 / n_shards, set_costs.max() / set_costs.sum())
        if n_shards <= 64:
            dealt = deal_by_cost(set_costs, n_shards)
            shard_load = max(set_costs[part].sum() for part in dealt) / set_costs.sum()
        load = shard_load * (shared_share + (1.0 - shared_share) * group_load)
        if best is None or load < 0.99 * best[0]:
            best = (load, n_shards)
    assert best is not None
    n_shards = best[1]
    n_groups = min(n_hosts // n_shards, n_clients)
    bounds = split_evenly(client_costs, n_groups)
    dealt = deal_by_cost(set_costs, n_shards)
    # a host holds its clients' rows, the weights and one more; rank 0 for every shard the weights, the sums, and
    # the rows that arrive a piece at a time, one of each host or more
    held = max(np.diff(bounds)) if rows else 1
    n_rows = max(int(held) + 2, (n_groups + 2) * n_shards)
    limit = block_share * n_groups * set_costs.sum()
    return Arrangement(
        client_start=bounds,
        shards=dealt,
        blocks=tuple(
            cut_blocks(set_widths[part], n_rows, block_bytes, set_costs[part], limit) for part in dealt
        ),
        idle=n_hosts - n_groups * n_shards,
    )


PIECE_BYTES = 4 * 2**20
"""Rows that a host sends at a time, at least one: so much that a message is worth it and fits the cache."""


def row_pieces(counts: Sequence[int], width: int) -> list[tuple[list[int], NDArray[np.int64]]]:
    """Cut the gather of the hosts' rows into pieces of a few rows of every host.

    Parameters
    ----------
    counts : sequence of int
        Rows of each host of the shard; rows are numbered host by host.
    width : int
        Numbers in a row.

    Returns
    -------
    list of (list of int, array of int64)
        How many rows each host sends, and their numbers in the order they arrive.
    """
    step = max(1, PIECE_BYTES // (8 * max(1, width)))
    starts = np.cumsum([0, *counts[:-1]])
    pieces = []
    for first in range(0, max(counts), step):
        some = [max(0, min(step, count - first)) for count in counts]
        numbers = [np.arange(start + first, start + first + n) for start, n in zip(starts, some, strict=True)]
        pieces.append((some, np.concatenate(numbers)))
    return pieces


def batches(costs: Sequence[float] | NDArray[np.float64], limit: float) -> list[slice]:
    """Cut a list of jobs into runs of at most `limit` cost, at least one job each."""
    cuts = []
    first, load = 0, 0.0
    for at, cost in enumerate(costs):
        if at > first and load + cost > limit:
            cuts.append(slice(first, at))
            first, load = at, 0.0
        load += cost
    if len(costs):
        cuts.append(slice(first, len(costs)))
    return cuts
