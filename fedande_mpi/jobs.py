"""From an experiment to jobs: its cells with their data, files and plans, and the folds still to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import ande
from fedande_mpi.calibration import calibrate
from fedande_mpi.cell import Cell
from fedande_mpi.cellfile import stored_cell
from fedande_mpi.config import Experiment
from fedande_mpi.datasets import Dataset, discretise, load_dataset
from fedande_mpi.errors import ConfigError
from fedande_mpi.partition import client_owners, stratified_folds
from fedande_mpi.planning import MIB, CellPlan, plan_unit
from fedande_mpi.release import pooled_release
from fedande_mpi.results import CellInfo
from fedande_mpi.synthetic import Synthetic
from fedande_mpi.unit import Unit


@dataclass(frozen=True)
class Job:
    """One cell that has to be computed: which of its units are missing, and what they take."""

    cell: Cell
    info: CellInfo
    units: tuple[tuple[int, int], ...]
    plan: CellPlan


def make_unit(cell: Cell, dataset: Dataset, repeat: int, fold: int) -> tuple[Unit, NDArray[np.int32]]:
    """Split a data set for one fold of one repeat of a cell.

    Returns
    -------
    unit : Unit
    test_fold : (m,) array of int32
        The fold that holds each row out.
    """
    test_fold = stratified_folds(dataset.y, cell.folds, seed=cell.seed, repeat=repeat)
    owner = client_owners(
        dataset.y,
        test_fold,
        fold,
        cell.clients,
        seed=cell.seed,
        repeat=repeat,
        allow_empty=cell.allow_empty,
    )
    if dataset.numeric:
        assert cell.bins is not None
        dataset = discretise(dataset, np.flatnonzero(owner >= 0), cell.bins)
    unit = Unit(
        cell=cell,
        X=dataset.X,
        y=dataset.y,
        arity=dataset.arity,
        n_classes=dataset.n_classes,
        digest=dataset.digest,
        owner=owner,
        repeat=repeat,
        fold=fold,
    )
    return unit, test_fold


class _Outline(Unit):
    """The first unit of a cell whose rows nobody has made: its sizes alone, dealt as `make_unit` deals."""

    @cached_property
    def n_rows(self) -> NDArray[np.int64]:
        """Training rows of each client, shape ``(C,)``; the larger clients first."""
        trained = self.y.size - ceil(self.y.size / self.cell.folds)
        share, left = divmod(trained, self.cell.clients)
        return share + (np.arange(self.cell.clients) < left).astype(np.int64)


def outline(cell: Cell) -> Unit | None:
    """Return a unit to plan with, without rows, where the source declares all sizes; else None.

    A ``synthetic:`` source does: a plan of any size takes no memory for its rows.
    """
    scheme, _, rest = cell.dataset.partition(":")
    if scheme != "synthetic":
        return None
    made = Synthetic.parse(rest)
    none = np.int32(0)
    return _Outline(
        cell=cell,
        X=np.broadcast_to(none, (made.m, made.d)),
        y=np.broadcast_to(none, made.m),
        arity=np.full(made.d, made.arity, dtype=np.int64),
        n_classes=made.o,
        digest="",
        owner=np.broadcast_to(none, made.m),
        repeat=0,
        fold=0,
    )


def load_for(cell: Cell) -> Dataset:
    """Load a cell's data set."""
    return load_dataset(
        cell.dataset,
        target=cell.target,
        data_dir=cell.data_dir,
        missing=cell.missing,  # type: ignore[arg-type]
        bins=cell.bins,
        nominal=cell.nominal,
    )


def data_key(cell: Cell) -> tuple[Any, ...]:
    """Return what tells apart the data sets of two cells."""
    return cell.dataset, cell.target, cell.data_dir, cell.missing, cell.bins, cell.nominal


def _check_size(cell: Cell, m: int, d: int) -> None:
    """Refuse, before any work, what a data set of m rows and d attributes is too small for."""
    ande.parent_sets(d, cell.n)
    if m < cell.folds:
        raise ConfigError(
            f"expected at least one row per fold, got {m} rows for {cell.folds} folds in {cell}"
        )
    training = m - ceil(m / cell.folds)
    if cell.clients > training and not cell.allow_empty:
        raise ConfigError(
            f"expected at most one client per training row, got {cell.clients} clients for {training} training "
            f"rows in {cell}: lower 'clients', or set allow_empty = true"
        )


def cell_info(cell: Cell, dataset: Dataset) -> CellInfo:
    """Return what a cell's file says about it."""
    epsilon = cell.epsilon
    private = epsilon is not None and epsilon != float("inf")
    return CellInfo(
        name=cell.stem(dataset.name, dataset.digest),
        dataset=dataset.name,
        dataset_sha256=dataset.digest,
        model=cell.model,
        n=cell.n,
        method=cell.method,
        scope=cell.scope,
        n_clients=cell.clients,
        epsilon=epsilon,
        epsilon_scope="counts" if private else "",
        sensitivity=str(cell.settings().get("sensitivity", "")),
        config=cell.to_toml(),
        config_sha256=cell.fingerprint(dataset.digest),
        rounds=cell.rounds,
        n_repeats=cell.repeats,
        n_folds=cell.folds,
        n_rows=dataset.n_instances,
        settings=cell.settings(),
    )


class Library:
    """The data sets of an experiment, each loaded once."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[Any, ...], Dataset] = {}

    def __call__(self, cell: Cell) -> Dataset:
        """Return the data set of a cell."""
        key = data_key(cell)
        if key not in self._loaded:
            self._loaded[key] = load_for(cell)
        return self._loaded[key]


def prepare(
    experiment: Experiment, output: Path | None, n_ranks: int, library: Library, *, overwrite: bool = False
) -> list[Job]:
    """Check every cell and find what is missing of it, before any work; only rank 0 needs to.

    Parameters
    ----------
    experiment : Experiment
    output : Path or None
        Directory of results; None plans everything.
    n_ranks : int
    library : Library
    overwrite : bool
        Compute complete units again.

    Raises
    ------
    FedandeError
        For whatever would stop the run later.
    """
    jobs = []
    for cell in experiment.cells():
        dataset = library(cell)
        _check_size(cell, dataset.n_instances, dataset.n_attributes)
        info = cell_info(cell, dataset)
        wanted = [(repeat, fold) for repeat in range(cell.repeats) for fold in cell.fold_numbers]
        if output is not None and not overwrite:
            stored = stored_cell(output, info)
            wanted = [unit for unit in wanted if not stored.is_complete(*unit)]
        unit, _ = make_unit(cell, dataset, 0, cell.fold_numbers[0])
        if unit.pools:
            pooled_release(unit)  # refuses what cannot be released
        jobs.append(Job(cell, info, tuple(wanted), plan_unit(unit, n_ranks)))
    return jobs


def shares(jobs: Sequence[Job], count: int) -> list[list[Job]]:
    """Split cells into shares of about equal cost; each is in the experiment's order.

    They are the same at any time: a cell counts with all its units, missing or not.
    """
    loads = [0.0] * count
    owner: dict[int, int] = {}
    costs = [job.plan.seconds * job.cell.repeats * len(job.cell.fold_numbers) for job in jobs]
    for at in sorted(range(len(jobs)), key=lambda at: -costs[at]):
        owner[at] = loads.index(min(loads))
        loads[owner[at]] += costs[at]
    return [[job for at, job in enumerate(jobs) if owner[at] == share] for share in range(count)]


def share_first(jobs: Sequence[Job], share: tuple[int, int]) -> list[Job]:
    """Order the cells for one of several tasks that share the work.

    Its own share comes first, then the other shares, beginning with the next task's, from their ends: there a
    task finds what the others come to last.

    Parameters
    ----------
    jobs : sequence of Job
    share : (int, int)
        Number of the share, from 0, and how many there are.
    """
    number, count = share
    split = shares(jobs, count)
    return split[number] + [
        job for step in range(1, count) for job in reversed(split[(number + step) % count])
    ]


def _n_units(cell: Cell) -> int:
    return cell.repeats * len(cell.fold_numbers)


def _first_unit(cell: Cell, library: Library) -> Unit:
    """Return a cell's first unit, of rows that are only declared where that will do."""
    unit = outline(cell)
    if unit is not None:
        _check_size(cell, unit.y.size, unit.arity.size)
        return unit
    dataset = library(cell)
    _check_size(cell, dataset.n_instances, dataset.n_attributes)
    return make_unit(cell, dataset, 0, cell.fold_numbers[0])[0]


def plan_text(experiment: Experiment, n_ranks: int) -> str:
    """Return what an experiment takes on `n_ranks` ranks, as text; allocates nothing of the work's size.

    Made-up data sets are not made. Seconds are those of this machine, by a measurement of about a second in the
    shape of the dearest cell.
    """
    library = Library()
    plans: list[tuple[Cell, CellPlan]] = []
    dearest: tuple[float, Unit] | None = None
    for cell in experiment.cells():
        unit = _first_unit(cell, library)
        plan = plan_unit(unit, n_ranks)
        plans.append((cell, plan))
        cost = plan.seconds * _n_units(cell)
        if dearest is None or cost > dearest[0]:
            dearest = cost, unit
    factor = calibrate(dearest[1]) if dearest is not None else None
    plans = [(cell, replace(plan, seconds=plan.seconds * (factor or 1.0))) for cell, plan in plans]
    measured = (
        "not measured here: there is no compiled code yet, which the first run makes"
        if factor is None
        else f"by a measurement on this machine: {factor:.2f} x the built-in estimate"
    )
    head = ("cell", "units", "|P|", "weights", "MiB/round", "grid", "MiB server", "MiB host", "core-seconds")
    rows = [head]
    for cell, plan in plans:
        rows.append(
            (
                str(cell),
                str(_n_units(cell)),
                f"{plan.n_sets:,}",
                f"{plan.n_weights:,}",
                f"{plan.bytes_per_round / MIB:,.1f}",
                f"{plan.arrangement.n_groups}x{plan.arrangement.n_shards}",
                f"{plan.server_bytes / MIB:,.0f}",
                f"{plan.host_bytes / MIB:,.0f}",
                f"{plan.seconds * _n_units(cell):,.1f}",
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    lines = []
    for first, *rest in rows:
        numbers = [text.rjust(width) for text, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *numbers]))
    units = sum(_n_units(cell) for cell, _ in plans)
    seconds = sum(plan.seconds * _n_units(cell) for cell, plan in plans)
    lines += [
        "",
        f"{len(plans)} cells, {units} units (folds), about {seconds:,.0f} core-seconds ({measured}); "
        f"{n_ranks} ranks: about {seconds / max(1, n_ranks - 1):,.0f} s",
        "grid: client groups x shards of the parent sets; memory: peak of one rank",
    ]
    if draws := sum(plan.draws * _n_units(cell) for cell, plan in plans):
        lines.append(f"noise: {draws:,} numbers are drawn in all, each once for the sum over the clients")
    lines += [f"skipped: {note}" for note in experiment.skipped()]
    return "\n".join(lines)
