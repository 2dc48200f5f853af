"""The command line: every command, its exit codes, and that it breaks on no terminal, pipe or locale."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fedande_mpi import __version__
from fedande_mpi.cli import THREAD_VARIABLES, USAGE, build_parser, main
from fedande_mpi.schema import schema_text
from tests.mpi.launch import BIN, all_results, assert_same_bytes, command, environment, fedande, started
from tests.test_verify import small_case

TOML = """\
datasets = "synthetic:m=90,d=4,o=3,arity=3,seed=2"
n = [0, 1]
methods = ["generative", "discriminative"]
clients = 4
folds = 3
repeats = 1
[discriminative]
rounds = 2
[generative]
epsilon = 2.0
"""


@pytest.fixture(autouse=True)
def as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what `main` does to this process (signals, variables) within a test; forget any launcher."""
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    }
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "FEDANDE_DATA"):
        monkeypatch.delenv(name, raising=False)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with an experiment in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(TOML)
    return tmp_path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the experiment and its results; to be read only."""
    directory = tmp_path_factory.mktemp("done")
    (directory / "small.toml").write_text(TOML)
    ran = fedande(0, "run", "small.toml", cwd=directory)
    assert ran.code == 0, ran.err
    return directory


class Ended:
    """Exit code and output of `main`."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Ended(code, *capsys.readouterr())

    return call


# --- usage -------------------------------------------------------------------------------------------------


def test_the_version_is_the_package_s(cli: Any) -> None:
    assert cli("--version").out == f"fedande {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [(), ("rum",), ("run",), ("run", "a.toml", "b.toml"), ("table",), ("table", "x", "--format", "xls")],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(cli: Any, arguments: tuple[str, ...]) -> None:
    ended = cli(*arguments)
    assert ended.code == USAGE == 2
    assert "usage: fedande" in ended.err


def test_every_command_has_help(cli: Any) -> None:
    text = cli("--help").out
    for name in ("run", "plan", "show", "table", "datasets", "merge", "schema", "verify"):
        assert re.search(rf"^ +{name} ", text, re.MULTILINE)
        assert cli(name, "--help").code == 0


# --- run ---------------------------------------------------------------------------------------------------


def test_run_writes_to_results_and_the_experiments_name(here: Path, cli: Any) -> None:
    assert cli("run", "small.toml").code == 0
    assert len(list((here / "results" / "small").glob("*.h5"))) == 4


def test_run_takes_output_overrides_seed_and_data_directory(here: Path, cli: Any) -> None:
    (here / "data").mkdir()
    rows = [f"{'ab'[i % 2]},{'xyz'[i % 3]},{'no' if i % 4 else 'yes'}" for i in range(40)]
    (here / "data" / "mine.csv").write_text("\n".join(["one,two,label", *rows]) + "\n")
    options = ["--set", "datasets=mine", "--set", "n=0", "--set", "methods=discriminative"]
    options += ["--set", "discriminative.rounds=1", "--seed", "7", "--data-dir", "data", "-o", "out"]
    ended = cli("run", "small.toml", *options)
    assert (ended.code, ended.out) == (0, "")
    (path,) = (here / "out").glob("*.h5")
    assert path.name.startswith("mine_NB-w_federated_C4_")
    with h5py.File(path) as file:
        assert file["round"][...].tolist() == [0, 1]
        assert "seed = 7" in file.attrs["config"]


def test_progress_goes_to_standard_error_and_quiet_is_silent(here: Path, cli: Any) -> None:
    loud = cli("run", "small.toml", "-o", "one")
    assert loud.out == ""
    assert loud.err.splitlines()[-1].startswith("done after ")
    quiet = cli("run", "small.toml", "-o", "two", "-q")
    assert (quiet.out, quiet.err) == ("", "")
    assert_same_bytes(here / "one", here / "two")


def test_verbose_prints_the_plan_and_runs(here: Path, cli: Any) -> None:
    ended = cli("run", "small.toml", "-v", "-q", "--set", "only_folds=0")
    assert "core-seconds" in ended.out
    assert list((here / "results" / "small").glob("*.h5"))


def test_a_complete_run_again_is_left_alone_until_overwritten(here: Path, cli: Any) -> None:
    cli("run", "small.toml", "-q", "-o", "r")
    before = {path.name: path.stat().st_mtime_ns for path in (here / "r").iterdir()}
    again = cli("run", "small.toml", "-o", "r")
    assert again.code == 0
    assert again.err.count(": complete") == 4
    assert {path.name: path.stat().st_mtime_ns for path in (here / "r").iterdir()} == before
    expected = all_results(here / "r")
    assert cli("run", "small.toml", "-q", "-o", "r", "--overwrite").code == 0
    after = {path.name: path.stat().st_mtime_ns for path in (here / "r").iterdir()}
    assert all(after[name] > before[name] for name in before)
    assert all_results(here / "r") == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "client=5"], "came 'client'; did you mean 'clients'?"),
        (["--set", "discriminative.round=5"], "came 'round'; did you mean 'rounds'?"),
        (["--set", "clients=many"], "clients: expected"),
        (["--set", "clients"], "--set: expected key=value, came 'clients'"),
        (["--set", "generative.epsilon=0"], "epsilon: expected"),
        (["--set", "generative.epsilon=nan"], "epsilon: expected"),
        (["--set", "generative.epsilon=-1"], "epsilon: expected"),
        (["--set", "n=4"], "n = 4 for d = 4"),
        (["--set", "clients=61"], "61 clients for 60 training rows"),
        (["--set", "datasets=nurserry"], "did you mean nursery?"),
        (["--set", "datasets=absent.arff"], "absent.arff"),
        (["--data-dir", "nowhere", "--set", "datasets=car"], "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_run_ends_with_1_and_one_line_before_any_work(
    here: Path, cli: Any, arguments: list[str], message: str
) -> None:
    ended = cli("run", "small.toml", "-o", "r", *arguments)
    assert ended.code == 1
    assert ended.err.startswith("fedande: ")
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert not list(here.glob("r/*"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('datasets = "car\n', "bad.toml: expected TOML in UTF-8"),
        ('datasets = "caf\xe9"\n', "bad.toml: expected TOML in UTF-8"),
        ("clients = 5\n", "datasets"),
        ('datasets = "car"\n[privacy]\nepsilon = 1\n', "came 'privacy'"),
    ],
    ids=["syntax", "encoding", "no data", "section"],
)
def test_an_experiment_that_is_no_experiment_ends_with_1(
    here: Path, cli: Any, text: str, message: str
) -> None:
    (here / "bad.toml").write_bytes(text.encode("latin-1"))
    ended = cli("run", "bad.toml")
    assert ended.code == 1
    assert message in ended.err
    assert ended.err.count("\n") == 1


def test_a_missing_experiment_ends_with_1(here: Path, cli: Any) -> None:
    ended = cli("run", "absent.toml")
    assert ended.code == 1
    assert "absent.toml: expected a readable experiment in TOML" in ended.err


def test_an_unexpected_error_ends_with_70_and_a_traceback(
    here: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedande_mpi.jobs.plan_text", lambda *arguments: 1 // 0)
    ended = cli("plan", "small.toml")
    assert ended.code == 70
    assert "Traceback" in ended.err
    assert ended.err.splitlines()[-1].startswith("fedande: unexpected ZeroDivisionError")


def test_a_signal_ends_with_75_and_the_same_command_continues(
    here: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def replace_and_be_told(*arguments: Any) -> None:
        replace(*arguments)
        os.kill(os.getpid(), signal.SIGUSR1)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_and_be_told)
        ended = cli("run", "small.toml", "-o", "r", "-q")
    assert ended.code == 75
    assert ended.err.startswith("fedande: stopped by SIGUSR1; complete folds are saved, run the same command")
    assert ended.err.count("\n") == 1
    (path,) = (here / "r").glob("*.h5")
    with h5py.File(path) as file:
        assert file["complete"][...].tolist() == [[1, 0, 0]]
    assert cli("run", "small.toml", "-o", "r", "-q").code == 0
    assert cli("run", "small.toml", "-o", "whole", "-q").code == 0
    assert_same_bytes(here / "whole", here / "r")


# --- plan --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dry", [True, False], ids=["run --dry-run", "plan"])
def test_a_plan_is_printed_and_nothing_made(here: Path, cli: Any, dry: bool) -> None:
    ended = cli("run", "small.toml", "--dry-run") if dry else cli("plan", "small.toml", "--ranks", "1")
    assert (ended.code, ended.err) == (0, "")
    assert "A1DE-w discriminative federated C=4" in ended.out
    assert "4 cells, 12 units (folds)" in ended.out
    assert [path.name for path in here.iterdir()] == ["small.toml"]


LARGE = 'datasets = "synthetic:m=3190,d=60,o=3,arity=5,seed=1"\nn = 2\nclients = 100\nrepeats = 1\n'
PEAK = """
import resource, sys
from fedande_mpi.cli import main
code = main(sys.argv[1:])
try:  # getrusage tells the peak of the process that started this one, if that was higher
    with open("/proc/self/status") as status:
        print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
except OSError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""


def test_case_17_a_dry_run_of_splices_size_prints_the_estimate_and_allocates_nothing(here: Path) -> None:
    """A splice, n = 2, C = 100 in size: 3,190 rows, 60 attributes, 1,770 parent sets."""
    (here / "large.toml").write_text(LARGE)
    line = [sys.executable, "-c", PEAK, "run", "large.toml", "--dry-run"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment(), cwd=here)
    assert ended.returncode == 0, ended.stderr
    *plan, peak = ended.stdout.splitlines()
    (row,) = [line for line in plan if "A2DE-w discriminative federated C=100" in line]
    _, sets, weights, per_round, *_ = row.split("C=100")[1].replace(",", "").split()
    assert int(sets) == 1770
    assert int(weights) == 1770 * (1 + 25 + 25 * 58 * 5) * 3
    assert float(per_round) * 2**20 > 2**31 - 1  # no single message could carry it
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(peak) * unit < 500e6 < int(weights) * 8 * 100
    assert [path.name for path in here.iterdir()] == ["large.toml", "small.toml"] or not list(here.glob("r*"))


# --- show, table, merge, schema ----------------------------------------------------------------------------


def test_show_tells_configuration_progress_and_accuracy(done: Path, cli: Any) -> None:
    ended = cli("show", done / "results")
    assert ended.code == 0
    parts = ended.out.split("\n\n")
    assert len(parts) == 4
    assert all("3 of 3 folds complete" in part for part in parts)
    (part,) = [part for part in parts if part.startswith("synthetic") and "A1DE-w" in part]
    assert re.findall(r"round +(\d+): accuracy 0\.\d{4}", part) == ["0", "1", "2"]
    assert "epsilon = 2" in ended.out


def test_table_csv_has_the_columns_of_the_design(done: Path, cli: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("table", done / "results", "--format", "csv").out)))
    expected = "dataset,model,method,scope,clients,epsilon,round,repeats,folds,accuracy,accuracy_sd,cll"
    assert ",".join(rows[0]) == expected
    assert [(row["model"], row["epsilon"], row["round"]) for row in rows] == [
        ("A1DE", "2", "1"),
        ("A1DE-w", "", "2"),
        ("NB", "2", "1"),
        ("NB-w", "", "2"),
    ]
    (path,) = (done / "results" / "small").glob("*_NB-w_*.h5")
    with h5py.File(path) as file:
        means = file["test/accuracy"][...].mean(axis=3)[0, :, -1]
    assert float(rows[3]["accuracy"]) == pytest.approx(means.mean(), abs=1e-6)
    assert float(rows[3]["accuracy_sd"]) == pytest.approx(means.std(ddof=1), abs=1e-6)


@pytest.mark.parametrize("style", ["md", "csv", "latex", "json"])
def test_table_has_every_format(done: Path, cli: Any, style: str) -> None:
    ended = cli("table", done / "results", "--format", style)
    assert (ended.code, ended.err) == (0, "")
    assert all(model in ended.out for model in ("A1DE-w", "NB-w"))
    match style:
        case "md":
            assert all(line.startswith("| ") for line in ended.out.splitlines())
        case "latex":
            assert r"\begin{tabular}" in ended.out
        case "json":
            assert len(json.loads(ended.out)) == 4


def test_table_by_rounds_and_by_keys(done: Path, cli: Any) -> None:
    rows = list(csv.reader(io.StringIO(cli("table", done, "--format", "csv", "--rounds").out)))
    assert len(rows) == 1 + 2 * 1 + 2 * 3
    pivot = cli("table", done, "--by", "n", "--format", "csv").out.splitlines()
    assert pivot[0].startswith("n,discriminative,generative")
    assert [line.split(",")[0] for line in pivot[1:3]] == ["0", "1"]
    wrong = cli("table", done, "--by", "modle")
    assert wrong.code == 1
    assert "did you mean 'model'?" in wrong.err


def test_a_merged_file_gives_the_same_table(done: Path, tmp_path: Path, cli: Any) -> None:
    packed = tmp_path / "packed.h5"
    merged = cli("merge", done / "results", "-o", packed)
    assert (merged.code, merged.out) == (0, f"4 cells in {packed}\n")
    assert cli("table", packed).out == cli("table", done / "results").out
    assert cli("show", packed).out.count("3 of 3 folds complete") == 4


@pytest.mark.parametrize("name", ["show", "table", "merge"])
def test_paths_without_results_end_with_1_and_name_themselves(here: Path, cli: Any, name: str) -> None:
    (here / "empty").mkdir()
    (here / "text.h5").write_text("no HDF5")
    for path in ("absent", "empty", "text.h5"):
        ended = cli(name, path, *(["-o", "all.h5"] if name == "merge" else []))
        assert ended.code == 1
        assert path in ended.err
        assert ended.err.startswith("fedande: ")
        assert ended.err.count("\n") == 1
    assert not (here / "all.h5").exists()


def test_schema_is_printed(cli: Any) -> None:
    assert cli("schema").out == schema_text() + "\n"


# --- datasets ----------------------------------------------------------------------------------------------


def test_datasets_lists_the_twelve(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ended = cli("datasets")
    lines = ended.out.splitlines()
    assert ended.code == 0
    assert lines[0].split() == ["name", "m", "d", "o", "source"]
    assert len(lines) == 13
    (chess,) = [line for line in lines if line.startswith("kr-vs-k ")]
    assert chess.split()[1:4] == ["28056", "6", "18"]
    assert "generated" in chess


def test_datasets_uses_a_directory(cli: Any, shared_data: Path) -> None:
    listed = cli("datasets", "list", "--data-dir", shared_data)
    assert listed.out.count(str(shared_data)) >= 10
    assert "not fetched" not in listed.out
    checked = cli("datasets", "check", "car", "nursery", "--data-dir", shared_data)
    assert (checked.code, checked.out.splitlines()) == (
        0,
        ["car: m = 1728, d = 6, o = 4", "nursery: m = 12960, d = 8, o = 5"],
    )


def test_datasets_check_reports_each_failure_and_goes_on(here: Path, cli: Any) -> None:
    (here / "car.csv").write_text("a,class\nx,yes\ny,no\n")
    ended = cli("datasets", "check", "car", "tic-tac-toe", "--data-dir", here)
    assert ended.code == 1
    assert ended.out == "tic-tac-toe: m = 958, d = 9, o = 2\n"
    (line,) = ended.err.splitlines()
    assert line.startswith("fedande: ")
    assert "1728" in line.replace(",", "")


def test_datasets_fetch_has_nothing_to_do_for_the_generated(cli: Any) -> None:
    assert cli("datasets", "fetch", "tic-tac-toe").out == "tic-tac-toe: generated, nothing to fetch\n"
    unknown = cli("datasets", "fetch", "nurserry")
    assert unknown.code == 1
    assert "did you mean nursery?" in unknown.err


# --- verify ------------------------------------------------------------------------------------------------


def test_verify_prints_a_line_per_case_and_ends_with_1_when_one_differs(here: Path, cli: Any) -> None:
    case = small_case()
    np.savez(here / "sound.npz", **case)
    np.savez(here / "doctored.npz", **case | {"w1_child0": case["w1_child0"] + 1e-5})
    sound = cli("verify", "sound.npz")
    assert sound.code == 0
    numbers = r"weights \S+  objective \S+  posterior \S+  accuracy \S+"
    assert re.fullmatch(rf"sound\.npz: agrees  {numbers}\n", sound.out)
    both = cli("verify", "doctored.npz", "sound.npz", "--transport", "reduce", "--block-mib", "0.001")
    assert both.code == 1
    assert [line.split()[1] for line in both.out.splitlines()] == ["DIFFERS", "agrees"]
    assert cli("verify", "absent.npz").code == 1


def test_verify_agrees_with_every_golden_case(cli: Any, golden: Path) -> None:
    cases = sorted(golden.glob("*.npz"))
    ended = cli("verify", *cases)
    assert ended.code == 0
    assert ended.out.count(": agrees") == len(cases)


# --- terminals, pipes, locales -----------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("schema",), ("table", "results"), ("show", "results"), ("--help",)])
def test_a_reader_that_has_seen_enough_ends_nothing_badly(done: Path, arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    line = command(0, *arguments)
    try:
        ended = subprocess.run(
            line, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, cwd=done, env=environment()
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_table_piped_into_head(done: Path) -> None:
    line = f"set -o pipefail; '{BIN / 'fedande'}' table results --rounds | head -n 1"
    ended = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60, cwd=done, env=environment()
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("| dataset")


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": None}


def test_names_beyond_ascii_break_nothing_in_the_c_locale(here: Path) -> None:
    rows = [f"{'ab'[i % 2]},{'xyz'[i % 3]},{'no' if i % 4 else 'sí'}" for i in range(40)]
    for name in ("nœud.csv", "node.csv"):
        (here / name).write_text("\n".join(["größe,two,label", *rows]) + "\n", encoding="utf-8")
    toml = 'name = "é"\ndatasets = "nœud.csv"\nn = 0\nclients = 2\nrepeats = 1\nonly_folds = 0\n'
    (here / "odd.toml").write_text(toml, encoding="utf-8")
    ran = fedande(0, "run", "odd.toml", "-o", "r", cwd=here, env={"LC_ALL": "C.UTF-8"})
    assert ran.code == 0, ran.err
    for arguments in (
        ("run", "odd.toml", "-o", "other", "-v", "--set", "datasets=node.csv"),
        ("show", "r"),
        ("table", "r"),
        ("table", "r", "--format", "json"),
        ("table", "r", "--format", "csv"),
        ("merge", "r", "-o", "all.h5"),
        ("schema",),
        ("datasets",),
    ):
        ended = fedande(0, *arguments, cwd=here, env=C_LOCALE)
        assert ended.code == 0, (arguments, ended.err)
        assert ended.out.isascii()
        assert "Traceback" not in ended.err
    assert r"dataset = n\u0153ud.csv," in fedande(0, "show", "r", cwd=here, env=C_LOCALE).out
    for options in (("-o", "q"), ("--set", "datasets=node.csv")):  # files that this locale cannot name
        failed = fedande(0, "run", "odd.toml", *options, cwd=here, env=C_LOCALE)
        assert failed.code == 1
        (line,) = failed.err.splitlines()
        assert line.endswith("; set LC_ALL=C.UTF-8 or PYTHONUTF8=1")


@pytest.mark.parametrize(("terminal", "live"), [("dumb", False), ("xterm", True)])
def test_a_run_on_a_terminal_shows_a_bar_unless_it_is_dumb(here: Path, terminal: str, live: bool) -> None:
    """Standard error is a pseudo-terminal."""
    server, client = pty.openpty()
    env = environment({"TERM": terminal, "NO_COLOR": None, "COLUMNS": "80"})
    line = command(0, "run", "small.toml", "-o", "r")
    try:
        process = subprocess.Popen(line, stderr=client, stdin=client, cwd=here, env=env)
    finally:
        os.close(client)
    shown = b""
    while True:
        try:
            piece = os.read(server, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(server)
    assert process.wait(timeout=60) == 0
    assert (b"\x1b[" in shown) == live
    assert b"done after" in shown


def test_a_run_whose_standard_error_is_closed_goes_on(here: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            command(0, "run", "small.toml", "-o", "r"), stderr=writer, cwd=here, env=environment(), timeout=60
        )
    finally:
        os.close(writer)
    assert ended.returncode == 0
    assert len(list((here / "r").glob("*.h5"))) == 4


def test_an_interrupt_from_the_keyboard_ends_with_75(here: Path) -> None:
    (here / "long.toml").write_text('datasets = "kr-vs-k"\nn = 2\n')
    with started(command(0, "run", "long.toml", "-o", "r", "-v"), here) as process:
        assert process.stdout is not None
        while "memory: peak of one rank" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 75
    assert err.splitlines()[-1].startswith("fedande: stopped by SIGINT")


def test_the_parser_is_built_without_loading_numpy() -> None:
    text = (
        "import sys; from fedande_mpi.cli import build_parser; build_parser(); print('numpy' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "False\n"
    assert build_parser().prog == "fedande"
