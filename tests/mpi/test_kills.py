"""Ranks killed and jobs told to stop at random moments: nothing complete is ever lost or damaged (cases 20, 21).

`make test-kill` does 100 kills and 30 signals (FEDANDE_KILLS, FEDANDE_TERMS); otherwise it is 8 and 4.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import pytest

from fedande_mpi.validation import validate
from tests.mpi.launch import (
    Done,
    assert_same_bytes,
    command,
    ended,
    fedande,
    process_of_rank,
    started,
    wait_until,
    with_hook,
)

KILLS = int(os.environ.get("FEDANDE_KILLS", "8"))
TERMS = int(os.environ.get("FEDANDE_TERMS", "4"))

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.timeout(60 + 30 * (KILLS + TERMS)),
]

JOB = """\
datasets = "tic-tac-toe"
n = [0, 1]
clients = 6
repeats = 1
methods = ["generative", "discriminative"]
save = ["weights", "predictions"]
block_mib = 0.01
checkpoint_minutes = 1e-9
[discriminative]
rounds = 3
"""
UNITS = 4 * 5
RUN = ("run", "job.toml", "-o", "results")

# Writes down every unit that is begun, and takes a little longer over it.
HOOK = """
import time
from fedande_mpi import cli, experiment, host
signals = cli.Signals.__init__
def ready(self):
    signals(self)
    open(f"ready{rank}", "w").close()
cli.Signals.__init__ = ready
unit = experiment.run_unit
def noted(comm, unit_, *arguments):
    if rank == 0:
        with open("begun", "a") as file:
            file.write(f"{unit_.cell} {unit_.repeat} {unit_.fold}\\n")
    return unit(comm, unit_, *arguments)
experiment.run_unit = noted
blocks = host.Host._blocks
def slow(self, *arguments, **options):
    for _ in range(10):
        time.sleep(0.01)
        yield True
    yield from blocks(self, *arguments, **options)
host.Host._blocks = slow
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    (directory / "job.toml").write_text(JOB)
    assert fedande(3, *RUN, cwd=directory).code == 0
    return directory / "results"


def files(directory: Path) -> Iterator[Path]:
    return directory.glob("results/*.h5")


def assert_all_open(directory: Path) -> None:
    for path in files(directory):
        with h5py.File(path, "r") as file:
            assert len(file) > 0


def complete(directory: Path) -> int:
    found = 0
    for path in files(directory):
        with h5py.File(path, "r") as file:
            if "complete" in file:
                found += int(file["complete"][...].sum())
    return found


def stopped(directory: Path, chance: random.Random, number: int) -> tuple[Done, bool]:
    """Start the job, open its files all the time, send a signal at a random moment; say whether it was sent."""
    since = time.monotonic()
    for rank in range(3):
        (directory / f"ready{rank}").unlink(missing_ok=True)
    with started(command(3, *RUN), directory, with_hook(directory / "hook", HOOK)) as process:
        # from before the ranks know each other to a little after the end of the work
        wait_until(lambda: all((directory / f"ready{rank}").exists() for rank in range(3)))
        moment = time.monotonic() + chance.uniform(0.0, 4.0)
        while time.monotonic() < moment and process.poll() is None:
            assert_all_open(directory)
            time.sleep(0.02)
        sent = process.poll() is None
        if sent:
            try:
                target = process.pid
                if number == signal.SIGKILL or chance.random() < 0.5:
                    target = process_of_rank(process.pid, chance.randrange(3))
                os.kill(target, number)
            except ProcessLookupError:  # the work has just ended
                sent = False
            with contextlib.suppress(ProcessLookupError):
                if sent and number == signal.SIGTERM and chance.random() < 0.5:
                    os.kill(target, chance.choice([signal.SIGTERM, signal.SIGUSR1]))
        return ended(process, since), sent


@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGKILL, KILLS), (signal.SIGTERM, TERMS)], ids=["KILL", "TERM"]
)
def test_cases_20_and_21_the_same_command_ends_with_the_same_bytes(
    tmp_path: Path, whole: Path, number: signal.Signals, times: int
) -> None:
    chance = random.Random(int(number))
    sent_in_all = recomputed_in_all = finished = 0
    while sent_in_all < times:
        directory = tmp_path / str(finished)
        directory.mkdir()
        (directory / "job.toml").write_text(JOB)
        sent = before = 0
        while complete(directory) < UNITS and sent_in_all + sent < times:
            done, was_sent = stopped(directory, chance, number)
            sent += was_sent
            assert was_sent or done.code == 0, done.err
            assert number == signal.SIGKILL or done.code in (0, 75), done.err
            for path in files(directory):
                assert ".r0." in path.name or validate(path) == []
            assert complete(directory) >= before  # nothing complete is ever lost
            before = complete(directory)
        last = fedande(3, *RUN, cwd=directory, hook=HOOK)
        assert last.code == 0, last.err
        assert_same_bytes(whole, directory / "results")
        assert all(path.suffix == ".h5" for path in (directory / "results").iterdir())
        recomputed = len((directory / "begun").read_text().splitlines()) - UNITS
        assert 0 <= recomputed <= sent  # each costs the unit in progress at most
        sent_in_all += sent
        recomputed_in_all += recomputed
        finished += 1
    print(
        f"{sent_in_all} x {number.name}: {finished} runs finished, {recomputed_in_all} units computed again"
    )


def test_a_rank_that_stood_still_goes_on(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    since = time.monotonic()
    with started(command(3, *RUN), tmp_path, with_hook(tmp_path / "hook", HOOK)) as process:
        wait_until(lambda: complete(tmp_path) > 1)
        for rank in range(3):
            pid = process_of_rank(process.pid, rank)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(pid, signal.SIGCONT)
        assert ended(process, since).code == 0
    assert_same_bytes(whole, tmp_path / "results")
