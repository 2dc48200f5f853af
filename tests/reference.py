"""The formulas in slow, obvious loops: the twin that the fast code is held against.

Nothing of the package is used here. A table is an array whose last axis is the one it is normalised over:
``prior (o,)``, ``parents (o, q)``, ``child{j} (o, q, arity_j)``. Weights of granularity "attribute" lack the
last axes: ``parents (o,)``, ``child{j} (o, q)``. A row is a sequence of codes, -1 where missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

Tables = dict[str, np.ndarray]
Row = Sequence[int]


def parent_sets(d: int, n: int) -> list[tuple[int, ...]]:
    return list(combinations(range(d), n))


def children(parents: Sequence[int], d: int) -> list[int]:
    return [j for j in range(d) if j not in parents]


def state(row: Row, parents: Sequence[int], arity: Sequence[int]) -> int | None:
    """Code the parents' values, the first most significant; None where one is missing."""
    code = 0
    for j in parents:
        if row[j] < 0:
            return None
        code = code * int(arity[j]) + int(row[j])
    return code


def filled(
    value: float, parents: Sequence[int], arity: Sequence[int], o: int, granularity: str = "parameter"
) -> Tables:
    q = math.prod(int(arity[j]) for j in parents)
    full = granularity == "parameter"
    tables = {"prior": np.full(o, value)}
    if len(parents):
        tables["parents"] = np.full((o, q) if full else (o,), value)
    for j in children(parents, len(arity)):
        tables[f"child{j}"] = np.full((o, q, int(arity[j])) if full else (o, q), value)
    return tables


def counts(X: Any, y: Any, parents: Sequence[int], arity: Sequence[int], o: int) -> Tables:
    tables = filled(0.0, parents, arity, o)
    for row, label in zip(X, y, strict=True):
        tables["prior"][label] += 1
        s = state(row, parents, arity)
        if s is None:
            continue
        if len(parents):
            tables["parents"][label, s] += 1
        for j in children(parents, len(arity)):
            if row[j] >= 0:
                tables[f"child{j}"][label, s, row[j]] += 1
    return tables


def theta(tables: Tables, smoothing: str = "laplace", pseudocount: float = 1.0) -> Tables:
    """Return probabilities: each table over the sum of the very table being normalised."""
    probabilities = {}
    for name, table in tables.items():
        cells = table.shape[-1]
        a = pseudocount if smoothing == "laplace" else pseudocount / cells
        probability = np.empty_like(table)
        for index in np.ndindex(table.shape):
            total = sum(float(count) for count in table[index[:-1]])
            probability[index] = (table[index] + a) / (total + a * cells)
        probabilities[name] = probability
    return probabilities


class SPnDE(NamedTuple):
    """One model: its parent set, the arities, the probabilities and the weights."""

    parents: Sequence[int]
    arity: Sequence[int]
    theta: Tables
    w: Tables


def factors(row: Row, label: int, model: SPnDE) -> list[tuple[str, tuple[int, ...]]] | None:
    """Name the probabilities that a row uses for a class; None where a parent is missing."""
    s = state(row, model.parents, model.arity)
    if s is None:
        return None
    used: list[tuple[str, tuple[int, ...]]] = [("prior", (label,))]
    if len(model.parents):
        used.append(("parents", (label, s)))
    for j in children(model.parents, len(model.arity)):
        if row[j] >= 0:
            used.append((f"child{j}", (label, s, int(row[j]))))
    return used


def score(row: Row, label: int, model: SPnDE) -> float | None:
    used = factors(row, label, model)
    if used is None:
        return None
    total = 0.0
    for name, index in used:
        w = model.w[name]
        total += w[index[: w.ndim]] * math.log(model.theta[name][index])
    return total


def posterior(row: Row, model: SPnDE) -> list[float] | None:
    scores = [score(row, label, model) for label in range(len(model.theta["prior"]))]
    if scores[0] is None:
        return None
    top = max(scores)
    joint = [math.exp(value - top) for value in scores]
    return [value / sum(joint) for value in joint]


def negative_cll(X: Any, y: Any, model: SPnDE) -> tuple[float, Tables]:
    """Return -sum of log P(y | x, P, w) over the rows with complete parents, and its gradient in w."""
    value = 0.0
    gradient = {name: np.zeros_like(w) for name, w in model.w.items()}
    for row, label in zip(X, y, strict=True):
        p = posterior(row, model)
        if p is None:
            continue
        value -= math.log(p[label])
        for k in range(len(p)):
            residual = p[k] - (1.0 if k == label else 0.0)
            for name, index in factors(row, k, model) or []:
                g = gradient[name]
                g[index[: g.ndim]] += residual * math.log(model.theta[name][index])
    return value, gradient


def flat(tables: Tables) -> np.ndarray:
    return np.concatenate([table.ravel() for table in tables.values()])


def unflat(x: np.ndarray, like: Tables) -> Tables:
    tables, first = {}, 0
    for name, table in like.items():
        tables[name] = x[first : first + table.size].reshape(table.shape)
        first += table.size
    return tables


def local_steps(X: Any, y: Any, model: SPnDE, steps: int, l2: float = 0.0) -> tuple[Tables, float]:
    """Minimise -CLL from the model's weights by L-BFGS-B; return the weights and -CLL there."""
    from scipy.optimize import minimize

    start = flat(model.w)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = negative_cll(X, y, model._replace(w=unflat(x, model.w)))
        return value + 0.5 * l2 * float(np.sum((x - start) ** 2)), flat(gradient) + l2 * (x - start)

    result = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": steps, "maxcor": 10, "ftol": 2.220446e-09, "gtol": 1e-5, "maxls": 20},
    )
    w = unflat(result.x, model.w)
    return w, negative_cll(X, y, model._replace(w=w))[0]


def average(updates: Sequence[Tables], n_rows: Sequence[int], rule: str = "mean") -> Tables:
    """Average over the clients that have rows: alike, or by their rows."""
    factor = [float(m > 0) if rule == "mean" else float(m) for m in n_rows]
    result = {}
    for name in updates[0]:
        total = np.zeros_like(updates[0][name])
        for update, f in zip(updates, factor, strict=True):
            total = total + f * update[name]
        result[name] = total / sum(factor)
    return result


class Round(NamedTuple):
    """What a round gives: the new common weights, and every client's -CLL after its own steps."""

    w: Tables
    objective: list[float]


def federated_round(
    clients: Sequence[tuple[Any, Any]],
    thetas: Sequence[Tables],
    parents: Sequence[int],
    arity: Sequence[int],
    w: Tables,
    steps: int,
    rule: str = "mean",
    l2: float = 0.0,
) -> Round:
    """Let every client take steps on its rows with its theta, from common weights; average the results."""
    updates, objective = [], []
    for (X, y), probabilities in zip(clients, thetas, strict=True):
        update, value = local_steps(X, y, SPnDE(parents, arity, probabilities, w), steps, l2)
        updates.append(update)
        objective.append(value)
    return Round(average(updates, [len(y) for _, y in clients], rule), objective)


def ensemble_mean(row: Row, models: Sequence[SPnDE]) -> list[float] | None:
    """Return the mean of the posteriors of the models with a say; None where there is none."""
    said = [p for p in (posterior(row, model) for model in models) if p is not None]
    if not said:
        return None
    return [sum(p[k] for p in said) / len(said) for k in range(len(said[0]))]


def ensemble_joint(row: Row, models: Sequence[SPnDE]) -> list[float] | None:
    """Return the posterior of the sum of joints of the models with a say, as AODE does."""
    o = len(models[0].theta["prior"])
    said = [model for model in models if score(row, 0, model) is not None]
    if not said:
        return None
    joint = [sum(math.exp(score(row, k, model) or 0.0) for model in said) for k in range(o)]
    return [value / sum(joint) for value in joint]


def generative(
    row: Row,
    X: Any,
    y: Any,
    n: int,
    arity: Sequence[int],
    o: int,
    combine: str = "mean",
    smoothing: str = "laplace",
    pseudocount: float = 1.0,
) -> list[float]:
    """Return AnDE's posterior; where no parent set is complete, that of the next lower order."""
    for order in range(n, -1, -1):
        models = []
        for parents in parent_sets(len(arity), order):
            probabilities = theta(counts(X, y, parents, arity, o), smoothing, pseudocount)
            models.append(SPnDE(parents, arity, probabilities, filled(1.0, parents, arity, o)))
        p = ensemble_mean(row, models) if combine == "mean" else ensemble_joint(row, models)
        if p is not None:
            return p
    raise AssertionError("NB always has a say")


def metrics(posteriors: Any, labels: Sequence[int]) -> dict[str, float]:
    """Return accuracy, mean log-likelihood, Brier score and macro-F1 of the classes that occur."""
    m, o = len(labels), len(posteriors[0])
    predictions = []
    for p in posteriors:
        best = 0
        for k in range(o):
            if p[k] > p[best]:
                best = k
        predictions.append(best)
    f1 = []
    for k in range(o):
        both = sum(1 for a, b in zip(predictions, labels, strict=True) if a == k and b == k)
        either = sum(1 for a in predictions if a == k) + sum(1 for b in labels if b == k)
        if either:
            f1.append(2 * both / either)
    pairs = list(zip(posteriors, labels, strict=True))
    return {
        "accuracy": sum(1 for a, b in zip(predictions, labels, strict=True) if a == b) / m,
        "cll": sum(math.log(p[label]) for p, label in pairs) / m,
        "brier": sum((p[k] - (k == label)) ** 2 for p, label in pairs for k in range(o)) / m,
        "macro_f1": sum(f1) / len(f1),
    }
