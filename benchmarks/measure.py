"""What every benchmark needs: medians, ratios, the machine's name, data, child processes, reports."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

SHAPES = {
    "splice": (3190, 60, 3, 6),
    "kr-vs-kp": (3196, 36, 2, 2),
    "phishing-websites": (11_055, 30, 2, 2),
    "nursery": (12_960, 8, 5, 3),
    "kr-vs-k": (28_056, 6, 18, 8),
    "connect-4": (67_557, 42, 3, 3),
}
"""m, d, o and about the arity of the data sets used: what is made up when they are not there."""


@dataclass(frozen=True)
class Setting:
    """How to measure."""

    quick: bool = False
    repeats: int = 5
    data_dir: Path | None = None
    peer_python: str | None = None
    flower_python: str | None = None
    reference: Path | None = None


@dataclass
class Section:
    """What one group of measurements found.

    ``rows`` make its table, ``goals`` say what was aimed at: (what, aim, measured, whether it is met).
    """

    title: str
    text: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def goal(self, what: str, value: float, *, least: float | None = None, most: float | None = None) -> None:
        """Record a goal: a value of at least, or at most."""
        met = (least is None or value >= least) and (most is None or value <= most)
        aim = f">= {least:g}" if least is not None else f"<= {most:g}"
        self.goals.append({"what": what, "aim": aim, "measured": value, "met": met})


def dataset(setting: Setting, name: str) -> Any:
    """Load a data set by name; made-up rows of its shape, said so in the name, when it is not there."""
    from fedande_mpi import load_dataset
    from fedande_mpi.registry import locate

    if setting.quick:
        m, d, o, arity = SHAPES[name]
        return load_dataset(f"synthetic:m={min(m, 400)},d={min(d, 5)},o={min(o, 4)},arity={min(arity, 3)}")
    if locate(name, setting.data_dir).openml_id is not None:
        m, d, o, arity = SHAPES[name]
        return load_dataset(f"synthetic:m={m},d={d},o={o},arity={arity}")
    return load_dataset(name, data_dir=setting.data_dir)


def timed(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how many seconds a call takes."""
    begin = clock()
    function()
    return clock() - begin


def interleaved(functions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Take the CPU time of functions in turn, so that a drift of the machine meets all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            seconds[name].append(timed(function, time.process_time))
    return seconds


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of the ratios of measurements taken in turn."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Fit seconds = c * size^k by least squares of the logarithms; return k."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def peak_mib() -> float:
    """Return the largest memory this process had resident, since `reset_peak` where the system can tell."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**10
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def reset_peak() -> float:
    """Count the peak from now on (Linux), and return what is resident now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def environment(**changes: str) -> dict[str, str]:
    """Return this environment with one thread per process, and changes put over."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, **changes}


def call(command: Sequence[str], timeout: float = 3600.0, **changes: str) -> str:
    """Run a program to its end and return what it printed."""
    done = subprocess.run(
        list(command), capture_output=True, text=True, timeout=timeout, env=environment(**changes), cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def mpiexec() -> str | None:
    """Return the launcher, the one beside this Python first."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def on_ranks(ranks: int, **spec: Any) -> dict[str, Any]:
    """Run a unit of work on ranks in a job of its own; see ranks.py for what can be asked."""
    launcher = mpiexec()
    if launcher is None:
        raise RuntimeError(
            "expected mpiexec beside Python or on PATH; pip install mpich, or use the system's"
        )
    spec = {key: str(value) if isinstance(value, Path) else value for key, value in spec.items()}
    printed = call([launcher, "-n", str(ranks), sys.executable, str(HERE / "ranks.py"), json.dumps(spec)])
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def processor() -> str:
    """Return the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Name the machine and the versions of what runs on it."""
    packages = {}
    for name in ("fedande-mpi", "numpy", "scipy", "numba", "mpi4py", "mpich"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    hertz = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        hertz = next(line.partition(":")[2].strip() for line in lines if line.startswith("cpu MHz"))
    except (OSError, StopIteration):
        pass
    return {
        "processor": processor(),
        "mhz": hertz,
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": packages,
    }


# ------------------------------------------------------------------------------------- reports


def shown(value: Any) -> str:
    """Return a cell of a table: three digits of a number."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if value != value:
            return ""
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows as a Markdown table; columns in the order they first occur."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    numeric = [any(isinstance(row.get(name), int | float) for row in rows) for name in columns]
    lines = [f"| {' | '.join(columns)} |"]
    lines.append("|" + "|".join("---:" if right else "---" for right in numeric) + "|")
    lines += [f"| {' | '.join(shown(row.get(name)) for name in columns)} |" for row in rows]
    return lines


def section_markdown(name: str, section: Section) -> list[str]:
    """Return a section as Markdown."""
    lines = [f"## {section.title}", "", section.text, ""]
    if section.rows:
        lines += [*table(section.rows), ""]
    if section.goals:
        lines += [*table(section.goals), ""]
    lines += [f"{note}\n" for note in section.notes]
    lines += [f"`python benchmarks/bench.py --only {name}` ({section.seconds:.0f} s)", ""]
    return lines


def report_markdown(found: Mapping[str, Section], named: Mapping[str, Any], setting: Setting) -> str:
    """Return the whole report."""
    packages = ", ".join(f"{name} {number}" for name, number in named["packages"].items())
    lines = [
        "# Performance",
        "",
        "Written by `make bench` (`python benchmarks/bench.py --markdown docs/performance.md`); "
        "`benchmarks/README.md` says what each part measures and how. Times are of this machine and carry over "
        "as ratios only: both sides of a ratio were measured in turn in one run.",
        "",
        f"- {named['processor']}, {named['cores']} cores, {named['system']}; load at the start "
        f"{named['load'][0]:.1f}",
        f"- Python {named['python']}, {packages}",
        f"- medians of {setting.repeats} unless said"
        + ("; **quick: tiny made-up data, these numbers mean nothing**" if setting.quick else ""),
        "- data: the paper's, by name"
        if setting.data_dir and not setting.quick
        else "- data: without `--data-dir` all but the generated data sets are made up, in the same shapes",
        "",
    ]
    for name, section in found.items():
        lines += section_markdown(name, section)
    return "\n".join(lines).rstrip() + "\n"
