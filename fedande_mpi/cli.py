"""The command line: one function per command, no logic."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedande_mpi import __version__
from fedande_mpi.errors import ConfigError, FedandeError
from fedande_mpi.launching import available_cores
from fedande_mpi.signals import Signals

if TYPE_CHECKING:
    from fedande_mpi.links import Communicator

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
"""One thread per rank unless the user set them: ranks are the parallelism."""

SELECTION = "result files or directories; PATH:KEY=VALUE,... takes some of their cells"

USAGE, UNEXPECTED = 2, 70


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0; 1 an expected error; 2 usage; 70 an unexpected error; 75 stopped by a signal with everything saved.
    """
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what the locale cannot write
    arguments = build_parser().parse_args(argv)
    try:
        code = int(arguments.function(arguments) or 0)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader of standard output has seen enough
        _discard_output()
        return 0
    except SystemExit:
        raise
    except BaseException as error:
        from fedande_mpi.leaving import report_error

        return report_error(error)


def _discard_output() -> None:
    """Send the rest of standard output nowhere, so that Python does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return a reader of positive numbers for an option."""

    def read(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected a positive number, came '{text}'")
        return value

    read.__name__ = "number"
    return read


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="fedande",
        description="Federated learning of AnDE Bayesian network classifiers, simulated on MPI ranks.",
        epilog="Run it alone, or several ranks of it under mpiexec or srun: mpiexec -n 3 fedande run ...",
    )
    parser.add_argument("--version", action="version", version=f"fedande {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, function: Callable[[argparse.Namespace], int | None], text: str) -> Any:
        made = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        made.set_defaults(function=function)
        return made

    def experiment(made: argparse.ArgumentParser) -> None:
        made.add_argument("experiment", metavar="EXPERIMENT.toml", help="see docs/configuration.md")
        made.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="override a key, e.g. --set clients=5 --set generative.epsilon=0.5; may be repeated",
        )
        made.add_argument(
            "--data-dir", metavar="DIR", help="directory with ARFF or CSV files of the data sets"
        )
        made.add_argument("--seed", type=int, help="seed of folds, owners and noise")

    made = command("run", run, "run what is missing of an experiment; the same command continues it")
    experiment(made)
    made.add_argument("-o", "--output", metavar="DIR", help="directory of results (default: results/NAME)")
    made.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    made.add_argument("--overwrite", action="store_true", help="compute again what is complete")
    made.add_argument(
        "--share",
        type=_share,
        default=(0, 1),
        metavar="I/K",
        help="begin with share I (from 0) of K of the cells; for the tasks of a job array",
    )
    made.add_argument(
        "--allow-singleton", action="store_true", help="let ranks run that do not see each other"
    )
    made.add_argument("-v", "--verbose", action="store_true", help="print the plan before starting")
    made.add_argument("-q", "--quiet", action="store_true", help="no progress")

    made = command("plan", plan, "say what an experiment takes: cells, bytes, memory, time")
    experiment(made)
    made.add_argument(
        "--ranks", type=positive(int), default=1, metavar="R", help="number of MPI ranks (default: 1)"
    )

    made = command("jobs", jobs, "write a SLURM script that runs an experiment: ranks, memory, job array")
    experiment(made)
    made.add_argument(
        "--tasks", type=positive(int), default=1, metavar="K", help="tasks of a job array (default: 1)"
    )
    made.add_argument(
        "--time",
        default="2:00:00",
        metavar="LIMIT",
        help="limit of a task, as SLURM writes it (default: 2:00:00)",
    )
    made.add_argument(
        "--ranks", type=positive(int), metavar="R", help="ranks of a task (default: what the work needs)"
    )
    made.add_argument("-o", "--output", metavar="DIR", help="directory of results (default: results/NAME)")
    made.add_argument(
        "--launcher",
        default="srun --mpi=pmi2",
        metavar="COMMAND",
        help="what starts the ranks: 'srun --mpi=pmi2' (default), 'srun --mpi=pmix', mpiexec",
    )
    made.add_argument("--script", metavar="FILE", help="write it there (default: to standard output)")

    made = command("show", show, "show configuration, progress and accuracy by round of result files")
    made.add_argument("paths", nargs="+", metavar="PATH", help=SELECTION)
    made.add_argument("--watch", action="store_true", help="follow a running job; PATH is its directory")

    made = command("check", check, "check result files against the schema, and say which folds are missing")
    made.add_argument("paths", nargs="+", metavar="PATH", help="result files or directories")

    made = command("table", table, "print a table of accuracies")
    made.add_argument("paths", nargs="+", metavar="PATH", help=SELECTION)
    made.add_argument("--format", choices=("md", "csv", "latex", "json"), default="md", help="default: md")
    made.add_argument(
        "--by", metavar="KEY,...", help="rows by these keys, a column for every other difference"
    )
    made.add_argument("--rounds", action="store_true", help="a row for every evaluated round")

    made = command("plot", plot, "draw the figures of the paper, convergence and communication")
    made.add_argument("paths", nargs="+", metavar="PATH", help=SELECTION)
    made.add_argument("-o", "--output", required=True, metavar="DIR", help="directory of the figures")
    made.add_argument(
        "--figure",
        action="append",
        choices=("1", "2", "3", "4", "convergence", "communication"),
        help="may be repeated; default: all that the results allow",
    )
    made.add_argument(
        "--format", action="append", metavar="png,pdf,svg", help="one or more of them (default: png)"
    )
    made.add_argument(
        "--dataset", metavar="NAME", help="of figure 2 (default: kr-vs-k), convergence and communication"
    )

    made = command(
        "compare", compare, "test whether two selections of cells differ, or rank the models of one"
    )
    made.add_argument(
        "a", metavar="A", help="PATH, or PATH:KEY=VALUE,... such as results/x:method=generative,n=1"
    )
    made.add_argument("b", nargs="?", metavar="B", help="left out: rank all models of A (Friedman, Nemenyi)")
    made.add_argument(
        "--metric",
        choices=("accuracy", "cll", "brier", "macro_f1"),
        default="accuracy",
        help="default: accuracy",
    )
    made.add_argument("--format", choices=("md", "csv", "json"), default="md", help="default: md")

    made = command("claims", claims, "say which of the paper's statements results support")
    made.add_argument("paths", nargs="+", metavar="PATH", help=SELECTION)
    made.add_argument("--format", choices=("md", "csv", "json"), default="md", help="default: md")
    made.add_argument("--without-privacy", action="store_true", help="use exact counts instead of noisy ones")

    made = command("datasets", datasets, "list, fetch or check the paper's twelve data sets")
    made.add_argument("action", nargs="?", choices=("list", "fetch", "check"), default="list")
    made.add_argument("names", nargs="*", metavar="NAME", help="default: all (check: all that are here)")
    made.add_argument("--data-dir", metavar="DIR", help="directory with ARFF or CSV files of the data sets")

    made = command("merge", merge, "pack the cells of many result files into one file")
    made.add_argument("paths", nargs="+", metavar="PATH", help="result files or directories")
    made.add_argument("-o", "--output", required=True, metavar="FILE", help="the packed file")

    command("schema", schema, "print the schema of the result files")

    made = command("verify", verify, "replay recorded cases: does this machine compute what it should?")
    made.add_argument("cases", nargs="+", metavar="CASE.npz", help="recorded cases")
    made.add_argument("--transport", choices=("gather", "reduce"), default="gather")
    made.add_argument(
        "--shards", type=positive(int), metavar="S", help="shards of the parent sets (default: chosen)"
    )
    made.add_argument("--block-mib", type=positive(float), default=64.0, metavar="B", help="default: 64")
    made.add_argument("--optimizer", choices=("compiled", "scipy"), default="compiled")
    made.add_argument(
        "--allow-singleton", action="store_true", help="let ranks run that do not see each other"
    )
    return parser


def _share(text: str) -> tuple[int, int]:
    """Read ``I/K``; argparse turns the error into a usage message."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"expected I/K with I from 0 to K - 1, as in 3/40, got '{text}'")
    return int(number), int(count)


def _join(allow_singleton: bool) -> tuple[Signals, Communicator]:
    """Join the job, listening to signals."""
    signals = Signals()
    comm = signals.connect(allow_singleton)
    if comm.rank == 0:
        _warn_of_threads(comm.ranks_here)
    return signals, comm


def _warn_of_threads(ranks_here: int) -> None:
    """Warn when hosts x threads exceed the cores; the server of several ranks sleeps."""
    numbers = [os.environ[name] for name in THREAD_VARIABLES]
    threads = max((int(number) for number in numbers if number.isdigit()), default=1)
    cores = available_cores()
    busy = max(1, ranks_here - 1) * threads
    if busy > cores:
        print(
            f"fedande: {ranks_here} ranks with {threads} threads each on {cores} cores: expect no gain beyond "
            f"{cores + 1} ranks of one thread",
            file=sys.stderr,
            flush=True,
        )


def _load(arguments: argparse.Namespace) -> Any:
    from fedande_mpi.config import load_experiment

    overrides: list[Any] = list(arguments.set)
    if arguments.data_dir is not None:
        overrides.append({"data_dir": arguments.data_dir})
    if arguments.seed is not None:
        overrides.append({"seed": arguments.seed})
    return load_experiment(arguments.experiment, overrides)


def run(arguments: argparse.Namespace) -> int:
    """Run an experiment on all ranks."""
    from fedande_mpi.experiment import run_experiment
    from fedande_mpi.jobs import plan_text
    from fedande_mpi.leaving import ending_job
    from fedande_mpi.progress import make_progress

    signals, comm = _join(arguments.allow_singleton)
    with ending_job(comm):
        # read once: one message if it cannot be, and one file system access for all ranks
        experiment = comm.share(_load(arguments) if comm.rank == 0 else None)
        if arguments.dry_run:
            if comm.rank == 0:
                print(plan_text(experiment, comm.size))
            return 0
        if arguments.verbose and comm.rank == 0:
            try:
                print(plan_text(experiment, comm.size), flush=True)
            except BrokenPipeError:  # nobody reads it; that is no reason not to run
                _discard_output()
        output = Path(arguments.output or Path("results") / experiment.name)
        run_experiment(
            experiment,
            output,
            comm,
            overwrite=arguments.overwrite,
            share=arguments.share,
            progress=lambda total: make_progress(total, quiet=arguments.quiet),
            poll=signals.poll,
        )
        signals.ignore()
    return 0


def plan(arguments: argparse.Namespace) -> None:
    """Print what an experiment takes."""
    from fedande_mpi.jobs import plan_text

    print(plan_text(_load(arguments), arguments.ranks))


def jobs(arguments: argparse.Namespace) -> None:
    """Write a batch script."""
    from fedande_mpi.batch import request, script, write_script

    loaded = _load(arguments)
    words = [word for entry in arguments.set for word in ("--set", entry)]
    words += ["--data-dir", arguments.data_dir] if arguments.data_dir is not None else []
    words += ["--seed", str(arguments.seed)] if arguments.seed is not None else []
    wanted = request(
        loaded,
        arguments.experiment,
        tasks=arguments.tasks,
        time=arguments.time,
        ranks=arguments.ranks,
        output=Path(arguments.output or Path("results") / loaded.name),
        launcher=arguments.launcher,
        options=words,
    )
    if arguments.script is None:
        print(script(wanted), end="")
        return
    write_script(Path(arguments.script), script(wanted))
    print("\n".join([*wanted.remarks, f"submit it: sbatch {arguments.script}"]))


def show(arguments: argparse.Namespace) -> None:
    """Print the state of result files, once or until all is complete."""
    if arguments.watch:
        from fedande_mpi.watching import watch

        if len(arguments.paths) != 1:
            raise ConfigError(f"expected one directory to watch, got {len(arguments.paths)}; name one")
        with contextlib.suppress(KeyboardInterrupt):  # the way to leave
            watch(Path(arguments.paths[0]), sys.stdout)
        return
    from fedande_mpi.reporting import show_text

    print(show_text(arguments.paths))


def check(arguments: argparse.Namespace) -> int:
    """Check result files."""
    from fedande_mpi.checking import check as check_files

    found = check_files(arguments.paths)
    print(found.text())
    return 1 if found.problems else 0


def table(arguments: argparse.Namespace) -> None:
    """Print a table of accuracies."""
    from fedande_mpi.formatting import format_table
    from fedande_mpi.reporting import table as make_table

    made = make_table(arguments.paths, rounds=arguments.rounds, by=arguments.by)
    print(format_table(made, arguments.format), end="")


def plot(arguments: argparse.Namespace) -> None:
    """Draw figures."""
    from fedande_mpi.figures import plot as plot_figures

    done = plot_figures(
        arguments.paths,
        arguments.output,
        arguments.figure,
        arguments.format or ("png",),
        dataset=arguments.dataset,
    )
    for path in done.written:
        print(path)
    for text in (*done.notes, *(f"skipped {text}" for text in done.skipped)):
        print(f"fedande: {text}", file=sys.stderr)


def compare(arguments: argparse.Namespace) -> None:
    """Print paired tests of two selections, or the ranks of one selection's models."""
    from fedande_mpi.comparison import compare as make_comparison
    from fedande_mpi.formatting import format_table

    print(format_table(make_comparison(arguments.a, arguments.b, arguments.metric), arguments.format), end="")


def claims(arguments: argparse.Namespace) -> None:
    """Print verdicts on the paper's statements."""
    from fedande_mpi.claims import claims as make_claims
    from fedande_mpi.formatting import format_table

    print(format_table(make_claims(arguments.paths, arguments.without_privacy), arguments.format), end="")


def datasets(arguments: argparse.Namespace) -> int:
    """List, fetch or check data sets."""
    from fedande_mpi.datasets import KNOWN, dataset_status, fetch
    from fedande_mpi.datasets import check as check_dataset

    if arguments.action == "list":
        print(f"{'name':<18} {'m':>6} {'d':>3} {'o':>3}  source")
        for status in dataset_status(arguments.data_dir):
            known = status.known
            size = f"{known.n_instances:>6} {known.n_attributes:>3} {known.n_classes:>3}"
            print(f"{known.name:<18} {size}  {status.source}{'' if status.cached else ' (not fetched yet)'}")
        return 0
    failures = 0
    here = {status.known.name for status in dataset_status(arguments.data_dir) if status.cached}
    default = [known.name for known in KNOWN if arguments.action == "fetch" or known.name in here]
    for name in arguments.names or default:
        try:
            if arguments.action == "fetch":
                path = fetch(name)
                print(f"{name}: {'generated, nothing to fetch' if path is None else path}")
            else:
                found = check_dataset(name, arguments.data_dir)
                print(f"{name}: m = {found.n_instances}, d = {found.n_attributes}, o = {found.n_classes}")
        except FedandeError as error:
            failures += 1
            print(f"fedande: {error}", file=sys.stderr)
    return 1 if failures else 0


def merge(arguments: argparse.Namespace) -> None:
    """Pack result files into one."""
    from fedande_mpi.merging import merge as merge_files

    count = merge_files(arguments.paths, arguments.output)
    print(f"{count} cells in {arguments.output}")


def schema(arguments: argparse.Namespace) -> None:
    """Print the schema."""
    from fedande_mpi.schema import schema_text

    print(schema_text())


def verify(arguments: argparse.Namespace) -> int:
    """Replay recorded cases on all ranks."""
    from fedande_mpi.leaving import ending_job
    from fedande_mpi.verify import TOLERANCE, read_case, verify_case

    signals, comm = _join(arguments.allow_singleton)
    failures = 0
    with ending_job(comm):
        for path in arguments.cases:
            case = read_case(path) if comm.rank == 0 else None
            found = verify_case(
                comm,
                case,
                transport=arguments.transport,
                shards=arguments.shards,
                block_mib=arguments.block_mib,
                optimizer=arguments.optimizer,
                poll=signals.poll,
            )
            if found is not None:
                agrees = not any(difference > TOLERANCE for difference in found.values())
                failures += not agrees
                numbers = "  ".join(f"{name} {difference:.1e}" for name, difference in found.items())
                print(f"{Path(path).name}: {'agrees' if agrees else 'DIFFERS'}  {numbers}", flush=True)
        failures = comm.share(failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
