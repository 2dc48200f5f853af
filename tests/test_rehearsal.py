"""What is compiled before the work begins, and by whom."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time

import pytest

from fedande_mpi import experiment, rehearsal
from fedande_mpi.errors import Interrupted
from fedande_mpi.rehearsal import beside, parts
from fedande_mpi.serial import SerialComm
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


SLEEPING = "import time; time.sleep(100)"


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(rehearsal, "available_cores", lambda: 2)


@pytest.mark.slow
def test_a_process_beside_compiles_for_this_one(tmp_path):
    program = """
import time
from fedande_mpi import jit, rehearsal
cell = rehearsal._unit(rehearsal.Rehearsal("generative", "local", "compiled", 0, scores=True)).cell
given = rehearsal.parts([(cell, False)])
rehearsal.available_cores = lambda: 2
with rehearsal.beside(given) as compiling:
    while compiling():
        time.sleep(0.01)
loops = rehearsal.loops(cell)
print(jit.is_cached(*loops), [loop.__name__ for loop in loops if loop.dispatcher.signatures])
"""
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "True []\n", done.stderr


def test_a_process_beside_gets_the_parts_and_is_waited_for(cores, monkeypatch, tmp_path):
    """The first part is rehearsed here meanwhile, the others afterwards."""
    monkeypatch.setenv("FOUND", str(tmp_path / "found"))
    program = "import os, sys, time; time.sleep(0.3); open(os.environ['FOUND'], 'wb').write(sys.stdin.buffer.read())"
    monkeypatch.setattr(rehearsal, "_PROGRAM", program)
    found = parts([(cell(), False), (cell(scope="local"), False)])
    assert len(found) == 3
    known = []
    monkeypatch.setattr(
        experiment, "rehearse", lambda part: known.append((part, (tmp_path / "found").exists()))
    )
    experiment._rehearse(SerialComm(), found, lambda: None)
    assert known == list(zip(found, [False, True, True], strict=True))
    assert pickle.loads((tmp_path / "found").read_bytes()) == found[1:]


def test_a_process_beside_finds_modules_where_this_one_does(cores, monkeypatch, tmp_path):
    """Not in the directory that it happens to be started in."""
    (tmp_path / "pickle.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr(rehearsal, "_PROGRAM", "import pickle; open('found', 'w').close()")
    with beside(parts([(cell(), False)])) as compiling:
        while compiling():
            time.sleep(0.01)
    assert (tmp_path / "found").exists()


def test_a_process_beside_is_not_waited_for_without_end(cores, monkeypatch):
    monkeypatch.setattr(rehearsal, "_PROGRAM", SLEEPING)
    monkeypatch.setattr(experiment, "_PATIENCE", 0.1)
    done = []
    monkeypatch.setattr(experiment, "rehearse", done.append)
    found = parts([(cell(), False)])
    experiment._rehearse(SerialComm(), found, lambda: None)
    assert done == found


def test_a_process_beside_ends_with_a_run_that_is_stopped(cores, monkeypatch):
    monkeypatch.setattr(rehearsal, "_PROGRAM", SLEEPING)
    monkeypatch.setattr(experiment, "rehearse", lambda part: None)
    began, started = time.monotonic(), []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])

    def poll():
        if time.monotonic() > began + 0.5:
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        experiment._rehearse(SerialComm(), parts([(cell(), False)]), poll)
    assert [process.returncode for process in started] == [-9]


@pytest.mark.parametrize("program", ["import os; os.close(0); raise SystemExit(1)", "not a program"])
def test_a_process_beside_that_fails_leaves_the_work_to_this_one(cores, monkeypatch, program):
    monkeypatch.setattr(rehearsal, "_PROGRAM", program)
    done = []
    monkeypatch.setattr(experiment, "rehearse", done.append)
    found = parts([(cell(), True)])
    experiment._rehearse(SerialComm(), found, lambda: None)
    assert done == found


def refuse(*_, **__):
    raise BlockingIOError("no more processes")


def test_where_no_process_can_be_started_there_is_none_beside(cores, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with beside(parts([(cell(), False)])) as compiling:
        assert not compiling()


@pytest.mark.parametrize(
    ("cores", "given"), [(1, parts([(cell(), False)])), (2, [])], ids=["one core", "one part"]
)
def test_no_process_is_started_for_nothing(monkeypatch, cores, given):
    monkeypatch.setattr(rehearsal, "available_cores", lambda: cores)
    monkeypatch.setattr(subprocess, "Popen", None)
    with beside(given) as compiling:
        assert not compiling()
