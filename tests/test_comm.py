"""Who joins which job, and how messages are cut."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fedande_mpi import comm
from fedande_mpi.comm import connect
from fedande_mpi.errors import FederationError
from fedande_mpi.programs import drive
from fedande_mpi.serial import SerialComm

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
