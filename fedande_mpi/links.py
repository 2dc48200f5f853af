"""What ranks are to each other, whatever carries their messages.

A **link** joins the server to the hosts of one shard: `broadcast`, `gather`, `maximum`, `total`.
`fedande_mpi.serial` has those of a single process, `fedande_mpi.messages` those over MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.programs import Program

T = TypeVar("T")
Array = NDArray[Any]
FloatArray = NDArray[np.float64]


def lay(memories: Sequence[FloatArray], counts: Sequence[int], width: int) -> list[FloatArray] | None:
    """Cut the rows ``(counts[h], width)`` of every host out of its stretch of memory; None where it is too short."""
    if any(memory.size < count * width for memory, count in zip(memories, counts, strict=True)):
        return None
    return [
        memory[: count * width].reshape(count, width) for memory, count in zip(memories, counts, strict=True)
    ]


class Link(Protocol):
    """The server and the hosts of one shard, or the hosts that share a group of clients."""

    def broadcast(self, buffer: Array) -> Program[None]:
        """Copy the root's buffer into everyone's."""

    def gather(
        self, rows: Array | None, out: Array | None, counts: Sequence[int], *, ready: bool = False
    ) -> Program[None]:
        """Put every host's rows ``(counts[h], width)``, host by host, into the root's ``out``.

        ``ready`` says that everyone is there already, so that the message flows at once.
        """

    def maximum(self, buffer: Array) -> Program[None]:
        """Replace everyone's buffer by the elementwise maximum."""

    def total(self, buffer: NDArray[np.int64]) -> Program[None]:
        """Replace the root's buffer of integers by the elementwise sum."""

    def tables(self, counts: Sequence[int], width: int) -> list[FloatArray] | None:
        """Return where every host's rows ``(counts[h], width)`` lie for all to see, if there is such a place.

        A host writes its own; the server may read them from the next `gather` to its next `broadcast`. `total` of a
        large buffer goes through the same place.
        """


class Grid(Protocol):
    """G client groups x S shards of the parent sets."""

    server_links: Sequence[Link]
    """On rank 0: the link to each shard; empty elsewhere."""
    host: tuple[int, int] | None
    """Client group and shard of this rank, if it hosts any."""
    host_link: Link | None
    """The host's link to the server."""
    group_link: Link | None
    """The hosts of this client group in all shards; the root is shard 0's."""


class Communicator(Protocol):
    """All ranks of the job."""

    rank: int
    size: int
    ranks_here: int
    """Ranks that share this machine."""
    near: Sequence[int]
    """The ranks on rank 0's machine, itself first."""

    def grid(
        self,
        n_groups: int,
        n_shards: int,
        room: tuple[int, int] = (0, 0),
        poll: Callable[[], None] = ...,
    ) -> Grid:
        """Arrange the hosts; collective.

        `room` is what server and hosts can see of each other, if they may: bytes of the server for each shard, and
        of every host. `poll` is called while waiting and may raise.
        """

    def share(self, value: T | None, poll: Callable[[], None] = ..., *, once: bool = False) -> T:
        """Return rank 0's value on every rank; collective. `poll` is called while waiting and may raise.

        With ``once``, which all ranks give alike, a machine holds its large arrays once, read-only, until the next such
        call.
        """

    def collect(self, value: T) -> Program[list[T]]:
        """Return every rank's value on rank 0, in rank order, and an empty list elsewhere; collective."""

    def barrier(self, poll: Callable[[], None] = ...) -> None:
        """Wait for all ranks; `poll` is called meanwhile and may raise."""

    def told(self) -> bool:
        """Whether another rank is leaving (see `leave`), so that this one should too."""

    def leave(self, seconds: float) -> bool:
        """Tell all ranks to leave, wait so long for them, and close MPI; say whether that could be."""

    def abort(self, code: int) -> None:
        """End the whole job at once."""
