"""Small random data, units of work on them, and the settings of the hypothesis tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from numpy.typing import NDArray

from fedande_mpi import ande, bundles, cll, lbfgs, local, metrics, touched
from fedande_mpi.cell import SECTIONS, Cell
from fedande_mpi.federation import UnitResult, run_unit
from fedande_mpi.planning import arrange_unit
from fedande_mpi.serial import SerialComm
from fedande_mpi.unit import Unit
from tests import reference

DIGEST = "0123456789abcdef" * 4

some = settings(max_examples=30, deadline=None, derandomize=True, database=None)
"""Examples that are the same in every run."""


class Rows(NamedTuple):
    """``X (m, d)``, -1 where missing; ``y (m,)``; ``arity (d,)``; number of classes o."""

    X: NDArray[np.int32]
    y: NDArray[np.int32]
    arity: NDArray[np.int64]
    o: int


def make(seed: int, m: int = 40, d: int = 5, o: int = 3, missing: float = 0.0) -> Rows:
    """Draw rows whose attributes depend on the class and on their neighbours; some have a single value."""
    rng = np.random.default_rng(seed)
    arity = rng.choice([1, 2, 3], d, p=[0.1, 0.45, 0.45])
    y = np.minimum(rng.geometric(0.45, m) - 1, o - 1)
    X = np.empty((m, d), dtype=np.int64)
    for j in range(d):
        noise = rng.integers(0, arity[j], m)
        signal = y + j * (X[:, j - 1] if j else 0)
        X[:, j] = np.where(rng.random(m) < 0.6, signal, noise) % arity[j]
    X[rng.random((m, d)) < missing] = -1
    return Rows(X.astype(np.int32), y.astype(np.int32), arity.astype(np.int64), o)


def missing_as_value(rows: Rows) -> Rows:
    """Give the missing cells of an attribute a value of their own, coded last."""
    absent = rows.X < 0
    X = np.where(absent, rows.arity, rows.X).astype(np.int32)
    return rows._replace(X=X, arity=rows.arity + absent.any(axis=0))


def owners(seed: int, m: int, n_clients: int, n_test: int) -> NDArray[np.int32]:
    """Hold the last rows out and deal the others at random; every client has one if there are enough."""
    owner = np.arange(m) % n_clients
    np.random.default_rng(seed).shuffle(owner[: m - n_test])
    owner[m - n_test :] = -1
    return owner.astype(np.int32)


def make_unit(rows: Rows, owner: NDArray[np.int32], **keys: Any) -> Unit:
    """Make a unit whose cell has these keys; those of the method's section are given without its name."""
    values: dict[str, Any] = {
        "dataset": "small",
        "n": 1,
        "method": "discriminative",
        "scope": "federated",
        "clients": max(1, int(owner.max()) + 1),
        **keys,
    }
    method = values["method"]
    section = {name: values.pop(name) for name in SECTIONS[method].__dataclass_fields__ if name in values}
    cell = Cell(**values, **{method: SECTIONS[method](**section)})
    return Unit(cell, rows.X, rows.y, rows.arity, rows.o, DIGEST, owner, 0, 0)


def run(unit: Unit) -> UnitResult:
    """Compute a unit in this process."""
    result = run_unit(SerialComm(), unit, arrange_unit(unit, 1))
    assert result is not None
    return result


def indexed(rows: Rows, which: NDArray[np.int64], parents: NDArray[np.int64]) -> dict[str, Any]:
    """Index rows for one parent set; ``untouched`` says that nothing was written beyond the capacity."""
    block = touched.layout(np.asarray(parents, dtype=np.int64)[None], rows.arity, rows.o)
    room = touched.capacity(block, which.size)
    width = block.children.shape[1] + 1
    guard = 8
    order = np.full(which.size + guard, 9, dtype=np.int64)
    factors = np.full(which.size * width + guard, 9, dtype=np.uint32)
    cell = np.full(room + guard, 9, dtype=np.int64)
    child = np.full(room + guard, 9, dtype=np.int64)
    # one cell more, which is written before it is known to be touched
    counts = np.full((room + 1) * rows.o + guard, 9, dtype=np.int64)
    members = np.full(bundles.member_capacity(which.size, width - 1, rows.o) + guard, 9, dtype=np.uint32)
    buffers = (order, factors, members, cell, child, counts)
    lists = bundles.index_rows(rows.X, rows.y, which, block, 0, *buffers)
    written = lists.n_joint * lists.n_members
    listed = factors[: lists.n_used * lists.length].astype(np.int64).reshape(lists.n_used, lists.length)
    cells = members[:written].astype(np.int64).reshape(lists.n_joint, -1) if lists.n_joint else None
    return {
        "block": block,
        "room": room,
        "order": order[: lists.n_used],
        "counts": counts,
        # a row's cells, whichever way they are listed
        "factors": listed if cells is None else cells[listed].reshape(lists.n_used, -1),
        "cell": cell[: lists.n_touched],
        "child": child[: lists.n_touched],
        "lists": lists,
        "untouched": all((buffer[-guard:] == 9).all() for buffer in buffers),
        "n_touched": lists.n_touched,
    }


class Setup(NamedTuple):
    """What the compiled local steps take; client c holds the next ``sizes[c]`` rows."""

    clients: local.Clients
    block: touched.Layout
    theta: local.Theta
    weights: local.Weights
    capacity: int
    max_rows: int


def setup(
    rows: Rows,
    sizes: list[int],
    sets: NDArray[np.int64],
    w: float | NDArray[np.float64] = 0.0,
    *,
    granularity: str = "parameter",
    l2: float = 0.0,
    smoothing: str = "laplace",
    pseudocount: float = 1.0,
    pooled: NDArray[np.float64] | None = None,
) -> Setup:
    """Set up a block of parent sets, with the weights ``w`` of all of them one after another."""
    block = touched.layout(sets, rows.arity, rows.o)
    width = ande.cells_per_set(sets, rows.arity, granularity) * rows.o
    start = np.cumsum(width) - width
    full = ande.cells_per_set(sets, rows.arity) * rows.o
    max_rows = max(1, *sizes)
    return Setup(
        local.Clients(rows.X, rows.y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)),
        block,
        local.theta_rule(
            rows.arity,
            block.n_states,
            rows.o,
            smoothing,
            pseudocount,
            max_rows,
            pooled,
            None if pooled is None else np.cumsum(full) - full,
        ),
        local.Weights(np.array(np.broadcast_to(w, width.sum())), start, granularity == "attribute", l2),
        touched.capacity(block, max_rows),
        max_rows,
    )


def problem(given: Setup, client: int = 0, at: int = 0) -> tuple[cll.Problem, lbfgs.State, local.Scratch]:
    """Prepare one pair, in buffers of its own; ``state.x`` holds the broadcast weights it touches."""
    o = given.block.n_classes
    scratch = local.allocate(given.capacity, given.max_rows, given.block.children.shape[1], o)
    state = lbfgs.allocate(given.capacity * o)
    made = local.prepare(given.clients, given.block, given.theta, given.weights, client, at, scratch, state.x)
    return made, state, scratch


def own_log_theta(
    rows: Rows, which: slice, parents: NDArray[np.int64], smoothing: str = "laplace", pseudocount: float = 1.0
) -> NDArray[np.float64]:
    """Return the log-probabilities of some rows, ``(n_cells, o)``."""
    counts = ande.count_tables(rows.X[which], rows.y[which], parents, rows.arity, rows.o)
    return ande.log_theta(counts, parents, rows.arity, smoothing, pseudocount)


def case(
    seed: int, n: int, granularity: str = "parameter", missing: float = 0.1, **shape: int
) -> tuple[Rows, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows, a parent set, their log-probabilities and random weights."""
    rows = make(seed, missing=missing, **shape)
    rng = np.random.default_rng(seed)
    parents = rng.choice(ande.parent_sets(5, n))
    w = rng.normal(0.5, 1.0, (ande.n_cells(parents, rows.arity, granularity), rows.o))
    return rows, parents, own_log_theta(rows, slice(None), parents), w


def assert_metrics(
    got: NDArray[np.float64], posteriors: Any, y: NDArray[np.int32], rtol: float = 1e-9
) -> None:
    """Compare metrics with the reference's; of rows that are tied but for rounding either class may win."""
    expected = reference.metrics(posteriors, y)
    ordered = np.sort(posteriors, axis=1)
    tied = int((ordered[:, -1] - ordered[:, -2] < 1e-9).sum())
    named = dict(zip(metrics.METRICS, got, strict=True))
    assert abs(named["accuracy"] - expected["accuracy"]) <= tied / y.size + 1e-15
    for name in ("cll", "brier") if tied else ("cll", "brier", "macro_f1"):
        np.testing.assert_allclose(named[name], expected[name], rtol=rtol, err_msg=name)
