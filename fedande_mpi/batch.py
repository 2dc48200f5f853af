"""Batch scripts for SLURM: one experiment as one job, or as the tasks of an array (``fedande jobs``).

``jobs/fedande.sbatch`` and ``jobs/array.sbatch`` are what :func:`script` makes of an experiment that is named when
the job is submitted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from fedande_mpi.config import Experiment
from fedande_mpi.errors import ConfigError
from fedande_mpi.jobs import Job, Library, prepare, shares
from fedande_mpi.planning import MIB
from fedande_mpi.storage import refusal

LAUNCHER = "srun --mpi=pmi2"
TIME = "2:00:00"

_MARGIN = 1.5
"""Estimates of time and memory are taken so many times: a plan is an order of size."""

_CHECKPOINTS = 8
"""Checkpoints within the time limit, where a fold may not end within it."""

_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class Request:
    """What a script asks SLURM for.

    Attributes
    ----------
    name : str
        Name of the job.
    experiment, output : str
        As shell words.
    tasks : int
        Tasks of the array; 1 for a single job.
    ranks : int
        Ranks of each.
    memory_mib : int
        Per rank.
    time : str
        Limit of each, as SLURM writes it.
    launcher : str
        Command that starts the ranks.
    options : str
        Further options of ``fedande run``, as shell words.
    remarks : tuple of str
        Lines for the head of the script.
    """

    name: str
    experiment: str
    output: str
    tasks: int
    ranks: int
    memory_mib: int
    time: str
    launcher: str = LAUNCHER
    options: str = ""
    remarks: tuple[str, ...] = field(default=())


def seconds_of(limit: str) -> int:
    """Return a SLURM time limit in seconds: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S.

    Raises
    ------
    ConfigError
        If it is none of these, or zero.
    """
    found = _LIMIT.fullmatch(limit)
    seconds = 0
    if found is not None:
        days, *rest = found.groups()
        numbers = [int(number) for number in rest if number is not None]
        if days is not None:
            weights: Sequence[int] = (3600, 60, 1)
        else:
            weights = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(numbers)]
        seconds = int(days or 0) * 86400
        seconds += sum(number * weight for number, weight in zip(numbers, weights, strict=False))
    if not seconds:
        raise ConfigError(
            f"expected a time limit as SLURM writes it (90, 2:00:00, 1-12:00:00), got '{limit}'; change --time"
        )
    return seconds


def request(
    experiment: Experiment,
    path: str,
    *,
    tasks: int,
    time: str = TIME,
    ranks: int | None = None,
    output: Path,
    launcher: str = LAUNCHER,
    options: Sequence[str] = (),
) -> Request:
    """Fill in a request from the plan of what is missing of an experiment.

    Parameters
    ----------
    experiment : Experiment
    path : str
        Its file, as the script should name it.
    tasks : int
        Tasks at most; an array is never larger than the number of cells.
    time : str
        Limit of a task.
    ranks : int, optional
        Ranks of a task. Left out: as many as the work needs to end within the limit, and the longest fold
        to fit into it.
    output : Path
        Directory of results.
    launcher : str
    options : sequence of str
        Further options of ``fedande run``.

    Raises
    ------
    FedandeError
        For a time limit that is none, or whatever would stop the run.
    """
    limit = seconds_of(time)
    if tasks < 1:
        raise ConfigError(f"expected at least one task, got {tasks}; change --tasks")
    library = Library()
    jobs = [job for job in prepare(experiment, output, 1, library) if job.units]
    total = sum(job.plan.seconds * len(job.units) for job in jobs)
    longest = max((job.plan.seconds for job in jobs), default=0.0)
    tasks = max(1, min(tasks, len(jobs)))
    if ranks is None:
        hosts = max(1, ceil(_MARGIN * max(total / tasks, longest) / limit))
        ranks = hosts + 1 if hosts > 1 else 1
    planned = [job.plan for job in prepare(experiment, output, ranks, library) if job.units]
    largest = max((max(plan.server_bytes, plan.host_bytes) for plan in planned), default=256 * MIB)
    words = [shlex.quote(word) for word in options]
    if longest / max(1, ranks - 1) * _MARGIN > limit and not any(
        "checkpoint_minutes" in word for word in options
    ):
        # several within the limit, which a restart goes on from
        words += ["--set", f"checkpoint_minutes={limit / 60 / _CHECKPOINTS:.3g}"]
    return Request(
        name=re.sub(r"[^\w.-]+", "-", experiment.name),
        experiment=shlex.quote(path),
        output=shlex.quote(str(output)),
        tasks=tasks,
        ranks=ranks,
        memory_mib=100 * ceil(_MARGIN * largest / MIB / 100),
        time=time,
        launcher=launcher,
        options=" ".join(words),
        remarks=_remarks(jobs, tasks, ranks, total, longest, limit),
    )


def _remarks(
    jobs: Sequence[Job], tasks: int, ranks: int, total: float, longest: float, limit: int
) -> tuple[str, ...]:
    units = sum(len(job.units) for job in jobs)
    hosts = max(1, ranks - 1)
    loads = [sum(job.plan.seconds * len(job.units) for job in share) for share in shares(jobs, tasks)]
    lines = [
        f"{len(jobs)} cells, {units} folds, about {total:,.0f} core-seconds (an order of size);",
        f"a task begins with {min(loads) / hosts:,.0f} to {max(loads) / hosts:,.0f} s of them on {ranks} "
        f"rank{'s' * (ranks > 1)}; the longest fold takes {longest / hosts:,.0f} s.",
    ]
    if longest / hosts * _MARGIN > limit:
        lines.append(
            "A fold may not end within the time limit: it goes on from a checkpoint after each requeue."
        )
    elif max(loads) / hosts * _MARGIN > limit:
        lines.append("That is more than the time limit: the tasks requeue themselves until all is done.")
    return tuple(lines)


def script(wanted: Request) -> str:
    """Return a request as a batch script."""
    array = wanted.tasks > 1
    remarks = "".join(f"# {line}\n" for line in wanted.remarks)
    lines = {
        "WHAT": "The cells of an experiment, spread over the tasks of a job array that share one directory."
        if array
        else "One experiment over the ranks of one job.",
        "REMARKS": f"#\n{remarks}" if remarks else "",
        "NAME": wanted.name,
        "ARRAY": f"#SBATCH --array={f'0-{wanted.tasks - 1}':<15} # the tasks; add %8 for eight at a time at most\n"
        if array
        else "",
        "RANKS": f"{wanted.ranks:<14}",
        "MEMORY": f"{f'{wanted.memory_mib}M':<9}",
        "TIME": f"{wanted.time:<16}",
        "LOG": f"{'%x-%A_%a.log' if array else '%x-%j.log':<15}",
        "EXPERIMENT": wanted.experiment,
        "OUTPUT": wanted.output,
        "OPTIONS": _OPTIONS.replace("@WORDS@", f" {wanted.options}" if wanted.options else ""),
        "SHARE": _SHARE.replace("@TASKS@", str(wanted.tasks)) if array else "",
        "LAUNCHER": wanted.launcher,
        "TASK": " task $SLURM_ARRAY_TASK_ID" if array else "",
    }
    text = _SCRIPT
    for name, value in lines.items():
        text = text.replace(f"@{name}@", value)
    return text


def write_script(path: Path, text: str) -> None:
    """Write a script that may be executed.

    Raises
    ------
    ResultsError
        If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    except OSError as error:
        raise refusal(path, error) from error


_SHARE = """\
# The task begins with its own share of the cells (all shares cost about the same), then takes what the other tasks have
# not begun. A cell that another task is computing is left to it.
arguments+=(--share "$((SLURM_ARRAY_TASK_ID % @TASKS@))/@TASKS@")
"""

_OPTIONS = """\
# What `fedande run` is told.
arguments=("$experiment" -o "$output"@WORDS@)
"""

_SCRIPT = """\
#!/usr/bin/env bash
# @WHAT@
# Submit it from the directory that relative paths start at; docs/cluster.md tells more.
@REMARKS@
#SBATCH --job-name=@NAME@
@ARRAY@#SBATCH --ntasks=@RANKS@ # ranks: the first one serves and mostly sleeps, the others compute
#SBATCH --cpus-per-task=1       # a rank has one thread
#SBATCH --mem-per-cpu=@MEMORY@ # memory of a rank; `fedande plan` tells what it needs
#SBATCH --time=@TIME@ # may be short: a job that hits its limit goes on where it stopped
#SBATCH --signal=B:USR1@120     # tell this script (B:), not the ranks, two minutes before the limit
#SBATCH --requeue               # it may be started again: after its limit, a preemption, a lost node
#SBATCH --open-mode=append      # a restart goes on writing the same log
#SBATCH --output=@LOG@# the log, in the directory of submission

# Stop at names that are not set; errors are dealt with one by one.
set -u

# From here on a signal (USR1: the limit is near, TERM: preemption) is kept for the ranks: without a trap it would end
# this script.
told=no
trap 'told=yes' USR1 TERM

# What SLURM's commands call this job. The last task of an array has the number of the whole array: with
# SLURM_JOB_ID they would mean all tasks.
job="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"

# What to run, and where its results go.
experiment=@EXPERIMENT@
output=@OUTPUT@

@OPTIONS@@SHARE@
# How ranks are started: "srun --mpi=pmi2" (MPICH, Intel MPI), "srun --mpi=pmix" (Open MPI), or "mpiexec".
read -r -a launcher <<<"${FEDANDE_LAUNCHER:-@LAUNCHER@}"

# The environment: a file of yours (module load ..., conda activate ...), else the virtual environment in .venv.
if [[ -n "${FEDANDE_SETUP:-}" ]]; then
    # shellcheck source=/dev/null
    source "$FEDANDE_SETUP"
elif [[ -f .venv/bin/activate ]]; then
    # shellcheck source=/dev/null
    source .venv/bin/activate
fi

# Compute nodes never touch the network: `fedande datasets fetch` on a login node has put the data where they find it.
export FEDANDE_OFFLINE=1

case "${launcher[0]##*/}" in
    srun) launcher+=(--kill-on-bad-exit=1) ;;  # a rank that is killed takes the others with it
    *) launcher+=(-n "$SLURM_NTASKS") ;;       # mpiexec is told how many
esac

echo "job $SLURM_JOB_ID@TASK@, restart ${SLURM_RESTART_COUNT:-0}: ${launcher[*]} fedande run ${arguments[*]}"

# MPICH names its shared memory after the numbers of job and step. Ranks that were killed leave theirs behind, and a
# restart on the same node that found it would fail in MPI_Init: every start gets another step number, after as many
# empty steps as there were starts.
if [[ "${launcher[0]##*/}" == srun ]]; then
    for ((start = 0; start < ${SLURM_RESTART_COUNT:-0}; start++)); do
        srun --mpi=none --nodes=1 --ntasks=1 true
    done
fi

# In the background, since a shell that waits for a command does not see signals.
"${launcher[@]}" fedande run "${arguments[@]}" &
ranks=$!

# A signal ends the waiting, not the ranks. Pass it on: they drop the fold in progress, leave together and exit with 75.
# A signal to srun would kill them unwarned, so SLURM signals its steps; mpiexec forwards USR1, whichever MPI it is of.
# Ranks that are just being started may not hear it: say it again after a while; a second one changes nothing.
while kill -0 "$ranks" 2>/dev/null; do
    if [[ "$told" == yes && "${launcher[0]##*/}" == srun ]]; then
        scancel --signal=USR1 "$job"
    elif [[ "$told" == yes ]]; then
        kill -USR1 "$ranks"
    fi
    sleep 15 >/dev/null 2>&1 &
    wait -n "$ranks" "$!"
done
wait "$ranks"
code=$?

# 75 says "stopped by a signal, all that is complete is saved, run me again". Ranks that were told may also have been
# killed, those that had just been started or did not come in time; then the code is the launcher's, 137 for one. But 0
# is done, and 1, 2 and 70 are errors that a restart would meet again.
case "$told $code" in
    *" 75") again=yes ;;
    *" 0" | *" 1" | *" 2" | *" 70" | no*) again=no ;;
    *) again=yes ;;
esac

# A busy controller does not always answer: ask again.
persist() {
    for _ in 1 2 3 4 5 6; do
        "$@" && return
        sleep 3
    done
    echo "job $SLURM_JOB_ID: no answer to: $*" >&2
}

# Not after scancel: a job that is being cancelled is no longer RUNNING. Not for ever either: a job that was restarted
# so often does not get on.
if [[ "$again" == yes ]]; then
    state="$(persist squeue --noheader --jobs="$job" --format=%T)"
    if [[ "$state" == RUNNING && "${SLURM_RESTART_COUNT:-0}" -lt "${FEDANDE_MAX_RESTARTS:-50}" ]]; then
        echo "job $SLURM_JOB_ID stopped after restart ${SLURM_RESTART_COUNT:-0}: requeueing it"
        persist scontrol requeue "$job"
    fi
fi
exit "$code"
"""

ANY_EXPERIMENT = '"${1:?expected an experiment: sbatch jobs/@FILE@ EXPERIMENT.toml [DIRECTORY]}"'
ANY_OUTPUT = '"${2:-results/$(basename "$experiment" .toml)}"'


def examples() -> dict[str, str]:
    """Return the scripts of ``jobs/``, by file name: the experiment is named when they are submitted."""
    return {
        name: script(
            Request(
                name="fedande",
                experiment=ANY_EXPERIMENT.replace("@FILE@", name),
                output=ANY_OUTPUT,
                tasks=tasks,
                ranks=ranks,
                memory_mib=2000,
                time=TIME,
                options='"${@:3}"',
            )
        )
        for name, tasks, ranks in (("fedande.sbatch", 1, 5), ("array.sbatch", 4, 2))
    }
