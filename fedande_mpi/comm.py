"""The one door to MPI: who runs where, and links that never spin.

Blocking and non-blocking collectives do not match each other in MPI: both ends of a link use the non-blocking
ones.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.errors import FederationError, Interrupted
from fedande_mpi.launching import check_launch, check_library, launched_size
from fedande_mpi.links import Array, Communicator, FloatArray, Grid, Link, lay
from fedande_mpi.programs import Program, drive
from fedande_mpi.serial import Alone, SerialComm
from fedande_mpi.windows import Window, fits, machines

T = TypeVar("T")

MAX_MESSAGE = 2**31 - 1
"""Largest message in bytes: MPI counts are 32-bit integers."""

_LARGE = 2**16
"""Bytes from which a message goes in pieces that need both ends' attention."""

_SPINS = 500
"""Calls to the library without a nap, for a message that is under way."""

_NAP_SECONDS = 1e-3
"""Between looks at who has come, when the ranks leave."""


class _MpiLink:
    """A link over an MPI communicator whose rank 0 is the root, and memory that all its ranks see, if any."""

    def __init__(self, comm: Any, window: Window | None = None) -> None:
        self.comm = comm
        self.is_root = comm.Get_rank() == 0
        self.window = window
        self._unread = False

    def broadcast(self, buffer: Array) -> Program[None]:
        if buffer.nbytes > _LARGE and self.window is not None and buffer.nbytes <= self.window.room:
            yield from self._broadcast_in(self.window, buffer)
            return
        if buffer.nbytes > _LARGE:
            yield from _wait(self.comm.Ibcast(np.zeros(1, dtype=np.int8), root=0))
        for piece in _pieces(buffer):
            yield from _wait(self.comm.Ibcast(piece, root=0), ready=buffer.nbytes > _LARGE)

    def _broadcast_in(self, window: Window, buffer: Array) -> Program[None]:
        """Leave the buffer in shared memory; all are there and have read the last one, or are waited for."""
        flat = buffer.reshape(-1)
        shown = window.memories[0].view(buffer.dtype)[: flat.size]
        if self._unread:
            yield from _wait(self.comm.Ibarrier())
        self._unread = True
        if self.is_root:
            shown[:] = flat
        window.synchronise()
        yield from _wait(self.comm.Ibcast(np.zeros(1, dtype=np.int8), root=0))
        window.synchronise()
        if not self.is_root:
            flat[:] = shown

    def gather(
        self, rows: Array | None, out: Array | None, counts: Sequence[int], *, ready: bool = False
    ) -> Program[None]:
        self._unread = False  # the root goes on when all have come
        if self.window is not None:
            self.window.synchronise()
        mine = np.zeros(0) if rows is None else rows.reshape(-1)
        width = (out if rows is None else rows).shape[1]  # type: ignore[union-attr]
        # all ranks cut alike: so many numbers of every host at a time that a message stays below the limit
        step = max(1, MAX_MESSAGE // (8 * len(counts)))
        for first in range(0, max(1, max(counts) * width), step):
            receive = None
            if out is not None:
                # the server is rank 0 of the communicator and sends nothing
                sizes = [0, *(max(0, min(step, count * width - first)) for count in counts)]
                ends = np.cumsum([0, *counts]) * width
                starts = [0, *(int(min(start + first, end)) for start, end in pairwise(ends))]
                receive = [out, sizes, starts, _mpi_type(out)]
            piece = mine[first : first + step] if rows is not None else None
            yield from _wait(self.comm.Igatherv(piece, receive, root=0), ready=ready)
        if self.window is not None:
            self.window.synchronise()

    def maximum(self, buffer: Array) -> Program[None]:
        MPI = _mpi()
        for piece in _pieces(buffer):
            yield from _wait(self.comm.Iallreduce(MPI.IN_PLACE, piece, op=MPI.MAX))

    def total(self, buffer: NDArray[np.int64]) -> Program[None]:
        MPI = _mpi()
        self._unread = False
        large = buffer.nbytes > _LARGE
        if large:
            yield from _wait(self.comm.Ibarrier())
            if self.window is not None and buffer.nbytes <= self.window.room:
                yield from self._total_in(self.window, buffer)
                return
        for piece in _pieces(buffer):
            if self.is_root:
                request = self.comm.Ireduce(MPI.IN_PLACE, piece, op=MPI.SUM, root=0)
            else:
                request = self.comm.Ireduce(piece, None, op=MPI.SUM, root=0)
            yield from _wait(request, ready=large)

    def _total_in(self, window: Window, buffer: NDArray[np.int64]) -> Program[None]:
        """Add up in shared memory; the root has read what was there before when it comes."""
        terms = [memory[: buffer.size].view(np.int64) for memory in window.memories]
        if not self.is_root:
            terms[self.comm.Get_rank()][:] = buffer.reshape(-1)
        window.synchronise()
        yield from _wait(self.comm.Ibarrier(), ready=True)
        window.synchronise()
        if self.is_root:
            flat = buffer.reshape(-1)
            for term in terms[1:]:
                flat += term

    def tables(self, counts: Sequence[int], width: int) -> list[FloatArray] | None:
        return None if self.window is None else lay(self.window.memories[1:], counts, width)


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI


def _mpi_type(array: Array) -> Any:
    return _mpi().Datatype.fromcode(array.dtype.char)


def _pieces(buffer: Array) -> Iterable[Array]:
    flat = buffer.reshape(-1)
    step = max(1, MAX_MESSAGE // flat.itemsize)
    return [flat[first : first + step] for first in range(0, flat.size, step)]


def _wait(request: Any, *, ready: bool = False) -> Program[None]:
    """Wait for a request; when the message is known to be under way, without sleeping.

    A large message moves only while both ends call the library: a nap between its pieces costs more than the
    message. But the other end may not have a core of its own: after a while, nap all the same.
    """
    spins = _SPINS if ready else 0
    while not request.Test():
        if spins > 0:
            os.sched_yield()
        yield spins > 0
        spins -= 1
    yield True


class _MpiGrid:
    def __init__(self, world: Any, n_groups: int, n_shards: int, room: int, machines: Sequence[int]) -> None:
        rank = world.Get_rank()
        hosts = world.Get_size() - 1
        assert n_groups * n_shards <= hosts
        self.server_links: Sequence[Link] = []
        self.host: tuple[int, int] | None = None
        self.host_link: Link | None = None
        self.group_link: Link | None = None
        self.room = room
        self._comms: list[Any] = []
        self._windows: list[Window] = []
        # the shards whose hosts are all on rank 0's machine
        near = [
            shard
            for shard in range(n_shards)
            if all(machines[1 + shard * n_groups + group] == machines[0] for group in range(n_groups))
        ]
        if not world.bcast(room > 0 and fits(room * (n_groups + 1) * len(near)), root=0):
            near = []
        everyone = world.Get_group()
        if 1 <= rank <= n_groups * n_shards:
            self.host = ((rank - 1) % n_groups, (rank - 1) // n_groups)
        links: list[Link] = []
        for shard in range(n_shards):
            members = [0, *(1 + shard * n_groups + group for group in range(n_groups))]
            if rank in members:
                comm = world.Create_group(everyone.Incl(members), tag=shard)
                self._comms.append(comm)
                window = Window(_mpi(), comm, room) if shard in near else None
                self._windows += [window] if window is not None else []
                links.append(_MpiLink(comm, window))
        if rank == 0:
            self.server_links = links
        elif self.host is not None:
            self.host_link = links[0]
            members = [1 + shard * n_groups + self.host[0] for shard in range(n_shards)]
            if n_shards == 1:
                self.group_link = Alone()
            else:
                comm = world.Create_group(everyone.Incl(members), tag=n_shards + self.host[0])
                self._comms.append(comm)
                self.group_link = _MpiLink(comm)

    def free(self) -> None:
        for window in self._windows:
            window.free()
        for comm in self._comms:
            comm.Free()
        self._windows, self._comms = [], []


class MpiComm:
    """All ranks of an MPI job; rank 0 serves, the others host."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.rank = int(world.Get_rank())
        self.size = int(world.Get_size())
        self._grid: tuple[tuple[int, int], _MpiGrid] | None = None
        self._machines = machines(_mpi(), world)
        # of its own, so that leaving matches nothing that the work has under way
        self._leaving = world.Dup()
        self.ranks_here = self._machines.count(self._machines[self.rank])

    def grid(self, n_groups: int, n_shards: int, room: int = 0) -> Grid:
        """Arrange the hosts in `n_groups` x `n_shards`; the last arrangement is kept while it does."""
        key = (n_groups, n_shards)
        if self._grid is None or self._grid[0] != key or self._grid[1].room < room:
            if self._grid is not None:
                self._grid[1].free()
            self._grid = (key, _MpiGrid(self._world, n_groups, n_shards, room, self._machines))
        return self._grid[1]

    def share(self, value: T | None, poll: Callable[[], None] = lambda: None) -> T:
        """Return rank 0's value on every rank; it travels as a pickle, outside any round."""
        return drive([self._share(value)], poll)[0]  # type: ignore[no-any-return]

    def _share(self, value: T | None) -> Program[T]:
        data = np.zeros(0, dtype=np.uint8)
        size = np.zeros(1, dtype=np.int64)
        if self.rank == 0:
            data = np.frombuffer(pickle.dumps(value, protocol=5), dtype=np.uint8)
            size[0] = data.size
        yield from _wait(self._world.Ibcast(size, root=0))
        if self.rank != 0:
            data = np.empty(int(size[0]), dtype=np.uint8)
        for piece in _pieces(data):
            yield from _wait(self._world.Ibcast(piece, root=0))
        return pickle.loads(data.data)  # type: ignore[no-any-return]

    def collect(self, value: T) -> Program[list[T]]:
        """Return every rank's value on rank 0; values travel as pickles, outside any round."""
        if self.rank != 0:
            data = np.frombuffer(pickle.dumps(value, protocol=5), dtype=np.uint8)
            yield from _wait(self._world.Isend(np.array([data.size], dtype=np.int64), dest=0, tag=1))
            for piece in _pieces(data):
                yield from _wait(self._world.Isend(piece, dest=0, tag=2))
            return []
        values = [value]
        for source in range(1, self.size):
            size = np.zeros(1, dtype=np.int64)
            yield from _wait(self._world.Irecv(size, source=source, tag=1))
            data = np.empty(int(size[0]), dtype=np.uint8)
            for piece in _pieces(data):
                yield from _wait(self._world.Irecv(piece, source=source, tag=2))
            values.append(pickle.loads(data.data))
        return values

    def barrier(self, poll: Callable[[], None] = lambda: None) -> None:
        """Wait for all ranks without spinning."""
        drive([_wait(self._world.Ibarrier())], poll)

    def told(self) -> bool:
        """Whether a message says that the ranks leave: to rank 0 from any, to the others from rank 0."""
        return bool(self._leaving.Iprobe(source=_mpi().ANY_SOURCE))

    def leave(self, seconds: float) -> bool:
        """Tell all ranks to leave, wait for them, and close MPI.

        Messages that the work has under way stay so, with their buffers: the caller keeps them alive (they
        hang on its exception) until this returns.
        """
        from mpi4py import MPI

        others = range(1, self.size) if self.rank == 0 else (0,)
        words = [np.zeros(1, dtype=np.int8) for _ in range(2 * len(others))]
        requests = [self._leaving.Isend(word, dest=at) for word, at in zip(words, others, strict=False)]
        requests += [
            self._leaving.Irecv(word, source=at)
            for word, at in zip(words[len(others) :], others, strict=False)
        ]
        requests.append(self._leaving.Ibarrier())
        deadline = time.monotonic() + seconds
        while not all([request.Test() for request in requests]):
            if time.monotonic() > deadline:
                return False
            time.sleep(_NAP_SECONDS)
        # Every rank is here and every result on disk: a library that cannot close ends all the same.
        watchdog = threading.Timer(seconds, os._exit, [Interrupted.exit_code])
        watchdog.daemon = True
        watchdog.start()
        sys.stderr.flush()
        # requests of the unit that was dropped are still open; MPICH remarks on them, which helps nobody
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        MPI.Finalize()
        watchdog.cancel()
        return True

    def abort(self, code: int) -> None:
        """End all ranks at once; nobody is left waiting in a receive."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(0.25)  # a launcher that ends a job drops what it has not read yet
        self._world.Abort(code)
        os._exit(code)  # MPICH's call may return before the launcher has ended this process


def _load_mpi() -> Any:
    """Load the MPI library without starting it, so that a launcher it does not know can be refused first."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    from mpi4py import MPI

    return MPI


def connect(environ: Mapping[str, str] | None = None, *, allow_singleton: bool = False) -> Communicator:
    """Join the job this process was started in.

    Without a launcher, or as its only rank, no MPI library is loaded.

    Raises
    ------
    FederationError
        When a launcher started several ranks that do not see each other, or mpi4py cannot be loaded.
    """
    environ = os.environ if environ is None else environ
    launched = launched_size(environ)
    if launched is None or launched[1] == 1:
        return SerialComm()
    try:
        MPI = _load_mpi()
    except (ImportError, RuntimeError) as error:
        if allow_singleton:
            return SerialComm()
        reason = str(error).splitlines()[0]
        raise FederationError(
            f"expected an MPI library for {launched[1]} ranks ({launched[0]}={launched[1]}), got: {reason}; "
            "load the MPI module of your cluster, or install fedande-mpi[mpich]; Debian's MPICH calls its library "
            "libmpich.so.12 where mpi4py looks for libmpi.so.12 (docs/cluster.md)"
        ) from error
    if not allow_singleton:
        check_library(MPI.Get_library_version(), environ)
    if not MPI.Is_initialized():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of another launcher: the world's size will tell
            MPI.Init_thread()
    world = MPI.COMM_WORLD
    check_launch(world.Get_size(), environ, allow_singleton=allow_singleton)
    return MpiComm(world) if world.Get_size() > 1 else SerialComm()
