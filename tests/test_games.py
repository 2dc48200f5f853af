"""The two games against what is known of them, and against the public data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedande_mpi.arff_source import read_arff
from fedande_mpi.games import kr_vs_k, tic_tac_toe
from fedande_mpi.table import Table

GENERATORS = {"tic-tac-toe": tic_tac_toe, "kr-vs-k": kr_vs_k}


def rows(table: Table) -> Counter[tuple[str, ...]]:
    columns = ([column.values[code] for code in column.codes] for column in table.columns)
    return Counter(zip(*columns, strict=True))


@pytest.mark.parametrize(("name", "generate"), GENERATORS.items(), ids=GENERATORS)
def test_the_rows_are_those_of_the_public_data_set(
    shared_data: Path, name: str, generate: Callable[[], Table]
) -> None:
    public, made = read_arff(shared_data / f"{name}.arff.gz"), generate()
    assert [(c.name, c.kind, c.values) for c in made.columns] == [
        (c.name, c.kind, c.values) for c in public.columns
    ]
    assert rows(made) == rows(public)


def test_tic_tac_toe_has_958_ends_of_which_x_wins_626() -> None:
    *squares, label = tic_tac_toe().columns
    boards = np.stack([column.codes for column in squares], axis=1)
    assert len(np.unique(boards, axis=0)) == len(boards) == 958
    assert label.codes.sum() == 626
    full = (boards > 0).all(axis=1)
    assert (full & (label.codes == 0)).sum() == 16  # the draws
    assert set((boards == 2).sum(axis=1) - (boards == 1).sum(axis=1)) == {0, 1}


def test_kr_vs_k_has_the_known_number_of_positions_of_each_depth() -> None:
    # draw, zero .. sixteen: the class distribution published with the data set
    expected = [
        2796,
        27,
        78,
        246,
        81,
        198,
        471,
        592,
        683,
        1433,
        1712,
        1985,
        2854,
        3597,
        4194,
        4553,
        2166,
        390,
    ]
    table = kr_vs_k()
    assert np.bincount(table.columns[-1].codes).tolist() == expected
    assert sum(expected) == 28056
    assert max(rows(table).values()) == 1


@pytest.mark.parametrize(
    ("position", "game"),
    [
        ("c2 a3 a1", "zero"),  # mate in the corner
        ("c2 b4 a1", "one"),  # Ka2 is forced, Ra4 mates
        ("c3 b2 a1", "draw"),  # stalemate
        ("c1 a2 a1", "draw"),  # the rook is lost
        ("c1 b2 a1", "draw"),  # guarded, but stalemate
    ],
)
def test_single_positions(position: str, game: str) -> None:
    table = kr_vs_k()
    squares = tuple(letter for square in position.split() for letter in square)
    assert (*squares, game) in rows(table)
