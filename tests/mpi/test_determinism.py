"""The same bytes on any number of ranks, in any arrangement, after any interruption (design section 5)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.mpi.launch import (
    Done,
    all_results,
    assert_same_bytes,
    command,
    ended,
    fedande,
    process_of_rank,
    started,
    wait_until,
    with_hook,
)

pytestmark = pytest.mark.mpi

# Every method in every scope it has; both granularities, averages, ensembles; noise; missing values.
GRID = """\
methods = ["generative", "discriminative", "hybrid"]
scopes = ["federated", "local", "centralised"]
repeats = 1
max_iterations = 20
save = ["weights", "predictions"]

[discriminative]
rounds = 3
[generative]
epsilon = [1.0, inf]
[hybrid]
rounds = 2
epsilon = 1.0

[[grid]]
datasets = "tic-tac-toe"
n = [1, 2]
clients = 5
only_folds = 3

[[grid]]
datasets = "tic-tac-toe"
n = 0
clients = 3
only_folds = 2
optimizer = "scipy"

[[grid]]
datasets = "holes.csv"
missing = "ignore"
n = 1
clients = 7
folds = 3
only_folds = [0, 2]
[grid.discriminative]
granularity = "attribute"
aggregation = "rows"
l2 = 0.5
[grid.generative]
sensitivity = "paper"
epsilon = 0.5

[[grid]]
datasets = "holes.csv"
methods = "generative"
n = 2
clients = 4
folds = 3
only_folds = [0, 2]
combine = "joint"
smoothing = "m-estimate"
evaluate = "last"
"""

# Random delays on every rank (case 10), and disturbed global generators (case 11).
DISTURBED = """
if size > 1:
    import random, time
    import numpy
    from fedande_mpi import host, messages, scores
    random.seed(100 + rank)
    numpy.random.seed(200 + rank)
    chance = random.Random()
    def late(function):
        def delayed(*arguments, **options):
            if chance.random() < 0.2:
                time.sleep(chance.random() * 0.004)
            return (yield from function(*arguments, **options))
        return delayed
    for owner, names in (
        (messages.MpiLink, ("broadcast", "gather", "maximum", "total")),
        (host.Host, ("_steps", "_pool")),
        (scores.Scores, ("_add",)),
    ):
        for name in names:
            setattr(owner, name, late(getattr(owner, name)))
"""


# Ranks on machines of their own, or some of them: rows and weights travel in messages.
APART = """
from fedande_mpi import comm
new = comm.MpiComm.__init__
def apart(self, world):
    new(self, world)
    self._machines = list(range(size))
comm.MpiComm.__init__ = apart
"""
PARTLY_APART = """
from fedande_mpi import comm
new = comm.MpiComm.__init__
def apart(self, world):
    new(self, world)
    self._machines = [0, 0] + [1] * (size - 2)
comm.MpiComm.__init__ = apart
"""
# On one machine: what is small goes through shared memory too.
TOGETHER = """
from fedande_mpi import comm, messages
messages._LARGE, comm._ONCE = 64, 1000
"""

FEDERATED = ("scopes=federated",)
"""Leave out what sends nothing."""


def slow(ranks: int, machines: str, *settings: str) -> Any:
    return pytest.param(ranks, machines, settings, marks=pytest.mark.slow)


def readable(value: object) -> str:
    names = {APART: "apart", PARTLY_APART: "partly-apart", TOGETHER: "together"}
    return "-".join(value) or "plain" if isinstance(value, tuple) else names.get(value, str(value))


def write_grid(directory: Path) -> None:
    (directory / "grid.toml").write_text(GRID, encoding="utf-8")
    rows = ["colour,size,shape,mark,label"]
    for i in range(90):
        values = ["rgb"[i % 3], str(i * i % 4), "oval" if i % 7 < 3 else "flat", "xyz"[i // 5 % 3]]
        if i % 6 == 0:
            values[i // 6 % 4] = "?"
        rows.append(",".join([*values, "yes" if (i % 3 == 0) ^ (i % 7 < 3) else "no" if i % 4 else "none"]))
    (directory / "holes.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one process without mpiexec."""
    directory = tmp_path_factory.mktemp("alone")
    write_grid(directory)
    done = fedande(0, "run", "grid.toml", "-o", "results", cwd=directory)
    assert done.code == 0, done.err
    return directory / "results"


def test_the_grid_is_what_it_should_be(alone: Path) -> None:
    cells = [path for path in alone.glob("*.h5") if ".r0." not in path.name]
    seen = set()
    for path in cells:
        with h5py.File(path) as file:
            seen.add((file.attrs["method"], file.attrs["scope"]))
            assert file["complete"][...].any()
    assert len(seen) == 7
    assert len(cells) == 8 * 4 + 3


@pytest.mark.parametrize(
    ("ranks", "machines", "settings"),
    [
        (0, "", ("transport=reduce", "block_mib=0.001")),
        slow(1, ""),
        (2, APART, ("transport=reduce",)),
        slow(2, TOGETHER, "block_mib=0.001"),
        (3, TOGETHER, ("block_mib=0.001",)),
        (3, PARTLY_APART, ("shards=2", "block_mib=0.001")),
        slow(3, APART, "transport=reduce", "block_mib=0.001", "shards=1"),
        (5, TOGETHER, ("transport=reduce", "shards=2", *FEDERATED)),
        slow(5, TOGETHER, "shards=4", "block_mib=0.001"),
        (8, APART, FEDERATED),
        slow(8, TOGETHER),
        slow(8, PARTLY_APART, "transport=reduce", "shards=3", "block_mib=0.001"),
    ],
    ids=readable,
)
def test_case_10_the_same_bytes_on_any_ranks_with_random_delays(
    tmp_path: Path, alone: Path, ranks: int, machines: str, settings: tuple[str, ...]
) -> None:
    write_grid(tmp_path)
    options = [part for setting in settings for part in ("--set", setting)]
    hook = machines + DISTURBED
    done = fedande(ranks, "run", "grid.toml", "-o", "results", "-q", *options, cwd=tmp_path, hook=hook)
    assert done.code == 0, done.err
    assert_same_bytes(alone, tmp_path / "results", part=settings[-1:] == FEDERATED)


# Counts how often a message is cut, and says so at the end.
CHUNKED = """
if size > 1:
    import atexit
    from fedande_mpi import collectives, comm, messages
    messages.MAX_MESSAGE = 200
    comm._COLLECTED = 50
    seen = {"buffers": 0, "pieces": 0, "gathers": 0, "parts": 0}
    pieces, gather, datatype = messages.pieces, messages.MpiLink.gather, collectives._datatype
    def counted(buffer):
        cut = list(pieces(buffer))
        assert all(piece.nbytes <= 200 for piece in cut)
        seen["buffers"] += 1
        seen["pieces"] += len(cut)
        return cut
    def gathered(*arguments, **options):
        seen["gathers"] += 1
        return gather(*arguments, **options)
    def part(*arguments):
        seen["parts"] += 1
        return datatype(*arguments)
    comm.pieces = messages.pieces = counted
    messages.MpiLink.gather, collectives._datatype = gathered, part
    if rank == 0:
        atexit.register(lambda: print(*seen.values(), flush=True))
"""


@pytest.mark.parametrize("transport", ["gather", pytest.param("reduce", marks=pytest.mark.slow)])
def test_case_17_chunked_messages_give_the_same_bytes(tmp_path: Path, alone: Path, transport: str) -> None:
    write_grid(tmp_path)
    options = ["--set", f"transport={transport}", "--set", "shards=2", "--set", *FEDERATED]
    done = fedande(3, "run", "grid.toml", "-o", "results", "-q", *options, cwd=tmp_path, hook=APART + CHUNKED)
    assert done.code == 0, done.err
    buffers, pieces, gathers, parts = map(int, done.out.split())
    assert pieces > 5 * buffers > 0
    assert (gathers > 0) == (transport == "gather")
    assert parts >= 5 * gathers
    assert_same_bytes(alone, tmp_path / "results", part=True)


MANY = """\
datasets = "tic-tac-toe"
clients = 100
repeats = 1
only_folds = 1
[discriminative]
rounds = 2
"""


@pytest.fixture(scope="module")
def many_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("many")
    (directory / "many.toml").write_text(MANY)
    assert fedande(0, "run", "many.toml", "-o", "results", cwd=directory).code == 0
    return directory / "results"


@pytest.mark.parametrize(
    "ranks",
    [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow), 7],
)
def test_case_16_a_hundred_clients_on_any_ranks(tmp_path: Path, many_alone: Path, ranks: int) -> None:
    (tmp_path / "many.toml").write_text(MANY)
    done = fedande(ranks, "run", "many.toml", "-o", "results", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "no work" not in done.err
    assert_same_bytes(many_alone, tmp_path / "results")


def test_case_16_more_ranks_than_work_are_reported_and_harmless(tmp_path: Path) -> None:
    text = MANY.replace("100", "2") + "[[grid]]\nn = 0\n"
    (tmp_path / "few.toml").write_text(text)
    assert fedande(0, "run", "few.toml", "-o", "alone", cwd=tmp_path).code == 0
    done = fedande(4, "run", "few.toml", "-o", "results", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "tic-tac-toe NB-w discriminative federated C=2: 1 of 4 ranks have no work" in done.err
    assert "A1DE-w discriminative federated C=2: " not in done.err
    assert_same_bytes(tmp_path / "alone", tmp_path / "results")


# --- interruptions -----------------------------------------------------------------------------------------

LONG = """\
datasets = "tic-tac-toe"
methods = ["discriminative", "hybrid"]
repeats = 1
save = ["weights"]
[discriminative]
rounds = 6
[hybrid]
rounds = 6
epsilon = 1.0
"""

SLOW = """
import time
from fedande_mpi import host
steps = host.Host._steps
def slow(*arguments, **options):
    time.sleep(0.05)
    return steps(*arguments, **options)
host.Host._steps = slow
"""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("uninterrupted")
    (directory / "long.toml").write_text(LONG)
    assert fedande(0, "run", "long.toml", "-o", "results", cwd=directory).code == 0
    return directory / "results"


def complete(directory: Path) -> int:
    """Count the complete units; every file opens at any time."""
    total = 0
    for path in directory.glob("*C5_????????.h5"):
        with h5py.File(path) as file:
            total += int(file["complete"][...].sum())
    return total


def interrupted(tmp_path: Path, ranks: int, at: int, kill: dict[str, int]) -> Done:
    """Start the long run slowed down, and send it a signal once `at` units are complete."""
    (tmp_path / "long.toml").write_text(LONG)
    env = with_hook(tmp_path / "hook", SLOW)
    results = tmp_path / "results"
    since = time.monotonic()
    with started(command(ranks, "run", "long.toml", "-o", "results"), tmp_path, env) as process:
        wait_until(lambda: complete(results) >= at or process.poll() is not None)
        target = process_of_rank(process.pid, kill["rank"]) if "rank" in kill else process.pid
        os.kill(target, kill["signal"])
        if kill.get("again"):
            os.kill(target, kill["again"])
        done = ended(process, since)
    assert at <= complete(results) < 10
    assert not list(results.glob(".*.tmp")) or kill["signal"] == signal.SIGKILL
    return done


@pytest.mark.parametrize(
    ("ranks", "number", "again"),
    [
        (0, signal.SIGTERM, signal.SIGTERM),
        (0, signal.SIGUSR1, signal.SIGTERM),
        (3, signal.SIGTERM, None),
        pytest.param(3, signal.SIGUSR1, None, marks=pytest.mark.slow),
    ],
    ids=["alone-TERM-twice", "alone-USR1-and-TERM", "3-TERM", "3-USR1"],
)
def test_case_20_a_signal_ends_with_75_and_the_same_command_continues(
    tmp_path: Path, uninterrupted: Path, ranks: int, number: int, again: int | None
) -> None:
    done = interrupted(tmp_path, ranks, 1, {"signal": number} | ({"again": again} if again else {}))
    assert done.code == 75, done.err
    assert len(done.messages) == 1
    assert "run the same command again to continue" in done.messages[0]
    assert "Traceback" not in done.err
    finished = complete(tmp_path / "results")
    resumed = fedande(ranks, "run", "long.toml", "-o", "results", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert complete(tmp_path / "results") == 10 > finished
    assert_same_bytes(uninterrupted, tmp_path / "results")


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_case_21_a_killed_rank_loses_the_fold_in_progress_at_most(
    tmp_path: Path, uninterrupted: Path, rank: int
) -> None:
    done = interrupted(tmp_path, 3, 2, {"signal": signal.SIGKILL, "rank": rank})
    assert done.code != 0
    before = all_results(tmp_path / "results")
    assert before
    resumed = fedande(2, "run", "long.toml", "-o", "results", cwd=tmp_path)  # on other ranks
    assert resumed.code == 0, resumed.err
    assert not list((tmp_path / "results").glob(".*.tmp"))
    assert_same_bytes(uninterrupted, tmp_path / "results")


# --- at full size ------------------------------------------------------------------------------------------

CHESS = """\
datasets = "kr-vs-k"
n = 2
clients = 20
repeats = 1
only_folds = 0
save = ["weights", "predictions"]
"""


@pytest.fixture(scope="module")
def chess_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("chess")
    (directory / "chess.toml").write_text(CHESS)
    assert fedande(0, "run", "chess.toml", "-o", "results", cwd=directory, timeout=240).code == 0
    return directory / "results"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (1, ("transport=reduce", "block_mib=1")),
        (2, ()),
        (2, ("transport=reduce",)),
        (3, ("block_mib=1",)),
        (3, ("transport=reduce", "shards=2")),
        (5, ("shards=2",)),
        (5, ("transport=reduce", "block_mib=1")),
    ],
    ids=readable,
)
def test_kr_vs_k_a2de_of_20_clients_has_the_same_bytes(
    tmp_path: Path, chess_alone: Path, ranks: int, settings: tuple[str, ...]
) -> None:
    (tmp_path / "chess.toml").write_text(CHESS)
    options = [part for setting in settings for part in ("--set", setting)]
    done = fedande(ranks, "run", "chess.toml", "-o", "results", "-q", *options, cwd=tmp_path, timeout=240)
    assert done.code == 0, done.err
    assert_same_bytes(chess_alone, tmp_path / "results")


@pytest.mark.slow
def test_kr_vs_k_a2de_of_20_clients_has_the_same_bytes_after_an_interruption(
    tmp_path: Path, chess_alone: Path
) -> None:
    (tmp_path / "chess.toml").write_text(CHESS.replace("only_folds = 0", "only_folds = [0, 1]"))
    since = time.monotonic()
    with started(command(3, "run", "chess.toml", "-o", "results"), tmp_path) as process:
        wait_until(lambda: bool(list((tmp_path / "results").glob("*.r0.f0.h5"))), timeout=240)
        os.kill(process.pid, signal.SIGTERM)
        assert ended(process, since).code == 75
    resumed = fedande(
        2, "run", "chess.toml", "-o", "results", "--set", "only_folds=0", cwd=tmp_path, timeout=240
    )
    assert resumed.code == 0, resumed.err
    assert_same_bytes(chess_alone, tmp_path / "results")
