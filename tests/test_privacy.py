"""Private counts: sensitivity, samplers, streams, the joint release, and what was spent."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from fedande_mpi.errors import PrivacyError
from fedande_mpi.privacy import (
    Release,
    Table,
    class_counts_from_joint,
    combine_estimates,
    discrete_laplace,
    discrete_laplace_sum,
    joint_sets,
    laplace,
    laplace_sum,
    noise,
    noise_scale,
    noise_stream,
    sensitivity,
    spent,
    tables_from_joint,
)

DIGEST = "0123456789abcdef" * 4
KEY = dict(
    seed=1, dataset_sha256=DIGEST, n=2, n_clients=5, repeat=3, fold=4, client=6, table=(Table.SPNDE, 7)
)
ORDERS = [(d, n) for d in range(1, 7) for n in range(min(d, 4))]
ARITY = (3, 2, 4, 1, 3)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def rows(d, m=60, o=3, seed=0):
    draw = rng(seed)
    X = np.stack([draw.integers(0, ARITY[j % 5], m) for j in range(d)], axis=1)
    return X, draw.integers(0, o, m)


def count(X, y, attributes, o=3):
    """Counts by direct indexing, one axis per attribute: (o, arity, arity, …)."""
    table = np.zeros((o, *(ARITY[j % 5] for j in attributes)), dtype=np.int64)
    for label, row in zip(y, X, strict=True):
        table[(label, *(row[j] for j in attributes))] += 1
    return table


def paper_release(X, y, n):
    d = X.shape[1]
    tables = [count(X, y, ())]
    for parents in combinations(range(d), n):
        if n:
            tables.append(count(X, y, parents))
        tables += [count(X, y, (*parents, j)) for j in range(d) if j not in parents]
    return tables


def joint_release(X, y, n):
    return {tuple(a): count(X, y, a).reshape(3, -1) for a in joint_sets(X.shape[1], n).tolist()}


def l1_change(before, after):
    return sum(int(np.abs(a - b).sum()) for a, b in zip(before, after, strict=True))


# sensitivity


@pytest.mark.parametrize(("d", "n"), ORDERS)
def test_paper_sensitivity_is_the_change_from_one_row(d, n):
    X, y = rows(d, m=4)
    change = l1_change(paper_release(X[:-1], y[:-1], n), paper_release(X, y, n))
    # for n = 0 the paper counts a parents table that is never released
    assert sensitivity(d, n) == change + (n == 0)


@pytest.mark.parametrize(("d", "n"), ORDERS)
def test_joint_sensitivity_is_the_change_from_one_row(d, n):
    X, y = rows(d, m=4)
    change = l1_change(joint_release(X[:-1], y[:-1], n).values(), joint_release(X, y, n).values())
    assert sensitivity(d, n, "joint") == change


def test_paper_sensitivity_of_nursery():
    assert [sensitivity(8, n) for n in range(3)] == [10, 65, 197]


@pytest.mark.parametrize(("d", "n"), [(3, 3), (3, -1), (0, 0)])
def test_impossible_order_is_refused(d, n):
    with pytest.raises(PrivacyError, match="0 <= n < d"):
        sensitivity(d, n)


def test_unknown_release_is_refused():
    with pytest.raises(PrivacyError, match="'paper' or 'joint'"):
        sensitivity(3, 1, "tight")  # type: ignore[arg-type]


def test_scale_is_sensitivity_over_epsilon():
    assert noise_scale(0.5, 10) == 20.0


def test_infinite_epsilon_is_no_noise():
    assert noise_scale(math.inf, 10) == 0.0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, -math.inf, math.nan, 5e-324])
def test_epsilon_out_of_range_is_refused(epsilon):
    with pytest.raises(PrivacyError, match="epsilon"):
        noise_scale(epsilon, 10)


@pytest.mark.parametrize("delta", [0, -1, math.inf, math.nan])
def test_sensitivity_out_of_range_is_refused(delta):
    with pytest.raises(PrivacyError, match="sensitivity"):
        noise_scale(1.0, delta)


# samplers


def pmf(scale, k):
    return math.tanh(0.5 / scale) * np.exp(-np.abs(k) / scale)


def chi_square(sample, support, probability):
    """P-value against an exact pmf; values expected less than ten times are pooled into the two tails."""
    expected = probability * sample.size
    keep = support[expected >= 10]
    low, high = keep.min(), keep.max()
    observed = np.bincount(np.clip(sample, low, high) - low, minlength=high - low + 1)
    wanted = expected[(support >= low) & (support <= high)].copy()
    wanted[0] = expected[support <= low].sum()
    wanted[-1] = expected[support >= high].sum()
    return stats.chisquare(observed, wanted * sample.size / wanted.sum()).pvalue


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0, 40.0])
def test_discrete_sampler_against_the_exact_distribution(scale):
    k = np.arange(-3000, 3001)
    sample = discrete_laplace(scale, 200_000, rng(1))
    assert chi_square(sample, k, pmf(scale, k)) > 0.001


@pytest.mark.parametrize("scale", [1e5, 1e6, 1e10])
def test_discrete_sampler_at_large_scale(scale):
    # P(X <= k) = exp(k/s) / (1 + exp(-1/s)) for k < 0, the rest by symmetry; 40 bins with integer edges
    edges = np.floor(scale * np.log(2 * np.linspace(0.0, 0.5, 21)[1:-1]))
    edges = np.concatenate([edges, [-1], -edges[::-1] - 1])
    below = np.exp(np.minimum(edges, -edges - 1) / scale) / (1 + np.exp(-1 / scale))
    cdf = np.where(edges < 0, below, 1 - below)
    sample = discrete_laplace(scale, 200_000, rng(2))
    observed = np.bincount(np.searchsorted(edges, sample), minlength=edges.size + 1)
    expected = np.diff(np.concatenate([[0.0], cdf, [1.0]])) * sample.size
    assert stats.chisquare(observed, expected).pvalue > 0.001


@pytest.mark.parametrize(("scale", "clients"), [(0.3, 5), (0.3, 100), (5.0, 2), (5.0, 20), (40.0, 7)])
def test_discrete_sum_against_the_convolution(scale, clients):
    k = np.arange(-4096, 4096)
    single = np.fft.fft(np.fft.ifftshift(pmf(scale, k)))  # the tails beyond are below 1e-40
    exact = np.fft.fftshift(np.fft.ifft(single**clients).real)
    sample = discrete_laplace_sum(scale, clients, 200_000, rng(3))
    assert chi_square(sample, k, np.maximum(exact, 0)) > 0.001


@pytest.mark.parametrize("mechanism", ["discrete-laplace", "laplace"])
@pytest.mark.parametrize(("scale", "clients"), [(83.0, 3), (1e5, 20)])
def test_sum_drawn_at_once_equals_the_sum_of_clients(mechanism, scale, clients):
    draw = rng(4)
    at_once = noise(mechanism, scale, clients, 20_000, draw)
    summed = sum(noise(mechanism, scale, 1, 20_000, draw) for _ in range(clients))
    assert stats.ks_2samp(at_once, summed).pvalue > 0.001


def test_continuous_sampler_against_the_exact_distribution():
    assert stats.kstest(laplace(65.0, 50_000, rng(5)), stats.laplace(scale=65.0).cdf).pvalue > 0.001


@pytest.mark.parametrize("clients", [1, 100])
@pytest.mark.parametrize("sampler", [discrete_laplace_sum, laplace_sum])
def test_moments_at_huge_scale(sampler, clients):
    scale, size = 1e9, 200_000
    sample = sampler(scale, clients, size, rng(6)) / scale
    spread = math.sqrt(2 * clients)
    assert abs(sample.mean()) < 4 * spread / math.sqrt(size)
    assert np.var(sample) == pytest.approx(spread**2, rel=0.03)


def test_huge_scale_passes_32_bits():
    assert np.abs(discrete_laplace(1e11, 1000, rng(7))).max() > 2**31


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 0.02])
@pytest.mark.parametrize("clients", [1, 100])
def test_vanishing_scale_gives_zeros(scale, clients):
    assert not noise("discrete-laplace", scale, clients, 1000, rng()).any()


def test_small_scale_is_rarely_nonzero():
    # scale 0.1: P(k != 0) = 1 - tanh(5) = 9.08e-5
    assert np.count_nonzero(discrete_laplace(0.1, 1_000_000, rng(8))) == pytest.approx(90.8, abs=40)


@pytest.mark.parametrize("clients", [0, 1, 5])
@pytest.mark.parametrize("scale", [0.0, 2.0])
@pytest.mark.parametrize(("mechanism", "dtype"), [("discrete-laplace", np.int64), ("laplace", np.float64)])
def test_shape_and_dtype_are_the_mechanisms_own(mechanism, dtype, scale, clients):
    drawn = noise(mechanism, scale, clients, (2, 3), rng())
    assert (drawn.shape, drawn.dtype) == ((2, 3), dtype)


@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("mechanism", ["discrete-laplace", "laplace"])
def test_no_noise_draws_nothing(mechanism, clients):
    used = rng()
    assert not noise(mechanism, 0.0, clients, 7, used).any()
    assert used.random() == rng().random()


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("mechanism", ["discrete-laplace", "laplace"])
def test_impossible_scale_is_refused(mechanism, clients, scale):
    with pytest.raises(PrivacyError, match="noise scale"):
        noise(mechanism, scale, clients, 1, rng())


def test_scale_beyond_exact_integers_is_refused():
    with pytest.raises(PrivacyError, match="over all clients"):
        discrete_laplace_sum(1e11, 100, 1, rng())


@pytest.mark.parametrize("mechanism", ["discrete-laplace", "laplace"])
def test_negative_number_of_clients_is_refused(mechanism):
    with pytest.raises(PrivacyError, match="n_clients"):
        noise(mechanism, 1.0, -1, 1, rng())


def test_unknown_mechanism_is_refused():
    with pytest.raises(PrivacyError, match="mechanism"):
        noise("gaussian", 1.0, 1, 1, rng())  # type: ignore[arg-type]


# streams


def test_same_key_same_draws():
    assert np.array_equal(noise_stream(**KEY).random(8), noise_stream(**KEY).random(8))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 0},
        {"dataset_sha256": DIGEST[:-1] + "0"},
        {"n": 1},
        {"n_clients": 10},
        {"repeat": 1},
        {"repeat": 4, "fold": 3},
        {"fold": 1},
        {"client": 1},
        {"client": None},
        {"table": (Table.SPNDE, 1)},
        {"table": (Table.JOINT, 7)},
        {"table": (Table.CLASS_COUNTS, 7)},
    ],
    ids=str,
)
def test_any_other_key_other_draws(change):
    assert not np.any(noise_stream(**KEY).random(8) == noise_stream(**{**KEY, **change}).random(8))


def test_stream_is_pinned():
    # whatever changes these numbers changes every private result: a new format of results, not a refactoring
    drawn = discrete_laplace(100.0, 5, noise_stream(**KEY))
    assert drawn.tolist() == [-20, 74, 103, 60, -93]


def test_global_generators_do_not_matter():
    np.random.seed(5)  # noqa: NPY002
    first = noise_stream(**KEY).random()
    np.random.seed(6)  # noqa: NPY002
    assert first == noise_stream(**KEY).random()


def test_streams_of_two_clients_are_uncorrelated():
    one, two = (laplace(1.0, 100_000, noise_stream(**{**KEY, "client": c})) for c in (0, 1))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.015


@pytest.mark.parametrize(
    "change",
    [{"dataset_sha256": "ab"}, {"dataset_sha256": "x" * 64}, {"seed": -1}, {"fold": -1}, {"client": -2}],
)
def test_malformed_key_is_refused(change):
    with pytest.raises(PrivacyError, match="expected"):
        noise_stream(**{**KEY, **change})


# the joint release


def test_joint_sets_are_ascending_and_complete():
    assert joint_sets(4, 1).tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]


@pytest.mark.parametrize(("d", "n"), [(d, n) for d in range(1, 6) for n in range(min(d, 4))])
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_exact_joint_tables_give_the_direct_counts(d, n, dtype):
    X, y = rows(d)
    joint = {a: table.astype(dtype) for a, table in joint_release(X, y, n).items()}
    assert np.array_equal(class_counts_from_joint(joint, ARITY[:d], n), count(X, y, ()))
    for chosen in combinations(range(d), n):
        parents, children = tables_from_joint(chosen, joint, ARITY[:d], 3)
        assert np.array_equal(parents, count(X, y, chosen).reshape(3, -1))
        assert list(children) == [j for j in range(d) if j not in chosen]
        for j, child in children.items():
            assert child.dtype == dtype
            assert np.array_equal(child, count(X, y, (*chosen, j)).reshape(3, -1, ARITY[j]))


def test_equal_estimates_come_back_bit_for_bit():
    value = rng(9).integers(0, 2**52, 1000)
    assert np.array_equal(combine_estimates(np.stack([value] * 7), [3, 7, 11, 13, 17, 19, 23]), value)


def test_estimates_are_weighted_by_inverse_number_of_cells():
    assert combine_estimates(np.array([[0.0], [9.0]]), [1, 2]) == pytest.approx(3.0)


def noisy_estimates(n_draws=4000):
    """Parents table of P = (1,) and class counts from pure noise, n_draws times along the class axis."""
    draw = rng(10)
    sets = joint_sets(5, 1).tolist()
    joint = {tuple(a): laplace(1.0, (n_draws, ARITY[a[0]] * ARITY[a[1]]), draw) for a in sets}
    return tables_from_joint((1,), joint, ARITY, n_draws)[0], class_counts_from_joint(joint, ARITY, 1)


def test_parents_estimate_has_the_variance_of_the_weighted_mean():
    # one cell has variance 2; the best single marginal is that over j = 3 with arity 1
    parents, _ = noisy_estimates()
    others = [ARITY[j] for j in (0, 2, 3, 4)]
    assert np.var(parents) == pytest.approx(2 / sum(1 / a for a in others), rel=0.1)
    assert np.var(parents) < 2 * min(others)


def test_class_counts_estimate_has_the_variance_of_the_weighted_mean():
    _, class_counts = noisy_estimates()
    cells = [ARITY[a] * ARITY[b] for a, b in joint_sets(5, 1).tolist()]
    assert np.var(class_counts) == pytest.approx(2 / sum(1 / c for c in cells), rel=0.1)


@pytest.mark.parametrize("parents", [(1, 0), (0, 0), (5,), (-1,), (0, 1, 2, 3, 4)])
def test_malformed_parents_are_refused(parents):
    with pytest.raises(PrivacyError, match="parents"):
        tables_from_joint(parents, {}, ARITY, 3)


# spent


def test_disjoint_clients_cost_one_epsilon_and_a_second_release_doubles_it():
    run = [Release(client, 1.0) for client in range(10)]
    assert spent(run) == 1.0
    assert spent(run + run) == 2.0


def test_spent_is_that_of_the_client_who_released_most():
    assert spent([Release("a", 0.5), Release("b", 0.25), Release("b", 0.5)]) == 0.75


def test_nothing_released_costs_nothing():
    assert spent([]) == 0.0


def test_exact_counts_cost_everything():
    assert spent([Release(0, 1.0), Release(1, math.inf)]) == math.inf


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_impossible_release_is_refused(epsilon):
    with pytest.raises(PrivacyError, match="epsilon"):
        spent([Release(0, epsilon)])
