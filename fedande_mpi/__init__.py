"""Federated learning of AnDE Bayesian network classifiers, simulated on MPI ranks.

Letters, the same everywhere:

===============  ==========================  ======================================================
letter           in code                     meaning
===============  ==========================  ======================================================
m                ``n_instances``             instances (rows)
d                ``n_attributes``            attributes
o                ``n_classes``               classes
n                ``n``                       dependence order: parents of each SPnDE
P                ``parents``                 a parent set: n attribute indices, ascending
q                ``n_parent_states``         product of the parents' arities; 1 for n = 0
C                ``n_clients``               clients
T                ``n_rounds``, ``rounds``    federated rounds
L                ``local_steps``             L-BFGS steps of a client in a round
===============  ==========================  ======================================================

A parent state's code is mixed-radix, the first parent most significant.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("fedande-mpi")

_HOMES = {
    "AnDEClassifier": "classifier",
    "Dataset": "datasets",
    "Experiment": "config",
    "count_tables": "ande",
    "load_dataset": "datasets",
    "log_theta": "ande",
    "negative_cll": "formulas",
    "open_results": "analysis",
    "parent_sets": "ande",
    "predict_proba": "formulas",
    "run_experiment": "experiment",
}
"""Public names and the modules that define them; loaded on first use, since compiled loops take a second."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
