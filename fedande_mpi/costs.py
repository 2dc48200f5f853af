"""Seconds that things take on one core: orders of size, for plans and for calls that stay short.

From the whole folds of docs/performance.md. `fedande_mpi.calibration` measures how far a machine
is from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

CALL_SECONDS = 0.15
"""Aim for one compiled call, by costs that may be three times as much; signals and other ranks' failures are noticed
between calls. A (client, parent set) pair of more than twice that does some iterations per call."""

PER_STEP = 1.0e-9
"""An evaluation of the objective: per row, factor and class difference (0.4 for many classes, 2.6 for tiny clients)."""

PER_SCORE = 0.8e-9
"""Scoring: per test row, factor and class difference."""

PER_WEIGHT = 0.5e-9
"""The optimiser: per weight and pass over the weights; 4 passes, and 2 for an iteration."""

PER_COUNT = 3.0e-9
"""Counting: per row and factor."""

PER_DRAW = 1.2e-7
"""Noise: per number."""

EVALUATIONS = 1.25
"""Evaluations of the objective for an iteration of the optimiser."""

TYPICAL_ITERATIONS = 300
"""Of a solve until convergence."""


def pair_seconds(n_rows: ArrayLike, width: int, o: int, n_cells: int, iterations: int) -> Any:
    """Return the seconds of a pair's local steps; ``n_rows`` may be an array.

    A row has `width` factors, and touches some of `n_cells` cells, of o weights each.
    """
    evaluations = PER_STEP * width * max(1, o - 1) * EVALUATIONS * iterations
    return np.asarray(n_rows) * evaluations + 1e-5 + PER_WEIGHT * n_cells * o * (4 + 2 * iterations)
