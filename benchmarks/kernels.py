"""The compiled loops alone: the objective against yardsticks, local solves against SciPy's optimiser."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
from measure import Section, Setting, dataset, interleaved, median_ratio, timed
from scipy import sparse

from fedande_mpi import cll, lbfgs, local, softmax, touched
from fedande_mpi.cell import Cell, Discriminative
from fedande_mpi.host import Host
from fedande_mpi.jobs import make_unit
from fedande_mpi.planning import arrange_unit
from fedande_mpi.unit import Where

compiled = numba.njit(error_model="numpy", fastmath={"contract"})


class Work(NamedTuple):
    """Pairs of clients and parent sets, ready for the compiled loops."""

    host: Host
    layout: touched.Layout
    theta: local.Theta
    weights: local.Weights
    pair_client: Any
    pair_set: Any
    capacity: int

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.layout.n_classes)


def work(data: Any, n: int, clients: int, pairs: int, w: float = 0.0) -> Work:
    """Take at most `pairs` pairs, spread evenly, of the first fold; every weight is about `w`."""
    cell = Cell(
        dataset=data.name,
        n=n,
        method="discriminative",
        scope="federated",
        clients=clients,
        discriminative=Discriminative(),
    )
    unit, _ = make_unit(cell, data, 0, 0)
    host = Host(unit, arrange_unit(unit, 1), 0, 0, Where(0))
    n_sets = max(1, min(len(unit.sets), pairs // min(clients, 5)))
    which = np.unique(np.linspace(0, len(unit.sets) - 1, n_sets).astype(int))
    sets = unit.sets[which]
    layout = touched.layout(sets, unit.arity, unit.n_classes)
    theta = local.theta_rule(
        unit.arity, layout.n_states, unit.n_classes, cell.smoothing, cell.pseudocount, host.max_rows
    )
    bounds = unit.bounds(sets, "parameter")
    values = np.full(int(bounds[-1]), w)
    if w:
        values *= np.random.default_rng(1).uniform(0.5, 1.5, values.size)
    chosen = np.unique(np.linspace(0, clients * which.size - 1, pairs).astype(np.int64))
    return Work(
        host,
        layout,
        theta,
        local.Weights(values, bounds[:-1], False, 0.0),
        np.ascontiguousarray(chosen // which.size),
        np.ascontiguousarray(chosen % which.size),
        touched.capacity(layout, host.max_rows),
    )


def problem_of(given: Work, pair: int = 0) -> tuple[cll.Problem, Any]:
    """Prepare one pair, in buffers of its own."""
    scratch = local.allocate(
        given.capacity, given.host.max_rows, given.layout.children.shape[1], given.n_classes
    )
    x = np.empty(given.capacity * given.n_classes)
    client, at = given.pair_client[pair], given.pair_set[pair]
    made = local.prepare(given.host.clients, given.layout, given.theta, given.weights, client, at, scratch, x)
    return made, x


# ------------------------------------------------------------------------------- one objective


@compiled
def objectives(problem, w, g, times):
    total = 0.0
    for _ in range(times):
        total += cll.objective(problem, w, g)
    return total


@compiled
def forwards(problem, w, times):
    p = problem
    lanes = softmax.stride(p.o)
    last = p.z[softmax.CHUNK * lanes :]
    u = p.joint_u if p.n_joint > 0 else p.u
    total = 0.0
    for _ in range(times):
        cll.differences(w, p.log_theta, p.child, p.cell_group, p.n_touched, p.o, p.u)
        if p.n_joint > 0:
            cll.forward(p.members, 0, p.n_joint, p.n_members, p.o, p.u, u)
        for first in range(0, p.n_rows, softmax.CHUNK):
            n = min(softmax.CHUNK, p.n_rows - first)
            cll.forward(p.factors, first, n, p.width, p.o, u, p.z)
            total += softmax.softmax(n, p.o, p.z, last)
    return total


@compiled
def triad(a, b, c, s, times):
    for _ in range(times):
        for i in range(a.size):
            a[i] = b[i] + s * c[i]


@compiled
def plain_loop(factors, width, h, u, r, z, times):
    """Gather and scatter as one would write it: no softmax, no blocks, no interleaving."""
    n = factors.size // width
    for _ in range(times):
        r[:] = 0.0
        for i in range(n):
            z[:] = 0.0
            for f in range(width):
                at = factors[i * width + f] * h
                for k in range(h):
                    z[k] += u[at + k]
            for f in range(width):
                at = factors[i * width + f] * h
                for k in range(h):
                    r[at + k] += z[k]


def cells_of(problem: cll.Problem, width: int) -> Any:
    """Return the cells of every row, ``(n_rows, width)``, however it lists them."""
    p = problem
    lists = p.factors[: p.n_rows * p.width].reshape(p.n_rows, p.width)
    if p.n_joint:
        members = p.members[: p.n_joint * p.n_members].reshape(p.n_joint, p.n_members)
        # what stands for none is larger than any cell
        lists = np.sort(members[lists].reshape(p.n_rows, -1), axis=1)[:, :width]
    return np.ascontiguousarray(lists)


def aligned(size):
    """Return ones that begin at a cache line, which the triad's speed hangs on."""
    room = np.ones(size + 8)
    skip = (-room.ctypes.data % 64) // 8
    return room[skip : skip + size]


class Sparse:
    """The same objective with ``scipy.sparse``: rows x cells, a one for every factor that a row uses."""

    def __init__(self, problem: cll.Problem, cells: Any) -> None:
        p = problem
        indices = cells.ravel().astype(np.int32)
        rows = np.arange(0, cells.size + 1, cells.shape[1], dtype=np.int32)
        size = cells.size
        shape = (p.n_rows, p.n_touched + 1)
        self.A = sparse.csr_matrix((np.ones(size), indices, rows), shape=shape)
        self.At = self.A.T.tocsr()
        self.n, self.o = p.n_touched, p.o
        self.log_theta = p.log_theta[: self.n * self.o].reshape(-1, self.o).copy()
        self.y = p.labels[: p.n_rows]
        self.rows = np.arange(p.n_rows)

    def objective(self, w: Any) -> tuple[float, Any]:
        """Return -CLL and its gradient; the prior, which all rows use, is added apart."""
        product = w.reshape(-1, self.o) * self.log_theta
        score = self.A[:, : self.n] @ product + product[0]
        score -= score.max(axis=1, keepdims=True)
        e = np.exp(score)
        total = e.sum(axis=1)
        value = float(np.sum(np.log(total) - score[self.rows, self.y]))
        e /= total[:, None]
        e[self.rows, self.y] -= 1.0
        g = (self.At @ e)[: self.n]
        g[0] += e.sum(axis=0)
        return value, (g * self.log_theta).ravel()


KERNEL_GOALS = {  # objective, forward: ns per row x attribute x (o - 1)
    "phishing-websites": (2.2, 0.8),
    "splice": (2.2, 0.8),
    "kr-vs-kp": (2.2, 0.8),
    "nursery": (3.0, 1.5),
    "kr-vs-k": (3.0, 1.5),
}


def kernel(setting: Setting) -> Section:
    """Nanoseconds of the objective and of its forward half."""
    section = Section(
        "The kernel",
        "One SPnDE's -CLL with its gradient, and the forward half alone (scores and their softmax), in ns per row "
        "x attribute x (o - 1); n = 1, the first of 5 clients, median over parent sets of medians. Beside it, in the "
        "same process: an in-cache triad a = b + s c (ns per element), gather and scatter in a plain compiled "
        "loop without the softmax, and the same objective with `scipy.sparse` products.",
    )
    a, b, c = (aligned(1500) for _ in range(3))
    triad(a, b, c, 0.5, 1)
    for name, goals in KERNEL_GOALS.items():
        data = dataset(setting, name)
        sets = 3 if setting.quick else 6
        given = work(data, 1, 5, 5 * sets, w=0.7)
        taken: dict[str, list[float]] = {}
        ratios: dict[str, list[float]] = {"triad": [], "sparse": []}
        for pair in range(0, sets):
            p, x = problem_of(given, pair)
            size = p.n_groups * p.o
            w, g = x[:size].copy(), np.empty(size)
            h = p.o - 1
            width = given.layout.children.shape[1] + 1
            unit = p.n_rows * width * h
            times = 1 if setting.quick else max(1, int(2e7 / (unit * 2.0)))
            cells = cells_of(p, width)
            other = Sparse(p, cells)
            value, gradient = other.objective(w)
            assert abs(value - cll.objective(p, w, g)) < 1e-9 * abs(value)
            np.testing.assert_allclose(gradient, g, atol=1e-8 * max(1.0, abs(g).max()))
            u, r, z = np.ones((p.n_touched + 1) * h), np.zeros((p.n_touched + 1) * h), np.zeros(h)
            factors = cells.ravel()
            calls = {
                "objective": partial(objectives, p, w, g, times),
                "forward": partial(forwards, p, w, times),
                "triad": partial(triad, a, b, c, 0.5, max(1, times * unit // 1500)),
                "plain loop": partial(plain_loop, factors, width, h, u, r, z, times),
                "scipy.sparse": partial(_sparse_times, other, w, max(1, times // 4)),
            }
            if pair == 0:
                for function in calls.values():
                    function()
            seconds = interleaved(calls, setting.repeats)
            per = dict.fromkeys(calls, times * unit)
            per["triad"] = max(1, times * unit // 1500) * 1500
            per["scipy.sparse"] = max(1, times // 4) * unit
            ns = {key: [1e9 * s / per[key] for s in runs] for key, runs in seconds.items()}
            for key, runs in ns.items():
                taken.setdefault(key, []).append(statistics.median(runs))
            ratios["triad"].append(median_ratio(ns["objective"], ns["triad"]))
            ratios["sparse"].append(median_ratio(ns["scipy.sparse"], ns["objective"]))
        found = {key: statistics.median(runs) for key, runs in taken.items()}
        section.rows.append(
            {"data": data.name, "d": data.n_attributes, "o": data.n_classes}
            | {f"{key} ns": value for key, value in found.items()}
            | {
                "objective : triad": statistics.median(ratios["triad"]),
                "sparse : objective": statistics.median(ratios["sparse"]),
            }
        )
        section.goal(f"{name} objective, ns", found["objective"], most=goals[0])
        section.goal(f"{name} forward, ns", found["forward"], most=goals[1])
    return section


def _sparse_times(other: Sparse, w: Any, times: int) -> None:
    for _ in range(times):
        other.objective(w)


# ---------------------------------------------------------------------------------- local solves


@compiled
def prepare_pairs(clients, layout, theta, weights, pair_client, pair_set, scratch, x, g, times):
    """Prepare pairs and evaluate each objective so many times: local steps without an optimiser."""
    total = 0.0
    for i in range(pair_client.size):
        problem = local.prepare(clients, layout, theta, weights, pair_client[i], pair_set[i], scratch, x)
        for _ in range(times[i]):
            total += cll.objective(problem, x, g)
    return total


def with_compiled(given: Work, steps: int, updates: Any, report: local.Report) -> None:
    """Take local steps as a host does."""
    local.run_pairs(
        given.host.clients,
        given.layout,
        given.theta,
        given.weights,
        given.pair_client,
        given.pair_set,
        steps,
        given.capacity,
        given.host.max_rows,
        updates,
        report,
    )


def with_scipy(given: Work, steps: int, updates: Any, report: local.Report) -> None:
    """Take the same steps with scipy.optimize on the same compiled objective."""
    o, children = given.n_classes, given.layout.children.shape[1]
    scratch = local.allocate(given.capacity, given.host.max_rows, children, o)
    state = lbfgs.allocate(given.capacity * o)
    ends = [*given.weights.start[1:], given.weights.values.size]
    for client, at in zip(given.pair_client, given.pair_set, strict=True):
        problem = local.prepare(
            given.host.clients, given.layout, given.theta, given.weights, client, at, scratch, state.x
        )
        local.scipy_steps(problem, state, steps)
        local.finish(problem, state, given.weights, client, at, ends[at], scratch, updates, report)


def solves(setting: Setting) -> Section:
    """Compiled against SciPy-driven local steps, and what the optimiser costs beside the objective."""
    pairs = 20 if setting.quick else 200
    section = Section(
        "Local solves",
        "L = 5 steps from w = 0, n = 2, the same compiled objective under the compiled optimiser and under "
        f"`scipy.optimize.minimize(L-BFGS-B)`; up to {pairs} (client, parent set) pairs of the first fold, "
        "spread evenly. 'outside' is the compiled optimiser's time beyond preparing the pair and evaluating its "
        "objective as often, as a share of the objective's time; 'preparing' is indexing rows, counting and "
        "theta, as a share of the whole.",
    )
    aims = {5: 1.5, 20: 2.5, 100: 4.0}
    for name in ("nursery", "kr-vs-k", "kr-vs-kp"):
        data = dataset(setting, name)
        for clients, aim in aims.items():
            given = work(data, 2, min(clients, data.n_instances // 4), pairs)
            n_clients, n_sets = given.host.clients.start.size - 1, given.layout.n_states.size
            updates = np.empty((n_clients, given.weights.values.size))
            report = local.empty_report(n_clients, n_sets)
            twin_updates, twin = updates.copy(), local.empty_report(n_clients, n_sets)
            with_compiled(given, 5, updates, report)
            with_scipy(given, 5, twin_updates, twin)
            evaluations = report.evaluations[given.pair_client, given.pair_set]
            same = evaluations == twin.evaluations[given.pair_client, given.pair_set]
            scratch = local.allocate(
                given.capacity, given.host.max_rows, given.layout.children.shape[1], given.n_classes
            )
            x, g = (np.empty(given.capacity * given.n_classes) for _ in range(2))
            bare = (
                given.host.clients,
                given.layout,
                given.theta,
                given.weights,
                given.pair_client,
                given.pair_set,
            )
            calls = {
                "compiled": partial(with_compiled, given, 5, updates, report),
                "scipy": partial(with_scipy, given, 5, twin_updates, twin),
                "prepare": partial(prepare_pairs, *bare, scratch, x, g, np.zeros_like(evaluations)),
                "objective": partial(prepare_pairs, *bare, scratch, x, g, evaluations),
            }
            timed(calls["prepare"])
            seconds = interleaved(calls, setting.repeats)
            ratio = median_ratio(seconds["scipy"], seconds["compiled"])
            kernel_time = [a - b for a, b in zip(seconds["objective"], seconds["prepare"], strict=True)]
            outside = [a - b for a, b in zip(seconds["compiled"], seconds["objective"], strict=True)]
            share = statistics.median(a / b for a, b in zip(outside, kernel_time, strict=True))
            section.rows.append(
                {
                    "data": data.name,
                    "C": clients,
                    "pairs": given.pair_client.size,
                    "us per solve": 1e6 * statistics.median(seconds["compiled"]) / given.pair_client.size,
                    "SciPy us": 1e6 * statistics.median(seconds["scipy"]) / given.pair_client.size,
                    "SciPy : compiled": ratio,
                    "outside : objective": share,
                    "preparing": median_ratio(seconds["prepare"], seconds["compiled"]),
                    "same evaluations": f"{same.mean():.0%}",
                }
            )
            section.goal(f"{name} C = {clients}, SciPy-driven : compiled", ratio, least=aim)
            if clients < 100:
                section.goal(f"{name} C = {clients}, optimiser outside the objective", share, most=0.35)
    return section
