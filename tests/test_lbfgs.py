"""The compiled L-BFGS against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest

from fedande_mpi import ande, lbfgs, local
from tests.small_data import make, problem, setup

CASES = [(seed, seed % 4, (2, 3, 5)[seed % 3]) for seed in range(12)]


def pair(seed, n, o, w, l2=0.0):
    """Set up the same random problem twice."""
    rows = make(seed, m=20 + 7 * seed, d=5, o=o, missing=0.05 * (seed % 2))
    parents = np.random.default_rng(seed).choice(ande.parent_sets(5, n))
    given = setup(rows, [rows.y.size], parents[None], w, l2=l2)
    return problem(given), problem(given)


def steps(made, state, limit):
    lbfgs.begin(state)
    lbfgs.advance(made, state, limit, limit)


@pytest.mark.parametrize("w", [0.0, 1.0, 20.0, -3.0])
@pytest.mark.parametrize(("seed", "n", "o"), CASES)
def test_iterates_and_counts_are_scipys(seed, n, o, w):
    for limit in (1, 2, 5, 8):
        (made, state, _), (twin, expected, _) = pair(seed, n, o, w)
        steps(made, state, limit)
        local.scipy_steps(twin, expected, limit)
        assert state.counters[:2].tolist() == expected.counters[:2].tolist()
        assert state.counters[lbfgs.STATUS] == expected.counters[lbfgs.STATUS]
        size = made.n_groups * made.o
        np.testing.assert_allclose(state.x[:size], expected.x[:size], rtol=1e-9, atol=1e-9)
        assert state.value[0] == pytest.approx(expected.value[0], rel=1e-11)


def test_the_cases_go_through_the_line_search():
    tried = 0
    for seed, n, o in CASES:
        (made, state, _), _ = pair(seed, n, o, 20.0)
        steps(made, state, 8)
        tried += state.counters[lbfgs.EVALUATIONS] - state.counters[lbfgs.ITERATIONS] - 1
    assert tried > len(CASES)


@pytest.mark.parametrize(("seed", "n", "o"), CASES)
def test_converged_objective_is_scipys(seed, n, o):
    (made, state, _), (twin, expected, _) = pair(seed, n, o, 0.0)
    steps(made, state, 15_000)
    local.scipy_steps(twin, expected, 15_000)
    assert state.counters[lbfgs.STATUS] in (lbfgs.GRADIENT_SMALL, lbfgs.OBJECTIVE_FLAT)
    assert state.value[0] == pytest.approx(expected.value[0], rel=1e-4, abs=1e-3)


@pytest.mark.parametrize(("seed", "n", "o"), CASES[:6])
def test_regularised_minimum_is_scipys(seed, n, o):
    (made, state, _), (twin, expected, _) = pair(seed, n, o, 0.0, l2=0.1)
    steps(made, state, 15_000)
    local.scipy_steps(twin, expected, 15_000)
    size = made.n_groups * made.o
    assert state.value[0] == pytest.approx(expected.value[0], rel=1e-8)
    np.testing.assert_allclose(state.x[:size], expected.x[:size], atol=1e-2)


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_bit_by_bit_is_in_one_go(stride):
    (made, state, _), (again, other, _) = pair(5, 1, 5, 0.0)
    steps(made, state, 60)
    lbfgs.begin(other)
    while other.counters[lbfgs.STATUS] == lbfgs.RUNNING:
        lbfgs.advance(again, other, 60, int(other.counters[lbfgs.ITERATIONS]) + stride)
    size = made.n_groups * made.o
    assert state.counters.tolist() == other.counters.tolist()
    assert state.counters[lbfgs.ITERATIONS] > 2 * lbfgs.MEMORY
    assert state.x[:size].tobytes() == other.x[:size].tobytes()
    assert state.value[0] == other.value[0]


def test_a_finished_minimisation_stays_where_it_is():
    (made, state, _), _ = pair(3, 1, 2, 0.0)
    steps(made, state, 4)
    before = state.x.copy()
    lbfgs.advance(made, state, 100, 100)
    assert state.counters[lbfgs.STATUS] == lbfgs.STEP_LIMIT
    size = made.n_groups * made.o
    np.testing.assert_array_equal(state.x[:size], before[:size])


def test_no_step_from_a_minimum():
    # without rows the objective is 0 everywhere
    rows = make(1, m=0)
    made, state, _ = problem(setup(rows, [0], np.array([[1]]), 0.7))
    steps(made, state, 5)
    assert state.counters[lbfgs.STATUS] == lbfgs.GRADIENT_SMALL
    assert state.counters[[lbfgs.ITERATIONS, lbfgs.EVALUATIONS]].tolist() == [0, 1]
    assert state.value[0] == 0.0
    assert state.x[0] == 0.7


def test_objective_never_rises():
    (made, state, _), _ = pair(8, 0, 5, 20.0)
    lbfgs.begin(state)
    values = [np.inf]
    for until in range(1, 30):
        lbfgs.advance(made, state, 100, until)
        values.append(state.value[0])
    assert (np.diff(values) <= 0).all()
    assert values[-1] < 0.5 * values[0]
