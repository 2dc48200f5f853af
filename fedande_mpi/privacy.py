r"""Private counts: how much one row changes them, the noise that hides it, and what was spent.

Neighbouring data sets differ by one row added or removed. Counts whose L1 change is at most Delta are
epsilon-differentially private after adding independent noise of scale Delta/epsilon to each cell (Dwork et
al., *Calibrating noise to sensitivity*, 2006; for integers the discrete Laplace or two-sided geometric of
Ghosh, Roughgarden and Sundararajan, *Universally utility-maximizing privacy mechanisms*, 2012).

**A simulation, not a guarantee.** The noise comes from a seeded generator, so whoever knows the seed can
remove it, and cells that differ only in epsilon share their random numbers. Continuous Laplace noise in
floating point leaks through its low-order bits (Mironov, *On significance of the least significant bits
for differential privacy*, 2012); the discrete sampler here is exact only as far as double precision goes
(for an exact one: Canonne, Kamath and Steinke, *The discrete Gaussian for differential privacy*, 2020).
A deployment needs a cryptographic generator and an audited library.

Where only the sum over clients is used, it is drawn at once: the sum of C discrete Laplace variables is a
difference of two negative binomials, that of C Laplace variables a difference of two gammas.

Letters as everywhere: d attributes, o classes, n the order, P a parent set, q its states, C clients.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.errors import PrivacyError

__all__ = [
    "Release",
    "Table",
    "class_counts_from_joint",
    "combine_estimates",
    "discrete_laplace",
    "discrete_laplace_sum",
    "joint_sets",
    "laplace",
    "laplace_sum",
    "noise",
    "noise_scale",
    "noise_stream",
    "sensitivity",
    "spent",
    "tables_from_joint",
]

Mechanism = Literal["discrete-laplace", "laplace"]
Shape = int | tuple[int, ...]
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Counts = NDArray[Any]  # int64, or float64 after continuous noise

_PURPOSE = 2  # purpose number of the noise among the draws of an experiment
# Up to here float64 holds every noisy sum exactly, and the rounding in NumPy's Poisson sampler (1e-15 times
# the mean, in a log-probability) is smoothed away by the far wider gamma variable.
_MAX_DISCRETE_SCALE = 1e12


class Table(IntEnum):
    """Kinds of released table, the first half of a stream's table key."""

    CLASS_COUNTS = 0
    SPNDE = 1
    JOINT = 2


class JointTables(Protocol):
    """What holds the joint tables: anything indexed by an ascending tuple of attributes, such as a dict."""

    def __getitem__(self, attributes: tuple[int, ...], /) -> Counts:
        """Return the table of these attributes, (o, product of their arities)."""


def sensitivity(n_attributes: int, n: int, release: Literal["paper", "joint"] = "paper") -> int:
    """L1 sensitivity of all counts that one client releases, when one row is added or removed.

    Parameters
    ----------
    n_attributes : int
        d.
    n : int
        Order of the AnDE, 0 <= n < d.
    release : {"paper", "joint"}
        ``"paper"``: 1 + C(d, n) (1 + d - n): class counts once and, for every parent set, its parents table
        and d - n child tables (Torrijos et al., 2025). For n = 0 that is d + 2, kept as the
        paper has it, though no parents table is released then and the true change is d + 1.
        ``"joint"``: C(d, n + 1): every table N(y, x_A) with ``|A| = n + 1`` once; all others are its
        marginals (see `tables_from_joint`). For n = 0: d.

    Returns
    -------
    int
        Delta.

    Raises
    ------
    PrivacyError
        For n outside 0..d-1 or an unknown release.
    """
    _check_order(n_attributes, n)
    if release == "paper":
        return 1 + math.comb(n_attributes, n) * (1 + n_attributes - n)
    if release == "joint":
        return math.comb(n_attributes, n + 1)
    raise PrivacyError(f"sensitivity: expected 'paper' or 'joint', got {release!r}; choose one of the two")


def noise_scale(epsilon: float, sensitivity: float) -> float:
    """Scale of the noise on every count, Delta/epsilon; 0 (no noise) for an infinite epsilon.

    Raises
    ------
    PrivacyError
        For an epsilon that is zero, negative, NaN or so small that the scale overflows, or for a
        sensitivity that is not positive and finite.
    """
    _check_epsilon(epsilon)
    if not 0 < sensitivity < math.inf:
        raise PrivacyError(
            f"sensitivity: expected a positive finite number, got {sensitivity}; pass Delta >= 1"
        )
    scale = float(sensitivity) / float(epsilon)
    if math.isinf(scale):
        raise PrivacyError(f"epsilon: {epsilon} is too small, the noise would be infinite; use a larger one")
    return scale


def discrete_laplace(scale: float, size: Shape, rng: np.random.Generator) -> IntArray:
    """Discrete Laplace noise, P(k) = tanh(1 / (2 scale)) exp(-|k| / scale).

    The difference of two geometric variables, each the integer part of an exponential one:
    P(floor(s E) >= k) = exp(-k / s). Unlike a search for the quantile, that needs no probability of success,
    which is lost to rounding at a large scale.

    Parameters
    ----------
    scale : float
        Delta/epsilon, up to 1e12; 0 gives zeros and draws nothing.
    size : int or tuple of int
        Shape of the result.
    rng : numpy.random.Generator
        Where the randomness comes from; see `noise_stream`.

    Returns
    -------
    numpy.ndarray of int64, shape ``size``

    Raises
    ------
    PrivacyError
        For a scale that is negative, NaN or above 1e12.
    """
    _check_scale(scale, 1, _MAX_DISCRETE_SCALE)
    if scale == 0:
        return np.zeros(size, dtype=np.int64)
    up = np.floor(scale * rng.standard_exponential(size))
    down = np.floor(scale * rng.standard_exponential(size))
    return np.asarray(up - down, dtype=np.int64)


def discrete_laplace_sum(scale: float, n_clients: int, size: Shape, rng: np.random.Generator) -> IntArray:
    """Sum of ``n_clients`` independent `discrete_laplace` variables, drawn at once for every cell.

    The difference of two negative binomials NB(C, 1 - exp(-1/scale)), each a Poisson variable whose mean is
    gamma distributed with shape C and scale 1 / (exp(1/scale) - 1). That mean is computed here and not from
    1 - p, which loses digits at a large scale.

    Parameters and errors are those of `discrete_laplace`, with the limit on C * scale; no clients give zeros.

    Returns
    -------
    numpy.ndarray of int64, shape ``size``
    """
    _check_scale(scale, n_clients, _MAX_DISCRETE_SCALE)
    # Below 1/700 the exponential would overflow; a draw other than 0 has probability exp(-700) there.
    if n_clients == 0 or scale < 1 / 700:
        return np.zeros(size, dtype=np.int64)
    mean = 1 / math.expm1(1 / scale)
    up = rng.poisson(mean * rng.standard_gamma(n_clients, size))
    down = rng.poisson(mean * rng.standard_gamma(n_clients, size))
    return np.asarray(up - down, dtype=np.int64)


def laplace(scale: float, size: Shape, rng: np.random.Generator) -> FloatArray:
    """Laplace noise with density exp(-|x| / scale) / (2 scale), the paper's mechanism.

    Parameters as in `discrete_laplace`, for any finite scale.

    Returns
    -------
    numpy.ndarray of float64, shape ``size``

    Raises
    ------
    PrivacyError
        For a scale that is negative, NaN or infinite.
    """
    _check_scale(scale, 1, math.inf)
    if scale == 0:
        return np.zeros(size)
    return np.asarray(rng.laplace(0.0, scale, size))


def laplace_sum(scale: float, n_clients: int, size: Shape, rng: np.random.Generator) -> FloatArray:
    """Sum of ``n_clients`` independent `laplace` variables: a difference of two gammas of shape C.

    Returns
    -------
    numpy.ndarray of float64, shape ``size``

    Raises
    ------
    PrivacyError
        As `laplace`, and for a negative number of clients.
    """
    _check_scale(scale, n_clients, math.inf)
    if scale == 0 or n_clients == 0:
        return np.zeros(size)
    return np.asarray(scale * (rng.standard_gamma(n_clients, size) - rng.standard_gamma(n_clients, size)))


def noise(
    mechanism: Mechanism, scale: float, n_clients: int, size: Shape, rng: np.random.Generator
) -> IntArray | FloatArray:
    """Noise of a table, or of the sum of ``n_clients`` tables, in the mechanism's own dtype.

    ``"discrete-laplace"`` gives int64, ``"laplace"`` float64, also for scale 0 (all zeros). Parameters are
    those of the samplers; ``n_clients`` is 1 for one client's message.

    Raises
    ------
    PrivacyError
        For an unknown mechanism, and as the samplers.
    """
    # One client's draw is the plain sampler, which is cheaper than the same distribution as a sum.
    if mechanism == "discrete-laplace":
        return (
            discrete_laplace(scale, size, rng)
            if n_clients == 1
            else discrete_laplace_sum(scale, n_clients, size, rng)
        )
    if mechanism == "laplace":
        return laplace(scale, size, rng) if n_clients == 1 else laplace_sum(scale, n_clients, size, rng)
    raise PrivacyError(f"mechanism: expected 'discrete-laplace' or 'laplace', got {mechanism!r}; choose one")


def noise_stream(
    seed: int,
    dataset_sha256: str,
    n: int,
    n_clients: int,
    repeat: int,
    fold: int,
    client: int | None,
    table: tuple[int, int],
) -> np.random.Generator:
    """Return the generator of one client's noise on one table, keyed by its purpose and by no rank.

    Epsilon, mechanism and method are not part of the key: cells that differ in those alone are compared on
    common random numbers, and `hybrid` starts from the very pooled model of `generative`.

    Parameters
    ----------
    seed : int
        The experiment's, >= 0.
    dataset_sha256 : str
        Digest of the data set, 64 hexadecimal digits.
    n, n_clients, repeat, fold : int
        The unit of work.
    client : int or None
        Whose message; None (or -1) for the stream of the sum over all clients.
    table : (int, int)
        Kind of table (see `Table`) and its index: 0 for the class counts, else the position of the parent
        set or joint set in the lexicographic order of all of them.

    Raises
    ------
    PrivacyError
        For a digest of another form or a negative number.
    """
    try:
        digest = bytes.fromhex(dataset_sha256)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise PrivacyError(f"dataset_sha256: expected 64 hex digits, got {dataset_sha256!r}; pass its digest")
    words = [int.from_bytes(digest[i : i + 4], "big") for i in range(0, 32, 4)]
    who = 0 if client is None else client + 1
    rest = [int(part) for part in (n, n_clients, repeat, fold, who, *table)]
    if min(seed, *rest) < 0:
        raise PrivacyError(
            f"noise stream: expected non-negative numbers, got seed {seed}, key {rest}; check them"
        )
    # PCG64 by name: default_rng may one day mean another generator, and with it other results.
    sequence = np.random.SeedSequence(int(seed), spawn_key=(_PURPOSE, *words, *rest))
    return np.random.Generator(np.random.PCG64(sequence))


def joint_sets(n_attributes: int, n: int) -> IntArray:
    """Attribute sets A of the joint release, (C(d, n+1), n+1), ascending rows in lexicographic order.

    Raises
    ------
    PrivacyError
        For n outside 0..d-1.
    """
    _check_order(n_attributes, n)
    return np.array(list(combinations(range(n_attributes), n + 1)), dtype=np.int64)


def combine_estimates(estimates: Counts, n_cells: Sequence[int] | IntArray) -> FloatArray:
    """Minimum-variance unbiased mean of independent estimates of the same counts.

    An estimate that sums k noisy cells has k times one cell's variance, so its weight is 1/k. The mean is
    taken of the differences to the first estimate: equal estimates (exact counts) come back bit for bit.

    Parameters
    ----------
    estimates : (K, ...) array
        One estimate per row, in an order that the caller fixes (it decides the rounding).
    n_cells : (K,) of int
        Number of noisy cells summed in each.

    Returns
    -------
    numpy.ndarray of float64, the shape of one estimate
    """
    values = np.asarray(estimates)
    weights = 1 / np.asarray(n_cells, dtype=np.float64)
    difference = values - values[0]
    weighted = weights.reshape(-1, *(1,) * (values.ndim - 1)) * difference
    return np.asarray(values[0] + weighted.sum(axis=0) / weights.sum(), dtype=np.float64)


def class_counts_from_joint(joint: JointTables, arity: Sequence[int] | IntArray, n: int) -> FloatArray:
    """Class counts from the joint tables, one estimate for all parent sets.

    Every joint table has them as a marginal that sums prod(arity of A) cells for each class; the noises are
    independent, so `combine_estimates` weighs each by the inverse of that number. Where the joint tables are
    spread over processes, gather their (o,) marginals in the order of `joint_sets` and combine those.

    Parameters
    ----------
    joint : mapping from an ascending tuple of n + 1 attributes to its table
        Tables (o, prod arity of A), summed over clients and not yet clipped (clipping first would bias the
        marginals upwards). Columns: mixed radix, attributes ascending, first most significant.
    arity : (d,) of int
        Number of values of every attribute.
    n : int
        Order of the AnDE.

    Returns
    -------
    numpy.ndarray of float64, (o,)
        Equal to the direct counts to the bit when the tables are exact and no cell was missing.
    """
    tables = [joint[tuple(row)] for row in joint_sets(len(arity), n).tolist()]
    return combine_estimates(np.stack([t.sum(axis=1) for t in tables]), [t.shape[1] for t in tables])


def tables_from_joint(
    parents: Sequence[int], joint: JointTables, arity: Sequence[int] | IntArray, n_classes: int
) -> tuple[FloatArray, dict[int, Counts]]:
    """Tables of one parent set P as marginals of the joint tables.

    ``child_j`` is the joint table of P + {j} with its axes in another order. The parents table is contained
    in d - n joint tables, one for every j outside P, as a sum over arity_j cells with independent noise:
    `combine_estimates` with weights 1/arity_j is the unbiased combination of these of least variance, better
    than any one of them. (Joint tables that contain only a part of P also say a little about it; using them
    takes a least-squares fit of all tables at once, which is not worth its cost here.)

    Parameters
    ----------
    parents : (n,) of int
        P, ascending; empty for n = 0.
    joint, arity
        As in `class_counts_from_joint`: summed over clients, not clipped.
    n_classes : int
        o.

    Returns
    -------
    parents : numpy.ndarray of float64, (o, q)
        Columns: code of x_P, first parent most significant. For n = 0, (o, 1): the class counts' estimate.
    children : dict from j to numpy.ndarray, (o, q, arity_j)
        For every j outside P, ascending, in the dtype of the joint tables.

    Notes
    -----
    Exact tables of data without missing cells give the direct counts to the bit. Under
    ``missing = "ignore"`` a joint table counts only the rows where all of A is present, so the parents table
    is an average over such subsets of rows.

    Raises
    ------
    PrivacyError
        For parents that are not ascending indices of attributes, or that leave no child.
    """
    chosen = tuple(int(i) for i in parents)
    sizes = [int(a) for a in arity]
    if list(chosen) != sorted(set(chosen) & set(range(len(sizes)))) or len(chosen) >= len(sizes):
        raise PrivacyError(
            f"parents: expected fewer than {len(sizes)} ascending indices below that, got {chosen}; sort them"
        )
    n_states = math.prod(sizes[i] for i in chosen)
    children: dict[int, Counts] = {}
    marginals: list[Counts] = []
    for j in (j for j in range(len(sizes)) if j not in chosen):
        before = math.prod(sizes[i] for i in chosen if i < j)
        split = joint[tuple(sorted((*chosen, j)))].reshape(n_classes, before, sizes[j], n_states // before)
        children[j] = np.ascontiguousarray(split.swapaxes(2, 3)).reshape(n_classes, n_states, sizes[j])
        marginals.append(split.sum(axis=2).reshape(n_classes, n_states))
    return combine_estimates(np.stack(marginals), [sizes[j] for j in children]), children


@dataclass(frozen=True)
class Release:
    """One release of noisy counts about one client's rows.

    Attributes
    ----------
    client : hashable
        Who holds the rows: an index or a name. Different clients hold disjoint rows.
    epsilon : float
        What this release cost each of its rows; ``inf`` for exact counts.
    """

    client: Hashable
    epsilon: float


def spent(releases: Iterable[Release]) -> float:
    """Epsilon that these releases cost the row which they cost most.

    Clients hold disjoint rows, so releases of different clients compose in parallel (McSherry, *Privacy
    integrated queries*, 2009): the maximum over clients; releases of the same client add up (basic sequential
    composition). A run in which every client releases once costs epsilon, not C epsilon. What a simulation
    repeats (folds, repeats) is a release only if its results are published.

    Returns
    -------
    float
        0 for no release, ``inf`` if any was exact.

    Raises
    ------
    PrivacyError
        For an epsilon that is zero, negative or NaN.
    """
    by_client: dict[Hashable, list[float]] = {}
    for release in releases:
        _check_epsilon(release.epsilon)
        by_client.setdefault(release.client, []).append(float(release.epsilon))
    return max((math.fsum(parts) for parts in by_client.values()), default=0.0)


def _check_order(n_attributes: int, n: int) -> None:
    if not 0 <= n < n_attributes:
        raise PrivacyError(f"n: expected 0 <= n < d = {n_attributes}, got {n}; choose a lower order")


def _check_epsilon(epsilon: float) -> None:
    if not epsilon > 0:  # NaN too
        raise PrivacyError(f"epsilon: expected a number above 0, got {epsilon}; use inf for no noise")


def _check_scale(scale: float, n_clients: int, limit: float) -> None:
    if n_clients < 0:
        raise PrivacyError(f"n_clients: expected 0 or more, got {n_clients}; pass how many drew noise")
    if not 0 <= scale < math.inf:
        raise PrivacyError(f"noise scale: expected a finite number >= 0, got {scale}; check epsilon")
    if scale * max(n_clients, 1) > limit:
        raise PrivacyError(
            f"noise scale: expected at most {limit:g} over all clients, got {scale:g} x {n_clients}; "
            "use a larger epsilon or mechanism = 'laplace'"
        )
