"""How a job is started and how it ends: launchers, threads, the last round, the files in jobs/."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import h5py
import pytest

from fedande_mpi.config import load_experiment
from tests.conftest import ROOT
from tests.mpi.launch import fedande

pytestmark = pytest.mark.mpi

SMALL = """\
datasets = "tic-tac-toe"
clients = 4
repeats = 1
only_folds = 0
[discriminative]
rounds = 2
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_case_14_the_file_is_complete_before_any_rank_leaves(tmp_path: Path, small: Path) -> None:
    hook = """
import atexit
from pathlib import Path
from fedande_mpi import cli
def leaving():
    import h5py
    (path,) = Path("results").glob("*.h5")
    with h5py.File(path) as file:
        Path(f"rank{rank}").write_text(str(file["complete"][0, 0]))
atexit.register(leaving)
main = cli.main
def watched(argv=None):
    code = main(argv)
    Path(f"code{rank}").write_text(str(code))
    return code
cli.main = watched
"""
    done = fedande(3, "run", "small.toml", "-o", "results", cwd=tmp_path, hook=hook)
    assert done.code == 0
    assert done.err.splitlines()[-1].startswith("done after ")
    assert not re.search("abort|terminat|traceback|error|exception", done.err, re.IGNORECASE)
    assert done.out == ""
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(3)] == ["1"] * 3
    assert [(tmp_path / f"code{rank}").read_text() for rank in range(3)] == ["0"] * 3


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
@pytest.mark.parametrize("command", ["run", "verify"])
def test_case_15_a_rank_that_sees_no_other_is_refused(
    tmp_path: Path, small: Path, name: str, command: str
) -> None:
    done = fedande(0, command, "small.toml", cwd=tmp_path, env={name: "4"})
    assert done.code == 1
    (line,) = done.messages
    assert f"4 ranks ({name}=4)" in line
    assert "srun --mpi=pmi2 (or --mpi=pmix)" in line or "fedande-mpi[mpich]" in line
    assert not (tmp_path / "results").exists()


def test_case_15_a_batch_shell_runs(tmp_path: Path, small: Path) -> None:
    batch = {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "node[1-2]"}
    done = fedande(0, "run", "small.toml", "-o", "results", cwd=tmp_path, env=batch)
    assert done.code == 0, done.err


def test_case_15_allow_singleton_runs_all_the_same(tmp_path: Path, small: Path) -> None:
    done = fedande(
        0, "run", "small.toml", "-o", "r", "--allow-singleton", cwd=tmp_path, env={"PMI_SIZE": "4"}
    )
    assert done.code == 0, done.err


def test_usage_errors_end_with_2_under_mpiexec(tmp_path: Path) -> None:
    assert fedande(2, "run", cwd=tmp_path).code == 2


def test_an_experiment_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    done = fedande(3, "run", "absent.toml", cwd=tmp_path)
    assert done.code == 1
    (line,) = done.messages
    assert "absent.toml: expected a readable experiment" in line


def test_a_dry_run_under_mpiexec_prints_one_plan_for_these_ranks(tmp_path: Path, small: Path) -> None:
    done = fedande(3, "run", "small.toml", "-o", "results", "--dry-run", cwd=tmp_path)
    assert done.code == 0
    assert len(re.findall(r"core-seconds \(.*\); 3 ranks", done.out)) == 1
    assert not (tmp_path / "results").exists()


THREADS = """
import atexit
from pathlib import Path
def pools():
    import json
    from threadpoolctl import threadpool_info
    found = [pool["num_threads"] for pool in threadpool_info()]
    Path(f"threads{rank}").write_text(json.dumps([found, os.environ["OMP_NUM_THREADS"]]))
atexit.register(pools)
"""


@pytest.mark.parametrize("given", [None, "2"])
def test_case_18_one_blas_thread_each_unless_the_user_says_otherwise(
    tmp_path: Path, small: Path, given: str | None
) -> None:
    pytest.importorskip("threadpoolctl")
    env = {"OMP_NUM_THREADS": given, "OPENBLAS_NUM_THREADS": given, "MKL_NUM_THREADS": given}
    done = fedande(2, "run", "small.toml", "-o", "results", cwd=tmp_path, hook=THREADS, env=env)
    assert done.code == 0, done.err
    for rank in range(2):
        pools, variable = json.loads((tmp_path / f"threads{rank}").read_text())
        assert variable == (given or "1")
        if given is None:
            assert pools
            assert set(pools) == {1}


def test_case_18_more_threads_than_cores_are_warned_of_once(tmp_path: Path, small: Path) -> None:
    env = {"OMP_NUM_THREADS": "4096"}
    done = fedande(3, "run", "small.toml", "--dry-run", cwd=tmp_path, env=env)
    assert done.code == 0
    (line,) = done.warnings
    assert "3 ranks with 4096 threads each on " in line
    within = fedande(2, "run", "small.toml", "--dry-run", cwd=tmp_path)  # one busy host, one thread
    assert within.err == ""


def test_case_19_job_files_name_no_host_and_load() -> None:
    files = [path for path in (ROOT / "jobs").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"demo.toml", "smoke.toml", "paper.toml"}
    hosts = (
        rf"(?<![\w-])({re.escape(socket.gethostname())}|localhost|--?host(s|file)?|--nodelist|-w)(?![\w-])"
    )
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not re.search(hosts, text), path.name
        if path.suffix == ".toml":
            assert load_experiment(path).cells()


def test_case_19_the_demo_runs_under_plain_mpiexec(tmp_path: Path) -> None:
    cut = ["--set", 'datasets="tic-tac-toe"', "--set", "n=[0, 1]", "--set", "clients=5"]
    done = fedande(3, "run", ROOT / "jobs" / "demo.toml", "-o", "results/demo", *cut, cwd=tmp_path)
    assert done.code == 0, done.err
    files = list((tmp_path / "results" / "demo").glob("*.h5"))
    assert len(files) == 2 * 2 * 3
    with h5py.File(files[0]) as file:
        assert file["provenance/mpi_size"][0, 0] == 3
        assert file["provenance/hostname"].asstr()[0, 0] == os.uname().nodename
    table = fedande(0, "table", "results/demo", cwd=tmp_path)
    assert table.code == 0
    assert len(table.out.splitlines()) == 2 + 12
