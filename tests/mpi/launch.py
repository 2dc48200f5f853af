"""Start `fedande` as a user does, alone or under mpiexec, with faults injected and an end that always comes.

A **hook** is Python that every rank runs before anything else: it becomes the `sitecustomize.py` of a directory
in PYTHONPATH, so the command line is the plain one. `rank` and `size` are defined in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

BIN = Path(sys.executable).parent
TIMEOUT = 90.0
"""Seconds after which a run is killed; nothing here takes a tenth of it on an idle machine."""

_RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
_LAUNCHER_PREFIXES = ("PMI_", "PMIX_", "OMPI_", "SLURM_", "MPI_", "HYDRA_", "HYDI_")
_PREAMBLE = f"""\
import os
rank = next((int(os.environ[name]) for name in {_RANK_VARIABLES!r} if name in os.environ), 0)
size = int(os.environ.get("PMI_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE") or 1)
"""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def messages(self) -> list[str]:
        """The errors on standard error: our own lines, without what the launcher says."""
        return [
            line for line in self.err.splitlines() if line.startswith("fedande") and line not in self.warnings
        ]

    @property
    def warnings(self) -> list[str]:
        """The warnings of more threads than cores."""
        return [line for line in self.err.splitlines() if "threads each on" in line]


def mpiexec() -> str:
    """Return the launcher, the one beside this Python first; skip the test without one."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    beside = BIN / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("no mpiexec beside Python or on PATH")
    return found


def command(ranks: int, *arguments: object) -> list[str]:
    """Return the command line of `fedande` on `ranks` ranks; 0 starts it without mpiexec."""
    launcher = [mpiexec(), "-n", str(ranks)] if ranks else []
    return [*launcher, str(BIN / "fedande"), *map(str, arguments)]


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this environment without launchers, data directories and thread counts, with changes put over."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHER_PREFIXES) and not name.endswith("_NUM_THREADS")
    }
    kept.pop("FEDANDE_DATA", None)
    # Open MPI refuses root and more ranks than cores; others do not know these names
    kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    kept |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    for name, value in (changes or {}).items():
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = value
    return kept


def with_hook(directory: Path, hook: str, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return an environment in which every Python runs `hook` first."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(_PREAMBLE + hook, encoding="utf-8")
    path = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    return environment({"PYTHONPATH": path} | dict(changes or {}))


@contextlib.contextmanager
def started(
    line: list[str], cwd: Path, env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a process group of its own; whatever is left of it at the end is killed."""
    segments_before = _segments()
    process = subprocess.Popen(
        line,
        cwd=cwd,
        env=dict(env) if env is not None else environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="backslashreplace",
        start_new_session=True,
        **options,
    )
    try:
        yield process
    finally:
        left = descendants(process.pid)  # a launcher may give its ranks groups of their own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
        if process.returncode != 0:
            _remove_segments(_segments() - segments_before)


def _segments() -> set[Path]:
    """Return the shared memory of MPICH's jobs on this machine."""
    return set(Path("/dev/shm").glob("mpich_shm_*"))


def _remove_segments(segments: set[Path]) -> None:
    """Remove the shared memory that killed ranks have left: 3 MB each, and a container has 64 MB of it."""
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps") if segments else ():
        with contextlib.suppress(OSError):
            mapped += maps.read_text(errors="replace")
    for path in segments:
        if str(path) not in mapped:
            path.unlink(missing_ok=True)


def ended(process: subprocess.Popen[str], since: float, timeout: float = TIMEOUT) -> Done:
    """Wait for a started command."""
    out, err = process.communicate(timeout=timeout)
    assert "Error in sitecustomize" not in err, err
    return Done(process.returncode, out, err, time.monotonic() - since)


def on_four_ranks(directory: Path, program: str) -> str:
    """Run Python under mpiexec; return what it prints."""
    script = directory / "program.py"
    script.write_text(program)
    since = time.monotonic()
    with started([mpiexec(), "-n", "4", sys.executable, str(script)], directory) as process:
        done = ended(process, since)
    assert done.code == 0, done.err
    return done.out


def fedande(
    ranks: int,
    *arguments: object,
    cwd: Path,
    hook: str | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout: float = TIMEOUT,
    **options: Any,
) -> Done:
    """Run `fedande` to its end; see `command` for `ranks`, the module for `hook`."""
    variables = environment(env) if hook is None else with_hook(cwd / "hook", hook, env)
    since = time.monotonic()
    with started(command(ranks, *arguments), cwd, variables, **options) as process:
        return ended(process, since, timeout)


def descendants(pid: int) -> list[int]:
    """Return the processes below a process (Linux; elsewhere none)."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            below.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = below.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def process_of_rank(pid: int, rank: int) -> int:
    """Return the process that is a rank of a started mpiexec; a ProcessLookupError where it has ended."""
    wanted = {f"{name}={rank}".encode() for name in _RANK_VARIABLES}
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            if wanted & set(Path(f"/proc/{child}/environ").read_bytes().split(b"\0")):
                return child
    if Path("/proc/self/environ").exists():
        raise ProcessLookupError(f"rank {rank} of {pid} has ended")
    pytest.skip("ranks cannot be told apart on this system")


def wait_until(condition: Callable[[], bool], timeout: float = TIMEOUT) -> None:
    """Wait for something that is bound to happen."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# ---------------------------------------------------------------- what a run left behind

MEASURED = ("timing/", "provenance/")


def results(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return type, shape and bytes of every dataset of a file outside /timing and /provenance."""
    found: dict[str, tuple[str, tuple[int, ...], bytes]] = {}

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith(MEASURED):
            content = np.asarray(item[()])
            assert content.dtype != object, name
            found[name] = (content.dtype.str, content.shape, content.tobytes())

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found


def all_results(directory: Path) -> dict[str, dict[str, tuple[str, tuple[int, ...], bytes]]]:
    """Return `results` of every file of a directory, sidecars too, by name."""
    return {path.name: results(path) for path in sorted(directory.glob("*.h5"))}


def assert_same_bytes(one: Path, other: Path, *, part: bool = False) -> None:
    """Compare all result datasets of two directories; `part` says that the other holds only some files."""
    expected, got = all_results(one), all_results(other)
    assert got, f"no results in {other}"
    if part:
        expected = {name: datasets for name, datasets in expected.items() if name in got}
    assert got.keys() == expected.keys()
    for name, datasets in expected.items():
        assert got[name].keys() == datasets.keys(), name
        different = [path for path, content in datasets.items() if got[name][path] != content]
        assert not different, f"{name} differs in {different}"
