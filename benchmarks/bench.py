"""Measure `fedande_mpi` in one run: `python benchmarks/bench.py [--quick] [--json FILE] [--markdown FILE]`.

Prints Markdown as it goes. `--only` chooses sections; the others stay as they are in the JSON file, if it is there.
`--data-dir` is the folder of the paper's data sets (default: `FEDANDE_DATA`, else ../shared/data beside the
repository); what is not there is made up in the same shape.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import folds
import kernels
import launches
import peers
import scale
from measure import ROOT, Section, Setting, environment, machine, report_markdown, section_markdown

SECTIONS: dict[str, Callable[[Setting], Section]] = {
    "kernel": kernels.kernel,
    "solves": kernels.solves,
    "folds": folds.folds,
    "baseline": folds.against_baseline,
    "growth": folds.cost,
    "scikit-bayes": peers.scikit_bayes,
    "scaling": launches.scaling,
    "server": launches.server,
    "overhead": launches.overhead,
    "startup": launches.startup,
    "large": launches.large,
    "scale": scale.virtual_clients,
    "plan": scale.on_paper,
    "flower": peers.flower,
}


def _existing(*candidates: str | os.PathLike[str] | None) -> Path | None:
    return next((Path(path) for path in candidates if path and Path(path).is_dir()), None)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny made-up data: does everything run?")
    parser.add_argument("--repeats", type=int, help="measurements of which the median counts (5; quick: 1)")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--skip", nargs="+", choices=SECTIONS, default=[], metavar="SECTION")
    parser.add_argument("--data-dir", help="folder of ARFF or CSV files")
    parser.add_argument("--reference-dir", help="folder with java-fedande.csv, the authors' program")
    parser.add_argument("--peer-python", help="a Python that has scikit-bayes 1.2.1")
    parser.add_argument("--flower-python", help="a Python that has flwr[simulation] 1.24.0")
    parser.add_argument("--json", type=Path, help="where to write the results as JSON")
    parser.add_argument("--markdown", type=Path, help="where to write them as Markdown")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    given = parse(argv)
    shared = ROOT.parent / "shared"
    setting = Setting(
        quick=given.quick,
        repeats=given.repeats or (1 if given.quick else 5),
        data_dir=_existing(given.data_dir, os.environ.get("FEDANDE_DATA"), shared / "data"),
        peer_python=given.peer_python,
        flower_python=given.flower_python,
        reference=_existing(given.reference_dir, shared / "reference"),
    )
    named = machine()
    print(f"{named['processor']}, {named['cores']} cores, load {named['load'][0]:.1f}\n", flush=True)
    found: dict[str, Section] = {}
    if given.json and given.json.exists() and set(given.only) != set(SECTIONS):
        before = json.loads(given.json.read_text(encoding="utf-8"))
        if before["quick"] == setting.quick and before["machine"]["processor"] == named["processor"]:
            found = {name: Section(**section) for name, section in before["sections"].items()}
    failed = 0
    for name in SECTIONS:
        if name not in given.only or name in given.skip:
            continue
        begin = time.perf_counter()
        try:
            section = SECTIONS[name](setting)
        except RuntimeError as error:  # a program that was started failed: measure the rest
            section = Section(name, f"Not measured: {str(error).splitlines()[0]}")
            print(error, flush=True)
            failed += 1
        section.seconds = time.perf_counter() - begin
        found[name] = section
        print("\n".join(section_markdown(name, section)), flush=True)
    found = {name: found[name] for name in SECTIONS if name in found}
    if given.json:
        content = {
            "machine": named,
            "quick": setting.quick,
            "repeats": setting.repeats,
            "sections": {name: asdict(section) for name, section in found.items()},
        }
        given.json.write_text(json.dumps(content, indent=1, default=float) + "\n", encoding="utf-8")
    if given.markdown:
        given.markdown.write_text(report_markdown(found, named, setting), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    if (
        "OMP_NUM_THREADS" not in os.environ
    ):  # one core, unless said otherwise; NumPy reads it when it is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], environment())
    raise SystemExit(main())
