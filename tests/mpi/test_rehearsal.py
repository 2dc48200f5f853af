"""Which ranks compile what is not on disk, and how a job ends in the middle of it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.mpi.launch import command, ended, fedande, process_of_rank, started, wait_until, with_hook

pytestmark = pytest.mark.mpi

JOB = """\
datasets = "tic-tac-toe"
repeats = 1
only_folds = [0]
[discriminative]
rounds = 1
"""

# A job that finds nothing on disk, and notes what each rank compiles; it is on disk all the same.
COLD = """
from pathlib import Path
from fedande_mpi import comm, experiment
begun = comm.MpiComm.__init__
def near(self, world):
    begun(self, world)
    self.near = NEAR or self.near
def rehearse(part):
    Path(f"{rank}-{'scores' if part[0].scores else 'learns'}").touch()
    DO
comm.MpiComm.__init__ = near
experiment.rehearse, experiment.jit.is_cached = rehearse, lambda *loops: False
"""


def cold(*, near: str = "None", do: str = "pass") -> str:
    return COLD.replace("NEAR", near).replace("DO", do)


@pytest.mark.parametrize(
    ("ranks", "near", "expected"),
    [
        (3, "None", {"1-learns", "2-scores"}),
        (2, "None", {"1-learns", "0-scores"}),
        (3, "[0, 2]", {"2-learns", "0-scores"}),  # rank 1 is on another machine
        (3, "[0]", {"0-learns", "0-scores"}),
    ],
)
def test_the_ranks_of_a_machine_each_compile_a_part(
    tmp_path: Path, ranks: int, near: str, expected: set[str]
) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    done = fedande(ranks, "run", "job.toml", "-o", "results", "-q", cwd=tmp_path, hook=cold(near=near))
    assert done.code == 0, done.err
    assert {path.name for path in tmp_path.glob("[0-9]-*")} == expected


def test_a_rank_that_cannot_compile_ends_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    hook = cold(do="if rank == 2: raise OSError('the disk is full')")
    done = fedande(3, "run", "job.toml", "-o", "results", "-q", cwd=tmp_path, hook=hook)
    assert done.code == 70
    assert done.messages == ["fedande: unexpected OSError: the disk is full [rank 2, compiling]"]


@pytest.mark.parametrize("told", [0, 1], ids=["who waits", "who compiles"])
def test_ranks_that_are_told_to_stop_while_one_compiles_leave_together(tmp_path: Path, told: int) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    # as little as a compiler it looks whether there was a signal
    do = "import time; [time.sleep(0.1) for _ in range(15 if rank == 1 else 0)]"
    env = with_hook(tmp_path / "hook", cold(do=do))
    since = time.monotonic()
    with started(command(3, "run", "job.toml", "-o", "results", "-q"), tmp_path, env) as process:
        wait_until(lambda: (tmp_path / "1-learns").exists() or process.poll() is not None)
        os.kill(process_of_rank(process.pid, told), signal.SIGTERM)
        done = ended(process, since)
    assert done.code == 75
    (line,) = done.err.splitlines()
    assert "run the same command again to continue" in line
