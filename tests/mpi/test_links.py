"""Links between ranks move what they are told to, whoever is late, through messages and through shared memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import TIMEOUT, environment, mpiexec

pytestmark = pytest.mark.mpi

# The root and three hosts; every rank is late at times. Each buffer says in which step it was written.
STEPS = """
import sys, time, random
import numpy as np
from fedande_mpi import comm
from fedande_mpi.programs import drive

comm.fits = lambda size: {fits}
comm._LARGE = 64
ranks = comm.connect()
counts, width = [2, 1, 3], 40
grid = ranks.grid(3, 1, room={room})
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
ranks.grid(3, 1, room=2 * {room})  # more room: what was there is given back
ranks.grid(1, 3)
if root:
    print("all came through")
"""


@pytest.mark.parametrize(
    ("fits", "room"), [(True, 2**12), (True, 100), (False, 2**12)], ids=["shared", "too-small", "messages"]
)
def test_buffers_arrive_whole_and_in_order_whoever_is_late(tmp_path: Path, fits: bool, room: int) -> None:
    script = tmp_path / "links.py"
    script.write_text(STEPS.format(fits=fits, room=room))
    done = subprocess.run(
        [mpiexec(), "-n", "4", sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (done.returncode, done.stdout) == (0, "all came through\n"), done.stderr
