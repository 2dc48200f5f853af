"""Put results beside other programs' numbers: ``reference_check.py RESULTS WEKA_RESULTS REFERENCE_DIR``.

RESULTS come from jobs/reproduction.toml, WEKA_RESULTS from jobs/weka.toml; REFERENCE_DIR holds
``java-fedande.csv`` and ``weka-centralised.csv``. Prints Markdown; rows that differ by more than two points
(one for Weka, whose models are the same) are marked.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedande_mpi.reporting import table_rows

Row = dict[str, Any]
Key = tuple[Any, ...]

NOISE = {"None": float("inf"), "Laplace": 1.0}


def ours(path: str) -> dict[Key, float]:
    """Accuracies by (dataset, model, scope, clients, epsilon); epsilon is None for weights."""
    return {
        (row["dataset"], row["model"], row["scope"], row["clients"], row["epsilon"]): row["accuracy"]
        for row in table_rows(path)
    }


def java(path: Path) -> Iterator[tuple[Key, float]]:
    """Yield the cells of the authors' program that have the same meaning as one of ours."""
    for row in csv.DictReader(path.open()):
        model, clients = row["model"], int(row["clients"])
        weighted = row["method"] == "discriminative"
        epsilon = None if weighted else NOISE[row["privacy"]]
        if row["local_iterations"] == "10000":
            yield (row["dataset"], model, "local", clients, epsilon), float(row["accuracy_before_averaging"])
            continue
        # as shipped, only the first client gets the automatic sensitivity
        if epsilon != 1.0 or row["setting"].startswith("paper"):
            yield (
                (row["dataset"], model, "federated", clients, epsilon),
                float(row["accuracy_after_averaging"]),
            )
        if epsilon == float("inf"):
            yield (row["dataset"], model, "local", clients, epsilon), float(row["accuracy_before_averaging"])


def weka(path: Path) -> Iterator[tuple[Key, float]]:
    """Yield Weka's cells."""
    for row in csv.DictReader(path.open()):
        yield (row["dataset"], row["classifier"], "centralised", 1, float("inf")), float(row["accuracy"])


def table(title: str, mine: dict[Key, float], theirs: Iterator[tuple[Key, float]], limit: float) -> None:
    """Print the cells that both have."""
    rows = [(key, mine[key], value) for key, value in theirs if key in mine]
    beyond = [row for row in rows if abs(row[1] - row[2]) > limit]
    print(f"### {title}\n\n{len(rows)} cells, {len(beyond)} differ by more than {100 * limit:g} points.\n")
    print("| dataset | model | scope | C | epsilon | ours | theirs | difference |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    for (dataset, model, scope, clients, epsilon), own, value in sorted(rows, key=str):
        mark = "**" if abs(own - value) > limit else ""
        private = "" if epsilon is None else f"{epsilon:g}"
        print(
            f"| {dataset} | {model} | {scope} | {clients} | {private} | {own:.4f} | {value:.4f} "
            f"| {mark}{own - value:+.4f}{mark} |"
        )
    print()


def main() -> None:
    """Print both tables."""
    results, weka_results, reference = sys.argv[1:4]
    folder = Path(reference)
    table("The authors' program", ours(results), java(folder / "java-fedande.csv"), 0.02)
    table("Weka", ours(weka_results), weka(folder / "weka-centralised.csv"), 0.01)


if __name__ == "__main__":
    main()
