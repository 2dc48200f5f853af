"""Links between ranks move what they are told to, whoever is late, through messages and through shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.launch import on_four_ranks

pytestmark = pytest.mark.mpi


# The root and three hosts; every rank is late at times. Each buffer says in which step it was written.
STEPS = """
import sys, time, random
import numpy as np
from fedande_mpi import comm, messages
from fedande_mpi.programs import drive

comm.fits = lambda size: {fits}
messages._LARGE = 64
ranks = comm.connect()
counts, width = [2, 1, 3], 40
grid = ranks.grid(3, 1, room=({room}, {room}))
root = ranks.rank == 0
link = grid.server_links[0] if root else grid.host_link
chance = random.Random(ranks.rank)
host = ranks.rank - 1

def late():
    if chance.random() < 0.5:
        time.sleep(0.01 * chance.random())

def program():
    seen = link.tables(counts, width)
    assert (seen is not None) == ({fits} and {room} >= 3 * width * 8)
    for step in range(40):
        late()
        for again in range(2):  # twice in a row: the first may not be read yet
            buffer = np.full(width, 10.0 * step + again) if root else np.zeros(width)
            yield from link.broadcast(buffer)
            late()
            assert (buffer == 10.0 * step + again).all(), (step, again, buffer)
        terms = np.full(width, 0 if root else step + ranks.rank, dtype=np.int64)
        yield from link.total(terms)
        assert not root or (terms == 3 * step + 6).all(), (step, terms)
        largest = np.full(width, float(step * ranks.rank))
        yield from link.maximum(largest)
        assert (largest == 3 * step).all()
        mine = None
        if not root:
            mine = np.empty((counts[host], width)) if seen is None else seen[host]
            mine[...] = step + np.arange(counts[host])[:, None] / 8 + host
            late()
        if seen is None:
            rows = np.empty((6, width)) if root else None
            yield from link.gather(mine, rows, counts, ready=True)
        else:
            yield from link.gather(None if root else np.zeros((counts[host], 1)), np.empty((6, 1)), counts)
            rows = np.concatenate(seen)
        if root:
            late()
            expected = [step + at / 8 + h for h in range(3) for at in range(counts[h])]
            assert (rows == np.array(expected)[:, None]).all(), (step, rows)
    yield True

drive([program()])
ranks.grid(3, 1, room=(0, 2 * {room}))  # more room: what was there is given back
ranks.grid(1, 3)
if root:
    print("all came through")
"""


@pytest.mark.parametrize(
    ("fits", "room"), [(True, 2**12), (True, 100), (False, 2**12)], ids=["shared", "too-small", "messages"]
)
def test_buffers_arrive_whole_and_in_order_whoever_is_late(tmp_path: Path, fits: bool, room: int) -> None:
    assert on_four_ranks(tmp_path, STEPS.format(fits=fits, room=room)) == "all came through\n"


SHARE = """
import numpy as np
from fedande_mpi import comm

comm.fits = lambda size: {fits}
comm._ONCE = 1000
ranks = comm.connect()
root = ranks.rank == 0
for n in (5000, 3000, 9999):
    value = {{"large": np.arange(n), "odd": np.arange(n + 1001, dtype=np.int8), "small": np.arange(5.0), "n": n}}
    got = ranks.share(value if root else None, once=True)
    other = ranks.share(np.full(n, n) if root else None)  # each has its own, and the first is still there
    assert (other == n).all() and (root or other.flags.writeable)
    assert got["n"] == n and got["small"].tolist() == [0, 1, 2, 3, 4]
    assert (got["large"] == np.arange(n)).all() and (got["odd"] == np.arange(n + 1001, dtype=np.int8)).all()
    assert root or not got["large"].flags.writeable
    assert (ranks._held is not None) == {fits}
    if {fits}:
        ranks.barrier()
        if ranks.rank == 1:
            ranks._held.memories[0].view(np.int64)[7] = -1
        ranks.barrier()
        assert (got["large"][7] == -1) == (not root)
if root:
    print("all have it")
"""


@pytest.mark.parametrize("fits", [True, False])
def test_large_arrays_of_a_shared_value_are_held_once_where_there_is_room(tmp_path: Path, fits: bool) -> None:
    assert on_four_ranks(tmp_path, SHARE.format(fits=fits)) == "all have it\n"
