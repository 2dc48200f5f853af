"""What is compiled before the work begins, and by whom."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from fedande_mpi.rehearsal import parts
from tests.small_data import make, make_unit, owners


@pytest.mark.parametrize(
    ("keys", "long_pairs"),
    [
        ({}, False),
        ({}, True),
        ({"scope": "local"}, False),
        ({"scope": "local", "optimizer": "scipy"}, False),
        ({"method": "hybrid", "epsilon": 1.0}, False),
        ({"method": "generative"}, False),
        ({"method": "generative", "combine": "joint", "scope": "local"}, False),
    ],
    ids=str,
)
def test_what_a_cell_calls_is_compiled_before_its_first_round_once(keys, long_pairs):
    """In a process of its own: here other tests have compiled much of it."""
    unit = make_unit(make(1, m=60), owners(1, 60, 4, 15), **keys)
    program = """
import sys, pickle
from fedande_mpi import federation, planning, rehearsal, serial
unit, long_pairs = pickle.loads(bytes.fromhex(sys.argv[1]))
rehearsal.warm_up([(unit.cell, long_pairs)])
loops = rehearsal.loops(unit.cell, long_pairs=long_pairs)
print([f.__name__ for f in loops if not f.dispatcher.signatures])
federation.run_unit(serial.SerialComm(), unit, planning.arrange_unit(unit, 1))
print([f.__name__ for f in loops if len(f.dispatcher.signatures) > 1])
"""
    given = pickle.dumps((unit, long_pairs)).hex()
    done = subprocess.run([sys.executable, "-c", program, given], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n[]\n", done.stderr


def cell(**keys):
    return make_unit(make(1), owners(1, 40, 3, 10), **keys).cell


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([], []),
        ([(cell(), False)], [["compiled 1"], ["scores local"]]),
        ([(cell(), True)], [["compiled 1"], ["compiled 0"], ["scores local"]]),
        ([(cell(), False), (cell(method="hybrid"), False)], [["compiled 1"], ["scores federated"]]),
        ([(cell(method="generative", scope="local"), False)], [["scores local"]]),
        (
            [(cell(scope="local"), False), (cell(scope="local", optimizer="scipy"), False)],
            [["compiled 0", "scipy 0"], ["scores local"]],  # both prepare pairs
        ),
    ],
)
def test_loops_are_compiled_in_parts_that_share_none(cells, expected):
    found = [
        [f"scores {r.scope}" if r.scores else f"{r.optimizer} {r.local_steps}" for r in part]
        for part in parts(cells)
    ]
    assert found == expected
