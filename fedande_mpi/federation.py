"""One unit (a fold of a repeat) of one cell, on all ranks: counts, rounds, scores.

The server and each host run a program (see `fedande_mpi.programs`) per shard of the parent sets. Within a shard
the sets go in blocks and the rounds are the inner loop, so memory does not grow with |P|::

    server                                   host
    broadcast w                    ->        receive w
                                             local steps of its clients          (client side)
    gather rows, average           <-        send one row per client, score w meanwhile
    ... T rounds, one last broadcast of the final w

Only integer sums, which do not depend on grouping, and metrics leave a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import tally
from fedande_mpi.arrangement import Arrangement
from fedande_mpi.host import Host
from fedande_mpi.links import Communicator
from fedande_mpi.metrics import METRICS
from fedande_mpi.partial import Keeper, KeepsNothing
from fedande_mpi.programs import Program, drive
from fedande_mpi.server import Server
from fedande_mpi.unit import Unit, Where

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass
class UnitResult:
    """What rank 0 knows of a finished unit; axes (round, client) unless said."""

    metrics: FloatArray
    """(rounds, 4, C), NaN where not evaluated; see `fedande_mpi.metrics.METRICS`."""
    objective: FloatArray
    iterations: IntArray
    evaluations: IntArray
    stop_reason: IntArray
    seconds: dict[str, FloatArray]
    """``local``, ``wait``, ``evaluate`` (the largest of all hosts) and ``aggregate``, each (rounds,)."""
    hosts: dict[int, dict[str, float]]
    """For each rank that hosted clients its seconds in ``local``, ``wait`` and ``evaluate``, all rounds."""
    server_cpu: float
    """CPU seconds of rank 0 from the first broadcast to the last gather; NaN where it hosts clients too."""
    server_wall: float
    """Seconds on the clock over the same time."""
    weights: list[FloatArray] = field(default_factory=list)
    """Per parent set (1 or C, size), when asked for."""
    posterior: FloatArray | None = None
    """(C, test rows, o) after the last round, when asked for."""


def run_unit(
    comm: Communicator,
    unit: Unit,
    arrangement: Arrangement,
    poll: Callable[[], None] = lambda: None,
    got_on: Callable[[float], None] = lambda share: None,
    keeper: Keeper | None = None,
) -> UnitResult | None:
    """Compute one unit on all ranks; collective.

    Parameters
    ----------
    comm : Communicator
    unit : Unit
        The same on every rank.
    arrangement : Arrangement
        Who computes what; changes no bit of the result. One of fewer parent sets than the unit has goes on from
        the keeper's `Partial`.
    poll : callable
        Called between compiled calls and while waiting; may raise to end the unit.
    got_on : callable
        Told on rank 0 which share of the unit is done, bit by bit.
    keeper : Keeper, optional
        On rank 0, who keeps its checkpoints.

    Returns
    -------
    UnitResult or None
        On rank 0; None elsewhere.

    Raises
    ------
    Exception
        Any, with the place it happened (rank, client, parent set, round) as a note.
    """
    where = Where(comm.rank)
    try:
        return _run_unit(comm, unit, arrangement, poll, got_on, keeper or KeepsNothing(), where)
    except Exception as error:
        error.add_note(str(where))
        raise


def room(unit: Unit, arrangement: Arrangement) -> tuple[int, int]:
    """Return the bytes of the largest block of weights or sums, and of what a host hands over of one in one go."""

    def widest(granularity: str) -> int:
        return 8 * max(
            int(unit.bounds(unit.sets[shard[block]], granularity)[-1])
            for shard, blocks in zip(arrangement.shards, arrangement.blocks, strict=True)
            for block in blocks
        )

    sums = widest("parameter") if unit.pools else 0
    if not unit.cell.in_rounds:
        return sums, sums
    weights = widest(unit.granularity)
    rows = max(arrangement.counts) if unit.cell.transport == "gather" else 1
    return max(sums, weights), max(sums, rows * weights)


def _run_unit(
    comm: Communicator,
    unit: Unit,
    arrangement: Arrangement,
    poll: Callable[[], None],
    got_on: Callable[[float], None],
    keeper: Keeper,
    where: Where,
) -> UnitResult | None:
    grid = comm.grid(arrangement.n_groups, arrangement.n_shards, room(unit, arrangement), poll)
    server = Server(unit, arrangement, where, got_on=got_on, keeper=keeper)
    programs: list[Program[Any]] = [server.shard(link, at) for at, link in enumerate(grid.server_links)]
    host = None
    if grid.host is not None and grid.host_link is not None and grid.group_link is not None:
        host = Host(unit, arrangement, *grid.host, where)
        programs.append(host.run(grid.host_link, grid.group_link))
    # a host waits for the slowest of the others: that is hard to foresee, and the next may wait for it
    drive(programs, poll, rests=comm.rank == 0)
    (summaries,) = drive([comm.collect(host.summary() if host is not None else None)], poll)
    if comm.rank != 0:
        return None
    return _assemble(
        unit,
        arrangement,
        server,
        [summary for summary in summaries if summary is not None],
        server_hosts=host is not None,
    )


def _assemble(
    unit: Unit,
    arrangement: Arrangement,
    server: Server,
    summaries: list[dict[str, Any]],
    *,
    server_hosts: bool,
) -> UnitResult:
    """Put the summaries of the hosts together."""
    n_rounds, n_clients = len(unit.cell.rounds), unit.cell.clients
    metrics = np.full((n_rounds, len(METRICS), n_clients), np.nan)
    partial = server.collection.partial
    told = tally.empty(n_rounds, n_clients) if partial is None else partial.tally.copy()
    weights = server.weights | ({} if partial is None else partial.weights)
    posterior = None
    seconds = server.clock.seconds
    hosts: dict[int, dict[str, float]] = {}
    for summary in summaries:
        members = arrangement.clients(summary["group"])
        tally.join(told[:, members.start : members.stop], summary["tally"])
        rank = 0 if server_hosts else 1 + summary["shard"] * arrangement.n_groups + summary["group"]
        hosts[rank] = {name: float(values.sum()) for name, values in summary["seconds"].items()}
        for name, values in summary["seconds"].items():
            seconds[name] = np.maximum(seconds[name], values)
        for position, values in zip(unit.evaluated, summary.get("metrics", ()), strict=False):
            if unit.pools and values.shape[1]:
                metrics[position] = values  # one model for all clients
            elif not unit.pools:
                metrics[position][:, members.start : members.stop] = values
        part = summary.get("posterior")
        if part is not None and part.shape[0]:
            if posterior is None:
                posterior = np.zeros((n_clients, *part.shape[1:]))
            posterior[slice(None) if unit.pools else slice(members.start, members.stop)] = part
    shape = (n_rounds, n_clients)
    result = UnitResult(
        metrics=metrics,
        objective=np.full(shape, np.nan),
        iterations=np.full(shape, -1, dtype=np.int64),
        evaluations=np.full(shape, -1, dtype=np.int64),
        stop_reason=np.full(shape, -1, dtype=np.int64),
        seconds=seconds,
        hosts=hosts,
        server_cpu=float("nan"),
        server_wall=float("nan"),
        weights=[weights[index] for index in sorted(weights)],
        posterior=posterior,
    )
    for position in unit.trained:
        result.objective[position] = tally.objective(told[position])
        result.iterations[position] = told[position, :, tally.ITERATIONS]
        result.evaluations[position] = told[position, :, tally.EVALUATIONS]
        result.stop_reason[position] = tally.stop_reason(told[position])
    if server.first_broadcast is not None and not server_hosts:
        result.server_cpu = server.last_gather[0] - server.first_broadcast[0]
        result.server_wall = server.last_gather[1] - server.first_broadcast[1]
    return result
