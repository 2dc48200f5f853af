"""Programs of ranks, links within one process, launchers, and how an error ends a job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedande_mpi import comm
from fedande_mpi.comm import (
    Left,
    Program,
    SerialComm,
    check_launch,
    check_library,
    connect,
    drive,
    ending_job,
    stop_if_told,
    together,
)
from fedande_mpi.errors import ConfigError, FederationError, Interrupted

# --- programs ----------------------------------------------------------------------------------------------


def program(steps: list[bool], result: Any = None) -> Program[Any]:
    """Yield these steps, then return a result."""
    yield from steps
    return result


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses of `drive` instead of taking them."""
    taken: list[float] = []
    monkeypatch.setattr(comm.time, "sleep", taken.append)
    return taken


def test_drive_returns_the_results_in_the_order_of_the_programs(naps: list[float]) -> None:
    assert drive([program([True] * 3, "slow"), program([], "quick"), program([False], None)]) == [
        "slow",
        "quick",
        None,
    ]


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        ([[True, True]], 0),
        ([[False, True, False]], 2),
        ([[False, False], [True, True]], 0),
        ([[False, True], [True, False]], 0),
        ([[False, False, True], [False, True, False]], 1),
    ],
)
def test_drive_sleeps_only_when_all_wait(
    naps: list[float], programs: list[list[bool]], expected: int
) -> None:
    drive([program(steps) for steps in programs])
    assert len(naps) == expected


def test_pauses_grow_with_the_wait_to_a_millisecond_and_begin_short_again(
    naps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(np.arange(0.0, 1.0, 0.004))
    monkeypatch.setattr(comm.time, "perf_counter", lambda: float(next(ticks)) + 1.0)
    drive([program([False] * 6 + [True] + [False])])
    first, *rest = naps[:6]
    assert first == naps[6] < 1e-4  # after getting on, short again
    assert rest == sorted(rest)
    assert max(naps) == 1e-3


def test_drive_polls_between_steps_and_what_poll_raises_ends_it(naps: list[float]) -> None:
    taken: list[int] = []

    def endless() -> Program[None]:
        while True:
            taken.append(1)
            yield True

    def poll() -> None:
        if len(taken) >= 3:
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        drive([endless()], poll)
    assert len(taken) >= 3


def test_together_gets_on_when_any_program_does() -> None:
    steps = list(together(program([False, False]), program([True, False, False])))
    # every end counts as getting on
    assert steps == [True, False, True, True]


def test_together_waits_for_the_slowest(naps: list[float]) -> None:
    done: list[str] = []

    def named(name: str, steps: int) -> Program[None]:
        for _ in range(steps):
            yield False
        done.append(name)

    drive([together(named("slow", 4), named("quick", 1))])
    assert done == ["quick", "slow"]


# --- one process -------------------------------------------------------------------------------------------


def both_ends(server: Callable[[Any], Program[Any]], host: Callable[[Any], Program[Any]]) -> list[Any]:
    grid = SerialComm().grid(1, 1)
    assert grid.host == (0, 0)
    (link,) = grid.server_links
    return drive([server(link), host(grid.host_link)])


def test_a_serial_broadcast_reaches_the_host() -> None:
    sent, received = np.arange(4.0), np.zeros(4)
    both_ends(lambda link: link.broadcast(sent), lambda link: link.broadcast(received))
    assert received.tolist() == sent.tolist()


def test_serial_broadcasts_keep_their_order() -> None:
    received: list[float] = []

    def server(link: Any) -> Program[None]:
        for value in range(3):
            yield from link.broadcast(np.full(1, float(value)))

    def host(link: Any) -> Program[None]:
        for _ in range(3):
            buffer = np.zeros(1)
            yield from link.broadcast(buffer)
            received.append(buffer[0])

    both_ends(server, host)
    assert received == [0.0, 1.0, 2.0]


def test_a_serial_gather_brings_the_rows() -> None:
    rows, out = np.arange(6.0).reshape(2, 3), np.zeros((2, 3))
    both_ends(lambda link: link.gather(None, out, [2]), lambda link: link.gather(rows, None, [2]))
    assert out.tolist() == rows.tolist()


def test_a_serial_maximum_reaches_both_ends() -> None:
    one, other = np.array([1.0, 5.0]), np.array([3.0, 2.0])
    both_ends(lambda link: link.maximum(one), lambda link: link.maximum(other))
    assert one.tolist() == other.tolist() == [3.0, 5.0]


def test_a_serial_total_is_exact_and_leaves_the_host_s_terms() -> None:
    sums, terms = np.zeros(2, dtype=np.int64), np.array([2**62, -7])
    both_ends(lambda link: link.total(sums), lambda link: link.total(terms))
    assert sums.tolist() == terms.tolist() == [2**62, -7]


def test_the_serial_group_has_nobody_else() -> None:
    link = SerialComm().grid(1, 1).group_link
    assert link is not None
    top, sums = np.array([1.0]), np.array([3], dtype=np.int64)
    rows, out = np.ones((1, 2)), np.zeros((1, 2))
    drive([link.maximum(top), link.total(sums), link.broadcast(top), link.gather(rows, out, [1])])
    assert (top[0], sums[0], out.tolist()) == (1.0, 3, [[1.0, 1.0]])


def test_one_process_has_one_host() -> None:
    with pytest.raises(ValueError, match="1 x 1 grid, not 2 x 1"):
        SerialComm().grid(2, 1)


def test_one_process_shares_and_collects_its_own_value() -> None:
    alone = SerialComm()
    alone.barrier()
    assert alone.share("value") == "value"
    assert drive([alone.collect("value")]) == [["value"]]


def test_an_abort_of_one_process_exits_with_the_code() -> None:
    text = "from fedande_mpi.comm import SerialComm; print('last words'); SerialComm().abort(75); print('no')"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (75, "last words\n")


# --- launchers (case 15) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_case_15_a_world_of_one_among_four_is_refused_with_the_hint(name: str) -> None:
    with pytest.raises(FederationError, match=rf"of 4 ranks \({name}=4\), got 1.*srun --mpi=pmi2"):
        check_launch(1, {name: "4"})


def test_case_15_allow_singleton_overrides() -> None:
    check_launch(1, {"PMI_SIZE": "4"}, allow_singleton=True)


def test_case_15_slurm_ntasks_alone_never_refuses() -> None:
    environ = {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}
    check_launch(1, environ)
    assert isinstance(connect(environ), SerialComm)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"PMI_SIZE": ""}, None),
        ({"PMI_SIZE": "many", "SLURM_STEP_NUM_TASKS": "2"}, ("SLURM_STEP_NUM_TASKS", 2)),
        ({"SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_SIZE": "3"}, ("OMPI_COMM_WORLD_SIZE", 3)),
        ({"OMPI_COMM_WORLD_SIZE": "3", "PMI_SIZE": "2"}, ("PMI_SIZE", 2)),
    ],
)
def test_the_first_launcher_that_says_a_number_decides(
    environ: dict[str, str], expected: tuple[str, int] | None
) -> None:
    assert comm.launched_size(environ) == expected


def test_the_expected_number_of_ranks_passes() -> None:
    check_launch(4, {"PMI_SIZE": "4"})


@pytest.mark.parametrize("environ", [{}, {"PMI_SIZE": "1"}])
def test_a_single_rank_loads_no_mpi_library(environ: dict[str, str]) -> None:
    text = (
        "import sys; from fedande_mpi.comm import connect\n"
        f"print(type(connect({environ!r})).__name__, 'mpi4py' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["SerialComm", "False"]


def test_several_ranks_without_an_mpi_library_are_refused_with_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(
        FederationError, match=r"MPI library for 2 ranks \(PMI_SIZE=2\).*fedande-mpi\[mpich\]"
    ):
        connect({"PMI_SIZE": "2"})
    assert isinstance(connect({"PMI_SIZE": "2"}, allow_singleton=True), SerialComm)


@pytest.mark.parametrize(
    "version", ["MPICH Version:      5.0.2\nMPICH Release date: x", "Intel(R) MPI Library 2021"]
)
def test_open_mpis_launcher_for_another_library_is_refused(version: str) -> None:
    with pytest.raises(
        FederationError, match=r"expected Open MPI for 3 ranks .* got (MPICH 5\.0\.2|Intel\(R\) MPI):"
    ):
        check_library(version, {"OMPI_COMM_WORLD_SIZE": "3"})


def test_a_launcher_that_may_belong_to_the_library_passes() -> None:
    check_library("Open MPI v4.1.4", {"OMPI_COMM_WORLD_SIZE": "3"})
    check_library("Open MPI v4.1.4", {"PMI_SIZE": "3"})  # srun --mpi=pmi2 may know it
    check_library("MPICH Version: 5.0.2", {"PMI_SIZE": "3"})


# --- messages are cut alike --------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [8, 24, 25, 79, 80, 10**6])
def test_case_17_pieces_cover_a_buffer_and_stay_below_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(comm, "MAX_MESSAGE", limit)
    buffer = np.arange(10.0).reshape(2, 5)
    pieces = list(comm._pieces(buffer))
    assert max(piece.nbytes for piece in pieces) <= limit
    assert np.concatenate(pieces).tolist() == buffer.ravel().tolist()
    assert all(np.shares_memory(piece, buffer) for piece in pieces)


@pytest.mark.parametrize("limit", [8, 40, 100, 10**6])
@pytest.mark.parametrize("counts", [[2, 1], [1, 3], [1, 1]])
def test_case_17_a_gather_is_cut_alike_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, limit: int, counts: list[int]
) -> None:
    """Replay the calls of a root and its hosts on a communicator that only moves arrays."""
    monkeypatch.setattr(comm, "MAX_MESSAGE", limit)
    monkeypatch.setattr(comm, "_mpi_type", lambda array: None)
    width = 7

    class Request:
        def Test(self) -> bool:
            return True

    class World:
        def __init__(self, rank: int) -> None:
            self.rank = rank
            self.calls: list[Any] = []

        def Get_rank(self) -> int:
            return self.rank

        def Igatherv(self, piece: Any, receive: Any, root: int) -> Request:
            self.calls.append(receive if self.rank == 0 else piece.copy())
            return Request()

    worlds = [World(rank) for rank in range(1 + len(counts))]
    rows = [
        np.arange(count * width, dtype=float).reshape(count, width) + 100 * h
        for h, count in enumerate(counts)
    ]
    out = np.full((sum(counts), width), np.nan)
    drive([comm._MpiLink(worlds[0]).gather(None, out, counts)])
    for world, own in zip(worlds[1:], rows, strict=True):
        drive([comm._MpiLink(world).gather(own, None, counts)])
    assert len({len(world.calls) for world in worlds}) == 1
    for at, (target, sizes, starts, _) in enumerate(worlds[0].calls):
        assert sum(sizes) * 8 <= max(limit, 8 * len(counts))  # a number of every host at least
        for host, world in enumerate(worlds[1:], start=1):
            assert world.calls[at].size == sizes[host]
            target.reshape(-1)[starts[host] : starts[host] + sizes[host]] = world.calls[at]
    assert out.tolist() == np.concatenate(rows).tolist()


# --- errors ------------------------------------------------------------------------------------------------


class FakeComm(SerialComm):
    """Two ranks of which this is one; records how the job was ended."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.codes: list[int] = []

    def abort(self, code: int) -> None:
        self.codes.append(code)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm.time, "sleep", lambda seconds: None)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("expected this, got that"), 1, "fedande: expected this, got that"),
        (Interrupted("stopped by SIGTERM"), 75, "fedande: stopped by SIGTERM"),
        (KeyboardInterrupt(), 75, "fedande: interrupted; run the same command again"),
        (MemoryError(), 1, "fedande: out of memory"),
        (RuntimeError("odd"), 70, "fedande: unexpected RuntimeError: odd"),
    ],
)
def test_an_error_ends_the_job_with_one_line_and_its_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    fake = FakeComm(rank=0)
    with pytest.raises(type(error)), ending_job(fake):
        raise error
    assert fake.codes == [code]
    printed = capsys.readouterr().err.splitlines()
    assert printed[-1].startswith(message)
    assert (len(printed) == 1) == (code != 70)  # a traceback only for what nobody expects


def test_an_error_keeps_its_notes_on_its_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = FederationError("expected finite weights,\ngot NaN")
    error.add_note("rank 2, client 3, parent set (1,), round 4")
    with pytest.raises(FederationError), ending_job(FakeComm(rank=2)):
        raise error
    assert capsys.readouterr().err == (
        "fedande: expected finite weights, got NaN [rank 2, client 3, parent set (1,), round 4]\n"
    )


def test_an_error_outside_a_unit_names_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError), ending_job(FakeComm(rank=1)):
        raise ConfigError("expected this")
    assert capsys.readouterr().err == "fedande: expected this [rank 1]\n"


def test_an_interruption_leaves_the_word_to_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(comm.time, "sleep", naps.append)
    for rank in (0, 1):
        with pytest.raises(Interrupted), ending_job(FakeComm(rank)):
            raise Interrupted("stopped")
    assert len(naps) == 1


def test_a_single_process_just_raises(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError), ending_job(SerialComm()):
        raise ConfigError("expected this")
    assert capsys.readouterr().err == ""


def test_nothing_is_ended_without_an_error() -> None:
    fake = FakeComm(rank=0)
    with ending_job(fake):
        pass
    assert fake.codes == []


# --- leaving -----------------------------------------------------------------------------------------------


class Leaving(FakeComm):
    """A rank whose others come, or do not."""

    def __init__(self, rank: int, *, come: bool) -> None:
        super().__init__(rank)
        self.come = come

    def leave(self, seconds: float) -> bool:
        return self.come


@pytest.mark.parametrize("rank", [0, 1])
def test_case_20_ranks_that_leave_together_are_not_aborted_and_rank_0_says_it(
    capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    fake = Leaving(rank, come=True)
    with pytest.raises(Left) as left, ending_job(fake), ending_job(fake):
        raise Interrupted("stopped by SIGTERM")
    assert left.value.code == 75
    assert fake.codes == []
    assert capsys.readouterr().err == ("fedande: stopped by SIGTERM\n" if rank == 0 else "")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_come_has_the_job_aborted_with_75(
    capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    fake = Leaving(rank, come=False)
    with pytest.raises(Interrupted), ending_job(fake):
        raise Interrupted("stopped by SIGTERM")
    assert fake.codes == [75]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_who_is_told_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeComm(rank=1)
    stop_if_told(fake)
    monkeypatch.setattr(fake, "told", lambda: True)
    with pytest.raises(Interrupted, match="run the same command again to continue"):
        stop_if_told(fake)
