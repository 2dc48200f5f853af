"""Other programs on the same work: scikit-bayes, Flower's simulation engine."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from measure import HERE, Section, Setting, call, dataset

from fedande_mpi import ande, formulas
from fedande_mpi.partition import stratified_folds

PEER = "scikit-bayes==1.2.1"
FLOWER_AS_GIVEN = {20: 0.41, 100: 2.4}
"""Seconds a round with an empty client on two cores, measured before (an empty fit costs 20 ms)."""


def _has(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def _save(data: Any, path: Path, fold: int) -> None:
    """Write a fold's codes to a file that any Python reads."""
    held_out = stratified_folds(data.y, 5, seed=1, repeat=0) == fold
    np.savez(path, X=data.X, y=data.y, held_out=held_out)


def _accuracy_with_their_prior(path: Path, n: int) -> float:
    """Predict by our formulas, but for P(y, x_P), which is one smoothed table as in scikit-bayes."""
    with np.load(path) as saved:
        X, y, held_out = saved["X"], saved["y"], saved["held_out"]
    arity, o = X.max(axis=0).astype(np.int64) + 1, int(y.max()) + 1
    log_joint = np.full((int(held_out.sum()), o), -np.inf)
    for parents in ande.parent_sets(arity.size, n):
        counts = ande.count_tables(X[~held_out], y[~held_out], parents, arity, o)
        theta = ande.log_theta(counts, parents, arity)
        scores, states = formulas.scores(X[held_out], parents, arity, np.array(1.0), theta)
        tables = ande.unpack(theta, parents, arity, o)
        together = ande.unpack(counts, parents, arity, o)["parents"] + 1.0
        scores -= tables["prior"] + tables["parents"].T[states]
        log_joint = np.logaddexp(log_joint, scores + np.log(together / together.sum()).T[states])
    return float(np.mean(log_joint.argmax(axis=1) == y[held_out]))


def _fit(python: str, who: str, path: Path, n: int, what: str) -> dict[str, Any]:
    printed = call([python, str(HERE / "peer_fit.py"), who, str(path), str(n), what])
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def scikit_bayes(setting: Setting) -> Section:
    """Centralised fits beside scikit-bayes."""
    section = Section(
        "Beside scikit-bayes 1.2.1",
        "Centralised, all training rows of the first fold, n = 2. Generative: `AnDEClassifier(n=2, combine='joint')` "
        "and `skbn.ande.AnDE(n_dependence=2)`, fit and predict, in processes of their own in turn, CPU seconds, "
        "imports not counted; the fold changes with the repeat, accuracy is their mean. Memory: the peak while "
        "fitting and predicting, beyond what was resident before, and in all with imports. Weighted: seconds per "
        "evaluation of -CLL and gradient of all parent sets, ours with a weight per probability; `WeightedAnDE` "
        "at its finest (level 4: a weight per class and parent state, one used per row and parent set where ours "
        "uses d - n + 1), by default (all sets together) and `modular` (each on its own, as ours). 'per weight' "
        "is the default's ratio by the weights that a row uses. They smooth P(y, x_P) as one table where the paper "
        "has P(y) P(x_P | y): in kr-vs-k, with 18 classes, that is the difference in accuracy ('with their prior'). "
        "Before either optimiser begins, counts and probabilities are made, which 'per evaluation' leaves out and "
        "'fit', of the same ten steps for every parent set, does not. The memory of our imports is Numba's (120 MiB), "
        "and scikit-learn's with pandas, which it loads where it is installed; theirs has none.",
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
            data = dataset(setting, name)
            ours, theirs, same_prior = [], [], []
            for repeat in range(setting.repeats):
                _save(data, path, repeat % 5)
                same_prior.append(_accuracy_with_their_prior(path, 2))
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
            fits = {key: statistics.median(run["seconds"] for run in runs) for key, runs in weighted.items()}
            factors = data.n_attributes - 2 + 1

            def median(runs: list[dict[str, Any]], key: str) -> float:
                return statistics.median(run[key] for run in runs)

            ratio = statistics.median(b["seconds"] / a["seconds"] for a, b in zip(ours, theirs, strict=True))
            accuracy = [statistics.fmean(run["accuracy"] for run in runs) for runs in (ours, theirs)]
            accuracy.append(statistics.fmean(same_prior))
            section.rows.append(
                {
                    "data": data.name,
                    "ours, s": median(ours, "seconds"),
                    "theirs, s": median(theirs, "seconds"),
                    "theirs : ours": ratio,
                    "accuracy": accuracy[0],
                    "with their prior": accuracy[2],
                    "their accuracy": accuracy[1],
                    "MiB": median(ours, "fit_mib"),
                    "their MiB": median(theirs, "fit_mib"),
                    "MiB with imports": median(ours, "peak_mib"),
                    "theirs with imports": median(theirs, "peak_mib"),
                    "ms per evaluation": 1e3 * per["weighted"],
                    "theirs together, ms": 1e3 * per["together"],
                    "theirs modular, ms": 1e3 * per["modular"],
                    "together : ours": per["together"] / per["weighted"],
                    "modular : ours": per["modular"] / per["weighted"],
                    "per weight": per["together"] * factors / per["weighted"],
                    "fit, modular : ours": fits["modular"] / fits["weighted"],
                }
            )
            section.goal(f"{name} fit and predict, theirs : ours", ratio, least=1.0)
            for label, found in (("", accuracy[0]), (", P(y, x_P) as theirs", accuracy[2])):
                gap = abs(found - accuracy[1])
                section.goal(f"{name} difference in accuracy{label}", gap, most=0.002)
            for label, key in (("fit and predict", "fit_mib"), ("with imports", "peak_mib")):
                share = median(ours, key) / max(1e-3, median(theirs, key))
                section.goal(f"{name} peak memory {label}, ours : theirs", share, most=1.0)
            for label, key, least in (("all sets together", "together", 20), ("modular", "modular", 20)):
                section.goal(
                    f"{name} weighted, {label}, theirs : ours", per[key] / per["weighted"], least=least
                )
            by_weight = per["together"] * factors / per["weighted"]
            section.goal(f"{name} weighted, by weights used, theirs : ours", by_weight, least=20)
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
        gaps = [b - a for a, b in pairwise(stamps)]
        section.rows.append(
            {"C": clients, "s per round": statistics.median(gaps), "source": f"this run, {len(gaps)} rounds"}
        )
    return section
