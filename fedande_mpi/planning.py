"""What a run will cost before it starts: work per rank, bytes per round, memory."""

from __future__ import annotations

import numpy as np

from fedande_mpi import ande
from fedande_mpi.arrangement import Arrangement, arrange
from fedande_mpi.unit import Unit


def arrange_unit(unit: Unit, n_ranks: int) -> Arrangement:
    """Choose who computes what of a unit on `n_ranks` ranks (one rank is server and host)."""
    cell = unit.cell
    bounds = unit.bounds(unit.sets, unit.granularity)
    if unit.pools and cell.weighted:
        bounds = np.maximum(bounds, unit.bounds(unit.sets, "parameter"))
    widths = np.diff(bounds)
    n_children = unit.arity.size - cell.n
    cells = np.array([ande.n_cells(parents, unit.arity) for parents in unit.sets], dtype=np.float64)
    rows = float(unit.n_rows.sum())
    # per set: going through the rows, and through the weights
    set_costs = rows * (n_children + 1) * 7.0 + cells * cell.clients
    client_costs = unit.n_rows + 0.01 * rows / cell.clients
    pooled_only = unit.pools and not cell.weighted
    return arrange(
        max(1, n_ranks - 1),
        client_costs,
        set_costs,
        widths,
        shared_share=0.7 if pooled_only else 0.0,
        shards=cell.shards,
        gather=cell.transport == "gather",
        block_bytes=cell.block_mib * 2**20,
    )
