"""Batch scripts: what they ask for, and that a shell takes them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedande_mpi import batch
from fedande_mpi.batch import Request, examples, request, script, seconds_of
from fedande_mpi.cli import main
from fedande_mpi.config import Experiment
from fedande_mpi.errors import ConfigError
from fedande_mpi.jobs import Library, prepare, share_first, shares
from tests.conftest import ROOT

GRID: dict[str, Any] = {
    "name": "small grid",
    "datasets": ["synthetic:m=90,d=4,o=3,arity=3,seed=2", "tic-tac-toe"],
    "n": [0, 1, 2],
    "clients": [4, 8],
    "methods": ["generative", "discriminative"],
    "folds": 3,
    "repeats": 2,
}
PLAIN = Request(
    name="job",
    experiment="job.toml",
    output="results",
    tasks=1,
    ranks=3,
    memory_mib=400,
    time="1:00:00",
)
FILES = [*sorted((ROOT / "jobs").glob("*.sbatch")), ROOT / "jobs/laptop.sh"]
FILES += sorted((ROOT / "tests/slurm").glob("*.sh"))


def experiment(**keys: Any) -> Experiment:
    return Experiment.from_mapping(GRID | keys)


def wanted(tmp_path: Path, keys: dict[str, Any] | None = None, **options: Any) -> Request:
    options = {"tasks": 4, "output": tmp_path / "results"} | options
    return request(experiment(**keys or {}), "grid.toml", **options)


def directives(text: str) -> dict[str, str]:
    lines = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH ")]
    return dict(line.removeprefix("--").partition("=")[::2] for line in lines)


# --- what is asked for -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("2:00:00", 7200),
        ("1-12", 129_600),
        ("1-0:30", 88_200),
        ("2-01:02:03", 176_523),
    ],
)
def test_a_time_limit_is_read_as_slurm_reads_it(limit: str, seconds: int) -> None:
    assert seconds_of(limit) == seconds


@pytest.mark.parametrize("limit", ["", "0", "soon", "2h", "1:2:3:4", "-5", "0:00:00"])
def test_what_is_no_time_limit_is_refused(limit: str) -> None:
    with pytest.raises(ConfigError, match="expected a time limit as SLURM writes it"):
        seconds_of(limit)


def test_the_script_asks_for_what_the_plan_says(tmp_path: Path) -> None:
    asked = wanted(tmp_path, ranks=5, time="30")
    found = directives(script(asked))
    assert found["ntasks"] == "5"
    assert found["time"] == "30"
    assert found["array"] == "0-3"
    assert found["mem-per-cpu"] == f"{asked.memory_mib}M"
    assert found["signal"] == "B:USR1@120"
    assert found["job-name"] == "small-grid"
    plans = [job.plan for job in prepare(experiment(), None, 5, Library())]
    largest = max(max(plan.server_bytes, plan.host_bytes) for plan in plans)
    assert asked.memory_mib * 2**20 > largest


def test_a_small_job_needs_one_rank_and_a_large_one_as_many_as_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wanted(tmp_path, time="2:00:00").ranks == 1

    def dear(*arguments: Any, **options: Any) -> Any:
        found = prepare(*arguments, **options)
        return [dataclasses.replace(job, plan=dataclasses.replace(job.plan, seconds=1000.0)) for job in found]

    monkeypatch.setattr(batch, "prepare", dear)
    asked = wanted(tmp_path, time="2:00:00", tasks=6)
    # 24 cells of 6 folds of 1,000 s, over 6 tasks: 24,000 s each, with a margin of 1.5, in 7,200 s
    assert asked.ranks == 5 + 1
    assert "a task begins with 4,800 to 4,800 s of them on 6 ranks" in " ".join(asked.remarks)
    longest = wanted(tmp_path, time="10", tasks=24)
    assert longest.ranks == 15 + 1
    assert "requeue themselves" in wanted(tmp_path, time="30", tasks=2, ranks=3).remarks[-1]
    short = wanted(tmp_path, time="10", tasks=2, ranks=2)
    assert "goes on from a checkpoint" in short.remarks[-1]
    assert short.options == "--set checkpoint_minutes=1.25"
    chosen = wanted(tmp_path, time="10", tasks=2, ranks=2, options=["--set", "checkpoint_minutes=3"])
    assert chosen.options == "--set checkpoint_minutes=3"


def test_an_array_has_no_more_tasks_than_cells(tmp_path: Path) -> None:
    few = {"datasets": "tic-tac-toe", "n": 0, "methods": "generative"}
    assert wanted(tmp_path, few, tasks=40).tasks == 2
    assert "array" not in directives(script(wanted(tmp_path, few | {"clients": 4}, tasks=40)))
    with pytest.raises(ConfigError, match="expected at least one task, got 0"):
        wanted(tmp_path, tasks=0)


def test_the_command_hands_on_what_changes_the_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("it's.toml").write_text('datasets = "tic-tac-toe"\nn = [0, 1]\nrepeats = 1\n')
    line = [
        "jobs",
        "it's.toml",
        "--tasks",
        "2",
        "--time",
        "30",
        "--seed",
        "3",
        "--set",
        'methods=["generative"]',
    ]
    assert main([*line, "--launcher", "srun --mpi=pmix", "--script", "out/job.sbatch"]) == 0
    assert "submit it: sbatch out/job.sbatch" in capsys.readouterr().out
    text = Path("out/job.sbatch").read_text()
    assert "experiment='it'\"'\"'s.toml'" in text
    assert "--set 'methods=[\"generative\"]' --seed 3" in text
    assert "FEDANDE_LAUNCHER:-srun --mpi=pmix" in text
    assert os.access("out/job.sbatch", os.X_OK)
    assert main(line) == 0
    assert capsys.readouterr().out.startswith("#!/usr/bin/env bash\n")


# --- shares ------------------------------------------------------------------------------------------------


def test_shares_are_all_of_the_cells_and_cost_about_the_same() -> None:
    jobs = prepare(experiment(), None, 1, Library())
    split = shares(jobs, 4)
    assert sorted(job.info.name for share in split for job in share) == sorted(job.info.name for job in jobs)
    loads = [sum(job.plan.seconds * len(job.units) for job in share) for share in split]
    assert max(loads) - min(loads) <= max(job.plan.seconds * len(job.units) for job in jobs)


def test_a_task_begins_with_its_share_and_then_takes_the_others_from_their_ends() -> None:
    jobs = prepare(experiment(), None, 1, Library())
    split = shares(jobs, 3)
    assert share_first(jobs, (1, 3)) == [*split[1], *split[2][::-1], *split[0][::-1]]
    assert share_first(jobs, (0, 1)) == jobs


@pytest.mark.parametrize("text", ["3/3", "-1/2", "1", "a/b", "1/0", "/"])
def test_a_share_that_is_none_is_a_usage_error(text: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", "x.toml", f"--share={text}"])
    assert stop.value.code == 2


# --- the files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(examples()))
def test_the_scripts_of_jobs_are_what_the_code_makes(name: str) -> None:
    # python -c "from fedande_mpi.batch import *; [open(f'jobs/{n}', 'w').write(t) for n, t in examples().items()]"
    assert (ROOT / "jobs" / name).read_text(encoding="utf-8") == examples()[name]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    done = subprocess.run(["shellcheck", path], capture_output=True, text=True, timeout=60)
    assert done.stdout == ""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_bash_can_read_it_and_it_may_be_executed(path: Path) -> None:
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True, timeout=60)


# --- what a script does, with stand-ins for SLURM ------------------------------------------------------------

STUB = """\
#!/bin/sh
echo "${0##*/} $*" >>calls
"""

RANKS = """\
#!/bin/sh
echo "${0##*/} $*" >>calls
case "$*" in *true) exit ;; esac
trap 'echo told >>calls; [ -e deaf ] || exit ${CODE:-75}; rm deaf' USR1
touch started
if [ -n "$LONG" ]; then for _ in $(seq 300); do /bin/sleep 0.1; done; fi
exit "${CODE:-0}"
"""

SQUEUE = f"""\
{STUB}
if [ -e busy ]; then rm busy; exit 1; fi
echo ${{STATE:-RUNNING}}
"""


def execute(
    tmp_path: Path, request: Request, *, warn: bool = False, **env: str
) -> tuple[int, str, list[str]]:
    """Run a script, with a warning once its ranks are there; return its exit code, output and commands."""
    programs = tmp_path / "bin"
    programs.mkdir()
    # signals go to the ranks, as SLURM's and mpiexec's do
    scancel = f"{STUB}pkill -USR1 -P $PPID -f bin/srun\n"
    stubs = {"srun": RANKS, "mpiexec": RANKS, "squeue": SQUEUE, "scontrol": STUB, "scancel": scancel}
    stubs["sleep"] = "#!/bin/sh\nexec /bin/sleep 0.2\n"
    for name, text in stubs.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "job.sbatch").write_text(script(request))
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", "SLURM_NTASKS": "3"}
    if request.tasks > 1:  # the last task has the array's own number
        environment |= {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "5"}
    environment |= env | {"LONG": "1"} if warn else env
    process = subprocess.Popen(
        ["bash", "job.sbatch"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        if warn:
            while not (tmp_path / "started").exists():
                assert process.poll() is None
            process.send_signal(10)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, (tmp_path / "calls").read_text().splitlines()


needs_bash = pytest.mark.skipif(
    shutil.which("bash") is None or shutil.which("pkill") is None, reason="no bash or pkill on this machine"
)


@needs_bash
@pytest.mark.parametrize(
    ("launcher", "line"),
    [
        ("srun --mpi=pmi2", "srun --mpi=pmi2 --kill-on-bad-exit=1 fedande run job.toml -o results"),
        ("srun --mpi=pmix", "srun --mpi=pmix --kill-on-bad-exit=1 fedande run job.toml -o results"),
        ("mpiexec", "mpiexec -n 3 fedande run job.toml -o results"),
    ],
)
def test_the_ranks_are_started_and_their_exit_code_is_the_jobs(
    tmp_path: Path, launcher: str, line: str
) -> None:
    code, out, calls = execute(tmp_path, dataclasses.replace(PLAIN, launcher=launcher), CODE="1")
    assert code == 1
    assert calls == [line]
    assert out.startswith("job 17, restart 0: ")


@needs_bash
def test_a_task_of_an_array_gets_its_share(tmp_path: Path) -> None:
    _, out, calls = execute(tmp_path, dataclasses.replace(PLAIN, tasks=4))
    assert calls[0].endswith("fedande run job.toml -o results --share 1/4")
    assert out.startswith("job 17 task 5, restart 0: ")


@needs_bash
@pytest.mark.parametrize("launcher", ["srun --mpi=pmi2", "mpiexec"])
def test_a_warning_is_passed_on_and_the_job_requeued(tmp_path: Path, launcher: str) -> None:
    request = dataclasses.replace(PLAIN, launcher=launcher)
    code, out, calls = execute(tmp_path, request, warn=True, SLURM_RESTART_COUNT="3")
    assert code == 75
    assert "told" in calls
    assert ("scancel --signal=USR1 17" in calls) == launcher.startswith("srun")
    assert calls[-1] == "scontrol requeue 17"
    assert "after restart 3: requeueing it" in out


@needs_bash
def test_a_task_of_an_array_never_speaks_for_the_whole_array(tmp_path: Path) -> None:
    _, _, calls = execute(tmp_path, dataclasses.replace(PLAIN, tasks=4), warn=True)
    assert "scancel --signal=USR1 17_5" in calls
    assert "squeue --noheader --jobs=17_5 --format=%T" in calls
    assert calls[-1] == "scontrol requeue 17_5"


@needs_bash
def test_a_warning_that_comes_before_the_ranks_is_kept_for_them(tmp_path: Path) -> None:
    (tmp_path / "setup").write_text("kill -USR1 $$\n")
    code, _, calls = execute(tmp_path, PLAIN, FEDANDE_SETUP="./setup", LONG="1")
    assert calls[-1] == "scontrol requeue 17"
    assert code in (75, 138)


@needs_bash
def test_a_warning_that_is_not_heard_is_given_again(tmp_path: Path) -> None:
    (tmp_path / "deaf").touch()
    code, _, calls = execute(tmp_path, PLAIN, warn=True)
    assert code == 75
    assert calls.count("told") == 2


@needs_bash
def test_ranks_that_are_killed_after_a_warning_do_not_lose_the_job(tmp_path: Path) -> None:
    code, _, calls = execute(tmp_path, PLAIN, warn=True, CODE="137")
    assert code == 137
    assert calls[-1] == "scontrol requeue 17"


@needs_bash
def test_slurm_is_asked_again_when_it_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "busy").touch()
    _, _, calls = execute(tmp_path, PLAIN, warn=True)
    assert calls[-3:] == 2 * ["squeue --noheader --jobs=17 --format=%T"] + ["scontrol requeue 17"]


@needs_bash
@pytest.mark.parametrize(("launcher", "empty"), [("srun --mpi=pmi2", 2), ("mpiexec", 0)])
def test_every_start_has_another_step_number(tmp_path: Path, launcher: str, empty: int) -> None:
    request = dataclasses.replace(PLAIN, launcher=launcher)
    _, _, calls = execute(tmp_path, request, SLURM_RESTART_COUNT="2")
    assert calls[:-1] == empty * ["srun --mpi=none --nodes=1 --ntasks=1 true"]


@needs_bash
@pytest.mark.parametrize(
    ("code", "env"),
    [
        ("0", {}),
        ("1", {}),
        ("137", {}),
        ("75", {"STATE": "COMPLETING"}),
        ("75", {"SLURM_RESTART_COUNT": "50"}),
        ("75", {"SLURM_RESTART_COUNT": "1", "FEDANDE_MAX_RESTARTS": "1"}),
    ],
)
def test_a_job_that_is_done_failed_cancelled_or_stuck_is_not_requeued(
    tmp_path: Path, code: str, env: dict[str, str]
) -> None:
    returned, _, calls = execute(tmp_path, PLAIN, CODE=code, **env)
    assert returned == int(code)
    assert not any(call.startswith("scontrol") for call in calls)


@needs_bash
def test_an_error_after_a_warning_is_not_tried_again(tmp_path: Path) -> None:
    returned, _, calls = execute(tmp_path, PLAIN, warn=True, CODE="1")
    assert returned == 1
    assert not any(call.startswith("scontrol") for call in calls)
