"""A whole discriminative fold in plain NumPy and SciPy: what `fedande_mpi` is compared with.

Frozen: the formulas of the model, table by table, and one ``scipy.optimize.minimize`` per (client, parent
set), written to be read and never tuned. It shares no code with the package.
"""

from __future__ import annotations

import argparse
import time
from itertools import combinations

import numpy as np
from scipy.optimize import minimize


def states(X, parents, arity):
    """Return the parent state of every row, the first parent most significant."""
    code = np.zeros(len(X), dtype=int)
    for j in parents:
        code = code * arity[j] + X[:, j]
    return code


def keys_of(X, parents, arity):
    """Name the tables of an SPnDE and say which entry of each every row uses."""
    code = states(X, parents, arity)
    used = {"prior": None}
    if len(parents):
        used["parents"] = code
    for j in range(len(arity)):
        if j not in parents:
            used[j] = code * arity[j] + X[:, j]
    return used


def sizes_of(parents, arity):
    """Return how many entries per class each table has."""
    q = int(np.prod([arity[j] for j in parents]))
    sizes = {"prior": 1}
    if len(parents):
        sizes["parents"] = q
    for j in range(len(arity)):
        if j not in parents:
            sizes[j] = q * arity[j]
    return sizes


def log_probabilities(X, y, parents, arity, o):
    """Estimate the tables with one pseudocount per entry; each is ``(o, entries)``."""
    tables = {}
    for name, size in sizes_of(parents, arity).items():
        entries = keys_of(X, parents, arity)[name]
        counts = np.zeros((o, size))
        np.add.at(counts, (y, 0 if entries is None else entries), 1)
        counts += 1
        if name == "prior":
            total = counts.sum()
        elif name == "parents":
            total = counts.sum(axis=1, keepdims=True)
        else:
            by_state = counts.reshape(o, -1, arity[name]).sum(axis=2)
            total = np.repeat(by_state, arity[name], axis=1)
        tables[name] = np.log(counts / total)
    return tables


def scores(X, weights, theta, parents, arity):
    """Return the sum of w log theta over the factors, ``(rows, o)``."""
    o = theta["prior"].shape[0]
    score = np.zeros((len(X), o))
    for name, entries in keys_of(X, parents, arity).items():
        product = weights[name] * theta[name]
        score += product[:, 0] if entries is None else product[:, entries].T
    return score


def softmax(score):
    """Return the posterior of every row."""
    score = np.exp(score - score.max(axis=1, keepdims=True))
    return score / score.sum(axis=1, keepdims=True)


def value_and_gradient(weights, X, y, theta, parents, arity):
    """Return -CLL and its gradient, table by table."""
    score = scores(X, weights, theta, parents, arity)
    score -= score.max(axis=1, keepdims=True)
    log_norm = np.log(np.exp(score).sum(axis=1))
    rows = np.arange(len(X))
    value = (log_norm - score[rows, y]).sum()
    residual = np.exp(score - log_norm[:, None])
    residual[rows, y] -= 1
    gradient = {}
    for name, entries in keys_of(X, parents, arity).items():
        summed = np.zeros(theta[name].shape)
        np.add.at(
            summed.T, 0 if entries is None else entries, residual.sum(0) if entries is None else residual
        )
        gradient[name] = summed * theta[name]
    return value, gradient


def unpack(flat, parents, arity, o):
    """Cut a row of numbers into tables."""
    tables, first = {}, 0
    for name, size in sizes_of(parents, arity).items():
        tables[name] = flat[first : first + o * size].reshape(o, size)
        first += o * size
    return tables


def pack(tables):
    """Put tables into one row of numbers."""
    return np.concatenate([table.ravel() for table in tables.values()])


def local_steps(flat, X, y, theta, parents, arity, o, steps):
    """Take L-BFGS-B steps from the common weights; return the client's weights and their -CLL."""

    def function(w):
        value, gradient = value_and_gradient(unpack(w, parents, arity, o), X, y, theta, parents, arity)
        return value, pack(gradient)

    result = minimize(function, flat, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return result.x, result.fun


def fold(X, y, arity, o, owner, n, rounds=10, steps=5, sets=None):
    """Run a discriminative fold; ``owner`` is the client of each row, -1 for the test rows.

    Returns the accuracy of the common weights at each client ``(rounds + 1, C)``, and the sum over parent
    sets of the clients' -CLL after their steps ``(rounds, C)``.
    """
    arity = [int(a) for a in arity]
    n_clients = int(owner.max()) + 1
    X_test, y_test = X[owner < 0], y[owner < 0]
    if sets is None:
        sets = list(combinations(range(X.shape[1]), n))
    posterior = np.zeros((rounds + 1, n_clients, len(X_test), o))
    objective = np.zeros((rounds, n_clients))
    for parents in sets:
        theta = [log_probabilities(X[owner == c], y[owner == c], parents, arity, o) for c in range(n_clients)]
        weights = np.zeros(o * sum(sizes_of(parents, arity).values()))
        for t in range(rounds + 1):
            for c in range(n_clients):
                score = scores(X_test, unpack(weights, parents, arity, o), theta[c], parents, arity)
                posterior[t, c] += softmax(score) / len(sets)
            if t == rounds:
                break
            updates = []
            for c in range(n_clients):
                own = owner == c
                w, value = local_steps(weights, X[own], y[own], theta[c], parents, arity, o, steps)
                updates.append(w)
                objective[t, c] += value
            weights = np.mean(updates, axis=0)
    accuracy = (posterior.argmax(axis=3) == y_test).mean(axis=2)
    return accuracy, objective


def main():
    """Run one fold of a data set and print its accuracy and seconds."""
    from fedande_mpi import load_dataset
    from fedande_mpi.partition import client_owners, stratified_folds

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("dataset", nargs="?", default="tic-tac-toe")
    parser.add_argument("--n", type=int, default=1)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--data-dir")
    given = parser.parse_args()
    data = load_dataset(given.dataset, data_dir=given.data_dir)
    test_fold = stratified_folds(data.y, 5, seed=1, repeat=0)
    owner = client_owners(data.y, test_fold, 0, given.clients, seed=1, repeat=0)
    begin = time.perf_counter()
    accuracy, _ = fold(data.X, data.y, data.arity, data.n_classes, owner, given.n, given.rounds)
    print(f"accuracy {accuracy[-1].mean():.6f}, {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
