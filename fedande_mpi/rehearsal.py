"""The compiled loops, called once on next to nothing, so that they are on disk before the work begins."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import IO, Any, NamedTuple, cast

import numpy as np

from fedande_mpi import aggregation, cll, evaluation, indexing, jit, lbfgs, local
from fedande_mpi.cell import Cell
from fedande_mpi.federation import run_unit
from fedande_mpi.launching import available_cores
from fedande_mpi.planning import arrange_unit
from fedande_mpi.serial import SerialComm
from fedande_mpi.unit import Unit


def loops(cell: Cell, *, long_pairs: bool = False) -> list[Callable[..., Any]]:
    """Return the compiled functions that Python calls for the units of a cell: what has to be on disk.

    ``long_pairs`` says that there may be pairs that take several calls, see `planning.CellPlan`.
    """
    found: list[Callable[..., Any]] = [indexing.index_sets, evaluation.score]
    if cell.scope == "federated" and cell.method != "discriminative":
        found.append(local.count_pairs)
    if not cell.weighted:
        return found
    compiled = cell.optimizer == "compiled"
    in_batches = cell.in_rounds and cell.solver.local_steps > 0 and compiled
    if in_batches:
        found += [local.run_pairs, aggregation.add_terms]
    if long_pairs or not in_batches:
        found += [local.allocate, lbfgs.allocate, local.prepare, local.finish]
        found += [lbfgs.begin, lbfgs.advance] if compiled else [cll.objective]
    return found


class Rehearsal(NamedTuple):
    """A unit on next to nothing, which learns or scores."""

    method: str
    scope: str
    optimizer: str
    local_steps: int
    scores: bool


Part = Sequence[Rehearsal]
"""Rehearsals that have loops in common."""


def parts(cells: Iterable[tuple[Cell, bool]]) -> list[Part]:
    """Return what compiles the loops of some cells, each with whether it has long pairs.

    The parts can be compiled by processes side by side: no loop that takes long belongs to two of them. The longest
    comes first. A short loop that does is compiled with the same types in both, or the cache would mix them up.
    """
    called = {loop for cell, long_pairs in cells for loop in loops(cell, long_pairs=long_pairs)}
    if not called:
        return []
    learning = Rehearsal("discriminative", "federated", "compiled", 1, scores=False)
    found: list[Part] = [[learning]] if local.run_pairs in called else []
    optimizers = {"compiled": lbfgs.advance, "scipy": cll.objective}
    to_the_end = [
        learning._replace(optimizer=name, local_steps=0)
        for name, loop in optimizers.items()
        if loop in called
    ]
    if to_the_end:
        found.append(to_the_end)
    scope = "federated" if local.count_pairs in called else "local"
    return [*found, [Rehearsal("generative", scope, "compiled", 0, scores=True)]]


def rehearse(part: Part) -> None:
    """Compile what is not on disk yet of a part, and load the rest."""
    with jit.compiling():
        for rehearsal in part:
            if rehearsal.scores:
                # first, as those who learn need it too: by then it is on disk
                average()
            unit = _unit(rehearsal)
            run_unit(SerialComm(), unit, arrange_unit(unit, 1))


_PROGRAM = """
import pickle, sys
from fedande_mpi.rehearsal import rehearse
for part in pickle.load(sys.stdin.buffer):
    rehearse(part)
"""


@contextmanager
def beside(parts: Sequence[Part]) -> Iterator[Callable[[], bool]]:
    """Have a process of its own rehearse some parts; yield a function that says whether it still does.

    It ends with the block at the latest. What it did not come to is left to who needs it, and so is all where there
    is one core.
    """
    if not parts or available_cores() < 2 or not sys.executable:
        yield lambda: False
        return
    try:
        # a plain program: what multiprocessing starts would run a user's script again
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        yield lambda: False
        return
    try:
        with suppress(OSError), cast(IO[bytes], process.stdin) as pipe:
            pipe.write(pickle.dumps(parts))  # shorter than what a pipe holds
        yield lambda: process.poll() is None
    finally:
        process.kill()
        process.wait()


def average() -> None:
    """Do what the server does once a round, on one weight."""
    aggregation.server_step(np.ones((1, 1)), np.ones(1), 1.0, np.array([0, 1]))


def warm_up(cells: Iterable[tuple[Cell, bool]]) -> None:
    """Compile the loops of some cells in this process; each says whether it has long pairs."""
    for part in parts(cells):
        rehearse(part)


def _unit(rehearsal: Rehearsal) -> Unit:
    """Make a unit of three rows and two attributes; only where it scores one of the rows is a test row."""
    method, scope, optimizer, local_steps, scores = rehearsal
    X = np.array([[0, 1], [1, 0], [0, 0]], dtype=np.int32)
    y, owner = np.array([0, 1, 0], dtype=np.int32), np.array([0, 0, -int(scores)], dtype=np.int32)
    cell = Cell(dataset="", n=1, method=method, scope=scope, clients=1, optimizer=optimizer)
    if cell.weighted:
        solver: dict[str, Any] = {method: replace(cell.solver, rounds=1, local_steps=local_steps)}
        cell = replace(cell, **solver)
    return Unit(cell, X, y, np.array([2, 2]), 2, "", owner, 0, 0)
