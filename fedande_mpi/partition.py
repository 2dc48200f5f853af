"""Who holds which row: folds, clients, and the random streams they are drawn from.

Every draw comes from a stream keyed by what it is for, so a draw never depends on what else was drawn, on
the rank that draws it, or on the global generators.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.errors import ConfigError

FOLDS, OWNERS, NOISE = 0, 1, 2
"""Purpose numbers: the first word of every stream's spawn key."""

HELD_OUT = -1
"""Owner of a row that belongs to the test fold."""


def stream(seed: int, purpose: int, *key: int) -> np.random.Generator:
    """Return the random generator for one purpose.

    Parameters
    ----------
    seed : int
        The experiment's seed.
    purpose : int
        `FOLDS`, `OWNERS` or `NOISE`.
    *key : int
        Non-negative integers that say which draw of that purpose it is.
    """
    # by name: what default_rng returns may change some day
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(purpose, *key))))


def _deal(
    y: NDArray[np.integer], rows: NDArray[np.integer], n_parts: int, rng: np.random.Generator
) -> NDArray[np.int32]:
    """Deal ascending rows to parts like cards: class by class, shuffled within a class, parts in random order.

    The deal continues from one class to the next, so every part gets floor or ceil of m / n_parts rows, and
    of each class floor or ceil of its share.
    """
    shuffled = rows[rng.permutation(rows.size)]
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    parts = rng.permutation(n_parts)
    place = np.argsort(by_class, kind="stable")  # of each row, in ascending order, among the dealt
    return parts[place % n_parts].astype(np.int32)


def stratified_folds(y: NDArray[np.integer], n_folds: int, *, seed: int, repeat: int) -> NDArray[np.int32]:
    """Assign every row to the fold that holds it out.

    Parameters
    ----------
    y : (m,) array of int
        Class codes.
    n_folds : int
        Number of folds, at least 2 and at most m.
    seed, repeat : int
        Key of the stream.

    Returns
    -------
    (m,) array of int32
        Fold of each row; fold sizes differ by at most one, and so do the rows of one class per fold.

    Raises
    ------
    ConfigError
        With fewer rows than folds.
    """
    if y.size < n_folds:
        raise ConfigError(
            f"expected at least one row per fold, got {y.size} rows for {n_folds} folds: lower 'folds'"
        )
    return _deal(y, np.arange(y.size), n_folds, stream(seed, FOLDS, repeat))


def client_owners(
    y: NDArray[np.integer],
    test_fold: NDArray[np.integer],
    fold: int,
    n_clients: int,
    *,
    seed: int,
    repeat: int,
    allow_empty: bool = False,
) -> NDArray[np.int32]:
    """Deal the training rows of one fold to the clients, stratified by class.

    Parameters
    ----------
    y, test_fold : (m,) array of int
        Class codes, and the fold that holds each row out.
    fold : int
        The fold held out.
    n_clients : int
        Number of clients C.
    seed, repeat : int
        Key of the stream, together with `fold` and C.
    allow_empty : bool
        Whether clients without a row are allowed.

    Returns
    -------
    (m,) array of int32
        Client 0..C-1 of each row, `HELD_OUT` for the test rows.

    Raises
    ------
    ConfigError
        With more clients than training rows, unless `allow_empty`.
    """
    training = np.flatnonzero(test_fold != fold)
    if training.size < n_clients and not allow_empty:
        raise ConfigError(
            f"expected at most one client per training row, got {n_clients} clients for {training.size} "
            f"training rows in fold {fold}: lower 'clients', or set allow_empty = true"
        )
    owner = np.full(y.size, HELD_OUT, dtype=np.int32)
    owner[training] = _deal(y, training, n_clients, stream(seed, OWNERS, repeat, fold, n_clients))
    return owner
