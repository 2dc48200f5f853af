"""Ranks that stop in the middle of their work bring to its end what the others have started."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedande_mpi import collectives
from fedande_mpi.collectives import Call, Collectives
from tests.mpi.launch import on_four_ranks

pytestmark = pytest.mark.mpi

# Every rank starts the first so many of a sequence of collectives, in each communicator others, and then settles.
STOPPED = """
import random
import numpy as np
from fedande_mpi import collectives
from fedande_mpi.programs import drive
from mpi4py import MPI

world = MPI.COMM_WORLD
odd = world.Split(world.rank % 2, world.rank)
both = [
    collectives.Collectives(MPI, world, "all"),
    collectives.Collectives(MPI, odd, f"odd {{world.rank % 2}}"),
]
for number, those in enumerate(both):
    alike = random.Random({seed} + number)
    mine = random.Random(10 * {seed} + world.rank)
    until = mine.randrange(30)
    for step in range(until):
        kind, size = alike.choice(["barrier", "broadcast", "maximum", "total", "gather"]), alike.choice([1, 50, 10**6])
        typecode = alike.choice("dlB")
        if kind == "barrier":
            those.barrier()
        elif kind == "gather":
            sizes = [0, *(alike.choice([0, size]) for _ in range(those.comm.size - 1))]
            starts = np.cumsum([0, *sizes])[:-1].tolist()
            out = np.empty(sum(sizes), typecode) if those.rank == 0 else None
            those.gather(np.full(sizes[those.rank], 1, typecode), out, sizes, starts)
        else:
            getattr(those, kind)(np.full(size, 1, typecode))
    assert those.started == until
aside = world.Dup()
since = collectives.Collectives.since
collectives.Collectives.since = lambda self, started: None  # forgotten: all are told, and nobody waits
(settled,) = drive([collectives.settle(MPI, aside, both)])
assert not settled
collectives.Collectives.since = since
(settled,) = drive([collectives.settle(MPI, aside, both)])
assert settled
for those in both:
    assert len(set(those.comm.allgather(those.started))) == 1
    assert all(request.Test() for request, _ in those._under_way)
print(world.rank, flush=True)
"""


@pytest.mark.parametrize("seed", range(5))
def test_what_some_ranks_have_started_comes_to_its_end_on_all(tmp_path: Path, seed: int) -> None:
    assert sorted("".join(on_four_ranks(tmp_path, STOPPED.format(seed=seed)).split())) == list("0123")


class Done:
    """A request, or what makes one."""

    def Get_rank(self) -> int:
        return 1

    def Test(self) -> bool:
        return True

    def Ibarrier(self) -> Done:
        return self

    def Ibcast(self, buffer: object, root: int) -> Done:
        return self


def test_calls_are_known_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_KEPT", 3)
    noted = Collectives(None, Done(), "all")
    for size in range(4):
        noted.broadcast(np.zeros(size))
    noted.barrier()
    last = [Call("broadcast", "d", (2,)), Call("broadcast", "d", (3,)), Call("barrier")]
    assert [noted.since(started) for started in (5, 4, 2)] == [[], last[2:], last]
    assert noted.since(1) is None
