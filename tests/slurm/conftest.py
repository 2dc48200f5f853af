"""A SLURM cluster of one node for the tests; they skip, with the reason, where there is no SLURM."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mpi.launch import BIN, environment, mpiexec

START = Path(__file__).with_name("start_slurm.sh")
TIMEOUT = 240.0
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


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

    def jobs(self, job: str) -> list[dict[str, str]]:
        """Return what SLURM knows of a job and of every task of an array; nothing while it does not answer."""
        done = subprocess.run(
            ["scontrol", "--oneliner", "show", "job", job],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        lines = done.stdout.splitlines() if done.returncode == 0 else []
        return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < end, f"{what}: it did not happen\n{self('scontrol', 'show', 'jobs')}"
            time.sleep(0.2)

    def finish(self, job: str) -> None:
        """Wait until a job is over; a requeued one starts without SLURM's two minutes of delay."""

        def over() -> bool:
            found = self.jobs(job)
            for each in found:
                if each["JobState"] == "PENDING" and each["Restarts"] != "0":
                    # it may start just now, or still be on its way out: then SLURM refuses
                    subprocess.run(
                        ["scontrol", "update", f"JobId={each['JobId']}", "StartTime=now"],
                        env=self.environment(),
                        capture_output=True,
                        timeout=TIMEOUT,
                    )
            return bool(found) and all(each["JobState"] in ENDS for each in found)

        self.wait(over, f"the end of job {job}")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    mpiexec()
    directory = tmp_path_factory.mktemp("slurm")
    try:
        started = subprocess.run([START, directory], capture_output=True, text=True, timeout=60)
        if started.returncode:
            possible = os.geteuid() == 0 and shutil.which("slurmctld") is not None
            (pytest.fail if possible else pytest.skip)(started.stderr.strip().splitlines()[-1])
        yield Cluster(directory / "slurm.conf")
    finally:
        subprocess.run([START, "--stop", directory], capture_output=True, timeout=60)
