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
    """Record the pauses of `drive` instead of taking them; 0 where it does not sleep but yields the processor."""
    taken: list[float] = []
    monkeypatch.setattr(programs.time, "sleep", taken.append)
    monkeypatch.setattr(programs.os, "sched_yield", lambda: taken.append(0.0))
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
def test_drive_pauses_only_when_all_wait(
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


WAITS = {"brief": 3e-4, "longer": 2e-3, "long": 0.1}


def ways_to_wait(monkeypatch: pytest.MonkeyPatch, *waits: str) -> list[set[str]]:
    """Let a program wait as named, one wait after another; say how `drive` passed each of them."""
    now = 0.0
    ways: list[set[str]] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        ways[-1].add("sleeps")

    def sched_yield() -> None:
        nonlocal now
        now += 1e-5
        ways[-1].add("yields")

    def waiting() -> Program[None]:
        for wait in waits:
            ways.append(set())
            end = now + WAITS[wait]
            while now < end:
                yield False
            yield True

    monkeypatch.setattr(programs.time, "sleep", sleep)
    monkeypatch.setattr(programs.os, "sched_yield", sched_yield)
    monkeypatch.setattr(programs.time, "perf_counter", lambda: now)
    drive([waiting()])
    return ways


SLEEPS, YIELDS, BOTH = {"sleeps"}, {"yields"}, {"yields", "sleeps"}


def test_after_a_brief_wait_the_next_is_not_slept_through(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ways_to_wait(monkeypatch, "brief", "brief", "brief") == [SLEEPS, YIELDS, YIELDS]


def test_after_a_long_wait_the_next_is_slept_through(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ways_to_wait(monkeypatch, *["long"] * 5) == [SLEEPS] * 5


def test_after_a_wait_that_was_not_brief_after_all_twice_as_many_are_slept_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = ["brief", "longer", "brief", "longer", "brief", "brief", "brief"]
    assert ways_to_wait(monkeypatch, *waits) == [SLEEPS, BOTH, SLEEPS, BOTH, SLEEPS, SLEEPS, YIELDS]
    waits = ["brief", "longer", "brief", "brief", "longer", "brief", "brief"]  # one success in between
    assert ways_to_wait(monkeypatch, *waits) == [SLEEPS, BOTH, SLEEPS, YIELDS, BOTH, SLEEPS, YIELDS]


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
