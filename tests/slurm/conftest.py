"""A SLURM cluster of one node for the tests; they skip, with the reason, where it cannot be started."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mpi.launch import BIN, environment, mpiexec

START = Path(__file__).with_name("start_slurm.sh")
TIMEOUT = 240.0


@dataclass(frozen=True)
class Cluster:
    """Commands of the started cluster."""

    configuration: Path

    def environment(self, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
        path = os.pathsep.join([str(BIN), os.environ["PATH"]])
        return environment({"SLURM_CONF": str(self.configuration), "PATH": path} | dict(changes or {}))

    def __call__(
        self, *line: object, cwd: Path | None = None, env: Mapping[str, str | None] | None = None
    ) -> str:
        """Run a command of SLURM, or any other, and return what it prints."""
        done = subprocess.run(
            list(map(str, line)),
            cwd=cwd,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def states(self, job: str) -> dict[str, str]:
        """Return the state of every task of a job that SLURM still lists, by its own number."""
        text = self("squeue", "--noheader", "--array", f"--jobs={job}", "--format=%A %T")
        return dict(line.split() for line in text.splitlines())

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < end, f"{what}: it did not happen\n{self('scontrol', 'show', 'jobs')}"
            time.sleep(0.1)

    def finish(self, job: str, *, hurry: bool = True) -> None:
        """Wait until a job is over; a requeued one starts without SLURM's two minutes of delay."""

        def over() -> bool:
            states = self.states(job)
            for number, state in states.items():
                if hurry and state == "PENDING":
                    subprocess.run(
                        ["scontrol", "update", f"JobId={number}", "StartTime=now"],
                        env=self.environment(),
                        capture_output=True,
                        timeout=TIMEOUT,
                    )
            return not states

        # SLURM answers for jobs that have just ended as if they were unknown
        self.wait(lambda: self._known(job) is False or over(), f"the end of job {job}")

    def _known(self, job: str) -> bool:
        done = subprocess.run(
            ["squeue", "--noheader", f"--jobs={job}"], env=self.environment(), capture_output=True, timeout=60
        )
        return done.returncode == 0 and bool(done.stdout.strip())

    def detail(self, job: str, key: str) -> str:
        """Return a word of ``scontrol show job``."""
        words = dict(
            word.split("=", 1) for word in self("scontrol", "show", "job", job).split() if "=" in word
        )
        return words[key]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    mpiexec()
    directory = tmp_path_factory.mktemp("slurm")
    try:
        started = subprocess.run([START, directory], capture_output=True, text=True, timeout=60)
        if started.returncode:
            pytest.skip(started.stderr.strip().splitlines()[-1])
        yield Cluster(directory / "slurm.conf")
    finally:
        subprocess.run([START, "--stop", directory], capture_output=True, timeout=60)
