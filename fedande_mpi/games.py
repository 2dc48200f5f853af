"""The two data sets of the paper that follow from the rules of a game.

Both return exactly the rows, attribute names and declared values of the public data sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.table import Column, Table

_SQUARES = tuple(
    f"{row}-{column}-square"
    for row, column in product(("top", "middle", "bottom"), ("left", "middle", "right"))
)
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_BLANK, _O, _X = range(3)

_FILES = tuple("abcdefgh")
_RANKS = tuple("12345678")
_DEPTHS = (
    *("draw", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
)
_NEVER = 100  # above every depth to mate; leaves room for + 1 in int8


def tic_tac_toe() -> Table:
    """Return the 958 boards at which a game of tic-tac-toe can end; x moves first.

    Returns
    -------
    Table
        Nine squares in ``{b, o, x}`` and the class: ``positive`` where x has a line.
    """
    boards: set[tuple[int, ...]] = set()
    open_boards: set[tuple[int, ...]] = {(_BLANK,) * 9}
    for turn in range(9):
        player = _X if turn % 2 == 0 else _O
        moved = {(*b[:i], player, *b[i + 1 :]) for b in open_boards for i in range(9) if b[i] == _BLANK}
        ended = {board for board in moved if turn == 8 or _has_line(board, player)}
        boards |= ended
        open_boards = moved - ended
    rows = np.array(sorted(boards), dtype=np.int32)
    positive = np.array([_has_line(board, _X) for board in sorted(boards)], dtype=np.int32)
    squares = [Column(name, "nominal", ("b", "o", "x"), rows[:, i]) for i, name in enumerate(_SQUARES)]
    return Table((*squares, Column("Class", "nominal", ("negative", "positive"), positive)))


def _has_line(board: Sequence[int], player: int) -> bool:
    return any(all(board[i] == player for i in line) for line in _LINES)


def kr_vs_k() -> Table:
    """Return the 28,056 positions of king and rook against king, Black to move, up to symmetry.

    The white king stands in the triangle a1-d1-d4. If it is on the diagonal, the black king is below
    it, or on it and the rook's rank is at most its file.

    Returns
    -------
    Table
        File and rank of the white king, the white rook and the black king, and the class ``Game``:
        White's moves to mate under best play by both, ``draw`` if there is no mate.
    """
    depth, legal = _moves_to_mate()
    wk, wr, bk = np.nonzero(legal)
    (wk_file, wk_rank), (wr_file, wr_rank), (bk_file, bk_rank) = (
        divmod(square, 8) for square in (wk, wr, bk)
    )
    keep = (wk_file <= 3) & (wk_rank <= wk_file)
    below = (bk_rank < bk_file) | ((bk_rank == bk_file) & (wr_rank <= wr_file))
    keep &= (wk_rank < wk_file) | below
    game = np.where(depth == _NEVER, 0, depth + 1)[wk, wr, bk]
    columns = [
        Column(f"{piece}_{axis}", "nominal", names, codes[keep].astype(np.int32))
        for piece, square in (
            ("White_king", (wk_file, wk_rank)),
            ("White_rook", (wr_file, wr_rank)),
            ("Black_king", (bk_file, bk_rank)),
        )
        for axis, names, codes in zip(("col", "row"), (_FILES, _RANKS), square, strict=True)
    ]
    return Table((*columns, Column("Game", "nominal", _DEPTHS, game[keep].astype(np.int32))))


def _moves_to_mate() -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Solve the ending by retrograde analysis.

    Returns
    -------
    depth : ndarray of int8, shape (64, 64, 64)
        White's moves to mate with Black to move, by white king, white rook and black king (a square is
        8 file + rank); 100 where there is no mate and at illegal positions.
    legal : ndarray of bool, shape (64, 64, 64)
        Three different squares, kings not adjacent. Black may be in check.
    """
    square = np.arange(64)
    neighbours = _king_moves()
    adjacent = np.zeros((64, 65), dtype=bool)
    adjacent[square[:, None], neighbours] = True
    adjacent = adjacent[:, :64]
    same = np.eye(64, dtype=bool)
    taken = same[:, :, None] | same[None, :, :]  # the rook stands on a king
    legal = ~(taken | same[:, None, :] | adjacent[:, None, :])

    attacked = _rook_attacks(same)
    # Black's eight moves as (wk, wr, bk, move): on the board, not beside the white king, not under the
    # rook, which sees through the square that the king leaves. Taking an unguarded rook is legal.
    safe = np.zeros((64, 64, 65), dtype=bool)
    safe[:, :, :64] = ~(adjacent[:, None, :] | attacked | same[:, None, :])
    can_move = safe[:, :, neighbours]
    stuck = ~can_move.any(axis=3)
    takes = (can_move & (neighbours[None, None] == square[None, :, None, None])).any(axis=3)

    depth = np.full((64, 64, 64), _NEVER, dtype=np.int8)
    depth[legal & stuck & attacked] = 0
    held = ~legal | stuck | takes  # mates, stalemates and lost rooks never change
    while True:
        white = _white_to_move(depth, taken, neighbours)
        after = np.concatenate([white, np.zeros((64, 64, 1), np.int8)], axis=2)[:, :, neighbours]
        best = np.where(can_move, after, -1).max(axis=3)
        updated = np.where(held, depth, best).astype(np.int8)
        if np.array_equal(updated, depth):
            return depth, legal
        depth = updated


def _white_to_move(
    depth: NDArray[np.int8], taken: NDArray[np.bool_], neighbours: NDArray[np.intp]
) -> NDArray[np.int8]:
    """Return White's moves to mate with White to move: one more than the best position reached."""
    never = np.full((1, 64, 64), _NEVER, dtype=np.int8)
    best = np.concatenate([depth, never])[neighbours].min(axis=1)
    board = depth.reshape(64, 8, 8, 64)
    occupied = taken.reshape(64, 8, 8, 64)
    for axis, step in product((1, 2), (-1, 1)):
        # reach[s]: the best the rook finds from s on, in one direction, until a king stands in its way
        reach = np.full_like(board, _NEVER)
        order = range(1, 8) if step < 0 else range(6, -1, -1)
        for i in order:
            here, ahead = _at(axis, i), _at(axis, i + step)
            beyond = np.minimum(board[ahead], reach[ahead])
            reach[here] = np.where(occupied[ahead], _NEVER, beyond)
        best = np.minimum(best, reach.reshape(64, 64, 64))
    moves: NDArray[np.int8] = np.minimum(best + 1, _NEVER).astype(np.int8)
    return moves


def _king_moves() -> NDArray[np.intp]:
    """Return the squares beside each square, shape ``(64, 8)``; 64 where the board ends."""
    file, rank = divmod(np.arange(64)[:, None], 8)
    step_file, step_rank = np.array([(f, r) for f, r in product((-1, 0, 1), repeat=2) if f or r]).T
    to_file, to_rank = file + step_file, rank + step_rank
    inside = (to_file >= 0) & (to_file < 8) & (to_rank >= 0) & (to_rank < 8)
    return np.where(inside, 8 * to_file + to_rank, 64).astype(np.intp)


def _rook_attacks(same: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether the rook attacks a square past the white king, shape ``(64, 64, 64)``."""
    attacked = np.zeros((64, 8, 8, 64), dtype=bool)  # wk, rook's file, rook's rank, square
    target = np.broadcast_to(same.reshape(8, 8, 64), (64, 8, 8, 64))
    king = np.broadcast_to(same.reshape(64, 8, 8, 1), (64, 8, 8, 1))
    for axis, step in product((1, 2), (-1, 1)):
        reach = np.zeros_like(attacked)
        order = range(1, 8) if step < 0 else range(6, -1, -1)
        for i in order:
            here, ahead = _at(axis, i), _at(axis, i + step)
            reach[here] = (target[ahead] | reach[ahead]) & ~king[ahead]
        attacked |= reach
    return attacked.reshape(64, 64, 64)


def _at(axis: int, i: int) -> tuple[slice | int, ...]:
    return (slice(None),) * axis + (i,)
