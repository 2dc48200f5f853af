"""Tests on scores: paired over repeats and folds, paired over data sets, several models, several tests.

Pure functions on arrays. Scores of the folds of one data set share training rows, so their differences are
correlated and the usual paired t-test claims too much; `paired_t` widens its variance as Nadeau and Bengio
(Machine Learning 52, 2003) say. Data sets are independent: there the ratio is 0, and the rank tests follow
Demsar (JMLR 7, 2006).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Alternative = Literal["two-sided", "greater"]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Paired:
    """A mean difference, with its interval and test.

    Attributes
    ----------
    mean, low, high, p : ndarray
        Of the shape of the differences without the last axis. All but `mean` are NaN for a single difference.
    """

    mean: FloatArray
    low: FloatArray
    high: FloatArray
    p: FloatArray


@dataclass(frozen=True)
class Ranking:
    """Several models compared over data sets.

    Attributes
    ----------
    ranks : (M,) ndarray
        Average rank of each of M models; 1 is best.
    p : float
        Of Friedman's test that all models are alike.
    critical_difference : float
        Average ranks further apart than this differ (Nemenyi, alpha = 0.05).
    """

    ranks: FloatArray
    p: float
    critical_difference: float


def paired_t(
    differences: npt.ArrayLike,
    ratio: float = 0.0,
    *,
    alternative: Alternative = "two-sided",
    confidence: float = 0.95,
    least_variance: npt.ArrayLike = 0.0,
) -> Paired:
    """Test a mean difference with Student's t, corrected for overlapping training rows.

    The variance of the mean of k differences with sample variance s^2 is (1/k + n_test/n_train) s^2, on k - 1
    degrees of freedom.

    Parameters
    ----------
    differences : (..., k) array_like
    ratio : float
        n_test/n_train, which is 1/(folds - 1) for a cross-validation; 0 for independent differences.
    alternative : {"two-sided", "greater"}
        Of the p-value.
    confidence : float
        Of the two-sided interval.
    least_variance : (...) array_like
        Lower bound of s^2. Without, equal differences other than 0 have p = 0, and k zeros p = 1 (1/2 for
        "greater").

    Returns
    -------
    Paired
    """
    from scipy import stats

    values = np.asarray(differences, dtype=np.float64)
    k = values.shape[-1]
    mean: FloatArray = values.mean(axis=-1)
    if k < 2:
        unknown = np.full_like(mean, np.nan)
        return Paired(mean, unknown, unknown, unknown)
    variance = np.where(np.ptp(values, axis=-1) == 0, 0.0, values.var(axis=-1, ddof=1))
    error = np.sqrt((1 / k + ratio) * np.maximum(variance, least_variance))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean == 0, 0.0, mean / error)
    p = stats.t.sf(t, k - 1) if alternative == "greater" else 2 * stats.t.sf(np.abs(t), k - 1)
    half = stats.t.ppf((1 + confidence) / 2, k - 1) * error
    return Paired(mean, mean - half, mean + half, np.asarray(p))


def signed_rank(differences: npt.ArrayLike, *, alternative: Alternative = "two-sided") -> float:
    """Return the p-value of Wilcoxon's signed-rank test, exact with ties too.

    Zeros are dropped and ties have their mean rank. SciPy's exact distribution knows no ties, and accuracies
    on small data sets are full of them.

    Parameters
    ----------
    differences : (k,) array_like
        A few dozen at most.
    alternative : {"two-sided", "greater"}

    Returns
    -------
    float
        1 when all differences are 0. The least possible is 2^-k (one-sided), 2^(1-k) (two-sided).
    """
    from scipy import stats

    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]
    if not values.size:
        return 1.0
    doubled = np.rint(2 * stats.rankdata(np.abs(values))).astype(np.int64)  # whole numbers, ties too
    total = int(doubled.sum())
    # chances[s] = P(doubled ranks of the positive differences sum to s)
    chances = np.zeros(total + 1)
    chances[0] = 1.0
    for rank in doubled:
        shifted = np.zeros_like(chances)
        shifted[rank:] = chances[: total + 1 - rank]
        chances = (chances + shifted) / 2
    positive = int(doubled[values > 0].sum())
    above = float(chances[positive:].sum())
    if alternative == "greater":
        return min(1.0, above)
    return min(1.0, 2 * min(above, float(chances[: positive + 1].sum())))


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Adjust p-values for several tests by Holm's step-down rule.

    Parameters
    ----------
    p_values : (..., k) array_like
        NaN: no test; it does not count.

    Returns
    -------
    (..., k) ndarray
        At most 1, in the order given, comparable with the level of the whole family.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, axis=-1)  # NaN come last
    ascending = np.take_along_axis(p, order, axis=-1)
    tests = (~np.isnan(p)).sum(axis=-1, keepdims=True)
    factors = tests - np.arange(p.shape[-1])
    stepped = np.maximum.accumulate(np.nan_to_num(ascending * factors, nan=-np.inf), axis=-1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(1.0, stepped), axis=-1)
    return np.where(np.isnan(p), np.nan, adjusted)


def friedman(scores: npt.ArrayLike, alpha: float = 0.05) -> Ranking:
    """Compare several models over data sets by their ranks.

    Parameters
    ----------
    scores : (K, M) array_like
        Of M >= 3 models on K >= 2 data sets; higher is better. Ties have their mean rank.
    alpha : float
        Level of the critical difference q(alpha, M, inf) sqrt(M (M + 1) / (12 K)), with Tukey's q.

    Returns
    -------
    Ranking
    """
    from scipy import stats

    values = np.asarray(scores, dtype=np.float64)
    n_sets, n_models = values.shape
    ranks = stats.rankdata(-values, axis=1)
    alike = bool(np.all(values == values[:, :1]))
    p = 1.0 if alike else float(stats.friedmanchisquare(*values.T).pvalue)
    q = float(stats.studentized_range.ppf(1 - alpha, n_models, np.inf))
    return Ranking(ranks.mean(axis=0), p, q * float(np.sqrt(n_models * (n_models + 1) / (12 * n_sets))))
