"""An AnDE whose training rows are all in one place, without a federation: the arrays behind the classifier.

The compiled loops are those of a host, so the numbers are, to the bit, those of the cell with scope
"centralised". What is kept is the count tables, in the smallest integers that hold them, and the weights;
log-probabilities are made of the counts block by block when rows are scored. The one exception to the bits:
a row on which no parent set has a say is scored here by compiled loops, there in NumPy (a few ulp apart).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import ande, evaluation, indexing, lbfgs, local, metrics, touched
from fedande_mpi.arrangement import cut_blocks

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BLOCK_BYTES = 64 * 2**20
"""Log-probabilities and weights of the parent sets that are in work at one time."""

_STEP_WORK = 5e7
"""Row x factor x class visits per compiled call, about a quarter of a second: signals wait no longer."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Numbers of all parent sets of one order, one set after another in the layout of `fedande_mpi.ande`.

    Attributes
    ----------
    sets : (|P|, n) int64
    bounds : (|P| + 1,) int64
        Where each set begins in ``values``, and the end.
    values : (width,) array
        Counts (unsigned integers) or weights (float64).
    """

    sets: IntArray
    bounds: IntArray
    values: NDArray[Any]

    def of(self, position: int) -> NDArray[Any]:
        """Return the numbers of one set, a view."""
        return self.values[self.bounds[position] : self.bounds[position + 1]]

    def blocks(self) -> Iterator[slice]:
        """Yield slices of sets that are worked on together."""
        return iter(cut_blocks(np.diff(self.bounds), 0, BLOCK_BYTES))


@dataclass(frozen=True, eq=False)
class Model:
    """A trained AnDE.

    Attributes
    ----------
    arity : (d,) int64
    n_classes : int
    smoothing, pseudocount
        How counts become probabilities.
    joint : bool
        Sum joints instead of posteriors.
    counts : tuple of Tables
        Of order n; for a generative model also of n - 1, ..., 0: what scores a row with so many missing
        values that no parent set of a higher order is complete.
    weights : Tables or None
    per_attribute : bool
        Granularity "attribute" of the weights.
    """

    arity: IntArray
    n_classes: int
    smoothing: str
    pseudocount: float
    joint: bool
    counts: tuple[Tables, ...]
    weights: Tables | None = None
    per_attribute: bool = False

    @property
    def class_counts(self) -> IntArray:
        """Training rows of each class, shape ``(o,)``."""
        return self.counts[0].values[: self.n_classes].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Training:
    """How the weights came about; ``(|P|,)`` each: the final -CLL, L-BFGS iterations, why they stopped."""

    objective: FloatArray
    iterations: IntArray
    stop_reason: IntArray


def n_cells(arity: IntArray, n: int) -> int:
    """Return the number of cells of all parent sets together, without listing them.

    The sums over parent sets of q and of q V are elementary symmetric polynomials of the arities: e_n, and
    (n + 1) e_{n+1}, as every n + 1 attributes occur once with each of them as the child.
    """
    e = [1] + [0] * (n + 1)
    for a in arity.tolist():
        for k in range(n + 1, 0, -1):
            e[k] += e[k - 1] * a
    return comb(arity.size, n) + (e[n] if n else 0) + (n + 1) * e[n + 1]


def _bounds(sets: IntArray, arity: IntArray, n_classes: int, granularity: str) -> IntArray:
    sizes = ande.cells_per_set(sets, arity, granularity) * n_classes
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def count(X: NDArray[np.int32], y: NDArray[np.int32], n: int, arity: IntArray, n_classes: int) -> Tables:
    """Count the tables of all parent sets of order n.

    Parameters
    ----------
    X, y : (m, d), (m,) array of int32
        Attribute codes (-1 where missing) and class codes.
    n : int
        Dependence order.
    arity : (d,) array of int64
    n_classes : int
    """
    sets = ande.parent_sets(arity.size, n)
    bounds = _bounds(sets, arity, n_classes, "parameter")
    tables = Tables(sets, bounds, np.empty(int(bounds[-1]), dtype=np.min_scalar_type(y.size)))
    for position, parents in enumerate(sets):
        tables.of(position)[:] = ande.count_tables(X, y, parents, arity, n_classes).ravel()
    return tables


def train(
    model: Model,
    X: NDArray[np.int32],
    y: NDArray[np.int32],
    *,
    granularity: str,
    initial_weight: float,
    l2: float,
    max_iterations: int,
) -> tuple[Model, Training]:
    """Learn the weights of a model on its training rows, every parent set for itself.

    Parameters
    ----------
    model : Model
        Counted on the same rows.
    X, y : (m, d), (m,) array of int32
    granularity : {"parameter", "attribute"}
    initial_weight : float
        Where every weight starts.
    l2 : float
        Pull towards the initial weight.
    max_iterations : int
        Iterations of L-BFGS at most.

    Returns
    -------
    Model
        With weights.
    Training
    """
    sets, o = model.counts[0].sets, model.n_classes
    bounds = _bounds(sets, model.arity, o, granularity)
    weights = Tables(sets, bounds, np.full(int(bounds[-1]), float(initial_weight)))
    clients = local.Clients(X, y, np.array([0, y.size], dtype=np.int64))
    reports = []
    for block in weights.blocks():
        layout = touched.layout(sets[block], model.arity, o)
        rule = local.theta_rule(model.arity, layout.n_states, o, model.smoothing, model.pseudocount, y.size)
        begin, end = bounds[block.start], bounds[block.stop]
        start = bounds[block.start : block.stop + 1] - begin
        updates = weights.values[begin:end][None]
        state = local.Weights(updates[0].copy(), start[:-1], granularity == "attribute", float(l2))
        report = local.empty_report(1, len(layout.n_states))
        if o > 1:
            _train_block(clients, layout, rule, state, start, max_iterations, updates, report)
        else:  # the compiled loops compare classes; a single one leaves nothing to learn
            report.stop_reason[:] = lbfgs.GRADIENT_SMALL
        reports.append(report)
    training = Training(
        np.concatenate([report.objective[0] for report in reports]),
        np.concatenate([report.iterations[0] for report in reports]),
        np.concatenate([report.stop_reason[0] for report in reports]),
    )
    return replace(model, weights=weights, per_attribute=granularity == "attribute"), training


def _train_block(
    clients: local.Clients,
    layout: touched.Layout,
    theta: local.Theta,
    weights: local.Weights,
    bounds: IntArray,
    max_iterations: int,
    updates: FloatArray,
    report: local.Report,
) -> None:
    m, o, n_children = clients.y.size, layout.n_classes, layout.children.shape[1]
    capacity = touched.capacity(layout, m)
    scratch = local.allocate(capacity, m, n_children, o)
    state = lbfgs.allocate(capacity * o)
    stride = max(1, int(_STEP_WORK / (m * (n_children + 1) * max(1, o - 1))))
    for at in range(len(layout.n_states)):
        problem = local.prepare(clients, layout, theta, weights, 0, at, scratch, state.x)
        lbfgs.begin(state)
        while state.counters[lbfgs.STATUS] == lbfgs.RUNNING:
            until = int(state.counters[lbfgs.ITERATIONS]) + stride
            lbfgs.advance(problem, state, max_iterations, until)
        local.finish(problem, state, weights, 0, at, int(bounds[at + 1]), scratch, updates, report)


def log_theta(model: Model, block: slice) -> FloatArray:
    """Return the log-probabilities of a block of parent sets, one set after another, shape ``(width,)``.

    The compiled rule of training, `touched.log_theta_touched`, with every cell touched: the same bits.
    """
    counts, o = model.counts[0], model.n_classes
    n = counts.sets.shape[1]
    layout = touched.layout(counts.sets[block], model.arity, o)
    rule = local.theta_rule(
        model.arity, layout.n_states, o, model.smoothing, model.pseudocount, int(model.class_counts.sum())
    )
    begin = int(counts.bounds[block.start])
    flat = np.empty(int(counts.bounds[block.stop]) - begin)
    for at, position in enumerate(range(block.start, block.stop)):
        q, values = int(layout.n_states[at]), int(layout.n_values[at])
        of_child = np.repeat(np.arange(layout.children.shape[1]), model.arity[layout.children[at]])
        # as the rows touch them: a state's parents cell, if there is one, before its child values
        head = np.arange(1, 1 + q)[:, None] if n else np.empty((1, 0), dtype=np.int64)
        tail = 1 + head.size + np.arange(q * values).reshape(q, values)
        cell = np.concatenate([[0], np.hstack([head, tail]).ravel()])
        child = np.concatenate([[-1], np.tile(np.concatenate([[-2] * (n > 0), of_child]), q)])
        table = counts.of(position).reshape(-1, o)
        out = np.empty(table.size)
        touched.log_theta_touched(
            table[cell].ravel().astype(np.int64),
            child.astype(np.int64),
            cell.size,
            o,
            q,
            layout.children[at],
            rule.table,
            rule.pseudo_prior,
            rule.pseudo_parents[at],
            rule.log_count,
            rule.log_total,
            out,
        )
        first = int(counts.bounds[position]) - begin
        flat[first : first + out.size].reshape(-1, o)[cell] = out.reshape(-1, o)
    return flat


def score(model: Model, X: NDArray[np.int32], labels: NDArray[np.int32]) -> tuple[metrics.Sums, IntArray]:
    """Sum the parent sets' posteriors (or joints) of rows.

    Parameters
    ----------
    model : Model
    X : (m, d) array of int32
        Attribute codes, -1 where missing or unknown.
    labels : (m,) array of int32
        The class of each row whose probability is wanted with more digits, see `metrics.Sums`.

    Returns
    -------
    sums : Sums
        (1, m, o) and (1, m, 2) integers in units of ``scale_bits(|P|)``.
    usable : (m,) array of int64
        Parent sets that had a say on each row, at least 1.
    """
    counts, o = model.counts[0], model.n_classes
    m = X.shape[0]
    test = evaluation.HeldOut(X, labels)
    bits = metrics.scale_bits(len(counts.sets))
    sums = metrics.empty_sums(1, m, o)
    if o == 1:
        sums.posterior[:] = 2**bits
        return sums, np.ones(m, dtype=np.int64)
    top = np.full((1, m if model.joint else 0), -np.inf)
    for maxima_only in (True, False) if model.joint else (False,):
        for block in counts.blocks():
            _score_block(model, block, test, bits, maxima_only, top, sums)
    usable = metrics.usable_sets(X, counts.sets)
    rows = np.flatnonzero(usable == 0)
    if rows.size:
        sums.posterior[0, rows] = np.rint(_fall_back(model, X[rows]) * 2.0**bits).astype(np.int64)
        usable[rows] = 1
    return sums, usable


def _score_block(
    model: Model,
    block: slice,
    test: evaluation.HeldOut,
    bits: int,
    maxima_only: bool,
    top: FloatArray,
    sums: metrics.Sums,
) -> None:
    counts, o = model.counts[0], model.n_classes
    layout = touched.layout(counts.sets[block], model.arity, o)
    pooled = log_theta(model, block)
    start = counts.bounds[block] - counts.bounds[block.start]
    theta = local.theta_rule(
        model.arity, layout.n_states, o, model.smoothing, model.pseudocount, 0, pooled, start
    )
    values, at_weight = np.zeros((1, 0)), start
    if model.weights is not None:
        bounds = model.weights.bounds
        at_weight = bounds[block] - bounds[block.start]
        mapped = model.weights.values[bounds[block.start] : bounds[block.stop]]
        values = np.require(mapped, np.float64, ["C", "W", "E"])[None]  # as in `touched.layout`
    scoring = evaluation.Scoring(values, at_weight, model.per_attribute, bits, model.joint)
    nobody = local.Clients(
        np.empty((0, model.arity.size), dtype=np.int32),
        np.empty(0, dtype=np.int32),
        np.zeros(2, dtype=np.int64),
    )
    for at in range(len(layout.n_states)):
        for first, last in evaluation.pieces(layout, test.y.size):
            indices = indexing.index_sets(
                test.X, test.y, first, last, layout, at, at + 1, scoring.per_attribute
            )
            evaluation.score(
                indices, nobody, layout, theta, scoring, at, at + 1, 0, 1, maxima_only, top, sums
            )


def _fall_back(model: Model, X: NDArray[np.int32]) -> FloatArray:
    """Score rows on which no parent set has a say: by the next lower order, by the prior where there is none."""
    if len(model.counts) > 1:
        return posteriors(replace(model, counts=model.counts[1:]), X)
    a = ande.pseudocounts(model.smoothing, model.pseudocount, model.n_classes)
    smoothed = model.class_counts + a
    return np.asarray(np.tile(smoothed / smoothed.sum(), (X.shape[0], 1)))


def posteriors(model: Model, X: NDArray[np.int32]) -> FloatArray:
    """Return P(y|x) of rows, shape ``(m, o)``."""
    sums, usable = score(model, X, np.zeros(X.shape[0], dtype=np.int32))
    bits = metrics.scale_bits(len(model.counts[0].sets))
    return np.asarray(metrics.posteriors(sums, usable, bits, model.joint)[0])


def log_posteriors(model: Model, X: NDArray[np.int32]) -> FloatArray:
    """Return log P(y|x) of rows, shape ``(m, o)``: finite, and right where P(y|x) is as small as 1e-46.

    One pass over the rows per class, as only one class of a row has the extra digits.
    """
    unit = 2.0 ** metrics.scale_bits(len(model.counts[0].sets))
    out = np.empty((X.shape[0], model.n_classes))
    for k in range(model.n_classes):
        sums, usable = score(model, X, np.full(X.shape[0], k, dtype=np.int32))
        scaled = sums.posterior[0] / unit
        whole = scaled.sum(axis=1) if model.joint else usable.astype(np.float64)
        rest = sums.rest[0]
        own = scaled[:, k] + rest[:, 0] / unit / unit + rest[:, 1] / unit / unit / unit
        out[:, k] = np.minimum(np.log(np.maximum(own, 0.5 / unit / unit / unit) / whole), 0.0)
    return out
