"""Other programs on the same work: scikit-bayes, Flower's simulation engine."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import HERE, Section, Setting, call, dataset

from fedande_mpi.partition import stratified_folds

PEER = "scikit-bayes==1.2.1"
FLOWER_AS_GIVEN = {20: 0.41, 100: 2.4}
"""Seconds a round with an empty client on two cores, measured before (an empty fit costs 20 ms)."""


def _has(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def _saved(setting: Setting, name: str, path: Path) -> Any:
    """Write the first fold's codes to a file that any Python reads; return the data set."""
    data = dataset(setting, name)
    held_out = stratified_folds(data.y, 5, seed=1, repeat=0) == 0
    np.savez(path, X=data.X, y=data.y, held_out=held_out)
    return data


def _fit(python: str, who: str, path: Path, n: int, what: str) -> dict[str, Any]:
    printed = call([python, str(HERE / "peer_fit.py"), who, str(path), str(n), what])
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def scikit_bayes(setting: Setting) -> Section:
    """Centralised fits beside scikit-bayes."""
    section = Section(
        "Beside scikit-bayes 1.2.1",
        "Centralised, all training rows of the first fold, n = 2. Generative: `AnDEClassifier(n=2, combine='joint')` "
        "and `skbn.ande.AnDE(n_dependence=2)`, fit and predict, each in processes of its own in turn, imports not timed; "
        "memory is the process's peak less what its imports take (both given). Weighted: seconds per evaluation of the objective "
        "with its gradient of all parent sets, ours with a weight per probability, `WeightedAnDE` at its finest "
        "(level 4: per class and parent state, one number per row and parent set), both as it is by default (all sets "
        "together) and `modular` (each on its own, as here). 'per factor' divides by the weights that a row uses.",
    )
    python = setting.peer_python
    if python is None and _has(sys.executable, "skbn"):
        python = sys.executable
    if python is None or not _has(python, "skbn"):
        section.notes.append(
            f"Not measured: no Python with it. Make one (`python -m venv peer; peer/bin/pip install {PEER}`) and "
            "give `--peer-python peer/bin/python`."
        )
        return section
    with tempfile.TemporaryDirectory() as folder:
        for name in ("nursery", "kr-vs-k", "kr-vs-kp"):
            path = Path(folder) / f"{name}.npz"
            data = _saved(setting, name, path)
            ours, theirs = [], []
            for _ in range(setting.repeats):
                ours.append(_fit(sys.executable, "ours", path, 2, "generative"))
                theirs.append(_fit(python, "theirs", path, 2, "generative"))
            weighted = {
                what: [_fit(p, who, path, 2, what) for _ in range(min(3, setting.repeats))]
                for what, who, p in (
                    ("weighted", "ours", sys.executable),
                    ("together", "theirs", python),
                    ("modular", "theirs", python),
                )
            }
            per = {
                key: statistics.median(run["per_evaluation"] for run in runs)
                for key, runs in weighted.items()
            }
            factors = data.n_attributes - 1

            def median(runs: list[dict[str, Any]], key: str) -> float:
                return statistics.median(run[key] for run in runs)

            ratio = statistics.median(b["seconds"] / a["seconds"] for a, b in zip(ours, theirs, strict=True))
            section.rows.append(
                {
                    "data": data.name,
                    "ours, s": median(ours, "seconds"),
                    "theirs, s": median(theirs, "seconds"),
                    "theirs : ours": ratio,
                    "accuracy": ours[0]["accuracy"],
                    "their accuracy": theirs[0]["accuracy"],
                    "MiB": median(ours, "fit_mib"),
                    "their MiB": median(theirs, "fit_mib"),
                    "MiB with imports": median(ours, "peak_mib"),
                    "theirs with imports": median(theirs, "peak_mib"),
                    "ms per evaluation": 1e3 * per["weighted"],
                    "theirs together, ms": 1e3 * per["together"],
                    "theirs modular, ms": 1e3 * per["modular"],
                    "together : ours": per["together"] / per["weighted"],
                    "modular : ours": per["modular"] / per["weighted"],
                    "per factor": per["together"] * factors / per["weighted"],
                }
            )
            gap = abs(ours[0]["accuracy"] - theirs[0]["accuracy"])
            section.goal(f"{name} fit and predict, theirs : ours", ratio, least=1.0)
            section.goal(f"{name} difference in accuracy", gap, most=0.002)
            section.goal(
                f"{name} peak memory with imports, ours : theirs",
                median(ours, "peak_mib") / median(theirs, "peak_mib"),
                most=1.0,
            )
            section.goal(
                f"{name} weighted, an evaluation, theirs (together) : ours",
                per["together"] / per["weighted"],
                least=20,
            )
    return section


def flower(setting: Setting) -> Section:
    """Flower's simulation engine on empty clients, beside our rounds with their work."""
    section = Section(
        "Beside Flower's simulation engine",
        "Seconds a round of Flower 1.24 (`flwr[simulation]`, Ray) with clients that return what they got at once, "
        "8 numbers, one core each: what the engine alone costs. A whole round of FedAnDE with its work is in the table "
        "of whole folds (seconds / 10).",
    )
    for clients, given in FLOWER_AS_GIVEN.items():
        section.rows.append(
            {"C": clients, "s per round": given, "source": "measured before, on this kind of machine"}
        )
    python = setting.flower_python
    if python is None or not _has(python, "flwr.simulation, ray"):
        section.notes.append(
            "Not measured in this run: no Python with it. `python -m venv flower; flower/bin/pip install "
            "'flwr[simulation]==1.24.0'`, then `--flower-python flower/bin/python`."
        )
        return section
    rounds = 3 if setting.quick else 8
    for clients in (4,) if setting.quick else tuple(FLOWER_AS_GIVEN):
        stamps = json.loads(
            call([python, str(HERE / "peer_flower.py"), str(clients), str(rounds)], timeout=600).splitlines()[
                -1
            ]
        )
        gaps = [b - a for a, b in zip(stamps, stamps[1:], strict=False)]
        section.rows.append(
            {"C": clients, "s per round": statistics.median(gaps), "source": f"this run, {len(gaps)} rounds"}
        )
    return section
