"""Tests on scores: against SciPy, against brute force, and how often they are wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from fedande_mpi.statistics import friedman, holm, paired_t, signed_rank


@pytest.fixture
def rng():
    return np.random.default_rng(np.random.SeedSequence(5))


# --- paired t ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
def test_without_overlap_it_is_students_paired_test(rng, alternative):
    a, b = rng.normal(0.2, 1, 12), rng.normal(0, 1, 12)
    found = paired_t(a - b, alternative=alternative)
    expected = stats.ttest_rel(a, b, alternative=alternative)
    assert found.p == pytest.approx(expected.pvalue)
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert [found.low, found.high] == pytest.approx(list(interval))


def test_overlap_widens_the_variance_as_nadeau_and_bengio_say(rng):
    d = rng.normal(0.3, 1, 10)
    found = paired_t(d, 1 / 4, confidence=0.9)
    error = np.sqrt((1 / 10 + 1 / 4) * d.var(ddof=1))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(d.mean() / error), 9))
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.95, 9) * error)


def test_many_rows_of_differences_are_tested_at_once(rng):
    d = rng.normal(0, 1, (4, 3, 6))
    found = paired_t(d, 0.25)
    assert found.p.shape == (4, 3)
    assert found.p[2, 1] == paired_t(d[2, 1], 0.25).p


def test_one_difference_has_a_mean_and_no_test():
    found = paired_t([0.25])
    assert found.mean == 0.25
    assert np.isnan([found.low, found.high, found.p]).all()


def test_equal_differences():
    found = paired_t([[0.1] * 5, [0.0] * 5], 0.25)
    assert found.p.tolist() == [0, 1]
    assert paired_t([0.0] * 5, alternative="greater").p == 0.5


def test_a_least_variance_keeps_equal_differences_from_being_certain():
    found = paired_t([0.1] * 4, least_variance=0.04)
    assert found.p == pytest.approx(2 * stats.t.sf(0.1 / np.sqrt(0.04 / 4), 3))


def test_the_correction_keeps_its_level_where_the_plain_test_does_not(rng):
    # Differences of folds as Nadeau and Bengio model them: correlation n_test/(n_test + n_train), here 1/5.
    shape, correlation = (20_000, 25), 0.2
    d = np.sqrt(correlation) * rng.normal(size=(shape[0], 1)) + np.sqrt(1 - correlation) * rng.normal(
        size=shape
    )
    assert (paired_t(d, 1 / 4).p < 0.05).mean() < 0.055
    assert (paired_t(d).p < 0.05).mean() > 0.3


# --- signed ranks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
def test_without_ties_it_is_scipys_exact_test(rng, alternative):
    for k in (1, 3, 8, 14):
        d = rng.normal(0.3, 1, k)
        expected = stats.wilcoxon(d, alternative=alternative, method="exact").pvalue
        assert signed_rank(d, alternative=alternative) == pytest.approx(expected)


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
def test_with_ties_and_zeros_it_counts_the_signs(alternative):
    d = np.array([0.1, 0.1, -0.1, 0.2, 0.2, -0.3, 0.0, 0.4])
    ranks = stats.rankdata(np.abs(d[d != 0]))
    sums = np.array([ranks @ np.array(signs) for signs in itertools.product((0, 1), repeat=len(ranks))])
    observed = ranks[d[d != 0] > 0].sum()
    greater, less = (sums >= observed).mean(), (sums <= observed).mean()
    expected = greater if alternative == "greater" else min(1, 2 * min(greater, less))
    assert signed_rank(d, alternative=alternative) == pytest.approx(expected)


def test_no_difference_at_all_is_no_evidence():
    assert signed_rank([0.0, 0.0, 0.0]) == 1


def test_twelve_data_sets_of_one_sign():
    assert signed_rank(np.full(12, 0.01), alternative="greater") == 2**-12


# --- several tests -----------------------------------------------------------------------------------------


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]).tolist() == [1, 1]


def test_holm_does_not_count_what_was_not_tested():
    found = holm([[np.nan, 0.02, 0.01], [0.02, 0.03, 0.01], [np.nan] * 3])
    assert found[0, 1:] == pytest.approx([0.02, 0.02])
    assert found[1] == pytest.approx([0.04, 0.04, 0.03])
    assert np.isnan(found[[0, 2, 2, 2], [0, 0, 1, 2]]).all()
    assert holm([]).shape == (0,)


@pytest.mark.parametrize("k", [3, 12])
def test_one_sided_tests_with_holm_keep_the_familywise_error(rng, k):
    d = rng.normal(size=(20_000, 15, k))
    wrong = holm(paired_t(d, alternative="greater").p) < 0.05
    assert 0.03 < wrong.any(axis=1).mean() < 0.055


# --- several models ----------------------------------------------------------------------------------------


def test_friedman_ranks_models(rng):
    scores = rng.normal([0, 0, 1, 3], size=(10, 4))
    scores[0, :2] = 0.5, 0.5
    found = friedman(scores)
    assert found.ranks == pytest.approx(stats.rankdata(-scores, axis=1).mean(axis=0))
    assert found.ranks.argmin() == 3
    assert found.p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)


def test_the_critical_difference_is_that_of_the_literature():
    # Demsar (2006), section 3.2.4: four classifiers, 14 data sets, CD = 1.25 at 0.05 and 1.12 at 0.10
    scores = np.arange(56.0).reshape(14, 4)
    assert friedman(scores).critical_difference == pytest.approx(1.25, abs=0.005)
    assert friedman(scores, 0.10).critical_difference == pytest.approx(1.12, abs=0.005)


def test_models_that_are_all_alike():
    found = friedman(np.ones((5, 3)))
    assert found.p == 1
    assert found.ranks.tolist() == [2, 2, 2]
