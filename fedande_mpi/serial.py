"""One process that is both server and host, without MPI."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.links import Array, FloatArray, Grid, Link, lay
from fedande_mpi.programs import Program

T = TypeVar("T")


class _Mailbox:
    """One direction of an in-process link: arrays are handed over, not copied twice."""

    def __init__(self) -> None:
        self.items: deque[Array] = deque()

    def take(self) -> Program[Array]:
        while not self.items:
            yield False
        return self.items.popleft()


class _SerialEnd:
    """One end of the link between the server and the only host of a single process."""

    def __init__(self, inbox: _Mailbox, outbox: _Mailbox, memory: FloatArray, *, is_root: bool) -> None:
        self.inbox, self.outbox, self.is_root = inbox, outbox, is_root
        self.memory = memory

    def broadcast(self, buffer: Array) -> Program[None]:
        if self.is_root:
            self.outbox.items.append(buffer)
            yield True
        else:
            buffer[...] = yield from self.inbox.take()

    def gather(
        self, rows: Array | None, out: Array | None, counts: Sequence[int], *, ready: bool = False
    ) -> Program[None]:
        if out is not None:
            out[...] = yield from self.inbox.take()
        elif rows is not None:
            self.outbox.items.append(rows)
            yield True

    def maximum(self, buffer: Array) -> Program[None]:
        self.outbox.items.append(buffer.copy())
        np.maximum(buffer, (yield from self.inbox.take()), out=buffer)

    def total(self, buffer: NDArray[np.int64]) -> Program[None]:
        if self.is_root:
            buffer += yield from self.inbox.take()
        else:
            self.outbox.items.append(buffer.copy())
            yield True

    def tables(self, counts: Sequence[int], width: int) -> list[FloatArray] | None:
        return lay([self.memory], counts, width)


class Alone:
    """A link with nobody at the other end."""

    def broadcast(self, buffer: Array) -> Program[None]:
        """Do nothing."""
        yield True

    def gather(
        self, rows: Array | None, out: Array | None, counts: Sequence[int], *, ready: bool = False
    ) -> Program[None]:
        """Copy the rows."""
        if rows is not None and out is not None:
            out[...] = rows
        yield True

    def maximum(self, buffer: Array) -> Program[None]:
        """Do nothing."""
        yield True

    def total(self, buffer: NDArray[np.int64]) -> Program[None]:
        """Do nothing."""
        yield True

    def tables(self, counts: Sequence[int], width: int) -> list[FloatArray] | None:
        """Return None: nobody looks."""
        return None


class _SerialGrid:
    def __init__(self, room: int) -> None:
        up, down = _Mailbox(), _Mailbox()
        memory = np.empty(room // 8)
        self.server_links: Sequence[Link] = [_SerialEnd(up, down, memory, is_root=True)]
        self.host: tuple[int, int] | None = (0, 0)
        self.host_link: Link | None = _SerialEnd(down, up, memory, is_root=False)
        self.group_link: Link | None = Alone()


class SerialComm:
    """One process that is both server and host; needs no MPI library."""

    rank = 0
    size = 1
    ranks_here = 1
    near: Sequence[int] = (0,)

    def grid(
        self,
        n_groups: int,
        n_shards: int,
        room: tuple[int, int] = (0, 0),
        poll: Callable[[], None] = lambda: None,
    ) -> Grid:
        """Return the 1 x 1 grid."""
        if (n_groups, n_shards) != (1, 1):
            raise ValueError(f"one process has a 1 x 1 grid, not {n_groups} x {n_shards}")
        return _SerialGrid(room[1])

    def share(self, value: T | None, poll: Callable[[], None] = lambda: None, *, once: bool = False) -> T:
        """Return the value."""
        assert value is not None
        return value

    def collect(self, value: T) -> Program[list[T]]:
        """Return the one value."""
        yield True
        return [value]

    def barrier(self, poll: Callable[[], None] = lambda: None) -> None:
        """Do nothing."""

    def told(self) -> bool:
        """Return False: there is nobody else."""
        return False

    def leave(self, seconds: float) -> bool:
        """Return False: there is nobody to leave with."""
        return False

    def abort(self, code: int) -> None:
        """Exit the process."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
