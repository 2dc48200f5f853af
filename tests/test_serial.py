"""Links within one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedande_mpi.programs import Program, drive
from fedande_mpi.serial import SerialComm


def both_ends(server: Callable[[Any], Program[Any]], host: Callable[[Any], Program[Any]]) -> list[Any]:
    grid = SerialComm().grid(1, 1)
    assert grid.host == (0, 0)
    (link,) = grid.server_links
    return drive([server(link), host(grid.host_link)])


def test_a_serial_broadcast_reaches_the_host() -> None:
    sent, received = np.arange(4.0), np.zeros(4)
    both_ends(lambda link: link.broadcast(sent), lambda link: link.broadcast(received))
    assert received.tolist() == sent.tolist()


def test_serial_broadcasts_keep_their_order() -> None:
    received: list[float] = []

    def server(link: Any) -> Program[None]:
        for value in range(3):
            yield from link.broadcast(np.full(1, float(value)))

    def host(link: Any) -> Program[None]:
        for _ in range(3):
            buffer = np.zeros(1)
            yield from link.broadcast(buffer)
            received.append(buffer[0])

    both_ends(server, host)
    assert received == [0.0, 1.0, 2.0]


def test_a_serial_gather_brings_the_rows() -> None:
    rows, out = np.arange(6.0).reshape(2, 3), np.zeros((2, 3))
    both_ends(lambda link: link.gather(None, out, [2]), lambda link: link.gather(rows, None, [2]))
    assert out.tolist() == rows.tolist()


def test_a_serial_server_sees_the_host_s_rows_where_there_is_room() -> None:
    grid = SerialComm().grid(1, 1, room=(0, 6 * 8))
    assert grid.host_link is not None
    (mine,) = grid.host_link.tables([2], 3) or ()
    mine[...] = np.arange(6.0).reshape(2, 3)
    (seen,) = grid.server_links[0].tables([2], 3) or ()
    assert seen.tolist() == mine.tolist()
    assert grid.host_link.tables([2], 4) is None


def test_a_serial_maximum_reaches_both_ends() -> None:
    one, other = np.array([1.0, 5.0]), np.array([3.0, 2.0])
    both_ends(lambda link: link.maximum(one), lambda link: link.maximum(other))
    assert one.tolist() == other.tolist() == [3.0, 5.0]


def test_a_serial_total_is_exact_and_leaves_the_host_s_terms() -> None:
    sums, terms = np.zeros(2, dtype=np.int64), np.array([2**62, -7])
    both_ends(lambda link: link.total(sums), lambda link: link.total(terms))
    assert sums.tolist() == terms.tolist() == [2**62, -7]


def test_the_serial_group_has_nobody_else() -> None:
    link = SerialComm().grid(1, 1).group_link
    assert link is not None
    top, sums = np.array([1.0]), np.array([3], dtype=np.int64)
    rows, out = np.ones((1, 2)), np.zeros((1, 2))
    assert link.tables([1], 2) is None
    drive([link.maximum(top), link.total(sums), link.broadcast(top), link.gather(rows, out, [1])])
    assert (top[0], sums[0], out.tolist()) == (1.0, 3, [[1.0, 1.0]])


def test_one_process_has_one_host() -> None:
    with pytest.raises(ValueError, match="1 x 1 grid, not 2 x 1"):
        SerialComm().grid(2, 1)


def test_one_process_shares_and_collects_its_own_value() -> None:
    alone = SerialComm()
    alone.barrier()
    assert alone.share("value") == "value"
    assert drive([alone.collect("value")]) == [["value"]]


def test_an_abort_of_one_process_exits_with_the_code() -> None:
    text = (
        "from fedande_mpi.serial import SerialComm; print('last words'); SerialComm().abort(75); print('no')"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (75, "last words\n")
