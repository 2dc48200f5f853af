"""Ranks that stop in the middle of their work bring to its end what the others have started."""

from __future__ import annotations

import sys
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
    alike = random.Random(f"{seed} {{those.name}}")
    mine = random.Random(f"{seed} {{number}} {{world.rank}}")
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
    assert all(under_way.Test() for under_way in those._under_way)
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
    last = [Call("broadcast", "d", (size,)) for size in (1, 2, 3)]
    assert [noted.since(started) for started in (4, 3, 1)] == [[], last[2:], last]
    assert noted.since(0) is None


def test_calls_before_one_that_all_have_had_a_part_in_are_forgotten_with_their_buffers() -> None:
    noted = Collectives(None, Done(), "all")
    buffer = np.zeros(5)
    references = sys.getrefcount(buffer)
    assert noted.broadcast(buffer).Test()
    assert sys.getrefcount(buffer) == references
    assert noted.barrier().Test()
    noted.broadcast(buffer)
    assert noted.since(2) == [Call("broadcast", "d", (5,))]
    assert noted.since(1) is None
