"""Programs of ranks: side by side, napping only when all wait, polled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedande_mpi import programs
from fedande_mpi.errors import Interrupted
from fedande_mpi.programs import Program, drive, together


def program(steps: list[bool], result: Any = None) -> Program[Any]:
    """Yield these steps, then return a result."""
    yield from steps
    return result


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses of `drive` instead of taking them."""
    taken: list[float] = []
    monkeypatch.setattr(programs.time, "sleep", taken.append)
    return taken


def test_drive_returns_the_results_in_the_order_of_the_programs(naps: list[float]) -> None:
    assert drive([program([True] * 3, "slow"), program([], "quick"), program([False], None)]) == [
        "slow",
        "quick",
        None,
    ]


@pytest.mark.parametrize(
    ("steps_of_all", "expected"),
    [
        ([[True, True]], 0),
        ([[False, True, False]], 2),
        ([[False, False], [True, True]], 0),
        ([[False, True], [True, False]], 0),
        ([[False, False, True], [False, True, False]], 1),
    ],
)
def test_drive_sleeps_only_when_all_wait(
    naps: list[float], steps_of_all: list[list[bool]], expected: int
) -> None:
    drive([program(steps) for steps in steps_of_all])
    assert len(naps) == expected


def test_pauses_grow_with_the_wait_to_a_millisecond_and_begin_short_again(
    naps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(np.arange(0.0, 1.0, 0.004))
    monkeypatch.setattr(programs.time, "perf_counter", lambda: float(next(ticks)) + 1.0)
    drive([program([False] * 6 + [True] + [False])])
    first, *rest = naps[:6]
    assert first == naps[6] < 1e-4  # after getting on, short again
    assert rest == sorted(rest)
    assert max(naps) == 1e-3


@pytest.mark.parametrize(("rests", "expected"), [(False, 1e-3), (True, 1e-2)])
def test_only_who_rests_sleeps_longer_while_a_wait_like_the_last_is_not_over(
    monkeypatch: pytest.MonkeyPatch, rests: bool, expected: float
) -> None:
    now, naps = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        naps.append(seconds)

    def round_after(until: float) -> Program[None]:
        while now < until:
            yield False
        yield True

    def server() -> Program[None]:
        yield from round_after(0.2)
        naps.clear()
        yield from round_after(0.4)

    monkeypatch.setattr(programs.time, "sleep", sleep)
    monkeypatch.setattr(programs.time, "perf_counter", lambda: now)
    drive([server()], rests=rests)
    assert max(naps) == pytest.approx(expected)
    assert max(naps[-10:]) <= 1e-3  # when the round is due, looks are close again
    assert now <= 0.402


def test_a_first_wait_is_made_longer_by_a_fiftieth_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now, naps = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now, naps
        now, naps = now + seconds, naps + 1

    def until(end: float) -> Program[None]:
        while now < end:
            yield False

    monkeypatch.setattr(programs.time, "sleep", sleep)
    monkeypatch.setattr(programs.time, "perf_counter", lambda: now)
    drive([until(0.4)], rests=True)
    assert now <= 1.02 * 0.4
    assert naps < 200  # 400 of a millisecond each


def test_drive_polls_between_steps_and_what_poll_raises_ends_it(naps: list[float]) -> None:
    taken: list[int] = []

    def endless() -> Program[None]:
        while True:
            taken.append(1)
            yield True

    def poll() -> None:
        if len(taken) >= 3:
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        drive([endless()], poll)
    assert len(taken) >= 3


def test_together_gets_on_when_any_program_does() -> None:
    steps = list(together(program([False, False]), program([True, False, False])))
    # every end counts as getting on
    assert steps == [True, False, True, True]


def test_together_waits_for_the_slowest(naps: list[float]) -> None:
    done: list[str] = []

    def named(name: str, steps: int) -> Program[None]:
        for _ in range(steps):
            yield False
        done.append(name)

    drive([together(named("slow", 4), named("quick", 1))])
    assert done == ["quick", "slow"]
