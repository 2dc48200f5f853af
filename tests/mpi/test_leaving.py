"""A job that is told to stop: its ranks leave together, without a word from the launcher (case 20)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.mpi.launch import Done, command, ended, process_of_rank, started, wait_until, with_hook

pytestmark = pytest.mark.mpi

JOB = """\
datasets = "tic-tac-toe"
clients = 6
repeats = 1
[discriminative]
rounds = 3
"""

SLOW = """
import time
from pathlib import Path
from fedande_mpi import host, leaving
steps = host.Host._steps
def slow(self, *arguments, **options):
    for _ in range(20):
        time.sleep(0.01)
        yield True
    if rank == DEAF and self.unit.fold == 1:
        Path("deaf").touch()
        time.sleep(60)
    yield from steps(self, *arguments, **options)
host.Host._steps = slow
leaving.LEAVING_SECONDS = LIMIT
"""


def told_to_stop(
    tmp_path: Path, number: int, rank: int | None, *, again: int | None = None, deaf: int = -1
) -> Done:
    """Send a signal to a rank, or to mpiexec, while the second fold is computed."""
    (tmp_path / "job.toml").write_text(JOB)
    hook = SLOW.replace("DEAF", str(deaf)).replace("LIMIT", "0.5" if deaf >= 0 else "30.0")
    env = with_hook(tmp_path / "hook", hook)
    since = time.monotonic()
    with started(command(3, "run", "job.toml", "-o", "results", "-q"), tmp_path, env) as process:
        sign = "deaf" if deaf >= 0 else "results/*.h5"
        wait_until(lambda: bool(list(tmp_path.glob(sign))) or process.poll() is not None)
        target = process.pid if rank is None else process_of_rank(process.pid, rank)
        os.kill(target, number)
        if again is not None:
            time.sleep(0.02)
            os.kill(target, again)
        return ended(process, since)


@pytest.mark.parametrize("rank", [None, 0, 2], ids=["mpiexec", "rank0", "rank2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
def test_all_ranks_leave_together_whoever_was_told(tmp_path: Path, rank: int | None, number: int) -> None:
    done = told_to_stop(tmp_path, number, rank)
    assert done.code == 75
    (line,) = done.err.splitlines()  # no word of MPI_Abort or of the launcher
    assert "run the same command again to continue" in line
    assert done.out == ""
    assert {path.suffix for path in (tmp_path / "results").iterdir()} == {".h5"}  # the claim is given back


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGUSR1])
def test_a_second_signal_is_harmless(tmp_path: Path, again: int) -> None:
    done = told_to_stop(tmp_path, signal.SIGTERM, None, again=again)
    assert done.code == 75
    assert len(done.err.splitlines()) == 1


def test_a_rank_that_does_not_come_does_not_hold_the_others(tmp_path: Path) -> None:
    done = told_to_stop(tmp_path, signal.SIGUSR1, 0, deaf=1)
    assert done.code == 75
    assert done.messages == [line for line in done.err.splitlines() if "stopped by SIGUSR1" in line]


# Ranks form a grid, or take what is held once, in the library, where no signal is seen. Ranks 0 and 1 are on one
# machine, rank 2 is on another. A signal comes to rank 1 or 2 when all are about to; ranks 0 and 1 are slow.
IN_THE_LIBRARY = """
import os, signal, time
from fedande_mpi import collectives, comm, programs
comm._ONCE = 1000
new, inside, barrier = comm.MpiComm.__init__, comm.MpiComm._all_here, collectives.Collectives.barrier
times, nap = [], time.sleep
def apart(self, world):
    new(self, world)
    mpi, first = comm._mpi(), rank // 2 * 2
    self._machines = [0, 0, 2]
    self._node = world.Split(rank // 2, rank)
    self._here = collectives.Collectives(mpi, self._node, f"machine of {first}")
    leaders = world.Split(0 if first == rank else mpi.UNDEFINED, rank)
    self._firsts = None if first != rank else collectives.Collectives(mpi, leaders, "firsts")
def all_here(self, poll):
    times.append(len(times) + 1)
    if rank == 2 and DEAF and times == [1, 2]:
        nap(60)
    if rank == 0:
        programs.time.sleep = lambda seconds: nap(0.1)
    if rank == 1:
        nap(0.15)
    return inside(self, poll)
def told_in(self):
    request = barrier(self)
    if rank == TOLD and self.name == "all" and times[-1:] == [NUMBER]:
        os.kill(os.getpid(), signal.SIGUSR1)
        times.append(0)
    return request
comm.MpiComm.__init__, comm.MpiComm._all_here, collectives.Collectives.barrier = apart, all_here, told_in
comm._PUT_OFF_SECONDS = 0.2
"""


def told_in_the_library(tmp_path: Path, rank: int, number: int, *, deaf: bool = False) -> Done:
    (tmp_path / "job.toml").write_text(JOB)
    hook = IN_THE_LIBRARY.replace("TOLD", str(rank)).replace("NUMBER", str(number)).replace("DEAF", str(deaf))
    hook += f"from fedande_mpi import leaving\nleaving.LEAVING_SECONDS = {0.5 if deaf else 30.0}\n"
    since = time.monotonic()
    env = with_hook(tmp_path / "hook", hook)
    with started(command(3, "run", "job.toml", "-o", "results", "-q"), tmp_path, env) as process:
        return ended(process, since)


@pytest.mark.parametrize("rank", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [1, 2], ids=["share", "grid"])
def test_a_signal_where_ranks_wait_in_the_library_waits_too(tmp_path: Path, rank: int, number: int) -> None:
    done = told_in_the_library(tmp_path, rank, number)
    assert done.code == 75
    (line,) = done.err.splitlines()  # nobody was left waiting until the job was aborted
    assert "stopped by another rank" in line


def test_a_signal_is_not_put_off_for_a_rank_that_does_not_come(tmp_path: Path) -> None:
    done = told_in_the_library(tmp_path, 1, 2, deaf=True)
    assert done.code == 75
    assert done.messages
