"""What a client computes in a round: its counts, its theta, and local steps on its weights.

`run_pairs` does a batch of (client, parent set) pairs in one compiled call. A pair that would take longer
than a call may (`prepare`, then `lbfgs.advance` bit by bit, then `finish`) gives the same bits; so does any
other split into batches, as every pair stands alone. `scipy_steps` is the slow twin on the same objective.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedande_mpi import ande, bundles, lbfgs, touched
from fedande_mpi.cll import Problem, objective, squared_distance
from fedande_mpi.jit import compiled
from fedande_mpi.softmax import CHUNK, stride
from fedande_mpi.touched import Layout
from fedande_mpi.vectors import copy_past_caches

LARGE = 2**20
"""Numbers of a block's updates that do not stay in the caches until they are averaged."""


class Clients(NamedTuple):
    """The rows of the clients on one host, client by client.

    Attributes
    ----------
    X : (m, d) int32
        Attribute codes, -1 where missing.
    y : (m,) int32
        Class codes.
    start : (C + 1,) int64
        Client c owns rows start[c] .. start[c + 1] - 1.
    """

    X: NDArray[np.int32]
    y: NDArray[np.int32]
    start: NDArray[np.int64]


class Theta(NamedTuple):
    """Where log-probabilities come from: the client's own counts, or a pooled model.

    Attributes
    ----------
    table : (d,) int64
        Row of the look-up tables for each attribute.
    log_count, log_total : (n_distinct, max_count + 1) float64
        See `fedande_mpi.touched.log_tables`.
    pseudo_prior : float
    pseudo_parents : (B,) float64
        Pseudocounts of the prior, and of the parents table of each set of the block.
    pooled : (width,) float64
        Log-probabilities of the block's sets one after another; empty when clients use their own.
    pooled_start : (B,) int64
        Where each set begins in ``pooled``.
    """

    table: NDArray[np.int64]
    log_count: NDArray[np.float64]
    log_total: NDArray[np.float64]
    pseudo_prior: float
    pseudo_parents: NDArray[np.float64]
    pooled: NDArray[np.float64]
    pooled_start: NDArray[np.int64]


class Weights(NamedTuple):
    """The weights of a block of parent sets, and how local steps change them.

    Attributes
    ----------
    values : (width,) float64
        Weights of the block's sets one after another, as broadcast.
    start : (B,) int64
        Where each set begins in ``values``.
    per_attribute : bool
        Granularity "attribute".
    l2 : float
        Strength of the pull to ``values``.
    """

    values: NDArray[np.float64]
    start: NDArray[np.int64]
    per_attribute: bool
    l2: float


class Report(NamedTuple):
    """What is reported of every (client, set) pair: (C, B) each.

    ``objective`` is -CLL of the client's own weights after its steps, without the l2 term.
    """

    objective: NDArray[np.float64]
    iterations: NDArray[np.int64]
    evaluations: NDArray[np.int64]
    stop_reason: NDArray[np.int64]


def empty_report(n_clients: int, n_sets: int) -> Report:
    """Return a report of shape (C, B) to be filled."""
    shape = (n_clients, n_sets)
    counts = [np.zeros(shape, dtype=np.int64) for _ in range(3)]
    return Report(np.zeros(shape), counts[0], counts[1], counts[2])


class Scratch(NamedTuple):
    """Buffers for one pair at a time; see `Problem` and `index_rows` for what they hold."""

    order: NDArray[np.int64]
    factors: NDArray[np.uint32]
    labels: NDArray[np.int32]
    cell: NDArray[np.int64]
    child: NDArray[np.int64]
    counts: NDArray[np.int64]
    log_theta: NDArray[np.float64]
    cell_group: NDArray[np.int64]
    group_cell: NDArray[np.int64]
    centre: NDArray[np.float64]
    u: NDArray[np.float64]
    z: NDArray[np.float64]
    residuals: NDArray[np.float64]
    members: NDArray[np.uint32]
    joint_u: NDArray[np.float64]
    joint_residuals: NDArray[np.float64]


def theta_rule(
    arity: NDArray[np.integer],
    n_states: NDArray[np.integer],
    n_classes: int,
    smoothing: str,
    pseudocount: float,
    max_count: int,
    pooled: NDArray[np.float64] | None = None,
    pooled_start: NDArray[np.int64] | None = None,
) -> Theta:
    """Gather what the compiled loops need to smooth counts, or the pooled log-probabilities."""
    table, log_count, log_total = touched.log_tables(arity, smoothing, pseudocount, max_count)
    parents = [ande.pseudocounts(smoothing, pseudocount, int(q)) for q in n_states]
    return Theta(
        table,
        log_count,
        log_total,
        ande.pseudocounts(smoothing, pseudocount, n_classes),
        np.array(parents, dtype=np.float64),
        np.zeros(0) if pooled is None else pooled,
        np.zeros(len(parents), dtype=np.int64) if pooled_start is None else pooled_start,
    )


@compiled
def allocate(capacity: int, max_rows: int, n_children: int, o: int) -> Scratch:
    """Return buffers for pairs of at most `max_rows` rows and `capacity` touched cells."""
    cells = capacity + 1
    joint_cells = bundles.joint_capacity(max_rows, n_children, o) + 1
    return Scratch(
        np.empty(max_rows, dtype=np.int64),
        np.empty(max_rows * (n_children + 1), dtype=np.uint32),
        np.empty(max_rows, dtype=np.int32),
        np.empty(cells, dtype=np.int64),
        np.empty(cells, dtype=np.int64),
        np.empty(cells * o, dtype=np.int64),
        np.empty(cells * o),
        np.empty(cells, dtype=np.int64),
        np.empty(cells, dtype=np.int64),
        np.empty(cells * o),
        np.empty(cells * stride(o)),
        np.empty(CHUNK * (stride(o) + 2)),
        np.empty(4 * cells if o == 2 else cells * stride(o)),
        np.empty(bundles.member_capacity(max_rows, n_children, o), dtype=np.uint32),
        np.empty(joint_cells * stride(o)),
        np.empty(4 * joint_cells if o == 2 else joint_cells * stride(o)),
    )


@compiled
def prepare(
    clients: Clients,
    block: Layout,
    theta: Theta,
    weights: Weights,
    client: int,
    at: int,
    scratch: Scratch,
    x: NDArray[np.float64],
) -> Problem:
    """Set up one pair in the buffers, with the broadcast weights of its touched cells in ``x``."""
    s = scratch
    o = block.n_classes
    children = block.children[at]
    n_children = children.size
    n_states, n_values = block.n_states[at], block.n_values[at]
    first = clients.start[client]
    rows = np.empty(clients.start[client + 1] - first, dtype=np.int64)
    for r in range(rows.size):
        rows[r] = first + r
    lists = bundles.index_rows(
        clients.X, clients.y, rows, block, at, s.order, s.factors, s.members, s.cell, s.child, s.counts
    )
    n_used, n_touched = lists.n_used, lists.n_touched
    for r in range(n_used):
        s.labels[r] = clients.y[s.order[r]]
    if theta.pooled.size > 0:
        start = theta.pooled_start[at]
        for c in range(n_touched):
            for k in range(o):
                s.log_theta[c * o + k] = theta.pooled[start + s.cell[c] * o + k]
    else:
        touched.log_theta_touched(
            s.counts,
            s.child,
            n_touched,
            o,
            n_states,
            children,
            theta.table,
            theta.pseudo_prior,
            theta.pseudo_parents[at],
            theta.log_count,
            theta.log_total,
            s.log_theta,
        )
    n = block.parents.shape[1]
    n_groups = _group(s, n, n_children, n_states, n_values, n_touched, weights.per_attribute)
    start = weights.start[at]
    for g in range(n_groups):
        for k in range(o):
            value = weights.values[start + s.group_cell[g] * o + k]
            x[g * o + k] = value
            s.centre[g * o + k] = value
    return Problem(
        s.factors,
        s.labels,
        n_used,
        lists.length,
        s.child,
        s.cell_group,
        n_touched,
        n_groups,
        o,
        s.log_theta,
        s.centre,
        weights.l2,
        s.u,
        s.z,
        s.residuals,
        s.members,
        lists.n_members,
        lists.n_joint,
        s.joint_u,
        s.joint_residuals,
    )


@compiled
def _group(
    s: Scratch, n: int, n_children: int, n_states: int, n_values: int, n_touched: int, per_attribute: bool
) -> int:
    """Give a number to every group of cells that share a weight; return how many there are."""
    if not per_attribute:
        for c in range(n_touched):
            s.cell_group[c] = c
            s.group_cell[c] = s.cell[c]
        return n_touched
    first_cell = 1 + n_states if n > 0 else 1
    first_group = 2 if n > 0 else 1
    s.cell_group[0] = 0
    s.group_cell[0] = 0
    groups = 1
    if n > 0:
        s.group_cell[1] = 1
        groups = 2
    for c in range(1, n_touched):
        j = s.child[c]
        if j == -2:
            s.cell_group[c] = 1
            continue
        if s.child[c - 1] != j:
            state = (s.cell[c] - first_cell) // n_values
            s.group_cell[groups] = first_group + state * n_children + j
            groups += 1
        s.cell_group[c] = groups - 1
    return groups


@compiled
def finish(
    problem: Problem,
    state: lbfgs.State,
    weights: Weights,
    client: int,
    at: int,
    end: int,
    scratch: Scratch,
    updates: NDArray[np.float64],
    report: Report,
) -> None:
    """Write a pair's weights into its part of the client's row of ``updates`` and report it."""
    o = problem.o
    start = weights.start[at]
    if updates.size > LARGE:
        copy_past_caches(weights.values, start, end - start, updates, client * updates.shape[1] + start)
    else:
        for i in range(start, end):
            updates[client, i] = weights.values[i]
    for g in range(problem.n_groups):
        for k in range(o):
            updates[client, start + scratch.group_cell[g] * o + k] = state.x[g * o + k]
    value = state.value[0]
    if problem.l2 > 0.0:
        value -= 0.5 * problem.l2 * squared_distance(problem, state.x)
    report.objective[client, at] = value
    report.iterations[client, at] = state.counters[lbfgs.ITERATIONS]
    report.evaluations[client, at] = state.counters[lbfgs.EVALUATIONS]
    report.stop_reason[client, at] = state.counters[lbfgs.STATUS]


@compiled
def run_pairs(
    clients: Clients,
    block: Layout,
    theta: Theta,
    weights: Weights,
    pair_client: NDArray[np.int64],
    pair_set: NDArray[np.int64],
    max_iterations: int,
    capacity: int,
    max_rows: int,
    updates: NDArray[np.float64],
    report: Report,
) -> None:
    """Do local steps for a batch of pairs.

    Parameters
    ----------
    clients, block, theta, weights
        The host's rows, the block of parent sets, and the state of the round.
    pair_client, pair_set : (k,) int64
        The pairs, by position on the host and in the block.
    max_iterations : int
        L.
    capacity, max_rows : int
        Size of the buffers: `touched.capacity` for the largest client, and its rows.
    updates : (C, width) float64, out
        Each client's row of weights.
    report : Report, out
    """
    scratch = allocate(capacity, max_rows, block.children.shape[1], block.n_classes)
    state = lbfgs.allocate(capacity * block.n_classes)
    n_sets = block.n_states.size
    for i in range(pair_client.size):
        client, at = pair_client[i], pair_set[i]
        end = weights.start[at + 1] if at + 1 < n_sets else weights.values.size
        problem = prepare(clients, block, theta, weights, client, at, scratch, state.x)
        lbfgs.begin(state)
        lbfgs.advance(problem, state, max_iterations, max_iterations)
        finish(problem, state, weights, client, at, end, scratch, updates, report)


@compiled
def count_pairs(
    clients: Clients,
    block: Layout,
    pair_client: NDArray[np.int64],
    pair_set: NDArray[np.int64],
    start: NDArray[np.int64],
    rows: NDArray[np.float64],
) -> None:
    """Count the tables of a batch of pairs into the clients' rows.

    Parameters
    ----------
    clients, block
        The host's rows and the block of parent sets.
    pair_client, pair_set : (k,) int64
        The pairs, by position on the host and in the block.
    start : (B,) int64
        Where each set's cells begin in a row.
    rows : (C, width) float64, out
        Zero where nothing was counted yet; `ande.count_tables` of every pair is added.
    """
    o = block.n_classes
    n_children = block.children.shape[1]
    for i in range(pair_client.size):
        client, at = pair_client[i], pair_set[i]
        parents, children, offsets = block.parents[at], block.children[at], block.offsets[at]
        first = start[at] + o * (1 + block.n_states[at] if parents.size > 0 else 1)
        for r in range(clients.start[client], clients.start[client + 1]):
            label = clients.y[r]
            rows[client, start[at] + label] += 1.0
            state = touched.parent_state(clients.X, r, parents, block.arity)
            if state < 0:
                continue
            if parents.size > 0:
                rows[client, start[at] + (1 + state) * o + label] += 1.0
            base = first + state * block.n_values[at] * o + label
            for j in range(n_children):
                value = clients.X[r, children[j]]
                if value >= 0:
                    rows[client, base + (offsets[j] + value) * o] += 1.0


def scipy_steps(problem: Problem, state: lbfgs.State, max_iterations: int) -> None:
    """Minimise with ``scipy.optimize`` from ``state.x``, leaving the result in ``state``."""
    from scipy.optimize import minimize

    size = problem.n_groups * problem.o
    g = np.empty(size)

    def value_and_gradient(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        return objective(problem, w, g), g.copy()

    result = minimize(
        value_and_gradient,
        state.x[:size].copy(),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": max_iterations,
            "maxfun": 10**9,
            "maxcor": lbfgs.MEMORY,
            "ftol": lbfgs.FTOL,
            "gtol": lbfgs.GTOL,
            "maxls": lbfgs.MAX_LINE_SEARCH,
        },
    )
    state.x[:size] = result.x
    state.value[0] = result.fun
    state.counters[lbfgs.ITERATIONS] = result.nit
    state.counters[lbfgs.EVALUATIONS] = result.nfev
    if result.status == 1:
        reason = lbfgs.STEP_LIMIT
    elif result.status == 2:
        reason = lbfgs.SEARCH_FAILED
    elif "GRADIENT" in str(result.message).upper():
        reason = lbfgs.GRADIENT_SMALL
    else:
        reason = lbfgs.OBJECTIVE_FLAT
    state.counters[lbfgs.STATUS] = reason
