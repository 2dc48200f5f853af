"""Running an experiment: its cells, their folds, and a file for each cell that always says what is done."""

from __future__ import annotations

import datetime
import json
import platform
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from fedande_mpi import cll, evaluation, jit, local
from fedande_mpi.cell import Cell
from fedande_mpi.comm import Communicator, SerialComm, ending_job
from fedande_mpi.config import Experiment
from fedande_mpi.datasets import Dataset
from fedande_mpi.federation import UnitResult, run_unit
from fedande_mpi.jobs import Job, Library, make_unit, prepare
from fedande_mpi.planning import (
    arrange_unit,
    available_memory,
    communication_bytes,
    refuse_too_large,
)
from fedande_mpi.progress import Progress, Silent
from fedande_mpi.results import check_writable, open_cell, write_cell
from fedande_mpi.sidecar import Predictions, Weights, write_sidecar
from fedande_mpi.unit import Unit


@cache
def versions() -> str:
    """Return the versions of all that bears on a result, as JSON."""
    names = ["fedande-mpi", "numpy", "scipy", "numba", "h5py", "mpi4py", "mpich"]
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return json.dumps(found)


def run_experiment(
    experiment: Experiment,
    output: str | Path,
    comm: Communicator | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[float], Progress] | None = None,
    poll: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Run what is missing of an experiment; collective.

    Parameters
    ----------
    experiment : Experiment
        Only rank 0's counts.
    output : str or Path
        Directory of the cells' files; made when absent.
    comm : Communicator, optional
        All ranks of the job; this process alone by default.
    overwrite : bool
        Compute complete units again. A file keeps its old content until the first unit is done.
    progress : callable
        Makes the progress display from the total cost; none by default.
    poll : callable
        Called often; may raise to end the run. What is complete is on disk by then.

    Returns
    -------
    list of Path
        The cells' files, on rank 0; empty elsewhere.

    Raises
    ------
    FedandeError
        See the subclasses; nothing that was complete is lost. With several ranks the error is printed and
        the whole job ends, whichever rank it is on.
    """
    comm = SerialComm() if comm is None else comm
    with ending_job(comm):
        if comm.rank != 0:
            _work(comm, poll)
            return []
        return _serve(experiment, Path(output), comm, overwrite, progress, poll)


def _serve(
    experiment: Experiment,
    output: Path,
    comm: Communicator,
    overwrite: bool,
    progress: Callable[[float], Progress] | None,
    poll: Callable[[], None],
) -> list[Path]:
    """Do rank 0's part of `run_experiment`."""
    check_writable(output)
    library = Library()
    jobs = prepare(experiment, output, comm.size, library, overwrite=overwrite)
    hosts_here = min(comm.ranks_here, comm.size) - 1
    refuse_too_large(
        [(job.cell, job.plan) for job in jobs if job.units], max(hosts_here, 0), available_memory()
    )
    total = sum(job.plan.seconds * len(job.units) for job in jobs)
    shown = progress(total) if progress is not None else Silent()
    with shown:
        for note in experiment.skipped():
            shown.note(note)
        _compile(comm, needed=any(job.units for job in jobs))
        for job in jobs:
            _run_cell(comm, job, library(job.cell), output, shown, poll, overwrite=overwrite)
    comm.share(("stop", None))
    return [output / f"{job.info.name}.h5" for job in jobs]


def _compile(comm: Communicator, *, needed: bool) -> None:
    """Have one rank compile for all when the machine code is not in the cache yet."""
    if comm.size > 1 and needed and not jit.is_cached(local.run_pairs, evaluation.score):
        warm_up()
    comm.share(("start", None))


def warm_up() -> None:
    """Run every compiled loop once, on next to nothing."""
    for method in ("discriminative", "generative"):
        cell = Cell(dataset="", n=1, method=method, scope="federated", clients=1)
        X = np.array([[0, 1], [1, 0], [0, 0]], dtype=np.int32)
        unit = Unit(
            cell,
            X,
            np.array([0, 1, 0], dtype=np.int32),
            np.array([2, 2]),
            2,
            "",
            np.array([0, 0, -1], dtype=np.int32),
            0,
            0,
        )
        run_unit(SerialComm(), unit, arrange_unit(unit, 1))


def _work(comm: Communicator, poll: Callable[[], None]) -> None:
    """Compute the units that rank 0 announces."""
    dataset: Dataset | None = None
    while True:
        message: tuple[str, Any] = comm.share(None)
        kind, content = message
        if kind == "data":
            dataset = content
        elif kind == "unit":
            cell, repeat, fold = content
            assert dataset is not None
            unit, _ = make_unit(cell, dataset, repeat, fold)
            run_unit(comm, unit, arrange_unit(unit, comm.size), poll)
        elif kind == "stop":
            return
        poll()


def _run_cell(
    comm: Communicator,
    job: Job,
    dataset: Dataset,
    output: Path,
    progress: Progress,
    poll: Callable[[], None],
    *,
    overwrite: bool,
) -> None:
    cell = job.cell
    if not job.units:
        progress.note(f"{cell}: complete")
        return
    comm.share(("data", dataset))
    stored = open_cell(output, job.info, overwrite=overwrite)
    if job.plan.arrangement.idle:
        progress.note(f"{cell}: {job.plan.arrangement.idle} of {comm.size} ranks have no work")
    for repeat, fold in job.units:
        progress.unit(f"{cell} repeat {repeat} fold {fold}")
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        begin = time.perf_counter()
        comm.share(("unit", (cell, repeat, fold)))
        unit, test_fold = make_unit(cell, dataset, repeat, fold)
        arrangement = arrange_unit(unit, comm.size)
        done = 0.0

        def got_on(share: float) -> None:
            nonlocal done
            done += share
            progress.advance(share * job.plan.seconds)

        def look(progress: Progress = progress) -> None:
            poll()
            progress.advance(0.0)

        result = run_unit(comm, unit, arrangement, look, got_on)
        assert result is not None
        values = dict(_values(unit, result))
        values["/folds/test_fold"] = test_fold
        values["/timing/unit"] = time.perf_counter() - begin
        values |= {
            "/provenance/mpi_size": comm.size,
            "/provenance/shards": arrangement.n_shards,
            "/provenance/hostname": platform.node(),
            "/provenance/versions": versions(),
            "/provenance/started": started,
        }
        if cell.save:
            write_sidecar(output, stored, repeat, fold, **_saved(unit, result))
        stored.record(repeat, fold, values)
        write_cell(output, stored)
        progress.advance(job.plan.seconds * max(0.0, 1.0 - done))


def _values(unit: Unit, result: UnitResult) -> Iterator[tuple[str, Any]]:
    """Yield the datasets of a unit."""
    for at, name in enumerate(evaluation.METRICS):
        yield f"/test/{name}", result.metrics[:, at]
    yield "/train/objective", result.objective
    yield "/train/iterations", result.iterations
    yield "/train/evaluations", result.evaluations
    yield "/train/stop_reason", result.stop_reason
    down, up = communication_bytes(unit)
    yield "/communication/bytes_down", down
    yield "/communication/bytes_up", up
    for name, seconds in result.seconds.items():
        yield f"/timing/{name}", seconds
    yield "/timing/server_cpu", result.server_cpu
    yield "/timing/server_wall", result.server_wall
    yield "/folds/owner", unit.owner


def _saved(unit: Unit, result: UnitResult) -> dict[str, Any]:
    saved: dict[str, Any] = {}
    if "weights" in unit.cell.save and result.weights:
        weights = result.weights
        if unit.granularity == "attribute":
            o = unit.n_classes
            weights = [
                rows.reshape(rows.shape[0], -1, o)[:, cll.cell_groups(parents, unit.arity)].reshape(
                    rows.shape[0], -1
                )
                for rows, parents in zip(weights, unit.sets, strict=True)
            ]
        saved["weights"] = Weights(
            np.concatenate(weights, axis=1),
            unit.bounds(unit.sets, "parameter"),
            unit.sets,
            unit.arity,
        )
    if "predictions" in unit.cell.save and result.posterior is not None:
        saved["predictions"] = Predictions(result.posterior, np.flatnonzero(unit.owner < 0), unit.held_out.y)
    return saved
