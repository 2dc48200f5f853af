"""Links over MPI communicators, and the messages that they send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.collectives import Collectives, wait
from fedande_mpi.links import Array, FloatArray, lay
from fedande_mpi.programs import Program
from fedande_mpi.windows import Window

MAX_MESSAGE = 2**31 - 1
"""Largest message in bytes: MPI counts are 32-bit integers."""

_LARGE = 2**16
"""Bytes from which a message goes in pieces that need both ends' attention."""


class MpiLink:
    """A link over a communicator's collectives, and memory that all its ranks see, if any."""

    def __init__(self, collectives: Collectives, window: Window | None = None) -> None:
        self.collectives = collectives
        self.is_root = collectives.rank == 0
        self.window = window
        self._unread = False

    def broadcast(self, buffer: Array) -> Program[None]:
        """Copy the root's buffer into everyone's."""
        if buffer.nbytes > _LARGE:
            if self.window is not None and buffer.nbytes <= self.window.memories[0].nbytes:
                yield from self._broadcast_in(self.window, buffer)
                return
            yield from wait(self.collectives.broadcast(np.zeros(1, dtype=np.int8)))
        for piece in pieces(buffer):
            yield from wait(self.collectives.broadcast(piece), ready=buffer.nbytes > _LARGE)

    def _broadcast_in(self, window: Window, buffer: Array) -> Program[None]:
        """Leave the buffer in shared memory; all are there and have read the last one, or are waited for."""
        flat = buffer.reshape(-1)
        shown = window.memories[0].view(buffer.dtype)[: flat.size]
        if self._unread:
            yield from wait(self.collectives.barrier())
        self._unread = True
        if self.is_root:
            shown[:] = flat
        window.synchronise()
        yield from wait(self.collectives.broadcast(np.zeros(1, dtype=np.int8)))
        window.synchronise()
        if not self.is_root:
            flat[:] = shown

    def gather(
        self, rows: Array | None, out: Array | None, counts: Sequence[int], *, ready: bool = False
    ) -> Program[None]:
        """Put every host's rows into the root's ``out``."""
        self._unread &= min(counts) == 0  # the root goes on when all have come that send something
        if self.window is not None:
            self.window.synchronise()
        given = out if rows is None else rows
        assert given is not None
        mine, width = given.reshape(-1), given.shape[1]
        # all ranks cut alike: so many numbers of every host at a time that a message stays below the limit
        step = max(1, MAX_MESSAGE // (8 * len(counts)))
        for first in range(0, max(1, max(counts) * width), step):
            sizes, starts = _cut(tuple(counts), width, first, step)
            piece = mine[:0] if rows is None else mine[first : first + step]
            yield from wait(self.collectives.gather(piece, out, sizes, starts), ready=ready)
        if self.window is not None:
            self.window.synchronise()

    def maximum(self, buffer: Array) -> Program[None]:
        """Replace everyone's buffer by the elementwise maximum."""
        for piece in pieces(buffer):
            yield from wait(self.collectives.maximum(piece))

    def total(self, buffer: NDArray[np.int64]) -> Program[None]:
        """Replace the root's buffer of integers by the elementwise sum."""
        self._unread = False
        large = buffer.nbytes > _LARGE
        if large:
            yield from wait(self.collectives.barrier())
            if self.window is not None and buffer.nbytes <= self.window.memories[1].nbytes:
                yield from self._total_in(self.window, buffer)
                return
        for piece in pieces(buffer):
            yield from wait(self.collectives.total(piece), ready=large)

    def _total_in(self, window: Window, buffer: NDArray[np.int64]) -> Program[None]:
        """Add up in shared memory; the root has read what was there before when it comes."""
        terms = [memory[: buffer.size].view(np.int64) for memory in window.memories[1:]]
        if not self.is_root:
            terms[self.collectives.rank - 1][:] = buffer.reshape(-1)
        window.synchronise()
        yield from wait(self.collectives.barrier(), ready=True)
        window.synchronise()
        if self.is_root:
            flat = buffer.reshape(-1)
            for term in terms:
                flat += term

    def tables(self, counts: Sequence[int], width: int) -> list[FloatArray] | None:
        """Return where every host's rows lie in shared memory, if they do."""
        return None if self.window is None else lay(self.window.memories[1:], counts, width)


@lru_cache(maxsize=64)
def _cut(counts: tuple[int, ...], width: int, first: int, step: int) -> tuple[list[int], list[int]]:
    """Return how many numbers of every rank go into a gather, from the `first` of each, and where; the root's are 0."""
    ends = accumulate(count * width for count in counts)
    sizes = [0, *(max(0, min(step, count * width - first)) for count in counts)]
    return sizes, [0, *(min(start + first, end) for start, end in pairwise([0, *ends]))]


def pieces(buffer: Array) -> Iterable[Array]:
    """Cut a buffer into messages that are not too large."""
    flat = buffer.reshape(-1)
    step = max(1, MAX_MESSAGE // flat.itemsize)
    return [flat[first : first + step] for first in range(0, flat.size, step)]
