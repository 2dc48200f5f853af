"""Averages over clients: exact, whatever the order or grouping."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi import aggregation
from fedande_mpi.errors import FederationError
from tests.small_data import some

BOUNDS = np.array([0, 2, 3, 7])
seeds = st.integers(0, 2**32 - 1)


def mean(rows, n_rows, rule="mean", bounds=BOUNDS):
    factors, divisor = aggregation.client_factors(rule, np.asarray(n_rows))
    return aggregation.server_step(np.asarray(rows, dtype=np.float64), factors, divisor, bounds)


def random_updates(seed, n_clients):
    """Weights of very different sizes, and the clients' rows."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_clients, 7)) * 10.0 ** rng.integers(-12, 12, (n_clients, 7))
    return rows, rng.integers(1, 100, n_clients)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_three_constant_clients_in_every_order(order):
    rows = np.array([[1.0], [2.0], [3.0]])[list(order)]
    sizes = np.array([10, 20, 70])[list(order)]
    bounds = np.array([0, 1])
    assert mean(rows, sizes, "rows", bounds) == 2.6
    assert mean(rows, sizes, "mean", bounds) == 2.0


@some
@given(seeds, st.integers(1, 40), st.sampled_from(aggregation.RULES))
def test_permuting_the_clients_changes_no_bit(seed, n_clients, rule):
    rows, sizes = random_updates(seed, n_clients)
    order = np.random.default_rng(seed).permutation(n_clients)
    assert mean(rows, sizes, rule).tobytes() == mean(rows[order], sizes[order], rule).tobytes()


@some
@given(seeds, st.integers(1, 40), st.sampled_from(aggregation.RULES), st.integers(1, 7))
def test_partial_sums_of_groups_give_the_servers_bits(seed, n_clients, rule, groups):
    """What hosts do under "reduce": agree on the maximum, round and add their own, add the sums."""
    rows, sizes = random_updates(seed, n_clients)
    factors, divisor = aggregation.client_factors(rule, sizes)
    parts = np.array_split(np.random.default_rng(seed).permutation(n_clients), groups)
    largest = np.zeros(3)
    for part in parts:
        terms = aggregation.largest_terms(rows[part], factors[part], BOUNDS)
        largest = np.maximum(largest, terms.max(axis=0, initial=0.0))
    exponent = aggregation.exponents(largest, n_clients)
    total = np.zeros(7, dtype=np.int64)
    for part in parts:
        sums = np.zeros(7, dtype=np.int64)
        aggregation.add_terms(rows[part], factors[part], BOUNDS, exponent, sums)
        total += sums
    got = np.empty(7)
    aggregation.mean_of_sums(total, BOUNDS, exponent, divisor, got)
    assert got.tobytes() == mean(rows, sizes, rule).tobytes()


@some
@given(seeds, st.integers(1, 40), st.sampled_from(aggregation.RULES))
def test_error_is_within_the_declared_bound(seed, n_clients, rule):
    rows, sizes = random_updates(seed, n_clients)
    factors, divisor = aggregation.client_factors(rule, sizes)
    got = mean(rows, sizes, rule)
    for b in range(3):
        part = slice(BOUNDS[b], BOUNDS[b + 1])
        top = np.abs(factors[:, None] * rows[:, part]).max()
        for column, value in zip(rows[:, part].T, got[part], strict=True):
            terms = [Fraction(float(f)) * Fraction(float(x)) for f, x in zip(factors, column, strict=True)]
            exact = sum(terms) / Fraction(divisor)
            bound = 2.0**-61 * n_clients * top * n_clients / divisor
            # a float64 in, a float64 out: what no rule can do better than
            bound += 2.0**-52 * float(abs(exact))
            if rule == "rows":
                bound += 2.0**-53 * float(sum(map(abs, terms))) / divisor
            assert abs(float(Fraction(float(value)) - exact)) <= bound


def test_each_parent_set_has_a_scale_of_its_own():
    rows = np.array([[1e9, -1e9, 1e-9, 0.25, 0.5, -0.5, 0.0]] * 3)
    np.testing.assert_allclose(mean(rows, [1, 1, 1]), rows[0], rtol=1e-15)


@pytest.mark.parametrize("size", [1e-250, 1.0, 1e300])
@pytest.mark.parametrize("n_clients", [1, 2, 3, 10_000])
def test_mean_of_equal_weights_at_any_scale(n_clients, size):
    rows = np.tile([size, -size, size / 3, -size / 7, 0.0, size, size], (n_clients, 1))
    error = {"rtol": 1e-15, "atol": 2.0**-61 * n_clients * size}
    np.testing.assert_allclose(mean(rows, np.full(n_clients, 3)), rows[0], **error)
    np.testing.assert_allclose(mean(rows, np.full(n_clients, 3), "rows"), rows[0], **error)


def test_weights_below_any_use_become_zero_not_nonsense():
    got = mean(np.full((3, 7), 1e-300), [1, 1, 1])
    assert (np.abs(got) <= 2.0**-900).all()


def test_all_zero():
    assert mean(np.zeros((5, 7)), np.ones(5)).tolist() == [0.0] * 7


def test_mean_of_one_client_is_its_update():
    rows, _ = random_updates(0, 1)
    uniform = rows / np.abs(rows)
    np.testing.assert_array_equal(mean(uniform, [4]), uniform[0])


def test_opposite_updates_cancel_exactly():
    rows, _ = random_updates(1, 8)
    assert mean(np.concatenate([rows, -rows]), np.ones(16)).tolist() == [0.0] * 7


def test_clients_without_rows_leave_the_mean():
    rows = np.array([[1.0] * 7, [99.0] * 7, [3.0] * 7])
    assert mean(rows, [4, 0, 4]).tolist() == [2.0] * 7
    assert mean(rows, [1, 0, 3], "rows").tolist() == [2.5] * 7
    factors, divisor = aggregation.client_factors("mean", np.array([4, 0, 4]))
    assert (factors.tolist(), divisor) == ([1.0, 0.0, 1.0], 2.0)


@pytest.mark.parametrize("rule", aggregation.RULES)
def test_nobody_with_rows_is_an_error(rule):
    with pytest.raises(FederationError, match="2 clients with 0 rows: the previous model is kept"):
        aggregation.client_factors(rule, np.array([0, 0]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("client", "column", "position"), [(0, 0, 0), (1, 2, 1), (3, 6, 2)])
def test_an_update_that_is_not_finite_is_refused_by_client_and_set(value, client, column, position):
    rows = np.ones((4, 7))
    rows[client, column] = value
    with pytest.raises(aggregation.NotFinite) as caught:
        mean(rows, np.ones(4))
    assert (caught.value.row, caught.value.position) == (client, position)


def test_of_several_bad_updates_the_first_client_is_named():
    rows = np.ones((4, 7))
    rows[2, 0] = rows[1, 5] = math.nan
    with pytest.raises(aggregation.NotFinite) as caught:
        mean(rows, np.ones(4))
    assert (caught.value.row, caught.value.position) == (1, 2)


def test_the_refusal_names_client_parent_set_and_round():
    error = aggregation.refuse(7, (2, 5), 3)
    assert isinstance(error, FederationError)
    assert "client 7 for parent set (2, 5) in round 3" in str(error)


@pytest.mark.parametrize("n_terms", [1, 2, 3, 100, 4097])
@pytest.mark.parametrize("top", [5e-324, 1e-30, 1.0, 1.0 - 2**-53, 2.0, 3.7, 1e308])
def test_the_sum_fits_into_64_bits(n_terms, top):
    (e,) = aggregation.exponents(np.array([top]), n_terms)
    assert n_terms * round(Fraction(top) * Fraction(2) ** int(e)) < 2**63
