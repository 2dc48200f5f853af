"""The collectives of a communicator, and how they end where ranks leave in the middle of them.

All ranks of a communicator start the same collectives in the same order, non-blocking ones, which in MPI do not match
blocking ones. MPI may only be closed when each has come to its end, but ranks that leave have started differently many.
So every rank notes what it starts, and those behind take part in the rest, with memory of no account.

The MPI module comes as an argument: `fedande_mpi.comm` is the only one that imports it.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.links import Array
from fedande_mpi.programs import Program

T = TypeVar("T")

_KEPT = 2**15
"""Calls that are noted. A rank is ahead of another by those that need no answer, such as the weights that a server
hands out to those who score alone. Where that is more, `settle` says that it cannot be."""

_DIFFERENT = 1000
"""Different calls from which it is no use to keep equal ones once."""

_SPINS = 500
"""Calls to the library without a nap, for a message that is under way."""


class Call(NamedTuple):
    """What a rank has to know of a collective to take part in it."""

    kind: str
    """The method of `Collectives`."""
    typecode: str = "b"
    sizes: tuple[int, ...] = ()
    """Of the buffer; in a gather, of what every rank gives."""


class UnderWay:
    """A collective until its end, and what it needs: mpi4py keeps the buffers of some kinds alive, not of all."""

    def __init__(self, request: Any, buffers: Sequence[Array | None], then: Callable[[], None]) -> None:
        self._request, self._buffers = request, buffers
        self._then: Callable[[], None] | None = then

    def Test(self) -> bool:
        """Say whether it has come to its end; what it needed is free by then."""
        if not self._request.Test():
            return False
        if self._then is not None:
            self._then()
            self._then, self._buffers = None, ()
        return True


class Collectives:
    """The non-blocking collectives of one communicator; rank 0 is the root.

    Parameters
    ----------
    mpi : module
    comm : communicator
    name : str
        The same on all its ranks, and that of no other communicator of the job.
    """

    def __init__(self, mpi: Any, comm: Any, name: str) -> None:
        self.mpi, self.comm, self.name = mpi, comm, name
        self.rank = int(comm.Get_rank())
        self.started = 0
        self._calls: deque[Call] = deque(maxlen=_KEPT)
        self._known: dict[Call, Call] = {}
        self._under_way: list[UnderWay] = []

    def _note(self, call: Call, request: Any, *buffers: Array | None) -> UnderWay:
        self.started += 1
        if len(self._known) > _DIFFERENT:
            self._known.clear()
        self._calls.append(self._known.setdefault(call, call))  # few differ: a server has many links
        under_way = UnderWay(request, buffers, partial(self._ended, call, self.started))
        self._under_way = [other for other in self._under_way if not other.Test()]
        self._under_way.append(under_way)
        return under_way

    def _ended(self, call: Call, number: int) -> None:
        """Forget what nobody can miss: all have started what came before they all had a part in something."""
        root_knows = call.kind == "total" or (call.kind == "gather" and min(call.sizes[1:], default=0) > 0)
        if call.kind in ("barrier", "maximum") or (self.rank == 0 and root_knows):
            while self._calls and self.started - len(self._calls) < number:
                self._calls.popleft()

    def barrier(self) -> UnderWay:
        """Start to wait for all ranks."""
        return self._note(Call("barrier"), self.comm.Ibarrier())

    def broadcast(self, buffer: Array) -> UnderWay:
        """Start to copy the root's buffer into everyone's."""
        call = Call("broadcast", buffer.dtype.char, (buffer.size,))
        return self._note(call, self.comm.Ibcast(buffer, root=0), buffer)

    def maximum(self, buffer: Array) -> UnderWay:
        """Start to replace everyone's buffer by the elementwise maximum."""
        request = self.comm.Iallreduce(self.mpi.IN_PLACE, buffer, op=self.mpi.MAX)
        return self._note(Call("maximum", buffer.dtype.char, (buffer.size,)), request, buffer)

    def total(self, buffer: Array) -> UnderWay:
        """Start to replace the root's buffer by the elementwise sum."""
        if self.rank == 0:
            request = self.comm.Ireduce(self.mpi.IN_PLACE, buffer, op=self.mpi.SUM, root=0)
        else:
            request = self.comm.Ireduce(buffer, None, op=self.mpi.SUM, root=0)
        return self._note(Call("total", buffer.dtype.char, (buffer.size,)), request, buffer)

    def gather(self, mine: Array, out: Array | None, sizes: Sequence[int], starts: Sequence[int]) -> UnderWay:
        """Start to put so many numbers of every rank where they begin in the root's ``out``."""
        receive = None if out is None else [out, sizes, starts, _datatype(self.mpi, out)]
        call = Call("gather", mine.dtype.char, tuple(sizes))
        return self._note(call, self.comm.Igatherv(mine, receive, root=0), mine, out)

    def take_part(self, call: Call) -> None:
        """Start a collective that others have started, with memory of no account."""
        if call.kind == "barrier":
            self.barrier()
        elif call.kind == "gather":
            mine = np.zeros(call.sizes[self.rank], call.typecode)
            out = np.empty(sum(call.sizes), call.typecode) if self.rank == 0 else None
            self.gather(mine, out, call.sizes, [0, *accumulate(call.sizes)][:-1])
        else:
            getattr(self, call.kind)(np.zeros(call.sizes[0], call.typecode))

    def since(self, started: int) -> list[Call] | None:
        """Return the calls after the first so many; None where they are not known any more."""
        missing = self.started - started
        return list(self._calls)[len(self._calls) - missing :] if missing <= len(self._calls) else None

    def finish(self) -> Program[None]:
        """Wait until all that was started has come to its end."""
        for under_way in self._under_way:
            yield from wait(under_way, ready=True)


def settle(mpi: Any, comm: Any, all_collectives: Iterable[Collectives]) -> Program[bool]:
    """Bring the collectives of all communicators to their end; say whether that can be.

    Collective over a communicator of its own, whose ranks start nothing else any more.
    """
    by_name = {collectives.name: collectives for collectives in all_collectives}
    started = yield from _exchange(
        mpi, comm, {name: collectives.started for name, collectives in by_name.items()}
    )
    most: dict[str, int] = {}
    least: dict[str, int] = {}
    for numbers in started:
        for name, number in numbers.items():
            most[name] = max(number, most.get(name, number))
            least[name] = min(number, least.get(name, number))
    ahead = {
        name: next(rank for rank, numbers in enumerate(started) if numbers.get(name) == most[name])
        for name in most
        if least[name] < most[name]
    }
    told = yield from _exchange(
        mpi,
        comm,
        {name: by_name[name].since(least[name]) for name, rank in ahead.items() if rank == comm.Get_rank()},
    )
    for name, calls in (item for answers in told for item in answers.items()):
        if calls is None:
            return False
        if name in by_name:
            for call in calls[by_name[name].started - least[name] :]:
                by_name[name].take_part(call)
    for collectives in by_name.values():
        yield from collectives.finish()
    return True


def _exchange(mpi: Any, comm: Any, value: T) -> Program[list[T]]:
    """Return every rank's value on all of them; values travel as pickles."""
    data = np.frombuffer(pickle.dumps(value, protocol=5), dtype=np.uint8)
    sizes: NDArray[np.int64] = np.zeros(comm.Get_size(), dtype=np.int64)
    sizes[comm.Get_rank()] = data.size
    yield from wait(comm.Iallreduce(mpi.IN_PLACE, sizes, op=mpi.MAX))
    # all as long as the longest: mpi4py may let go of the counts of an `Iallgatherv` before its end
    mine = np.zeros(sizes.max(), dtype=np.uint8)
    mine[: data.size] = data
    found = np.empty((sizes.size, mine.size), dtype=np.uint8)
    yield from wait(comm.Iallgather(mine, found))
    return [pickle.loads(row[:size].data) for row, size in zip(found, sizes, strict=True)]


def _datatype(mpi: Any, array: Array) -> Any:
    return mpi.Datatype.fromcode(array.dtype.char)


def wait(request: Any, *, ready: bool = False) -> Program[None]:
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
