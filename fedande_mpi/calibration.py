"""How fast this machine is beside the one that the planned seconds come from."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from fedande_mpi import jit
from fedande_mpi.federation import run_unit
from fedande_mpi.planning import arrange_unit, estimated_seconds
from fedande_mpi.rehearsal import loops
from fedande_mpi.serial import SerialComm
from fedande_mpi.unit import Unit

_SECONDS = 0.4
"""Planned length of the measured work; with a first run that loads the compiled code about a second in all."""


def calibrate(unit: Unit) -> float | None:
    """Measure how long a small piece of work in the shape of a unit takes beside its estimate.

    Rows are made up: as many for a client as the unit has, with the arities of its first attributes. Takes about
    a second.

    Parameters
    ----------
    unit : Unit
        Its rows need not exist.

    Returns
    -------
    float or None
        Measured seconds over estimated ones; None while there is no compiled code on disk, as compiling it would
        take longer than what is to be planned.
    """
    if not jit.is_cached(*loops(unit.cell)):
        return None
    per_client = max(1, int(unit.n_rows.max(initial=1)))
    # the largest shape whose first client is planned to take no longer than the measurement may
    shapes = [(more, arity) for more in (6, 4, 2, 1) for arity in (10, 4, 2)]
    samples = (_sample(unit, per_client, *shape) for shape in shapes)
    at, first = next(
        (found for found in enumerate(samples) if estimated_seconds(found[1]) <= _SECONDS),
        (len(shapes) - 1, _sample(unit, per_client, *shapes[-1])),
    )
    _seconds(first)
    sample = _sample(unit, int(per_client * max(1.0, _SECONDS / estimated_seconds(first))), *shapes[at])
    return _seconds(sample) / estimated_seconds(sample)


def _seconds(unit: Unit) -> float:
    """Compute a unit in this process and return its seconds in local steps and scores."""
    begin = time.process_time()
    run_unit(SerialComm(), unit, arrange_unit(unit, 1))
    return time.process_time() - begin


def _sample(unit: Unit, n_rows: int, more: int, most_values: int) -> Unit:
    """Make a small unit in the shape of another.

    It has about so many training rows, at most 5,000, n + `more` attributes and at most so many values of each.
    """
    d = min(unit.arity.size, unit.cell.n + more)
    per_client = max(1, int(unit.n_rows.max(initial=1)))
    n_rows = min(n_rows, 5_000)
    n_clients = max(1, n_rows // per_client)
    m = n_rows + max(1, n_rows // 4)
    chance = np.random.Generator(np.random.PCG64(0))
    arity = np.minimum(unit.arity[:d], most_values)
    owner = np.full(m, -1, dtype=np.int32)
    owner[:n_rows] = np.arange(n_rows) % n_clients
    solver: dict[str, Any] = (
        {unit.cell.method: replace(unit.cell.solver, rounds=2)} if unit.cell.weighted else {}
    )
    cell = replace(unit.cell, clients=n_clients, save=(), max_iterations=50, checkpoint_minutes=0.0, **solver)
    return Unit(
        cell=cell,
        X=chance.integers(0, arity, (m, d)).astype(np.int32),
        y=chance.integers(0, unit.n_classes, m).astype(np.int32),
        arity=arity,
        n_classes=unit.n_classes,
        digest="0" * 64,
        owner=owner,
        repeat=0,
        fold=0,
    )
