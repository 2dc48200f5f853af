"""The one door to MPI: all ranks of a job, and the grid of its hosts."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from fedande_mpi.collectives import Collectives, settle, wait
from fedande_mpi.errors import FederationError, Interrupted
from fedande_mpi.launching import check_launch, check_library, launched_size
from fedande_mpi.links import Array, Communicator, Grid, Link
from fedande_mpi.messages import MpiLink, pieces
from fedande_mpi.programs import Program, drive
from fedande_mpi.serial import Alone, SerialComm
from fedande_mpi.windows import Window, fits

T = TypeVar("T")

_ONCE = 2**20
"""Bytes from which an array that all ranks get is held once for each machine."""

_PUT_OFF_SECONDS = 5.0
"""So long a signal of a rank's own is put off."""

_COLLECTED = 2**26
"""Bytes of pickles that rank 0 gets at once."""


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI


class _MpiGrid:
    def __init__(
        self,
        world: Any,
        n_groups: int,
        n_shards: int,
        room: tuple[int, int],
        machines: Sequence[int],
        number: int,
    ) -> None:
        rank = world.Get_rank()
        hosts = world.Get_size() - 1
        assert n_groups * n_shards <= hosts
        self.server_links: Sequence[Link] = []
        self.host: tuple[int, int] | None = None
        self.host_link: Link | None = None
        self.group_link: Link | None = None
        self.room = room
        self.number = number
        self.collectives: list[Collectives] = []
        self._windows: list[Window] = []
        # the shards whose hosts are all on rank 0's machine
        near = [
            shard
            for shard in range(n_shards)
            if all(machines[1 + shard * n_groups + group] == machines[0] for group in range(n_groups))
        ]
        if not world.bcast(fits((room[0] + n_groups * room[1]) * len(near)), root=0):
            near = []
        everyone = world.Get_group()
        if 1 <= rank <= n_groups * n_shards:
            self.host = ((rank - 1) % n_groups, (rank - 1) // n_groups)
        links: list[Link] = []
        for shard in range(n_shards):
            members = [0, *(1 + shard * n_groups + group for group in range(n_groups))]
            if rank in members:
                comm = world.Create_group(everyone.Incl(members), tag=shard)
                window = Window(_mpi(), comm, room[min(rank, 1)]) if shard in near and room[1] else None
                self._windows += [window] if window is not None else []
                links.append(MpiLink(self._collectives(comm, f"shard {shard}"), window))
        if rank == 0:
            self.server_links = links
        elif self.host is not None:
            self.host_link = links[0]
            members = [1 + shard * n_groups + self.host[0] for shard in range(n_shards)]
            if n_shards == 1:
                self.group_link = Alone()
            else:
                comm = world.Create_group(everyone.Incl(members), tag=n_shards + self.host[0])
                self.group_link = MpiLink(self._collectives(comm, f"group {self.host[0]}"))

    def _collectives(self, comm: Any, name: str) -> Collectives:
        self.collectives.append(Collectives(_mpi(), comm, f"{name} of grid {self.number}"))
        return self.collectives[-1]

    def free(self) -> None:
        for window in self._windows:
            window.free()
        for collectives in self.collectives:
            collectives.comm.Free()
        self._windows, self.collectives = [], []


class MpiComm:
    """All ranks of an MPI job; rank 0 serves, the others host."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.rank = int(world.Get_rank())
        self.size = int(world.Get_size())
        self._grid: tuple[tuple[int, int], _MpiGrid] | None = None
        self._node = world.Split_type(_mpi().COMM_TYPE_SHARED)
        first = self._node.bcast(self.rank, root=0)
        self._machines: list[int] = world.allgather(first)
        """For each rank the first on its machine."""
        leaders = world.Split(0 if first == self.rank else _mpi().UNDEFINED, self.rank)
        self._all = Collectives(_mpi(), world, "all")
        self._here = Collectives(_mpi(), self._node, f"machine of {first}")
        self._firsts = None if leaders == _mpi().COMM_NULL else Collectives(_mpi(), leaders, "firsts")
        self._held: Window | None = None
        # of its own, so that leaving matches nothing that the work has under way
        self._leaving = world.Dup()
        self.ranks_here = self._machines.count(self._machines[self.rank])
        self.near: Sequence[int] = [
            rank for rank, other in enumerate(self._machines) if other == self._machines[0]
        ]

    def grid(
        self,
        n_groups: int,
        n_shards: int,
        room: tuple[int, int] = (0, 0),
        poll: Callable[[], None] = lambda: None,
    ) -> Grid:
        """Arrange the hosts in `n_groups` x `n_shards`; the last arrangement is kept while it does."""
        key = (n_groups, n_shards)
        kept = None if self._grid is None or self._grid[0] != key else self._grid[1].room
        if kept is None or kept[0] < room[0] or kept[1] < room[1]:
            with self._all_here(poll):
                number = 0
                if self._grid is not None:
                    self._grid[1].free()
                    number = self._grid[1].number + 1
                grid = _MpiGrid(self._world, n_groups, n_shards, room, self._machines, number)
                self._grid = (key, grid)
        assert self._grid is not None
        return self._grid[1]

    @contextmanager
    def _all_here(self, poll: Callable[[], None]) -> Iterator[None]:
        """Wait for all ranks before a block that waits in the library, where no signal is seen.

        A rank that has started to wait leaves only if it is told to, until all are through the block: so whoever leaves
        first has not, none gets into the block, and none waits there for one that has left. A signal of its own is
        for afterwards; where that is long, another does not come, and the job is aborted.
        """
        poll()
        mine: list[tuple[float, Interrupted]] = []

        def poll_for_others() -> None:
            try:
                poll()
            except Interrupted as error:
                now = time.monotonic()
                if not mine:
                    mine.append((now, error))
                if self.told() or now > mine[0][0] + _PUT_OFF_SECONDS:
                    raise

        self.barrier(poll_for_others)
        yield
        self.barrier()
        if mine:
            raise mine[0][1]

    def share(self, value: T | None, poll: Callable[[], None] = lambda: None, *, once: bool = False) -> T:
        """Return rank 0's value on every rank; it travels as a pickle, outside any round."""
        arrays: list[Array] = []

        def stays(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if once and raw.nbytes >= _ONCE:
                arrays.append(np.frombuffer(raw, dtype=np.uint8))
                return False
            return True

        data = np.zeros(0, dtype=np.uint8)
        if self.rank == 0:
            rest = pickle.dumps(value, protocol=5, buffer_callback=stays)
            data = np.frombuffer(pickle.dumps((rest, [array.size for array in arrays])), dtype=np.uint8)
        (data,) = drive([self._to_all(data)], poll)
        rest, sizes = pickle.loads(data.data)
        bounds = np.cumsum([0, *(-(-size // 8) * 8 for size in sizes)])
        memory = np.zeros(0, dtype=np.uint8)
        if sizes:
            with self._all_here(poll):
                memory = self._room_for_all(int(bounds[-1]))
            for array, at in zip(arrays, bounds, strict=False):
                memory[at : at + array.size] = array
            drive([self._once_to_all(memory)], poll)
        if value is not None:
            return value
        memory.flags.writeable = False
        return pickle.loads(  # type: ignore[no-any-return]
            rest, buffers=[memory[at : at + size] for at, size in zip(bounds, sizes, strict=False)]
        )

    def _to_all(self, data: Array) -> Program[Array]:
        """Return rank 0's bytes."""
        size = np.array([data.size], dtype=np.int64)
        yield from wait(self._all.broadcast(size))
        if self.rank != 0:
            data = np.empty(int(size[0]), dtype=np.uint8)
        for piece in pieces(data):
            yield from wait(self._all.broadcast(piece))
        return data

    def _once_to_all(self, memory: Array) -> Program[None]:
        """Copy what is in rank 0's room for all into that of every machine."""
        if self._firsts is not None:
            for piece in pieces(memory):
                yield from wait(self._firsts.broadcast(piece))
        if self._held is not None:
            self._held.synchronise()
            yield from wait(self._here.barrier())
            self._held.synchronise()
        else:
            for piece in pieces(memory):
                yield from wait(self._here.broadcast(piece))

    def _room_for_all(self, size: int) -> Array:
        """Return bytes that the ranks of this machine share, or, where there is no room for them, each its own."""
        if self._held is not None:
            self._held.free()
            self._held = None
        if self._node.Get_size() > 1 and self._node.bcast(fits(size), root=0):
            self._held = Window(_mpi(), self._node, size if self._node.Get_rank() == 0 else 0)
            return self._held.memories[0].view(np.uint8)
        return np.empty(size, dtype=np.uint8)

    def collect(self, value: T) -> Program[list[T]]:
        """Return every rank's value on rank 0; values travel as pickles, outside any round."""
        data = np.zeros(0, dtype=np.uint8)
        if self.rank != 0:
            data = np.frombuffer(pickle.dumps(value, protocol=5), dtype=np.uint8)
        sizes = np.zeros(self.size, dtype=np.int64)
        sizes[self.rank] = data.size
        yield from wait(self._all.maximum(sizes))
        ends = np.cumsum(sizes)
        starts = ends - sizes
        values, come = [value], bytearray()
        # one after the other, so that rank 0 never has all the pickles
        for first in range(0, int(ends[-1]), _COLLECTED):
            cut = np.clip([starts - first, ends - first], 0, _COLLECTED)
            mine = data[slice(*(first - starts[self.rank] + cut[:, self.rank]))]
            out = np.empty(int(cut[1, -1]), dtype=np.uint8) if self.rank == 0 else None
            counts = (cut[1] - cut[0]).tolist()
            yield from wait(self._all.gather(mine, out, counts, [0, *accumulate(counts)][:-1]))
            if out is not None:
                come += out.data
                while len(values) < self.size and len(come) >= sizes[len(values)]:
                    size = int(sizes[len(values)])
                    with memoryview(come) as whole, whole[:size] as part:
                        values.append(pickle.loads(part))
                    del come[:size]
        return values if self.rank == 0 else []

    def barrier(self, poll: Callable[[], None] = lambda: None) -> None:
        """Wait for all ranks without spinning."""
        drive([wait(self._all.barrier())], poll)

    def told(self) -> bool:
        """Whether a message says that the ranks leave: to rank 0 from any, to the others from rank 0."""
        return bool(self._leaving.Iprobe(source=_mpi().ANY_SOURCE))

    def leave(self, seconds: float) -> bool:
        """Tell all ranks to leave, wait for them, bring to its end what the work has under way, and close MPI."""
        from mpi4py import MPI

        others = range(1, self.size) if self.rank == 0 else (0,)
        words = [np.zeros(1, dtype=np.int8) for _ in range(2 * len(others))]
        requests = [self._leaving.Isend(word, dest=at) for word, at in zip(words, others, strict=False)]
        requests += [
            self._leaving.Irecv(word, source=at)
            for word, at in zip(words[len(others) :], others, strict=False)
        ]
        deadline = time.monotonic() + seconds

        def in_time() -> None:
            if time.monotonic() > deadline:
                raise TimeoutError

        under_way = [self._all, self._here, *([self._firsts] if self._firsts is not None else [])]
        under_way += [] if self._grid is None else self._grid[1].collectives
        try:
            drive([wait(request) for request in requests], in_time)
            if not drive([settle(MPI, self._leaving, under_way)], in_time)[0]:
                return False
        except (TimeoutError, MemoryError, MPI.Exception):
            return False
        # Every rank is here and every result on disk: a library that cannot close ends all the same.
        watchdog = threading.Timer(seconds, os._exit, [Interrupted.exit_code])
        watchdog.daemon = True
        watchdog.start()
        sys.stderr.flush()
        # communicators and windows are not given back; MPICH remarks on them, which helps nobody
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
