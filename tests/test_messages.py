"""Messages are cut alike on all ranks, and none is too large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedande_mpi import messages
from fedande_mpi.programs import drive


@pytest.mark.parametrize("limit", [8, 24, 25, 79, 80, 10**6])
def test_case_17_pieces_cover_a_buffer_and_stay_below_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE", limit)
    buffer = np.arange(10.0).reshape(2, 5)
    pieces = list(messages.pieces(buffer))
    assert max(piece.nbytes for piece in pieces) <= limit
    assert np.concatenate(pieces).tolist() == buffer.ravel().tolist()
    assert all(np.shares_memory(piece, buffer) for piece in pieces)


@pytest.mark.parametrize("limit", [8, 40, 100, 10**6])
@pytest.mark.parametrize("counts", [[2, 1], [1, 3], [1, 1]])
def test_case_17_a_gather_is_cut_alike_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, limit: int, counts: list[int]
) -> None:
    """Replay the calls of a root and its hosts on a communicator that only moves arrays."""
    monkeypatch.setattr(messages, "MAX_MESSAGE", limit)
    monkeypatch.setattr(messages, "_datatype", lambda mpi, array: None)
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
    drive([messages.MpiLink(None, worlds[0]).gather(None, out, counts)])
    for world, own in zip(worlds[1:], rows, strict=True):
        drive([messages.MpiLink(None, world).gather(own, None, counts)])
    assert len({len(world.calls) for world in worlds}) == 1
    for at, (target, sizes, starts, _) in enumerate(worlds[0].calls):
        assert sum(sizes) * 8 <= max(limit, 8 * len(counts))  # a number of every host at least
        for host, world in enumerate(worlds[1:], start=1):
            assert world.calls[at].size == sizes[host]
            target.reshape(-1)[starts[host] : starts[host] + sizes[host]] = world.calls[at]
    assert out.tolist() == np.concatenate(rows).tolist()
