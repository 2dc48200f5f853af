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
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
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


# A signal comes to one rank when all are about to form another grid, or to take what is held once, in the library.
IN_THE_LIBRARY = """
import os, signal
from fedande_mpi import collectives, comm
comm._ONCE = 1000
inside, barrier = comm.MpiComm._all_here, collectives.Collectives.barrier
here = []
def all_here(self, poll):
    here.append(len(here) + 1)
    return inside(self, poll)
def told_in(self):
    request = barrier(self)
    if rank == 1 and self.name == "all" and here[-1:] == [NUMBER]:
        os.kill(os.getpid(), signal.SIGUSR1)
        here.append(0)
    return request
comm.MpiComm._all_here, collectives.Collectives.barrier = all_here, told_in
"""


@pytest.mark.parametrize("number", [1, 2], ids=["share", "grid"])
def test_a_signal_where_ranks_wait_in_the_library_waits_too(tmp_path: Path, number: int) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    since = time.monotonic()
    env = with_hook(tmp_path / "hook", IN_THE_LIBRARY.replace("NUMBER", str(number)))
    with started(command(3, "run", "job.toml", "-o", "results", "-q"), tmp_path, env) as process:
        done = ended(process, since)
    assert done.code == 75
    (line,) = done.err.splitlines()  # nobody was left waiting until the job was aborted
    assert "stopped by another rank" in line
