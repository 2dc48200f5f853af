"""One unit of work, a fold of a repeat of one cell, and how ranks account for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import ande, evaluation
from fedande_mpi.cell import Cell
from fedande_mpi.programs import Program

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Unit:
    """What has to be computed: one fold of one repeat of one cell.

    Attributes
    ----------
    cell : Cell
        The resolved configuration.
    X, y : (m, d), (m,) int32
        Attribute codes (-1 where missing) and class codes.
    arity : (d,) int64
        Number of values of each attribute.
    n_classes : int
        o.
    digest : str
        SHA-256 of the data set, part of the noise's key.
    owner : (m,) int32
        Client of each row, -1 for the test rows.
    repeat, fold : int
    """

    cell: Cell
    X: NDArray[np.int32]
    y: NDArray[np.int32]
    arity: IntArray
    n_classes: int
    digest: str
    owner: NDArray[np.int32]
    repeat: int
    fold: int

    @cached_property
    def sets(self) -> IntArray:
        """All parent sets, shape ``(|P|, n)``."""
        return ande.parent_sets(self.arity.size, self.cell.n)

    @cached_property
    def n_rows(self) -> IntArray:
        """Training rows of each client, shape ``(C,)``."""
        counts = np.bincount(self.owner[self.owner >= 0], minlength=self.cell.clients)
        return counts.astype(np.int64)

    @cached_property
    def held_out(self) -> evaluation.HeldOut:
        """The test rows, in the data set's order."""
        rows = self.owner < 0
        return evaluation.HeldOut(np.ascontiguousarray(self.X[rows]), np.ascontiguousarray(self.y[rows]))

    @property
    def pools(self) -> bool:
        """Whether the clients send their counts and get a pooled model."""
        return self.cell.scope == "federated" and self.cell.method != "discriminative"

    @cached_property
    def evaluated(self) -> tuple[int, ...]:
        """Positions in ``cell.rounds`` of the rounds that are scored."""
        positions = range(len(self.cell.rounds))
        return tuple(positions) if self.cell.evaluate == "all" else (len(positions) - 1,)

    @property
    def keeps_weights(self) -> bool:
        """Whether its weights are saved; a generative model has none."""
        return self.cell.weighted and "weights" in self.cell.save

    @property
    def trained(self) -> range:
        """Positions in ``cell.rounds`` of the rounds in which weights are learned."""
        if not self.cell.weighted:
            return range(0)
        return range(1, len(self.cell.rounds)) if self.cell.in_rounds else range(1)

    @property
    def granularity(self) -> str:
        """Granularity of the weights; what pools counts has a number for every parameter."""
        return self.cell.solver.granularity if self.cell.weighted else "parameter"

    def bounds(self, sets: IntArray, granularity: str) -> IntArray:
        """Return where each set begins in a row of numbers, and the end, shape ``(B + 1,)``."""
        sizes = ande.cells_per_set(sets, self.arity, granularity) * self.n_classes
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


class Clock:
    """Seconds per round and purpose."""

    def __init__(self, n_rounds: int) -> None:
        self.seconds = {name: np.zeros(n_rounds) for name in ("local", "wait", "evaluate", "aggregate")}
        self._scoring = 0.0
        """The sum of those in ``evaluate``."""

    @contextmanager
    def __call__(self, name: str, position: int) -> Iterator[None]:
        """Book the time of a ``with`` block."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - begin
            self.seconds[name][position] += passed
            if name == "evaluate":
                self._scoring += passed

    def waiting(self, program: Program[None], position: int) -> Program[None]:
        """Run a program and book the time it waits, without what is scored meanwhile."""
        begin = time.perf_counter()
        scored = self._scoring
        yield from program
        scored = self._scoring - scored
        self.seconds["wait"][position] += max(0.0, time.perf_counter() - begin - scored)


class Where:
    """What a rank is doing, for the message of an error."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.client: int | None = None
        self.parents: tuple[int, ...] | None = None
        self.round: int | None = None

    def __str__(self) -> str:
        parts = [f"rank {self.rank}"]
        if self.client is not None:
            parts.append(f"client {self.client}")
        if self.parents is not None:
            parts.append(f"parent set {self.parents}")
        if self.round is not None:
            parts.append(f"round {self.round}")
        return ", ".join(parts)
