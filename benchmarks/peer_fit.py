"""One centralised fit in a process of its own: `python peer_fit.py ours|theirs DATA.npz N WHAT`.

Runs under any Python that has the program in question; prints JSON. WHAT: `generative`, or a weighted model
(`weighted`; of scikit-bayes `together` or `modular`).
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np

STEPS = 10


def peak_mib():
    """Return the peak of this process since `reset_peak` (Linux; elsewhere since it began)."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) / 2**10 for line in file if line.startswith("VmHWM:"))
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def reset_peak():
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
    return peak_mib()


def generative(model, X, y, held_out):
    """Fit and predict; the model is made and its package loaded."""
    before = reset_peak()  # what is resident now, where the system can tell
    begin = time.process_time()
    model.fit(X[~held_out], y[~held_out])
    predicted = model.predict(X[held_out])
    return {
        "seconds": time.process_time() - begin,
        "accuracy": float(np.mean(predicted == y[held_out])),
        "peak_mib": peak_mib(),
        "fit_mib": peak_mib() - before,
    }


def ours(X, y, held_out, n, what):
    from fedande_mpi import AnDEClassifier

    if what == "generative":
        small = slice(0, 50)
        AnDEClassifier(n=1, combine="joint").fit(X[small], y[small]).predict(X[small])  # loads machine code
        return generative(AnDEClassifier(n=n, combine="joint"), X, y, held_out)
    from kernels import prepare_pairs

    from fedande_mpi import ande, local, touched

    X, y = np.ascontiguousarray(X[~held_out]), np.ascontiguousarray(y[~held_out])
    arity, o = X.max(axis=0).astype(np.int64) + 1, int(y.max()) + 1
    layout = touched.layout(ande.parent_sets(X.shape[1], n), arity, o)
    sizes = ande.cells_per_set(layout.parents, arity) * o
    weights = local.Weights(np.ones(int(sizes.sum())), np.cumsum(sizes) - sizes, False, 0.0)
    theta = local.theta_rule(arity, layout.n_states, o, "laplace", 1.0, y.size)
    clients = local.Clients(X, y, np.array([0, y.size], dtype=np.int64))
    report = local.empty_report(1, sizes.size)
    sets = np.arange(sizes.size)
    updates = np.empty((1, weights.values.size))
    capacity = touched.capacity(layout, y.size)
    pairs = (np.zeros_like(sets), sets)
    head = (clients, layout, theta, weights)
    scratch = local.allocate(capacity, y.size, layout.children.shape[1], o)
    x = np.empty(capacity * o)
    g = np.empty(capacity * o)

    def fit(pairs):
        local.run_pairs(*head, *pairs, STEPS, capacity, y.size, updates, report)

    def prepare(pairs):
        prepare_pairs(*head, *pairs, scratch, x, g, np.zeros_like(pairs[0]))

    seconds = []
    for work in (fit, prepare):
        work((pairs[0][:1], pairs[1][:1]))  # loads machine code
        begin = time.process_time()
        work(pairs)
        seconds.append(time.process_time() - begin)
    # as theirs: without what comes before the optimiser (counts, probabilities, the index of rows), and each
    # parent set's evaluations counted once
    evaluations = report.evaluations.sum() / sizes.size
    return {"per_evaluation": (seconds[0] - seconds[1]) / evaluations, "seconds": seconds[0]}


def theirs(X, y, held_out, n, what):
    from skbn import ande

    X = X.astype(np.float64)
    columns = list(range(X.shape[1]))
    if what == "generative":
        ande.AnDE(n_dependence=1, categorical_features=columns).fit(X[:50], y[:50]).predict(X[:50])
        return generative(ande.AnDE(n_dependence=n, categorical_features=columns), X, y, held_out)
    spent = {"seconds": 0.0, "evaluations": 0, "solves": 0}
    minimize = ande.minimize

    def counted(*arguments, **keys):
        begin = time.process_time()
        result = minimize(*arguments, **keys)
        spent["seconds"] += time.process_time() - begin
        spent["evaluations"] += result.nfev
        spent["solves"] += 1
        return result

    ande.minimize = counted
    modular = what == "modular"
    model = ande.WeightedAnDE(
        n_dependence=n, weight_level=4, modular=modular, max_iter=STEPS, categorical_features=columns
    )
    begin = time.process_time()
    model.fit(X[~held_out], y[~held_out])
    seconds = time.process_time() - begin
    # seconds of the optimiser alone, their generative fit not counted
    return {"per_evaluation": spent["seconds"] / (spent["evaluations"] / spent["solves"]), "seconds": seconds}


def main():
    who, path, n, what = sys.argv[1:]
    with np.load(path) as data:
        X, y, held_out = data["X"], data["y"], data["held_out"]
    print(json.dumps({"ours": ours, "theirs": theirs}[who](X, y, held_out, int(n), what)))


if __name__ == "__main__":
    main()
