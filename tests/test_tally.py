"""Sums of what is reported of local steps."""

from __future__ import annotations

from math import fsum

import numpy as np
import pytest

from fedande_mpi import tally
from fedande_mpi.local import Report


def report(terms, seed=0):
    """A report of one client per row of terms."""
    chance = np.random.default_rng(seed)
    counts = [chance.integers(0, 9, np.shape(terms)) for _ in range(3)]
    return Report(np.asarray(terms, dtype=np.float64), *counts)


def tallied(*reports):
    whole = tally.empty(1, len(reports[0].objective))[0]
    for one in reports:
        tally.add(whole, one)
    return whole


def test_the_objective_is_the_exact_sum_rounded_once():
    terms = np.random.default_rng(1).lognormal(3.0, 4.0, (3, 400))
    np.testing.assert_array_equal(tally.objective(tallied(report(terms))), [fsum(row) for row in terms])


def test_neither_order_nor_grouping_changes_a_bit():
    terms = np.random.default_rng(2).lognormal(0.0, 9.0, (2, 50))
    order = np.random.default_rng(3).permutation(50)
    whole = report(terms)
    parts = [Report(*(values[:, order[i : i + 7]] for values in whole)) for i in range(0, 50, 7)]
    joined = tallied(*parts[:3])
    tally.join(joined, tallied(*parts[3:]))
    np.testing.assert_array_equal(joined, tallied(whole))


def test_counts_are_added_and_the_largest_reason_to_stop_is_kept():
    one = report(np.ones((2, 4)))
    whole = tallied(one)
    np.testing.assert_array_equal(whole[:, tally.ITERATIONS], one.iterations.sum(axis=1))
    np.testing.assert_array_equal(whole[:, tally.EVALUATIONS], one.evaluations.sum(axis=1))
    np.testing.assert_array_equal(tally.stop_reason(whole), one.stop_reason.max(axis=1))


def test_what_came_since_makes_the_later_of_the_earlier():
    first, second = report(np.full((2, 3), 0.1)), report(np.full((2, 2), 7.3), seed=1)
    before, later = tallied(first), tallied(first, second)
    more = tally.since(later, before)
    tally.join(before, more)
    np.testing.assert_array_equal(before, later)


def test_many_large_terms_and_small_negative_ones_are_exact():
    terms = np.array([[4e15] * 3000 + [-1e-20] * 3, [-1e-20, 1e-18, 2.0**79, *[0.5] * 3000]], dtype=object)
    for row in terms:
        one = np.array([row], dtype=np.float64)
        assert tally.objective(tallied(report(one)))[0] == pytest.approx(fsum(row), rel=1e-16)
    assert tally.objective(tallied(report([[-1e-20]])))[0] == pytest.approx(-1e-20, rel=1e-3)


@pytest.mark.parametrize(("term", "expected"), [(np.inf, np.inf), (1e300, np.inf), (np.nan, np.nan)])
def test_a_term_that_cannot_be_added_makes_that_clients_objective_infinite_or_undefined(term, expected):
    got = tally.objective(tallied(report([[1.0, term], [1.0, 2.0]]), report(np.ones((2, 1)))))
    np.testing.assert_array_equal(got, [expected, 4.0])
