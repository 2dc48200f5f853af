"""The scripts of jobs/ under a real scheduler: arrays, time limits, preemption, signals, cancelling."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mpi.launch import all_results, assert_same_bytes, fedande, with_hook
from tests.slurm.conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.mpi, pytest.mark.timeout(600)]

SMALL = """\
datasets = "tic-tac-toe"
n = 1
clients = 6
repeats = 1
[discriminative]
rounds = 5
"""

# Every round takes long, unless the job has been restarted.
SLOW_AT_FIRST = """
import time
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    from fedande_mpi import host
    steps = host.Host._steps
    def slow(self, *arguments, **options):
        for _ in range(4):
            time.sleep(0.1)
            yield True
        yield from steps(self, *arguments, **options)
    host.Host._steps = slow
"""

# A signal kills the ranks on the spot, unless the job has been restarted.
KILLED_AT_FIRST = """
import signal
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    from fedande_mpi import cli
    cli.Signals._remember = lambda self, number, frame: os.kill(os.getpid(), signal.SIGKILL)
"""


def workplace(tmp_path: Path, hook: str) -> dict[str, str | None]:
    """Make a directory to submit from; return what the job's environment has in addition."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    (tmp_path / "small.toml").write_text(SMALL)
    env = with_hook(tmp_path / "hook", hook)
    return {"PYTHONPATH": env["PYTHONPATH"]}


def submit(cluster: Cluster, tmp_path: Path, env: dict[str, str | None], *words: object) -> str:
    return cluster("sbatch", "--parsable", *words, cwd=tmp_path, env=env)


def log(tmp_path: Path, pattern: str = "*.log") -> str:
    return "".join(path.read_text() for path in sorted(tmp_path.glob(pattern)))


def starts(text: str) -> list[str]:
    """Return the numbers of the restarts that a log tells of."""
    return re.findall(r"^job \d+(?: task \d+)?, restart (\d+)", text, re.MULTILINE)


def ends(cluster: Cluster, job: str) -> list[str]:
    """Return how SLURM says that a job, or every task of an array, ended."""
    return [each["JobState"] for each in cluster.jobs(job)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small")
    (directory / "small.toml").write_text(SMALL)
    assert fedande(0, "run", "small.toml", "-o", "results", cwd=directory).code == 0
    return directory / "results"


def test_an_array_of_four_tasks_completes_the_smoke_grid_though_one_is_preempted(
    cluster: Cluster, tmp_path: Path
) -> None:
    env = workplace(tmp_path, KILLED_AT_FIRST)
    submit_line = ("--mem-per-cpu=500M", "jobs/array.sbatch", "jobs/smoke.toml", "results")
    job = submit(cluster, tmp_path, env, *submit_line)
    cluster.wait(lambda: len(list(tmp_path.glob("results/*.h5"))) > 3, "the first cells")
    # four CPUs are two tasks of two ranks: another job of higher rank takes the place of one
    urgent = cluster(
        "sbatch", "--parsable", "--partition=urgent", "--ntasks=2", "--wrap=sleep 2", cwd=tmp_path
    )
    cluster.finish(urgent)
    cluster.finish(job)
    assert sorted(starts(log(tmp_path))) == ["0", "0", "0", "0", "1"]
    assert ends(cluster, job) == ["COMPLETED"] * 4
    assert fedande(0, "run", tmp_path / "jobs/smoke.toml", "-o", "plain", cwd=tmp_path, timeout=240).code == 0
    assert_same_bytes(tmp_path / "plain", tmp_path / "results")
    assert [path.name for path in (tmp_path / "results").iterdir() if path.suffix != ".h5"] == []


def test_a_job_that_hits_its_limit_requeues_itself_until_all_is_done(
    cluster: Cluster, tmp_path: Path, small: Path
) -> None:
    env = workplace(tmp_path, SLOW_AT_FIRST.replace("range(4)", "range(40)"))
    # SLURM looks every half minute, so the signal comes after 10 to 40 s of the shortest limit there is
    limit = ("--time=1", "--signal=B:USR1@20", "--ntasks=3", "--mem-per-cpu=500M")
    job = submit(cluster, tmp_path, env, *limit, "jobs/fedande.sbatch", "small.toml", "results")
    cluster.finish(job)
    assert ends(cluster, job) == ["COMPLETED"]
    text = log(tmp_path)
    assert starts(text) == ["0", "1"]
    assert "stopped by SIGUSR1; complete folds are saved" in text
    assert "requeueing it" in text
    assert_same_bytes(small, tmp_path / "results")


def test_a_warning_reaches_the_ranks_of_mpiexec_and_the_job_goes_on_after_it(
    cluster: Cluster, tmp_path: Path, small: Path
) -> None:
    env = workplace(tmp_path, SLOW_AT_FIRST) | {"FEDANDE_LAUNCHER": "mpiexec"}
    job = submit(
        cluster,
        tmp_path,
        env,
        "--ntasks=3",
        "--mem-per-cpu=500M",
        "jobs/fedande.sbatch",
        "small.toml",
        "results",
    )
    cluster.wait(lambda: bool(list(tmp_path.glob("results/*.h5"))), "the first fold")
    cluster("scancel", "--signal=USR1", "--batch", job)
    cluster.finish(job)
    assert ends(cluster, job) == ["COMPLETED"]
    text = log(tmp_path)
    assert "stopped by SIGUSR1" in text
    assert "Abort" not in text
    assert starts(text) == ["0", "1"]
    assert_same_bytes(small, tmp_path / "results")


def test_a_warning_to_the_last_task_of_an_array_stops_and_requeues_no_other(
    cluster: Cluster, tmp_path: Path
) -> None:
    env = workplace(tmp_path, SLOW_AT_FIRST)
    (tmp_path / "small.toml").write_text(SMALL.replace("n = 1", "n = [0, 1]"))
    options = ("--array=0-1", "--ntasks=2", "--mem-per-cpu=500M")
    job = submit(cluster, tmp_path, env, *options, "jobs/array.sbatch", "small.toml", "results")
    cluster.wait(lambda: len(list(tmp_path.glob("results/*.h5"))) == 2, "the first fold of both tasks")
    assert [each["JobId"] for each in cluster.jobs(f"{job}_1")] == [job]
    cluster("scancel", "--signal=USR1", "--batch", f"{job}_1")
    cluster.finish(job)
    assert ends(cluster, job) == ["COMPLETED"] * 2
    assert starts(log(tmp_path, "*_0.log")) == ["0"]
    assert starts(log(tmp_path, "*_1.log")) == ["0", "1"]
    assert {set(each["complete"][2]) == {1} for each in all_results(tmp_path / "results").values()} == {True}


def test_a_cancelled_job_is_not_requeued(cluster: Cluster, tmp_path: Path) -> None:
    env = workplace(tmp_path, SLOW_AT_FIRST)
    job = submit(
        cluster,
        tmp_path,
        env,
        "--ntasks=3",
        "--mem-per-cpu=500M",
        "jobs/fedande.sbatch",
        "small.toml",
        "results",
    )
    cluster.wait(lambda: bool(list(tmp_path.glob("results/*.h5"))), "the first fold")
    cluster("scancel", job)
    cluster.finish(job)
    (end,) = cluster.jobs(job)
    assert (end["JobState"], end["Restarts"]) == ("CANCELLED", "0")
    assert "requeueing" not in log(tmp_path)


def test_a_signal_from_slurm_to_the_ranks_ends_them_with_75(cluster: Cluster, tmp_path: Path) -> None:
    env = workplace(tmp_path, SLOW_AT_FIRST)
    line = "srun --mpi=pmi2 --signal=USR1@20 --time=1 fedande run small.toml -o results; echo code $?"
    job = submit(cluster, tmp_path, env, "--ntasks=2", "--output=job.log", f"--wrap={line}")
    cluster.wait(lambda: bool(list(tmp_path.glob("results/*.h5"))), "the first fold")
    cluster("scancel", "--signal=USR1", job)  # what SLURM does at the limit: to the steps, not the shell
    cluster.finish(job)
    assert "code 75" in (tmp_path / "job.log").read_text()


def test_srun_without_pmi_is_refused_with_the_hint(cluster: Cluster, tmp_path: Path) -> None:
    env = workplace(tmp_path, "")
    line = "srun --mpi=none fedande run small.toml -o results; echo code $?"
    job = submit(cluster, tmp_path, env, "--ntasks=2", "--output=job.log", f"--wrap={line}")
    cluster.finish(job)
    text = (tmp_path / "job.log").read_text()
    assert "expected a world of 2 ranks (SLURM_STEP_NUM_TASKS=2), got 1" in text
    assert "srun --mpi=pmi2" in text
    assert "code 1" in text
    assert not (tmp_path / "results").exists()
