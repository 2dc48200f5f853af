"""Whole folds in one process: seconds, where they go, how they grow, and the plain NumPy program's."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import baseline
import numpy as np
from measure import Section, Setting, dataset, exponent, timed

from fedande_mpi import load_dataset
from fedande_mpi.cell import SECTIONS, Cell
from fedande_mpi.federation import UnitResult, run_unit
from fedande_mpi.jobs import make_unit
from fedande_mpi.planning import arrange_unit
from fedande_mpi.serial import SerialComm
from fedande_mpi.unit import Unit

JAVA_FIRST_ROUND = {
    ("nursery", 1, 5): 0.126,
    ("nursery", 2, 5): 1.01,
    ("nursery", 2, 20): 0.25,
    ("kr-vs-k", 1, 5): 1.0,
    ("kr-vs-k", 2, 20): 5.0,
}
"""The authors' program, one thread: seconds per (fold, round, client) as measured for the design."""


def unit_of(data: Any, **keys: Any) -> Unit:
    """Make the first fold of a cell; keys of the method's section are given without its name."""
    values: dict[str, Any] = {"n": 1, "method": "discriminative", "scope": "federated", "clients": 5, **keys}
    section = SECTIONS[values["method"]]
    own = {name: values.pop(name) for name in section.__dataclass_fields__ if name in values}
    values["clients"] = min(values["clients"], data.n_instances // 2)
    cell = Cell(dataset=data.name, **values, **{values["method"]: section(**own)})
    return make_unit(cell, data, 0, 0)[0]


def run(unit: Unit) -> UnitResult:
    """Compute a unit in this process."""
    result = run_unit(SerialComm(), unit, arrange_unit(unit, 1))
    assert result is not None
    return result


def measured(unit: Unit, repeats: int) -> tuple[list[float], UnitResult, dict[str, float]]:
    """Time a unit; return the seconds of all runs, the last result, and the median seconds by purpose."""
    seconds, parts = [], []
    for _ in range(repeats):
        results = []
        seconds.append(timed(lambda results=results: results.append(run(unit))))
        parts.append({name: float(values.sum()) for name, values in results[0].seconds.items()})
    by_purpose = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
    return seconds, results[0], by_purpose


def java_seconds(reference: Path | None) -> dict[tuple[str, int, int], float]:
    """Return seconds per (fold, round, client) of the authors' weighted models."""
    found = dict(JAVA_FIRST_ROUND)
    path = reference / "java-fedande.csv" if reference else None
    if path is None or not path.exists():
        return found
    orders = {"NB-w": 0, "A1DE-w": 1, "A2DE-w": 2}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["dataset"], orders.get(row["model"], -1), int(row["clients"]))
            if key[1] >= 0 and row["cpu_seconds"] and key not in found:
                per_client = float(row["cpu_seconds"]) / (int(row["folds"]) * int(row["round"]) * key[2])
                if per_client > 1e-3:  # nursery A1DE-w C = 20 has 0.28 s for 1,000 client rounds: a slip
                    found[key] = per_client
    return found


def folds(setting: Setting) -> Section:
    """Whole discriminative folds, scored after every round."""
    section = Section(
        "Whole folds",
        "FedAnDE, the first of five folds, T = 10 rounds of L = 5 steps, all clients scored on the test rows after "
        'every round (`evaluate = "all"`) and, in brackets, after the last, in one process (server and host). '
        "'per client' is local seconds per (fold, round, client); beside it, as context, CPU seconds of the "
        "authors' Java program on the same kind of machine.",
    )
    java = java_seconds(setting.reference)
    run(unit_of(load_dataset("synthetic:m=60,d=4"), n=2))
    for name in ("nursery", "kr-vs-k", "kr-vs-kp"):
        data = dataset(setting, name)
        for n in (1, 2):
            for clients in (5, 20, 100):
                rounds = 2 if setting.quick else 10
                unit = unit_of(data, n=n, clients=clients, rounds=rounds)
                seconds, result, parts = measured(unit, setting.repeats)
                per_client = parts["local"] / (rounds * unit.cell.clients)
                evaluations = len(unit.evaluated)
                share = parts["evaluate"] / parts["local"]
                theirs = java.get((name, n, clients)) if data.name == name else None
                section.rows.append(
                    {
                        "data": data.name,
                        "n": n,
                        "C": clients,
                        "seconds": statistics.median(seconds),
                        "local": parts["local"],
                        "evaluate": parts["evaluate"],
                        "average": parts["aggregate"],
                        "evaluate : local": share,
                        "(last only)": share / evaluations,
                        "accuracy": float(result.metrics[-1, 0].mean()),
                        "per client, s": per_client,
                        "Java, s": theirs,
                        "Java : ours": theirs / per_client if theirs else None,
                    }
                )
                if clients == 100:
                    section.goal(f"{name} n = {n} C = 100, evaluation : training", share, most=1.0)
    return section


def against_baseline(setting: Setting) -> Section:
    """Run the plain NumPy program on one fold, once, between two of ours."""
    section = Section(
        "Against plain NumPy and SciPy",
        "`benchmarks/baseline.py`, table by table in NumPy with `scipy.optimize` per (client, parent set), on the "
        "whole first fold of kr-vs-k, n = 2, C = 20, T = 10, L = 5, scored after every round: run once, as it takes "
        "minutes, between two runs of ours (their mean).",
    )
    data = dataset(setting, "kr-vs-k")
    rounds = 1 if setting.quick else 10
    unit = unit_of(data, n=2, clients=20, rounds=rounds)
    run(unit_of(data, n=2, clients=20, rounds=1))
    results: list[UnitResult] = []
    first = timed(lambda: results.append(run(unit)))
    theirs: list[Any] = []
    long = timed(
        lambda: theirs.append(
            baseline.fold(unit.X, unit.y, unit.arity, unit.n_classes, unit.owner, 2, rounds)
        )
    )
    second = timed(lambda: results.append(run(unit)))
    ours = (first + second) / 2
    accuracy, objective = theirs[0]
    gap = float(np.abs(accuracy - results[0].metrics[:, 0]).max())
    relative = float(np.abs(objective / results[0].objective[1:] - 1).max())
    section.rows.append(
        {
            "data": data.name,
            "ours, s": ours,
            "baseline, s": long,
            "baseline : ours": long / ours,
            "largest difference in accuracy": gap,
            "in objective (relative)": relative,
        }
    )
    section.goal("kr-vs-k n = 2 C = 20, baseline : ours", long / ours, least=10)
    return section


def cost(setting: Setting) -> Section:
    """How seconds grow with m, d, n, o and C."""
    section = Section(
        "Growth",
        "One fold of made-up data around m = 8,000, d = 12, o = 3, arity 3, n = 1, C = 10, T = 10, L = 5, "
        '`evaluate = "last"`, in one process; one size varied at a time, and the exponent k of '
        "seconds ~ size^k. The work is proportional to m |P| (d - n + 1) (o - 1): for d and n the exponent is that "
        "of |P| (d - n + 1), so 1 is expected of all but C, of which 0 is.",
    )
    base = {"m": 8000, "d": 12, "o": 3, "n": 1, "C": 10}
    ranges: dict[str, Sequence[int]] = {
        "m": (2000, 4000, 8000, 16_000, 32_000, 64_000),
        "d": (6, 12, 24, 48),
        "n": (0, 1, 2, 3),
        "o": (2, 3, 5, 9, 17),
        "C": (1, 5, 20, 100, 400),
    }
    if setting.quick:
        base |= {"m": 200, "d": 4, "C": 2}
        ranges = {"m": (100, 200), "d": (3, 4), "n": (0, 1), "o": (2, 3), "C": (1, 5)}
    for name, values in ranges.items():
        sizes, seconds, work = [], [], []
        for value in values:
            at = base | {name: value}
            data = load_dataset(f"synthetic:m={at['m']},d={at['d']},o={at['o']},arity=3")
            unit = unit_of(data, n=at["n"], clients=at["C"], evaluate="last")
            run(unit)
            taken, _, _ = measured(unit, min(3, setting.repeats))
            sizes.append(value)
            seconds.append(statistics.median(taken))
            work.append(len(unit.sets) * (at["d"] - at["n"] + 1))
        scale = {"d": work, "n": work, "o": [o - 1 for o in sizes]}.get(name, sizes)
        section.rows.append(
            {
                "varied": name,
                "sizes": ", ".join(f"{size:,}" for size in sizes),
                "seconds": ", ".join(f"{s:.3g}" for s in seconds),
                "against": {"d": "sets x factors", "n": "sets x factors", "o": "o - 1"}.get(name, name),
                "k": exponent(scale, seconds),
            }
        )
    section.notes.append(f"Medians of {min(3, setting.repeats)}.")
    return section
