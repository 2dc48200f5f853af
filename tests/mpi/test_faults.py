"""Whatever goes wrong on one rank ends all of them, soon and with one message (case 13, case 9, case 22)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import h5py
import pytest

from tests.mpi.launch import (
    Done,
    command,
    descendants,
    ended,
    fedande,
    process_of_rank,
    started,
    wait_until,
    with_hook,
)

pytestmark = pytest.mark.mpi

JOB = """\
datasets = "tic-tac-toe"
clients = 6
repeats = 1
only_folds = [0, 1]
save = ["weights"]
[discriminative]
rounds = 5
"""

FAULT_SECONDS = 10.0
"""All ranks have ended so long after a fault (case 13)."""

# Fails in the local steps of one pair on one rank, in the second fold.
RAISES = """
from fedande_mpi import host
from pathlib import Path
steps = host.local.run_pairs
built = host.Host.__init__
current = []
def build(self, unit, *arguments):
    built(self, unit, *arguments)
    current[:] = [self]
def broken(clients, layout, theta, state, pair_client, pair_set, *others):
    here = current[0]
    if rank == FAULTY and here.unit.fold == 1 and here.where.round == 3:
        Path("fault").touch()
        raise ERROR
    return steps(clients, layout, theta, state, pair_client, pair_set, *others)
host.Host.__init__, host.local.run_pairs = build, broken
"""


def run_into_fault(tmp_path: Path, ranks: int, hook: str, *options: str) -> tuple[Done, list[int]]:
    """Run a job whose hook touches the file `fault`; also return its processes at that moment."""
    (tmp_path / "job.toml").write_text(JOB)
    env = with_hook(tmp_path / "hook", hook)
    line = command(ranks, "run", "job.toml", "-o", "results", *options)
    since = time.monotonic()
    with started(line, tmp_path, env) as process:
        wait_until(lambda: (tmp_path / "fault").exists() or process.poll() is not None)
        processes = descendants(process.pid)
        done = ended(process, since, FAULT_SECONDS)
    assert (tmp_path / "fault").exists(), done.err
    return done, processes


def gone(pid: int) -> bool:
    """Say whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def complete(tmp_path: Path) -> list[bool]:
    (path,) = (tmp_path / "results").glob("*C6_????????.h5")
    with h5py.File(path) as file:
        return [bool(flag) for flag in file["complete"][0]]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ('RuntimeError("the disk of node 7 is on fire")', 70, "unexpected RuntimeError: the disk of node 7"),
        ('__import__("fedande_mpi.errors").errors.FederationError("expected rain")', 1, "expected rain"),
    ],
    ids=["unexpected", "expected"],
)
def test_case_13_an_exception_on_rank_2_in_round_3_ends_all_ranks(
    tmp_path: Path, error: str, code: int, message: str
) -> None:
    hook = RAISES.replace("FAULTY", "2").replace("ERROR", error)
    done, processes = run_into_fault(tmp_path, 4, hook)
    assert done.code == code
    assert len(done.messages) == 1
    (line,) = done.messages
    assert message in line
    # four ranks are three hosts of two clients; rank 2 has clients 2 and 3
    assert "rank 2, client 2, parent set (" in line
    assert "), round 3" in line
    assert ("Traceback" in done.err) == (code == 70)
    wait_until(lambda: all(map(gone, processes)), FAULT_SECONDS)
    assert complete(tmp_path) == [True, False, False, False, False]


def test_case_13_an_exception_on_rank_0_ends_all_ranks(tmp_path: Path) -> None:
    hook = """
from fedande_mpi import aggregation
from pathlib import Path
step, calls = aggregation.mean_of_sums, []
def broken(*arguments):
    calls.append(1)
    if len(calls) == 1 + 5 + 4:  # after the warm-up, the fourth round of the second fold
        Path("fault").touch()
        raise ZeroDivisionError("no clients")
    return step(*arguments)
aggregation.mean_of_sums = broken
"""
    done, processes = run_into_fault(tmp_path, 3, hook, "--set", "shards=1")
    assert done.code == 70
    assert done.messages == ["fedande: unexpected ZeroDivisionError: no clients [rank 0, round 4]"]
    wait_until(lambda: all(map(gone, processes)), FAULT_SECONDS)
    assert complete(tmp_path) == [True, False, False, False, False]


def test_case_13_an_exception_outside_a_unit_ends_all_ranks(tmp_path: Path) -> None:
    hook = """
from fedande_mpi import experiment
from pathlib import Path
def broken(*arguments):
    Path("fault").touch()
    raise OSError("no such luck")
if rank == 1:
    experiment.make_unit = broken
"""
    done, processes = run_into_fault(tmp_path, 3, hook)
    assert done.code == 70
    assert done.messages == ["fedande: unexpected OSError: no such luck [rank 1]"]
    wait_until(lambda: all(map(gone, processes)), FAULT_SECONDS)


def test_case_13_in_one_process_the_place_is_named_too(tmp_path: Path) -> None:
    hook = RAISES.replace("FAULTY", "0").replace("ERROR", 'ValueError("odd")')
    done, _ = run_into_fault(tmp_path, 0, hook)
    assert done.code == 70
    (line,) = done.messages
    assert line.startswith("fedande: unexpected ValueError: odd [rank 0, client 0, parent set (")
    assert line.endswith("), round 3]")


@pytest.mark.parametrize("rank", [0, 1])
def test_case_13_a_killed_rank_takes_the_others_with_it(tmp_path: Path, rank: int) -> None:
    hook = """
import time
from fedande_mpi import host
from pathlib import Path
steps = host.Host._steps
def slow(self, *arguments, **options):
    if self.unit.fold == 1:
        Path("fault").touch()
        time.sleep(0.3)
    return steps(self, *arguments, **options)
host.Host._steps = slow
"""
    (tmp_path / "job.toml").write_text(JOB)
    env = with_hook(tmp_path / "hook", hook)
    since = time.monotonic()
    with started(command(3, "run", "job.toml", "-o", "results"), tmp_path, env) as process:
        wait_until(lambda: (tmp_path / "fault").exists() or process.poll() is not None)
        processes = descendants(process.pid)
        os.kill(process_of_rank(process.pid, rank), signal.SIGKILL)
        done = ended(process, since, FAULT_SECONDS)
    assert done.code != 0
    wait_until(lambda: all(map(gone, processes)), FAULT_SECONDS)
    assert complete(tmp_path) == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("ranks", "transport", "value"),
    [(0, "gather", "inf"), (0, "reduce", "-inf"), (3, "gather", "nan"), (3, "reduce", "nan")],
)
def test_case_9_an_update_that_is_not_finite_is_refused_by_client_round_and_parent_set(
    tmp_path: Path, ranks: int, transport: str, value: str
) -> None:
    hook = """
from fedande_mpi import host
from pathlib import Path
send = host.Host._send
def spoilt(self, link, rows, block, factors, pieces, round_number):
    for position, parents in enumerate(block.sets):
        if self.unit.fold == 1 and round_number == 2 and 4 in self.members and tuple(parents) == (7,):
            rows[4 - self.members.start, block.bounds[position] + 11] = float("VALUE")
            Path("fault").touch()
    return send(self, link, rows, block, factors, pieces, round_number)
host.Host._send = spoilt
""".replace("VALUE", value)
    done, processes = run_into_fault(tmp_path, ranks, hook, "--set", f"transport={transport}")
    assert done.code == 1
    (line,) = done.messages
    assert "got NaN or infinity from client 4 for parent set (7,) in round 2: the update is refused" in line
    assert "Traceback" not in done.err
    wait_until(lambda: all(map(gone, processes)), FAULT_SECONDS)
    assert complete(tmp_path) == [True, False, False, False, False]  # what was complete is kept


@pytest.mark.parametrize("ranks", [0, 2])
def test_case_22_an_output_below_a_regular_file_is_refused_before_any_work(
    tmp_path: Path, ranks: int
) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "file").write_text("here")
    done = fedande(ranks, "run", "job.toml", "-o", "file/results", cwd=tmp_path)
    assert done.code == 1
    (line,) = done.messages
    assert "file/results: cannot be written" in line
    assert "choose another directory" in line
    assert (tmp_path / "file").read_text() == "here"


@pytest.mark.parametrize(("ranks", "fault"), [(0, "limit"), (3, "limit"), (0, "full"), (0, "sidecar")])
def test_case_22_a_full_disk_names_the_file_and_keeps_what_was_complete(
    tmp_path: Path, ranks: int, fault: str
) -> None:
    hook = """
import errno, resource
from pathlib import Path
from fedande_mpi import cellfile, experiment, storage
name = "write_sidecar" if "FAULT" == "sidecar" else "write_cell"
module = experiment if "FAULT" == "sidecar" else cellfile
write, calls = getattr(module, name), []
def full(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
def second(*arguments, **options):
    calls.append(1)
    if len(calls) == 2:
        Path("fault").touch()
        if "FAULT" == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        else:
            storage.os.fsync = full
    return write(*arguments, **options)
setattr(module, name, second)
""".replace("FAULT", fault)
    done, processes = run_into_fault(tmp_path, ranks, hook)
    assert done.code == 1
    (line,) = done.messages
    suffix = ".r0.f1.h5" if fault == "sidecar" else ".h5"
    assert "results/tic-tac-toe_A1DE-w_federated_C6_" in line
    assert f"{suffix}: cannot be written" in line
    assert "free some space there or choose another directory" in line
    assert "Traceback" not in done.err
    wait_until(lambda: all(map(gone, processes)), FAULT_SECONDS)
    assert complete(tmp_path) == [True, False, False, False, False]
    assert not list((tmp_path / "results").glob(".*"))
    again = fedande(0, "run", "job.toml", "-o", "results", cwd=tmp_path)  # with room again
    assert again.code == 0
    assert complete(tmp_path) == [True, True, False, False, False]
