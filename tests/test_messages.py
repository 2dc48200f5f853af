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
    """Replay the calls of a root and its hosts, which only note what they are given."""
    monkeypatch.setattr(messages, "MAX_MESSAGE", limit)
    width = 7

    class Request:
        def Test(self) -> bool:
            return True

    class Noted:
        def __init__(self, rank: int) -> None:
            self.rank = rank
            self.calls: list[Any] = []

        def gather(self, mine: Any, out: Any, sizes: list[int], starts: list[int]) -> Request:
            self.calls.append((mine.copy(), out, sizes, starts))
            return Request()

    link: Any = messages.MpiLink
    noted = [Noted(rank) for rank in range(1 + len(counts))]
    rows = [
        np.arange(count * width, dtype=float).reshape(count, width) + 100 * h
        for h, count in enumerate(counts)
    ]
    out = np.full((sum(counts), width), np.nan)
    drive([link(noted[0]).gather(None, out, counts)])
    for world, own in zip(noted[1:], rows, strict=True):
        drive([link(world).gather(own, None, counts)])
    assert len({len(world.calls) for world in noted}) == 1
    for at, (_, target, sizes, starts) in enumerate(noted[0].calls):
        assert sum(sizes) * 8 <= max(limit, 8 * len(counts))  # a number of every host at least
        for host, world in enumerate(noted[1:], start=1):
            mine, _, known, _ = world.calls[at]
            assert known == sizes
            assert mine.size == sizes[host]
            target.reshape(-1)[starts[host] : starts[host] + sizes[host]] = mine
    assert out.tolist() == np.concatenate(rows).tolist()
