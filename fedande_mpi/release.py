"""What clients release of their counts, and the pooled model that is made of it.

Only the sum over clients is used, so the sum of their noises is drawn at once: exact in distribution and C
times fewer draws. Every draw has the stream of its table, whoever makes it. Noisy tables are clipped at 0,
smoothed, and each normalised by its own sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isinf
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import ande, privacy
from fedande_mpi.cell import Generative
from fedande_mpi.errors import ConfigError
from fedande_mpi.unit import Unit

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Release = Callable[[int, IntArray, FloatArray], FloatArray]
"""From a parent set's position, its attributes and summed counts (n_cells, o) to its pooled log-probabilities."""


def pooled_release(unit: Unit) -> Release:
    """Return how a unit's summed counts become the pooled model.

    Raises
    ------
    ConfigError
        For noisy joint tables of rows with missing values: a joint table counts only rows where all its
        attributes are present, so its marginals are not the tables of the model.
    """
    cell = unit.cell
    noisy: Callable[[int, IntArray, FloatArray], FloatArray]
    if isinf(_section(unit).epsilon):
        noisy = _exact
    elif _section(unit).sensitivity == "joint":
        if (unit.X < 0).any():
            raise ConfigError(
                'expected sensitivity = "paper" with missing = "ignore", got "joint": marginals of joint '
                'tables are not the model\'s tables when values are missing; use missing = "value"'
            )
        noisy = _JointNoise(unit)
    else:
        noisy = _PaperNoise(unit)

    def release(index: int, parents: IntArray, counts: FloatArray) -> FloatArray:
        released = np.maximum(noisy(index, parents, counts), 0.0)
        return ande.log_theta(released, parents, unit.arity, cell.smoothing, cell.pseudocount)

    return release


def released_numbers(unit: Unit) -> int:
    """Return how many counts one client sends.

    Class counts go once, not once per parent set; under the (noisy) joint release only the (n+1)-attribute
    tables.
    """
    cell, o = unit.cell, unit.n_classes
    if _section(unit).sensitivity == "joint" and not isinf(_section(unit).epsilon):
        sets = privacy.joint_sets(unit.arity.size, cell.n)
        return int(np.prod(unit.arity[sets], axis=1, dtype=np.int64).sum()) * o
    cells = int((ande.cells_per_set(unit.sets, unit.arity) - 1).sum())
    return o + cells * o


def _section(unit: Unit) -> Generative:
    section = unit.cell.section
    assert isinstance(section, Generative)
    return section


def _exact(index: int, parents: IntArray, counts: FloatArray) -> FloatArray:
    return counts


class _Noise:
    """Draws of one unit, each from the stream of its table."""

    def __init__(self, unit: Unit) -> None:
        cell = unit.cell
        section = _section(unit)
        self.unit = unit
        self.mechanism = section.mechanism
        delta = privacy.sensitivity(unit.arity.size, cell.n, cast(Any, section.sensitivity))
        self.scale = privacy.noise_scale(section.epsilon, delta)
        self.participants = int((unit.n_rows > 0).sum())

    def draw(self, table: tuple[int, int], size: int) -> FloatArray:
        unit, cell = self.unit, self.unit.cell
        rng = privacy.noise_stream(
            cell.seed, unit.digest, cell.n, cell.clients, unit.repeat, unit.fold, None, table
        )
        return privacy.noise(cast(Any, self.mechanism), self.scale, self.participants, size, rng).astype(
            np.float64
        )


class _PaperNoise(_Noise):
    """Class counts once, and every table of every parent set."""

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit)
        self.classes = self.draw((privacy.Table.CLASS_COUNTS, 0), unit.n_classes)

    def __call__(self, index: int, parents: IntArray, counts: FloatArray) -> FloatArray:
        noisy = counts.copy()
        noisy[0] += self.classes
        noise = self.draw((privacy.Table.SPNDE, index), counts[1:].size)
        noisy[1:] += noise.reshape(counts[1:].shape)
        return noisy


class _JointNoise(_Noise):
    """Every (n+1)-attribute table once; what a parent set needs are marginals of those that contain it."""

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit)
        sets = privacy.joint_sets(unit.arity.size, unit.cell.n)
        self.index = {tuple(int(j) for j in members): at for at, members in enumerate(sets)}
        self.class_counts: FloatArray | None = None

    def table(self, members: tuple[int, ...]) -> FloatArray:
        """Return the noise of one joint table, shape (o, product of its arities)."""
        size = int(np.prod(self.unit.arity[list(members)]))
        draws = self.draw((privacy.Table.JOINT, self.index[members]), self.unit.n_classes * size)
        return draws.reshape(self.unit.n_classes, size)

    def __call__(self, index: int, parents: IntArray, counts: FloatArray) -> FloatArray:
        arity, o = self.unit.arity, self.unit.n_classes
        exact = ande.unpack(counts, parents, arity, o)
        if self.class_counts is None:
            noises = {members: self.table(members) for members in self.index}
            noise = privacy.class_counts_from_joint(noises, arity, self.unit.cell.n)
            self.class_counts = exact["prior"] + noise
        joint: dict[tuple[int, ...], FloatArray] = {}
        for j in ande.children_of(parents, arity.size):
            members = tuple(sorted((*map(int, parents), int(j))))
            joint[members] = _joint_counts(exact, members, parents, arity) + self.table(members)
        parent_counts, children = privacy.tables_from_joint(parents.tolist(), joint, arity, o)
        noisy = np.empty_like(counts)
        tables = ande.unpack(noisy, parents, arity, o)
        tables["prior"][:] = self.class_counts
        if "parents" in tables:
            tables["parents"][...] = parent_counts
        for j, table in children.items():
            tables[f"child{j}"][...] = table
        return noisy


def _joint_counts(
    exact: Mapping[str, FloatArray], members: tuple[int, ...], parents: IntArray, arity: IntArray
) -> FloatArray:
    """Rearrange a child's table (o, q, arity_j) as the joint table (o, product of arities, ascending)."""
    (child,) = set(members) - set(map(int, parents))
    table = exact[f"child{child}"]
    o = table.shape[0]
    sizes = [int(arity[j]) for j in parents]
    cube = table.reshape(o, *sizes, int(arity[child]))
    return np.moveaxis(cube, -1, 1 + members.index(child)).reshape(o, -1)
