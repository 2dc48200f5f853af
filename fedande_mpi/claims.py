"""Do results support what the paper says? ``fedande claims``.

The statements are those of :mod:`fedande_mpi.statements`; ``docs/claims.md`` says how each is tested and is generated
by :func:`claims_markdown`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedande_mpi.comparison import plain
from fedande_mpi.contrasts import LEAST_DATA_SETS, LEAST_UNITS, Outcome, Place, evaluate
from fedande_mpi.errors import ResultsError
from fedande_mpi.formatting import Row, Table
from fedande_mpi.selection import Scores, Selections, differing, read_scores
from fedande_mpi.statements import CLAIMS, COUNTED, MARGIN, WEIGHTED, Claim
from fedande_mpi.statistics import holm

COLUMNS = ("claim", "verdict", "effect", "low", "high", "cells")
HOLDS, FAILS, UNKNOWN = "holds", "fails", "not enough data"

ALPHA = 0.05
EPSILON = 1.0
"""The paper's privacy budget."""

RANK_FROM = math.ceil(math.log2(len(CLAIMS) / ALPHA))
"""From this many data sets on Wilcoxon's test can pass Holm's rule over all claims: 2^-K <= alpha / claims."""


def claims(selections: Selections, without_privacy: bool = False) -> Table:
    """Say which of the paper's statements hold in results.

    Parameters
    ----------
    selections : str, Path or iterable of them
        Files, directories, patterns, or selections (:mod:`fedande_mpi.selection`).
    without_privacy : bool
        Use exact counts wherever the paper has noisy ones.

    Returns
    -------
    Table
        ``claim``, ``verdict`` ("holds", "fails" or "not enough data"), ``effect`` in accuracy (0.01 is one
        point; positive supports the claim), its 95 % interval ``low, high``, and how many ``cells`` it used.

    Raises
    ------
    ResultsError
        If a file cannot be read, or the results have several cells for one place in the paper's grid.
    """
    outcomes = evaluate_claims(read_scores(selections), without_privacy)
    adjusted = holm([np.nan if outcome.p is None else outcome.p for outcome in outcomes])
    rows: list[Row] = []
    for claim, outcome, p in zip(CLAIMS, outcomes, adjusted, strict=True):
        verdict = UNKNOWN if outcome.p is None else HOLDS if p < ALPHA else FAILS
        row: Row = {"claim": claim.name, "verdict": verdict, "effect": plain(outcome.effect)}
        rows.append(row | {"low": plain(outcome.low), "high": plain(outcome.high), "cells": outcome.cells})
    return Table(COLUMNS, rows)


def evaluate_claims(scores: Sequence[Scores], without_privacy: bool = False) -> list[Outcome]:
    """Test every claim on accuracies; the p-values are not adjusted."""
    by_name: dict[str, list[Scores]] = {}
    for each in scores:
        by_name.setdefault(each.keys["dataset"], []).append(each)
    outcomes = []
    for claim in CLAIMS:
        data_sets = {}
        for name, group in by_name.items():
            if claim.dataset in (None, name):
                cells = _cells(group, claim, without_privacy)
                data_sets[name] = (cells, list(claim.parts(frozenset(cells))))
        outcomes.append(evaluate(data_sets, over=claim.dataset is None, rank_from=RANK_FROM))
    return outcomes


def _cells(group: Iterable[Scores], claim: Claim, without_privacy: bool) -> dict[Place, Scores]:
    """Choose the cells of one data set that a claim may use."""
    used = [each for each in group if each.keys["method"] in (COUNTED, WEIGHTED)]
    noisy = [each for each in used if _released(each) and each.keys["epsilon"] == EPSILON]
    exact = [each for each in used if _released(each) and each.keys["epsilon"] == math.inf]
    released = noisy if not without_privacy and (noisy or claim.private) else exact
    cells: dict[Place, Scores] = {}
    for each in (*(each for each in used if not _released(each)), *released):
        keys = each.keys
        place = Place(keys["n"], keys["method"], keys["scope"], keys.get("clients", 1))
        other = cells.setdefault(place, each)
        if other is not each:
            raise ResultsError(
                f"claims: expected one cell for {keys['dataset']} {keys['model']} {place.scope} C={place.clients}, "
                f"found two that differ in {', '.join(differing((other, each)))}; select one, as in "
                f"PATH:{_example(each, other)}"
            )
    return cells


def _example(each: Scores, other: Scores) -> str:
    key = differing((other, each))[0]
    return f"{key}={each.keys[key]}"


def _released(each: Scores) -> bool:
    """Whether counts left the clients."""
    return bool(each.keys["method"] == COUNTED and each.keys["scope"] == "federated")


def claims_markdown() -> str:
    """Return the page ``docs/claims.md``."""
    rows = [
        f"| {claim.name} | {claim.dataset or 'all'} | {'yes' if claim.private else ''} | {claim.cells} "
        f"| {claim.effect} |"
        for claim in CLAIMS
    ]
    return "\n".join([_PAGE, *rows]) + "\n"


_PAGE = f"""\
# Claims

<!-- Generated from fedande_mpi/statements.py by fedande_mpi.claims.claims_markdown(); do not edit. -->

`fedande claims PATH...` reads results of the paper's experiment (`jobs/paper.toml`, or any part of it) and says
which of the paper's statements they support. Columns: `claim`; `verdict`; `effect`, in accuracy (0.01 is one
point), signed so that a positive one supports the claim; `low` and `high`, its 95 % interval; `cells`, how many
result cells it used.

- **holds**: the one-sided p-value, adjusted by Holm's rule over all claims that have enough data, is below {ALPHA}.
  So the chance that any false claim is said to hold is below {ALPHA}.
- **fails**: there was enough data and the claim was not supported: the effect may be negative, or positive and
  not significant. The interval tells which. (It is not adjusted for the number of claims, so it may lie above
  0 where a claim fails.)
- **not enough data**: cells are missing, or there are fewer than {LEAST_DATA_SETS} data sets (claims about data sets in
  general), or fewer than {LEAST_UNITS} folds (claims about one data set; 5 and more are better).

A cell's accuracy on a fold is the mean over its clients after its last round. The cells of a claim are compared
on the (repeat, fold) that all of them have.

## Tests

*Claims about data sets in general.* The effect of each data set is its mean over the folds, and the data sets
are the sample. With {RANK_FROM} or more, Wilcoxon's signed-rank test, exact; from there on it can reach
{ALPHA}/{len(CLAIMS)}. With fewer, Student's t, its variance not below what the folds of each data set suggest. The
interval is Student's in both cases.

*Claims about one data set.* Student's t over repeats x folds, with the variance corrected for overlapping
training rows (Nadeau and Bengio): (1/k + n_test/n_train) s^2.

*Claims of several parts* ("every", "and") hold if every part does: the p-value is the largest, and effect and
interval are those of the part that has it. Where one of several alternatives suffices (a middle C), the least
p-value is multiplied by their number. "Makes no difference" means within {MARGIN} of accuracy, tested from both
sides (TOST). *Growth* is the rise of the least-squares line from the smallest n (C) to the largest.

## Privacy

Federated generative cells are those with epsilon = 1, as in the paper. Where a data set has none, exact counts
stand in, unless the claim is about noise ("noise" below). Other values of epsilon are not used.
`--without-privacy` takes exact counts for every claim: what held and no longer does rests on the noise. Local and
centralised models never have noise. Cells with `method = hybrid` are not used.

Two cells in one place of the grid (two seeds, say) are refused: select, as in `fedande claims results/x:seed=1`.

## The claims

| claim | data set | noise | cells | effect |
|---|---|---|---|---|"""
