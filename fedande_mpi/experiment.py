"""Running an experiment: its cells, their folds, and a file for each cell that always says what is done."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedande_mpi import jit, recording
from fedande_mpi.balance import Balance
from fedande_mpi.cell import Cell
from fedande_mpi.cellfile import CellFile, signature, stored_cell
from fedande_mpi.checkpoint import Checkpoint, checkpoint_path, checkpoints, remove_checkpoint
from fedande_mpi.config import Experiment
from fedande_mpi.datasets import Dataset
from fedande_mpi.federation import run_unit
from fedande_mpi.jobs import Job, Library, make_unit, prepare, share_first
from fedande_mpi.leaving import ending_job, stop_if_told
from fedande_mpi.links import Communicator
from fedande_mpi.planning import (
    arrange_unit,
    available_memory,
    refuse_too_large,
)
from fedande_mpi.progress import Progress, Silent
from fedande_mpi.rehearsal import Part, average, beside, loops, parts, rehearse
from fedande_mpi.reservation import Others, Reservation, reserve
from fedande_mpi.results import check_writable
from fedande_mpi.serial import SerialComm
from fedande_mpi.sidecar import write_sidecar
from fedande_mpi.storage import check_still_there, remove_abandoned
from fedande_mpi.unit import Unit

_LISTED = 10  # complete cells are named up to here, then counted
_NAP_SECONDS = 0.01  # between looks at a process that compiles
_PATIENCE = 60.0  # seconds that it may take beyond this one's part; then this one compiles the rest itself


def run_experiment(
    experiment: Experiment,
    output: str | Path,
    comm: Communicator | None = None,
    *,
    overwrite: bool = False,
    share: tuple[int, int] = (0, 1),
    progress: Callable[[float], Progress] | None = None,
    poll: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Run what is missing of an experiment; collective.

    Several jobs may do so in one directory at once: each claims the cell it computes, and leaves alone what
    another has claimed.

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
    share : (int, int)
        Begin with share i (from 0) of k, of about equal cost; what the others have not begun follows.
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
        return _serve(experiment, Path(output), comm, overwrite, share, progress, poll)


def _serve(
    experiment: Experiment,
    output: Path,
    comm: Communicator,
    overwrite: bool,
    share: tuple[int, int],
    progress: Callable[[float], Progress] | None,
    poll: Callable[[], None],
) -> list[Path]:
    """Do rank 0's part of `run_experiment`."""
    check_writable(output)
    remove_abandoned(output)
    library = Library()
    jobs = prepare(experiment, output, comm.size, library, overwrite=overwrite)
    poll()
    hosts_here = min(comm.ranks_here, comm.size) - 1
    refuse_too_large(
        [(job.cell, job.plan) for job in jobs if job.units], max(hosts_here, 0), available_memory()
    )
    total = sum(job.plan.seconds * len(job.units) for job in jobs)
    shown = progress(total) if progress is not None else Silent()
    with shown:
        for note in experiment.skipped():
            shown.note(note)
        _compile(comm, poll, [(job.cell, job.plan.long_pairs) for job in jobs if job.units])
        complete = [job for job in jobs if not job.units]
        if len(complete) > _LISTED:
            shown.note(f"{len(complete)} of {len(jobs)} cells are complete")
        for job in complete if len(complete) <= _LISTED else ():
            shown.note(f"{job.cell}: complete")
        infos = {job.info.name: job.info for job in complete}
        for (name, unit), path in checkpoints(output):
            if name in infos and stored_cell(output, infos[name]).is_complete(*unit):
                remove_checkpoint(path)  # killed before it could
        runner = Runner(comm, library, output, shown, poll)
        runner.run([job for job in share_first(jobs, share) if job.units], overwrite=overwrite)
        for line in runner.balance.lines():
            shown.log(line)
    comm.share(("stop", None), poll)
    # from here on nobody stops for a signal of its own: all is done, and all leave alike
    comm.barrier(lambda: stop_if_told(comm))
    return [output / f"{job.info.name}.h5" for job in jobs]


def _compile(comm: Communicator, poll: Callable[[], None], cells: list[tuple[Cell, bool]]) -> None:
    """Have the ranks of this machine compile for all what is not in the cache yet."""
    missing = [(cell, long) for cell, long in cells if not jit.is_cached(*loops(cell, long_pairs=long))]
    if missing:
        found = parts(missing)
        comm.share(("compile", found), poll)
        _rehearse(comm, found, poll)
        jit.forget_older()
    comm.share(("start", None), poll)
    # loaded now, while the hosts load theirs, and not in the middle of the first round
    average()


def _rehearse(comm: Communicator, parts: list[Part], poll: Callable[[], None]) -> None:
    """Compile this rank's parts, and wait for the others, who see them through the cache on rank 0's machine."""
    able = [*comm.near[1:], 0]  # hosts first: rank 0 is who a launcher and a user talk to
    mine = [part for at, part in enumerate(parts) if able[at % len(able)] == comm.rank]
    poll()
    with beside(mine[1:] if comm.size == 1 else []) as compiling:
        for at, part in enumerate(mine):
            limit = time.monotonic() + _PATIENCE
            while at == 1 and time.monotonic() < limit and compiling():
                poll()
                time.sleep(_NAP_SECONDS)
            poll()
            try:
                rehearse(part)
            except Exception as error:
                error.__notes__ = [f"rank {comm.rank}, compiling"]  # not where in the rehearsal
                raise
    comm.barrier(poll)


def _work(comm: Communicator, poll: Callable[[], None]) -> None:
    """Compute the units that rank 0 announces."""
    dataset: Dataset | None = None
    while True:
        kind, content = comm.share(cast(tuple[str, Any] | None, None), poll)
        if kind == "data":
            dataset = comm.share(cast(Dataset | None, None), poll, once=True)
        elif kind == "unit":
            cell, repeat, fold, done = content
            assert dataset is not None
            unit, _ = make_unit(cell, dataset, repeat, fold)
            run_unit(comm, unit, arrange_unit(unit, comm.size, done), poll)
        elif kind == "compile":
            _rehearse(comm, content, poll)
        elif kind == "stop":
            comm.barrier(lambda: stop_if_told(comm))
            return
        poll()


class Runner:
    """Rank 0's way through the cells.

    Attributes
    ----------
    balance : Balance
        Where the ranks spent their time.
    """

    def __init__(
        self,
        comm: Communicator,
        library: Library,
        output: Path,
        progress: Progress,
        poll: Callable[[], None],
    ) -> None:
        self.comm, self.data, self.output = comm, library, output
        self.progress, self.poll = progress, poll
        self.balance = Balance(comm.size)
        self._told: Dataset | None = None
        """The data set that all ranks have."""

    def run(self, jobs: list[Job], *, overwrite: bool) -> None:
        """Compute cells, in order; what other jobs have claimed is looked at again at the end."""
        old = {job.info.name: signature(self.output / f"{job.info.name}.h5") for job in jobs if overwrite}
        others = Others(self.output)
        while jobs:
            left = []
            for job in jobs:
                self.poll()
                held = reserve(self.output, job.info.name)
                if held is None:
                    left.append(job)
                    continue
                # what was replaced since the start has been computed again by another job of this kind
                path = self.output / f"{job.info.name}.h5"
                anew = overwrite and signature(path) == old[job.info.name]
                with held:
                    self._cell(job, held, overwrite=anew)
                if held.lost:
                    left.append(job)
            waiting = [job for job in left if not self._leave_to(others, job)]
            if len(waiting) == len(jobs):
                self._pause()
            jobs = waiting

    def _leave_to(self, others: Others, job: Job) -> bool:
        """Say whether a living job holds a cell; it is then left to that job."""
        holder = others.alive(job.info.name)
        if holder is not None:
            self.progress.note(f"{job.cell}: left to another job ({holder})")
            self.progress.advance(job.plan.seconds * len(job.units))
        return holder is not None

    def _pause(self) -> None:
        """Wait a little for other jobs."""
        self.progress.unit("waiting to see whether other jobs are alive")
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            self.poll()
            time.sleep(0.02)

    def _cell(self, job: Job, held: Reservation, *, overwrite: bool) -> None:
        """Compute what is missing of a cell that this job has claimed."""
        cell, progress = job.cell, self.progress
        file = CellFile(self.output, job.info, overwrite=job.units if overwrite else ())
        if file.aside is not None:
            progress.note(f"{cell}: its file was damaged; set aside as {file.aside}, computing it anew")
        # another job may have done some since this one looked
        units = [unit for unit in job.units if not file.cell.is_complete(*unit)]
        for (name, unit), path in checkpoints(self.output):
            if name == job.info.name and (file.cell.is_complete(*unit) or (overwrite and unit in job.units)):
                remove_checkpoint(path)  # killed before it could, or to be computed again
        progress.advance(job.plan.seconds * (len(job.units) - len(units)))
        if not units:
            return
        dataset = self.data(cell)
        if dataset is not self._told:
            self.comm.share(("data", None), self.poll)
            self.comm.share(dataset, self.poll, once=True)
            self._told = dataset
        if job.plan.arrangement.idle:
            progress.note(f"{cell}: {job.plan.arrangement.idle} of {self.comm.size} ranks have no work")
        for repeat, fold in units:
            if held.lost:
                progress.note(f"{cell}: this job stood still and another has taken it over")
                return
            if not file.cell.is_complete(repeat, fold):
                self._unit(job, dataset, file, held, repeat, fold)

    def _checkpoint(self, job: Job, unit: Unit, held: Reservation) -> Checkpoint:
        """Look for a checkpoint of a unit, and say what becomes of it."""
        name = f"{job.cell} repeat {unit.repeat} fold {unit.fold}"
        checkpoint = Checkpoint(
            checkpoint_path(self.output, job.info.name, unit.repeat, unit.fold),
            unit,
            {"config_sha256": job.info.config_sha256, "versions": recording.versions()},
            self.progress.note,
            lambda: not held.lost,
        )
        if checkpoint.problem:
            self.progress.note(
                f"{name}: its checkpoint was not used: {checkpoint.problem}; computing it anew"
            )
        elif checkpoint.partial is not None:
            done = checkpoint.partial.done
            self.progress.note(
                f"{name}: goes on from a checkpoint, {done.sum()} of {done.size} parent sets done"
            )
        return checkpoint

    def _unit(
        self, job: Job, dataset: Dataset, file: CellFile, held: Reservation, repeat: int, fold: int
    ) -> None:
        comm, cell, progress = self.comm, job.cell, self.progress
        progress.unit(f"{cell} repeat {repeat} fold {fold}")
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        begin = time.perf_counter()
        unit, test_fold = make_unit(cell, dataset, repeat, fold)
        checkpoint = self._checkpoint(job, unit, held)
        before = checkpoint.partial
        done = None if before is None else before.done
        comm.share(("unit", (cell, repeat, fold, done)), self.poll)
        arrangement = arrange_unit(unit, comm.size, done)
        computed = 0.0

        def got_on(share: float) -> None:
            nonlocal computed
            computed += share
            progress.advance(share * job.plan.seconds)

        if before is not None:
            widths = np.diff(unit.bounds(unit.sets, unit.granularity))
            got_on(float(widths[before.done].sum() / widths.sum()))
        inherited = computed
        earlier = 0.0 if before is None else before.seconds

        def look() -> None:
            self.poll()
            held.beat()
            progress.advance(0.0)

        result = run_unit(comm, unit, arrangement, look, got_on, checkpoint)
        assert result is not None
        values = dict(recording.values_of(unit, result))
        seconds = time.perf_counter() - begin
        values["/folds/test_fold"] = test_fold
        values["/timing/unit"] = earlier + seconds
        values |= {
            "/provenance/mpi_size": comm.size,
            "/provenance/shards": arrangement.n_shards,
            "/provenance/hostname": platform.node(),
            "/provenance/versions": recording.versions(),
            "/provenance/started": started,
        }
        check_still_there(self.output)
        if cell.save:
            write_sidecar(self.output, file.cell, repeat, fold, **recording.saved_of(unit, result))
        file.cell.record(repeat, fold, values)
        file.save()
        if not held.lost:
            remove_checkpoint(checkpoint.path)
        progress.advance(job.plan.seconds * max(0.0, 1.0 - computed))
        progress.log(recording.report(unit, result, seconds, 1.0 - inherited))
        self.balance.add(
            result.hosts,
            float(np.nansum(result.seconds["aggregate"])),
            seconds,
            can_split=arrangement.n_shards < min(len(unit.sets), max(1, comm.size - 1)),
        )
