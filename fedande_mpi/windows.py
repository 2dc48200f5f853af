"""Memory that the ranks of one machine share, in windows of MPI.

The MPI module comes as an argument: `fedande_mpi.comm` is the only one that imports it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fedande_mpi.links import FloatArray


class Window:
    """Memory that all ranks of a communicator see, so many bytes of each.

    Attributes
    ----------
    memories : list of float64 arrays
        Of every rank. Whoever wrote and whoever will read call `synchronise`, before and after a message between them.
    """

    def __init__(self, mpi: Any, comm: Any, room: int) -> None:
        info = mpi.Info.Create({"alloc_shared_noncontig": "true"})  # a host's pages on its own processor
        self._window = mpi.Win.Allocate_shared(room, 8, info, comm)
        info.Free()
        self._window.Lock_all(mpi.MODE_NOCHECK)  # the epoch in which `Sync` may be called
        self.memories: list[FloatArray] = []
        for rank in range(comm.Get_size()):
            memory: Any = self._window.Shared_query(rank)[0]
            self.memories.append(np.frombuffer(memory, dtype=np.float64, count=len(memory) // 8))
        # taken now, while there is room for it (`fits`): a page that cannot be had later kills the rank
        self.memories[comm.Get_rank()].fill(0.0)

    def synchronise(self) -> None:
        """Make what was written before a message visible after it."""
        self._window.Sync()

    def free(self) -> None:
        """Give the memory back; collective."""
        self.memories = []
        self._window.Unlock_all()
        self._window.Free()


def fits(size: int) -> bool:
    """Whether shared memory has room for `size` bytes, with as much to spare: others may be about to take some."""
    try:
        free = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return True  # the system keeps it elsewhere, and the library looks after it
    return 2 * size <= free.f_bavail * free.f_frsize
