"""Links within one process, who joins which job, and how messages are cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedande_mpi import comm
from fedande_mpi.comm import SerialComm, connect
from fedande_mpi.errors import FederationError
from fedande_mpi.programs import Program, drive

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


# --- connecting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [{}, {"PMI_SIZE": "1"}, {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}])
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
