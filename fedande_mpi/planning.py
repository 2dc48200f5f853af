"""What a cell takes before anything starts: who computes what, bytes per round, memory per rank, seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import ande, costs, tally
from fedande_mpi.arrangement import PIECE_BYTES, Arrangement, arrange
from fedande_mpi.cell import Cell
from fedande_mpi.errors import ConfigError
from fedande_mpi.release import released_numbers
from fedande_mpi.scores import CHUNK_BYTES, client_bytes, scored_last
from fedande_mpi.unit import Unit

MIB = 2**20

_RANK_BYTES = 180 * MIB
"""What Python, NumPy and the compiled loops take on every rank before any data (measured)."""
_BLOCKS_PER_CHECKPOINT = 0.25
"""Longest block, as a share of the time between checkpoints."""


@dataclass(frozen=True)
class CellPlan:
    """What one unit of a cell takes.

    Attributes
    ----------
    n_sets, n_weights : int
        Parent sets, and numbers in one model (weights, or counts of a generative one).
    bytes_per_round : int
        What the federation would send in a round, both ways, all clients.
    server_bytes, host_bytes : int
        Peak memory of rank 0 and of the largest host.
    seconds : float
        Work of one unit on one core; an estimate.
    draws : int
        Numbers of one unit that get noise.
    long_pairs : bool
        Whether there may be a (client, parent set) pair that takes several calls, see `costs.CALL_SECONDS`.
    arrangement : Arrangement
    """

    n_sets: int
    n_weights: int
    bytes_per_round: int
    server_bytes: int
    host_bytes: int
    seconds: float
    draws: int
    long_pairs: bool
    arrangement: Arrangement


def arrange_unit(unit: Unit, n_ranks: int, done: NDArray[np.bool_] | None = None) -> Arrangement:
    """Choose who computes what of a unit on `n_ranks` ranks (one rank is server and host).

    Parent sets that are `done`, (|P|,), are left out.
    """
    cell = unit.cell
    left = np.arange(len(unit.sets)) if done is None else np.flatnonzero(~done)
    widths = np.diff(unit.bounds(unit.sets, unit.granularity))
    if unit.pools:
        widths = np.maximum(widths, np.diff(unit.bounds(unit.sets, "parameter")))
    widths = widths[left]
    n_children = unit.arity.size - cell.n
    rows = float(unit.n_rows.sum())
    # per set: going through the rows, and through the weights
    set_costs = rows * (n_children + 1) * 7.0 + widths * float(cell.clients) / unit.n_classes
    client_costs = np.asarray(unit.n_rows + 0.01 * rows / cell.clients, dtype=np.float64)
    # so that there are ends of blocks to make checkpoints at
    block_seconds = 60.0 * cell.checkpoint_minutes * _BLOCKS_PER_CHECKPOINT or float("inf")
    found = arrange(
        max(1, n_ranks - 1),
        client_costs,
        set_costs,
        widths,
        shared_share=0.7 if unit.pools and not cell.weighted else 0.0,
        shards=cell.shards,
        rows=cell.weighted,
        block_bytes=cell.block_mib * MIB,
        block_share=block_seconds / max(estimated_seconds(unit) * left.size / len(unit.sets), 1e-9),
    )
    return replace(found, shards=tuple(left[shard] for shard in found.shards))


def communication_bytes(unit: Unit) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what the federation would send down and up in every round: numbers x 8 bytes x participants.

    Round t sends the clients' updates up and the average back down; initial weights are a constant that
    nobody sends. Pooled counts go up, and the pooled model down, in the round they are pooled in.

    Returns
    -------
    down, up : (rounds,) array of int64
    """
    cell = unit.cell
    down = np.zeros(len(cell.rounds), dtype=np.int64)
    up = np.zeros(len(cell.rounds), dtype=np.int64)
    participants = int((unit.n_rows > 0).sum())
    if unit.pools:
        up[0] = released_numbers(unit) * 8 * participants
        model = unit.n_classes + int((ande.cells_per_set(unit.sets, unit.arity) - 1).sum()) * unit.n_classes
        down[0] = model * 8 * participants
    if cell.in_rounds:
        weights = int(unit.bounds(unit.sets, unit.granularity)[-1])
        down[1:] = up[1:] = weights * 8 * participants
    return down, up


def plan_unit(unit: Unit, n_ranks: int) -> CellPlan:
    """Estimate what a unit takes on `n_ranks` ranks; allocates nothing of the size of the work."""
    cell = unit.cell
    arrangement = arrange_unit(unit, n_ranks)
    bounds = unit.bounds(unit.sets, unit.granularity if not unit.pools else "parameter")
    widths = np.diff(bounds)
    data = unit.X.nbytes * 2 + unit.y.nbytes * 4
    saves_rows = "weights" in cell.save and not cell.in_rounds
    blocks = [
        max(int(widths[shard[block]].sum()) for block in slices)
        for shard, slices in zip(arrangement.shards, arrangement.blocks, strict=True)
    ]
    hosted = max(len(arrangement.clients(group)) for group in range(arrangement.n_groups))
    scored = hosted if not unit.pools else 1
    of_a_round = scored * client_bytes(unit)
    sums = len(unit.evaluated) * of_a_round
    last = [scored_last(unit, arrangement, shard) for shard in range(arrangement.n_shards)]
    held = max(
        min(of_a_round, CHUNK_BYTES) + len(unit.evaluated) * int(widths[sets].sum()) * 8 if late else sums
        for sets, late in zip(arrangement.shards, last, strict=True)
    )
    told = len(cell.rounds) * cell.clients * tally.COLUMNS * 8
    kept = int(bounds[-1]) * 8 * (1 if cell.in_rounds else cell.clients) if "weights" in cell.save else 0
    server = _RANK_BYTES + data + told + kept
    piece = arrangement.n_groups * max(PIECE_BYTES, 8 * max(blocks)) if cell.in_rounds else 0
    server += sum(blocks) * 8 * (cell.clients if saves_rows else 3) + len(blocks) * piece
    host = _RANK_BYTES + 2 * data + held + max(blocks) * 8 * ((hosted if cell.weighted else 1) + 3)
    host += 2 * told * hosted // cell.clients
    seconds = estimated_seconds(unit)
    # may there be a checkpoint? The estimate is an order of size
    if 0.0 < 60.0 * cell.checkpoint_minutes < 10.0 * seconds / max(1, n_ranks - 1):
        # rank 0 holds all sums and what arrives of a round, a host what it has handed over
        everyone = sums // scored * (cell.clients if not unit.pools else 1)
        server += everyone + everyone // len(unit.evaluated)
        host += (2 if any(last) else 1) * sums + of_a_round
    if n_ranks == 1:
        server = host = server + host - _RANK_BYTES
    down, up = communication_bytes(unit)
    return CellPlan(
        n_sets=len(unit.sets),
        n_weights=int(bounds[-1]),
        bytes_per_round=int((down + up).max()),
        server_bytes=server,
        host_bytes=host,
        seconds=seconds,
        draws=noisy_numbers(unit),
        long_pairs=_has_long_pairs(unit),
        arrangement=arrangement,
    )


def _has_long_pairs(unit: Unit) -> bool:
    cell, width = unit.cell, unit.arity.size - unit.cell.n + 1
    if not cell.weighted:
        return False
    rows = int(unit.n_rows.max(initial=1))
    cells = min(int(ande.cells_per_set(unit.sets, unit.arity).max()), 1 + rows * width)
    steps = cell.solver.local_steps if cell.in_rounds else 0
    return float(costs.pair_seconds(rows, width, unit.n_classes, cells, steps)) > 2 * costs.CALL_SECONDS


def noisy_numbers(unit: Unit) -> int:
    """Return how many numbers get noise: where only the sum over clients is used, each is drawn once."""
    private = unit.pools and unit.cell.epsilon is not None and np.isfinite(unit.cell.epsilon)
    return released_numbers(unit) if private else 0


def estimated_seconds(unit: Unit) -> float:
    """Estimate the work of a unit on one core."""
    cell, o = unit.cell, unit.n_classes
    n_rows = int(unit.n_rows.sum())
    per_row = len(unit.sets) * (unit.arity.size - cell.n + 1) * max(1, o - 1)
    scored = cell.clients if not unit.pools else 1
    seconds = len(unit.evaluated) * scored * (unit.y.size - n_rows) * per_row * costs.PER_SCORE
    if unit.pools:
        seconds += n_rows * len(unit.sets) * (unit.arity.size - cell.n + 1) * costs.PER_COUNT
        seconds += noisy_numbers(unit) * costs.PER_DRAW
    if cell.weighted:
        steps = min(cell.max_iterations, costs.TYPICAL_ITERATIONS)
        if cell.in_rounds and cell.solver.local_steps:
            steps = cell.solver.local_steps
        repeats = cell.solver.rounds if cell.in_rounds else 1
        weights = int(unit.bounds(unit.sets, unit.granularity)[-1])
        seconds += repeats * (1 + steps * costs.EVALUATIONS) * n_rows * per_row * costs.PER_STEP
        seconds += repeats * (4 + 2 * steps) * cell.clients * weights * costs.PER_WEIGHT
    return float(seconds)


def available_memory() -> int | None:
    """Return the bytes a new process may use on this machine, or None where nothing says so."""
    limits = []
    with contextlib.suppress(OSError, KeyError, ValueError):
        limits.append(_numbers(_MEMINFO)["MemAvailable:"] * 1024)
    for group in _control_groups():
        with contextlib.suppress(OSError, KeyError, ValueError):
            limit = int((group / "memory.max").read_text())  # a ValueError for "max", no limit
            used = int((group / "memory.current").read_text())
            # files that are cached count as used, but make room
            limits.append(limit - used + _numbers(group / "memory.stat")["inactive_file"])
    return min(limits, default=None)


_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def _control_groups() -> Iterator[Path]:
    """Yield the control groups (version 2) of this process, from its own to the outermost."""
    own = ""
    with contextlib.suppress(OSError):
        own = next((line for line in _OWN_CGROUP.read_text().splitlines() if line.startswith("0::")), "")
    group = _CGROUP / own.removeprefix("0::").lstrip("/")
    while True:
        yield group
        if group == _CGROUP:
            return
        group = group.parent


def _numbers(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    fields = [line.split() for line in path.read_text().splitlines()]
    return {name: int(number) for name, number, *_ in fields}


def refuse_too_large(plans: Iterable[tuple[Cell, CellPlan]], hosts_here: int, available: int | None) -> None:
    """Refuse cells that do not fit this machine's memory.

    Parameters
    ----------
    plans : iterable of (Cell, CellPlan)
    hosts_here : int
        Hosts that share this machine with rank 0.
    available : int or None
        Bytes that are free.

    Raises
    ------
    ConfigError
        Names the first cell that does not fit, both sizes and what helps.
    """
    if available is None:
        return
    for cell, plan in plans:
        needed = plan.server_bytes + plan.host_bytes * hosts_here
        if needed > available:
            raise ConfigError(
                f"expected a plan within {available / MIB:,.0f} MiB of free memory, got {needed / MIB:,.0f} MiB "
                f'for {cell}: evaluate = "last", a smaller block_mib, transport = "reduce" or fewer ranks '
                "per machine help"
            )
