"""Claims on cells: one holder at a time, and none for ever."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedande_mpi import reservation
from fedande_mpi.errors import ResultsError
from fedande_mpi.reservation import (
    HEARTBEAT,
    STALE,
    Holder,
    Others,
    Reservation,
    claim_path,
    file_system_time,
    read_claim,
    reserve,
)

NAME = "tic-tac-toe_NB_local_C5_01234567"


def claimed_by(directory: Path, age: float = 0.0, **changes: object) -> Path:
    """Put a claim of another job there, last touched so long ago."""
    holder = dataclasses.replace(Holder.this_process({}), **{"host": "elsewhere"} | changes)
    path = claim_path(directory, NAME)
    path.write_text(json.dumps(dataclasses.asdict(holder)))
    touched = file_system_time(directory) - age
    os.utime(path, (touched, touched))
    return path


def test_a_claim_names_its_holder_and_is_given_back(tmp_path: Path) -> None:
    held = reserve(tmp_path, NAME, {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2"})
    assert held is not None
    with held:
        (path,) = tmp_path.iterdir()
        assert path.name == f"{NAME}.claim"
        found = json.loads(path.read_text())
        assert (found["pid"], found["job"], found["restart"]) == (os.getpid(), "17", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_claim_is_given_back_after_an_error_too(tmp_path: Path) -> None:
    held = reserve(tmp_path, NAME)
    assert held is not None
    with pytest.raises(KeyError), held:
        raise KeyError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("age", [0.0, STALE - 30])
def test_a_live_claim_is_left_alone(tmp_path: Path, age: float) -> None:
    path = claimed_by(tmp_path, age)
    before = path.read_bytes()
    assert reserve(tmp_path, NAME) is None
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_claim_of_a_living_process_of_this_host_is_left_alone(tmp_path: Path) -> None:
    parent = os.getppid()
    claimed_by(tmp_path, host=Holder.this_process({}).host, pid=parent, started=reservation._started(parent))
    assert reserve(tmp_path, NAME) is None


def test_what_an_earlier_run_in_this_process_left_is_taken_over(tmp_path: Path) -> None:
    assert reserve(tmp_path, NAME) is not None
    assert reserve(tmp_path, NAME) is not None


def test_a_claim_without_a_heartbeat_for_minutes_is_taken_over(tmp_path: Path) -> None:
    path = claimed_by(tmp_path, STALE + 1)
    assert reserve(tmp_path, NAME) is not None
    assert json.loads(path.read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == [path]


def test_the_age_is_by_the_file_systems_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed_by(tmp_path)
    monkeypatch.setattr(reservation.time, "time", lambda: 9e9)  # this machine's clock is wrong
    assert reserve(tmp_path, NAME) is None


def test_the_claim_of_a_dead_process_of_this_host_is_taken_over_at_once(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    claimed_by(tmp_path, host=Holder.this_process({}).host, pid=gone.pid)
    assert reserve(tmp_path, NAME) is not None


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="the system does not say when a process began"
)
def test_another_process_with_the_pid_of_a_dead_one_is_told_apart(tmp_path: Path) -> None:
    me = Holder.this_process({})
    claimed_by(tmp_path, host=me.host, pid=me.pid, started=me.started - 1)
    assert reserve(tmp_path, NAME) is not None


@pytest.mark.parametrize(("job", "restart", "taken"), [("17", 1, True), ("17", 0, False), ("18", 1, False)])
def test_a_requeued_job_takes_over_what_it_held_before(
    tmp_path: Path, job: str, restart: int, taken: bool
) -> None:
    claimed_by(tmp_path, job="17", restart=0)
    got = reserve(tmp_path, NAME, {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": str(restart)})
    assert (got is not None) == taken


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"host": 1}', b"\xff"])
def test_a_claim_that_says_nothing_counts_by_its_age(tmp_path: Path, content: bytes) -> None:
    path = claim_path(tmp_path, NAME)
    path.write_bytes(content)
    assert reserve(tmp_path, NAME) is None
    long_ago = file_system_time(tmp_path) - STALE - 1
    os.utime(path, (long_ago, long_ago))
    assert reserve(tmp_path, NAME) is not None


def test_of_two_that_find_a_stale_claim_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = claimed_by(tmp_path, STALE + 1)
    stale = reservation._is_stale
    faster: list[Reservation | None] = []

    def slowly(*arguments: object) -> bool:
        found = stale(*arguments)  # type: ignore[arg-type]
        if not faster:  # another job looks and acts between this one's look and its act
            faster.append(None)
            faster[0] = reserve(tmp_path, NAME)
        return found

    monkeypatch.setattr(reservation, "_is_stale", slowly)
    assert reserve(tmp_path, NAME) is None
    (winner,) = faster
    assert winner is not None
    assert path.read_bytes() == winner._content
    assert list(tmp_path.iterdir()) == [path]


# --- the heartbeat -----------------------------------------------------------------------------------------


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_claim_is_touched_when_it_is_time_to(tmp_path: Path) -> None:
    clock, path = Time(), claimed_by(tmp_path, 60.0)
    held = Reservation(path, path.read_bytes(), clock)
    old = path.stat().st_mtime
    clock.now += HEARTBEAT - 1
    held.beat()
    assert path.stat().st_mtime == old
    clock.now += 2
    held.beat()
    assert path.stat().st_mtime > old + 50
    assert not held.lost


@pytest.mark.parametrize("there", [True, False])
def test_a_holder_that_stood_still_sees_that_it_has_lost_the_claim(tmp_path: Path, there: bool) -> None:
    clock, path = Time(), claimed_by(tmp_path, 2 * STALE)
    held = Reservation(path, path.read_bytes(), clock)
    if there:
        assert reserve(tmp_path, NAME) is not None
    else:
        path.unlink()
    clock.now += 2 * STALE
    with held:
        held.beat()
        assert held.lost
    assert path.exists() == there  # the other's claim stays


def test_who_touches_a_claim_while_one_looks_is_alive(tmp_path: Path) -> None:
    path = claimed_by(tmp_path, 60.0)
    others = Others(tmp_path)
    assert others.alive(NAME) is None
    assert others.alive(NAME) is None
    os.utime(path)
    holder = others.alive(NAME)
    assert holder is not None
    assert "on elsewhere" in str(holder)


def test_nobody_holds_what_nobody_has_claimed(tmp_path: Path) -> None:
    assert Others(tmp_path).alive(NAME) is None
    assert read_claim(claim_path(tmp_path, NAME)) is None


# --- directories that fail ---------------------------------------------------------------------------------


def test_a_vanished_directory_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ResultsError, match=r"gone: expected the directory of results.*vanished.*bring it back"
    ):
        reserve(tmp_path / "gone", NAME)


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reservation, "open", full, raising=False)
    with pytest.raises(ResultsError, match=r"\.claim: cannot be written \(No space left.*free some space"):
        reserve(tmp_path, NAME)


def test_a_full_disk_leaves_no_empty_claim(tmp_path: Path) -> None:
    text = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from fedande_mpi.errors import ResultsError; from fedande_mpi.reservation import reserve\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))\n"
        f"try: reserve(Path(sys.argv[1]), {NAME!r})\n"
        "except ResultsError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "cannot be written" in done.stdout
    assert list(tmp_path.iterdir()) == []
