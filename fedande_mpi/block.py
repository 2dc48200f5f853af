"""A block of parent sets, as a host works on it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import indexing, local, touched
from fedande_mpi.unit import Unit

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass
class Block:
    """The state of one block of parent sets on a host.

    Attributes
    ----------
    at : (B,) int64
        Their positions among all of the unit.
    sets : (B, n) int64
    layout : Layout
    theta : Theta
    bounds : (B + 1,) int64
        Where each begins in a row of weights, and the end.
    """

    at: IntArray
    sets: IntArray
    layout: touched.Layout
    theta: local.Theta
    bounds: IntArray
    indices: dict[tuple[int, int, int], indexing.Indices] = field(default_factory=dict)
    """Of the test rows, by first row, first set and end: the same in every round."""
    indexed: int = 0
    """Bytes of them."""


def make_block(unit: Unit, at: IntArray, max_rows: int) -> Block:
    """Return the block of the sets at some positions; its clients have at most so many rows."""
    sets = unit.sets[at]
    layout = touched.layout(sets, unit.arity, unit.n_classes)
    return Block(at, sets, layout, theta_of(unit, layout, max_rows), unit.bounds(sets, unit.granularity))


def theta_of(
    unit: Unit, layout: touched.Layout, max_rows: int, pooled: FloatArray | None = None
) -> local.Theta:
    """Return where log-probabilities come from: the clients' own counts, or a pooled model of these sets."""
    bounds = None if pooled is None else unit.bounds(layout.parents, "parameter")[:-1]
    return local.theta_rule(
        unit.arity,
        layout.n_states,
        unit.n_classes,
        unit.cell.smoothing,
        unit.cell.pseudocount,
        max_rows,
        pooled,
        bounds,
    )
