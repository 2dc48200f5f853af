"""Programs of ranks as generators, run side by side in one process.

Where a program has to wait it yields False, where it has got on it yields True. `drive` runs any number of them
and sleeps, or leaves the processor to others, only when all of them wait. So a server of many shards, a host of one,
and both in a single process without MPI are the same code.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
Program = Generator[bool, None, T]
"""A rank's program: yields whether it got on, returns its result."""


_POLL_SECONDS = 0.02
_LONGEST_PAUSE = 1e-3
_SHORTEST_PAUSE = 2e-5

_LONG_WAIT = 5e-3
_LONGEST_REST = 1e-2
_REST_SHARE = 0.02
"""Waits that are long enough to learn from; how long one may sleep when those before it were long, and, in a wait
unlike the last, as a share of it, which is by how much it gets longer."""

_BRIEF_WAIT = 5e-4
_MOST_SKIPPED = 64
"""A wait that is over within this is better not slept through: a nap of 20 us takes up to 100. And how many waits are
slept through at most before it is tried again."""


class _Patience:
    """How long a program that waits may be left alone.

    Where rounds take less than a millisecond, a nap is a good part of one: when the last wait was of that kind, the
    program only yields the processor until the wait is no longer brief. That pays while nobody else wants the processor
    or who wants it is who is waited for. Where the wait takes longer all the same, the next ones are slept through:
    each failure doubles how many, each success makes it one less. On crowded processors whoever does not sleep
    falls behind.

    Short waits stay short: a pause is a tenth of the time waited so far, a millisecond at most. Waking up a
    thousand times a second costs 2 % of a core in a virtual machine, which is most of what a server needs while its
    hosts compute. Their rounds take similar times: one that `rests` sleeps through most of a wait as long as
    the last, 10 ms at a time, and after a longer one looks every fiftieth of it.
    """

    def __init__(self, *, rests: bool) -> None:
        self.rests = rests
        self.since: float | None = None
        self.last = 0.0
        self.latest = float("inf")
        self.yields = False
        self.skips = 0
        self.to_skip = 1

    def got_on(self, now: float) -> None:
        """Note the end of a wait, if there was one."""
        if self.since is None:
            return
        self.latest = now - self.since
        if self.latest > _LONG_WAIT:
            self.last = self.latest
        if self.yields:
            self.to_skip = max(1, self.to_skip - 1)
        self.since = None

    def pause(self, now: float) -> float:
        """Return the seconds from `now` until the program should be looked at; 0 not to sleep at all."""
        if self.since is None:
            self.since = now
            self.yields = self.skips == 0 and self.latest < 2 * _BRIEF_WAIT
            self.skips = max(0, self.skips - 1)
        waited = now - self.since
        if self.yields:
            if waited < _BRIEF_WAIT:
                return 0.0
            self.yields = False
            self.skips, self.to_skip = self.to_skip, min(_MOST_SKIPPED, 2 * self.to_skip)
        rest = 0.0
        if self.rests and waited > _LONG_WAIT:
            unlike = waited > 1.5 * self.last
            rest = min(_LONGEST_REST, _REST_SHARE * waited if unlike else 0.9 * self.last - waited)
        return max(rest, min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, 0.1 * waited)))


def drive(
    programs: Iterable[Program[Any]], poll: Callable[[], None] = lambda: None, *, rests: bool = False
) -> list[Any]:
    """Run programs side by side until all have returned.

    Parameters
    ----------
    programs : iterable of Program
        Generators that yield True when they got on and False when they wait.
    poll : callable
        Called between steps, about every 20 ms; may raise to end the run.
    rests : bool
        Whether to sleep for longer than a millisecond while waits like those before are not over.

    Returns
    -------
    list
        What the programs returned, in order.
    """
    running = {key: (program, _Patience(rests=rests)) for key, program in enumerate(programs)}
    results: dict[int, Any] = {}
    polled = float("-inf")
    now = time.perf_counter()
    while running:
        if now - polled >= _POLL_SECONDS:
            poll()
            polled = now
        pauses = []
        all_wait = True
        for key, (program, patience) in list(running.items()):
            try:
                got_on = next(program)
            except StopIteration as stop:
                results[key] = stop.value
                del running[key]
                got_on = True
            now = time.perf_counter()
            if got_on:
                patience.got_on(now)
                all_wait = False
            pauses.append(0.0 if got_on else patience.pause(now))
        if all_wait:
            pause = min(pauses)
            if pause > 0.0:
                time.sleep(pause)
            else:
                os.sched_yield()
            now = time.perf_counter()
    return [results[key] for key in sorted(results)]


def together(*programs: Program[Any]) -> Program[None]:
    """Run programs side by side inside one program; it gets on when any of them does."""
    running = list(programs)
    while running:
        got_on = False
        for program in list(running):
            try:
                got_on |= next(program)
            except StopIteration:
                running.remove(program)
                got_on = True
        yield got_on
