"""The keys of a cell, one point of the grid, and what follows from them: its model, rounds and identity.

A key's default, check, description and bearing on the result stand in one place, its `key` line below.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any

import tomli_w

from fedande_mpi.keys import boolean, checked, choice, integer, key, keys, many, never, optional, real, text

# In order of their cost, which is the order of the cells.
METHODS = ("generative", "discriminative", "hybrid")
SCOPES = ("federated", "local", "centralised")


def model_name(n: int, method: str) -> str:
    """Return the name of a model: ``NB``, ``A1DE``, ..., with ``-w`` when weighted."""
    return ("NB" if n == 0 else f"A{n}DE") + ("" if method == "generative" else "-w")


def _in_rounds(cell: Cell) -> bool:
    return cell.in_rounds


def _weighted(cell: Cell) -> bool:
    return cell.weighted


def _generative(cell: Cell) -> bool:
    return cell.method == "generative"


def _to_convergence(cell: Cell) -> bool:
    return cell.weighted and not (cell.in_rounds and cell.solver.local_steps)


def _releases_counts(cell: Cell) -> bool:
    return cell.scope == "federated" and cell.method != "discriminative"


def _noisy(cell: Cell) -> bool:
    return cell.epsilon is not None and math.isfinite(cell.epsilon)


@dataclass(frozen=True, kw_only=True)
class Discriminative:
    """Section ``[discriminative]``: weights learned in rounds (FedAnDE)."""

    rounds: int = key(10, integer(1), "rounds T of the federation", changes=_in_rounds)
    local_steps: int = key(
        5, integer(0), "L-BFGS-B iterations L per client and round; 0 = until convergence", changes=_in_rounds
    )
    initial_weight: float = key(0.0, real(), "value of every weight before the first round")
    granularity: str = key(
        "parameter",
        choice("parameter", "attribute"),
        "one weight for every theta, or the paper's printed index set",
    )
    l2: float = key(
        0.0, real(low=0), "pull of the local objective towards the common weights", changes=_in_rounds
    )
    aggregation: str = key(
        "mean", choice("mean", "rows"), "clients count alike, or by their rows", changes=_in_rounds
    )

    def __post_init__(self) -> None:
        checked(self, "discriminative.")


@dataclass(frozen=True, kw_only=True)
class Generative:
    """Section ``[generative]``: counts, pooled once; noise only when federated."""

    epsilon: float = key(
        math.inf,
        real(above=0, infinite=True),
        "privacy of the counts sent; inf = exact; a list sweeps it",
        changes=_releases_counts,
    )
    mechanism: str = key(
        "discrete-laplace",
        choice("discrete-laplace", "laplace"),
        "distribution of the noise",
        changes=_noisy,
    )
    sensitivity: str = key(
        "paper", choice("paper", "joint"), "which tables are released, hence the noise scale", changes=_noisy
    )

    def __post_init__(self) -> None:
        checked(self, "generative.")


@dataclass(frozen=True, kw_only=True)
class Hybrid(Generative, Discriminative):
    """Section ``[hybrid]``: counts pooled once, then weights in rounds on the pooled theta."""

    initial_weight: float = key(1.0, real(), "value of every weight before the first round")

    def __post_init__(self) -> None:
        checked(self, "hybrid.")


SECTIONS: dict[str, type[Discriminative] | type[Generative]] = {
    "discriminative": Discriminative,
    "generative": Generative,
    "hybrid": Hybrid,
}


@dataclass(frozen=True, kw_only=True)
class Common:
    """Keys that an experiment hands to its cells unchanged."""

    target: str | None = key(
        None, optional(text()), "name of the class column; the last one when left out", example="class"
    )
    data_dir: str | None = key(
        None, optional(text()), "directory with ARFF or CSV files", changes=never, example="data"
    )
    folds: int = key(5, integer(2), "folds of the cross-validation")
    repeats: int = key(5, integer(1), "repeats of it; more repeats extend the same file", changes=never)
    seed: int = key(1, integer(0), "seed of folds, owners and noise")
    smoothing: str = key("laplace", choice("laplace", "m-estimate"), "how counts become probabilities")
    pseudocount: float = key(1.0, real(above=0), "added to each cell; M for the m-estimate")
    missing: str = key("value", choice("value", "ignore"), "a missing cell is a value of its own, or ignored")
    bins: int | None = key(
        None, optional(integer(2)), "equal-frequency bins for numeric attributes", example=5
    )
    nominal: tuple[str, ...] = key(
        (), many(text(), empty=True, ordered=False), "numeric attributes whose values are names"
    )
    combine: str = key(
        "mean",
        choice("mean", "joint"),
        "mean of the posteriors, or posterior of the summed joints (generative only)",
        changes=_generative,
    )
    evaluate: str = key("all", choice("all", "last"), "rounds to score", changes=_in_rounds)
    only_folds: tuple[int, ...] | None = key(
        None,
        optional(many(integer(0), ordered=False), word="all"),
        "compute these folds only (counted from 0)",
        changes=never,
        example=0,
    )
    save: tuple[str, ...] = key(
        (),
        many(choice("weights", "predictions"), empty=True, ordered=False),
        "what to keep in a file beside it",
    )
    optimizer: str = key("compiled", choice("compiled", "scipy"), "who takes the steps", changes=_weighted)
    max_iterations: int = key(
        15_000, integer(1), "limit of a solve that runs until convergence", changes=_to_convergence
    )
    transport: str = key(
        "gather",
        choice("gather", "reduce"),
        "the server sees every client's row, or their exact sum",
        changes=never,
    )
    shards: int | None = key(
        None,
        optional(integer(1)),
        "shards of the parent sets; left out: chosen",
        changes=never,
        example=1,
    )
    block_mib: float = key(64.0, real(above=0), "memory for a block of parent sets, in MiB", changes=never)
    checkpoint_minutes: float = key(
        15.0, real(low=0), "minutes between checkpoints within a fold; 0 = none", changes=never
    )
    allow_empty: bool = key(
        False, boolean(), "allow more clients than a fold has training rows", changes=never
    )


@dataclass(frozen=True, kw_only=True)
class Cell(Common):
    """One fully resolved point of the grid.

    The sections of other methods, and keys that cannot act in this cell's scope, hold their defaults; so
    equal work gives equal cells. ``clients`` is 1 when centralised.
    """

    dataset: str
    n: int
    method: str
    scope: str
    clients: int
    discriminative: Discriminative = field(default_factory=Discriminative)
    generative: Generative = field(default_factory=Generative)
    hybrid: Hybrid = field(default_factory=Hybrid)

    @property
    def section(self) -> Discriminative | Generative:
        """The section of its own method."""
        section: Discriminative | Generative = getattr(self, self.method)
        return section

    @property
    def solver(self) -> Discriminative:
        """The section that says how its weights are learned (``[hybrid]`` or ``[discriminative]``)."""
        return self.hybrid if self.method == "hybrid" else self.discriminative

    @property
    def weighted(self) -> bool:
        """Whether it learns weights."""
        return self.method != "generative"

    @property
    def in_rounds(self) -> bool:
        """Whether it learns weights in rounds of a federation."""
        return self.weighted and self.scope == "federated"

    @property
    def epsilon(self) -> float | None:
        """Privacy of its counts: ``inf`` when exact, None where no counts are used for a release."""
        match self.method:
            case "discriminative":
                return None
            case "hybrid":
                return self.hybrid.epsilon
        return self.generative.epsilon

    @property
    def model(self) -> str:
        """Name of the model, see `model_name`."""
        return model_name(self.n, self.method)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds its file has: 0..T in rounds (0 = before the first one), else the single round 1."""
        return tuple(range(self.solver.rounds + 1)) if self.in_rounds else (1,)

    @property
    def fold_numbers(self) -> tuple[int, ...]:
        """The folds to compute, ascending."""
        return tuple(range(self.folds)) if self.only_folds is None else self.only_folds

    def settings(self) -> dict[str, Any]:
        """Return the keys that change a result of this very cell, in JSON's types.

        The data set is not among them: its digest stands for it, wherever it came from. Keys without a
        value are left out.
        """
        values: dict[str, Any] = {
            "n": self.n,
            "method": self.method,
            "scope": self.scope,
            "clients": self.clients,
        }
        for holder in (self, self.section):
            for name, declared in keys(type(holder)).items():
                if declared.metadata["changes"](self):
                    values[name] = getattr(holder, name)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }

    def fingerprint(self, dataset_sha256: str) -> str:
        """Return the SHA-256 (hexadecimal) of `settings` and the data set's digest, as canonical JSON."""
        content = self.settings() | {"dataset_sha256": dataset_sha256}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def stem(self, dataset_name: str, dataset_sha256: str) -> str:
        """Return its file's name without suffix: ``<dataset>_<model>_<scope>_C<C>_<hash8>``."""
        plain = re.sub(r"[^A-Za-z0-9.+-]+", "-", dataset_name).strip("-.")[:80] or "data"
        hash8 = self.fingerprint(dataset_sha256)[:8]
        return f"{plain}_{self.model}_{self.scope}_C{self.clients}_{hash8}"

    def to_toml(self, *, execution: bool = True) -> str:
        """Return the TOML of an experiment that consists of this cell alone.

        Parameters
        ----------
        execution : bool, optional
            Whether to write the keys that change no result (repeats, transport, ...). Without them
            equal text means equal results.
        """
        content: dict[str, Any] = {
            "datasets": [self.dataset],
            "n": [self.n],
            "methods": [self.method],
            "scopes": [self.scope],
            "clients": [self.clients],
        }
        for name, declared in keys(Common).items():
            value = getattr(self, name)
            if value is not None and (execution or declared.metadata["changes"] is not never):
                content[name] = list(value) if isinstance(value, tuple) else value
        return tomli_w.dumps(content | {self.method: asdict(self.section)})

    def __str__(self) -> str:
        """Return it in a few words, for messages."""
        return f"{self.dataset} {self.model} {self.method} {self.scope} C={self.clients}"
