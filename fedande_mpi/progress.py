"""Progress of a run, shown by rank 0 on the standard error stream.

A live bar with the time left on a terminal; otherwise a line for every unit, and one at least every 30 s; nothing
when quiet.
Showing progress never ends a run: a stream that cannot be written any more is left alone from then on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

PLAIN_INTERVAL = 30.0
"""Seconds between two plain lines, at least."""

REFRESH_INTERVAL = 0.1
"""Seconds between two pictures of the live bar, at least."""


class Progress(Protocol):
    """What a run tells about its progress; a context manager around the work."""

    def __enter__(self) -> Self:
        """Start the clock."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Show the last state."""

    def unit(self, description: str) -> None:
        """Say what is computed from now on."""

    def advance(self, amount: float) -> None:
        """Add `amount` (cost units) to what is done; 0 only refreshes the picture."""

    def note(self, text: str) -> None:
        """Show a line that stays."""

    def log(self, text: str) -> None:
        """Show a line that belongs in a log; a live display does without."""


def make_progress(
    total: float,
    *,
    quiet: bool = False,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Return the progress display that fits the stream.

    Parameters
    ----------
    total : float
        Cost of all the work, in the units of `Progress.advance`. The time left is estimated from it.
    quiet : bool, optional
        Show nothing.
    stream : text file, optional
        Where to write; the standard error stream when left out.
    clock : callable, optional
        Seconds, monotonic.
    """
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:  # a process may have no standard error stream at all
        return Silent()
    if _is_live(stream):
        return Live(total, stream, clock)
    return Plain(total, stream, clock)


class Silent:
    """No display."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def unit(self, description: str) -> None:
        """Ignore it."""

    def advance(self, amount: float) -> None:
        """Ignore it."""

    def note(self, text: str) -> None:
        """Ignore it."""

    def log(self, text: str) -> None:
        """Ignore it."""


class Plain:
    """Lines for a log file: what is logged, the state at most every 30 s, and a closing one."""

    def __init__(self, total: float, stream: TextIO, clock: Callable[[], float]) -> None:
        self._total = total
        self._stream = stream
        self._clock = clock
        self._done = 0.0
        self._description = ""
        self._started = self._shown = clock()
        self._broken = False

    def __enter__(self) -> Self:
        self._started = self._shown = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = "done" if kind is None else f"stopped at {self._percent()}"
        self._closing(f"{end} after {duration(self._elapsed())}")

    def unit(self, description: str) -> None:
        """Say what is computed from now on."""
        self._description = description
        self.advance(0.0)

    def advance(self, amount: float) -> None:
        """Add to what is done, and show it when the last picture is old enough."""
        self._done += amount
        now = self._clock()
        if now - self._shown >= self._interval:
            self._shown = now
            self._guarded(self._show)

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._guarded(lambda: self._line(text))

    def log(self, text: str) -> None:
        """Show a line that belongs in a log."""
        self.note(text)

    _interval = PLAIN_INTERVAL

    def _show(self) -> None:
        parts = [self._percent(), f"{duration(self._elapsed())} elapsed", self._left(), self._description]
        self._line(", ".join(part for part in parts if part))

    def _closing(self, text: str) -> None:
        self.note(text)

    def _line(self, text: str) -> None:
        self._stream.write(encodable(text, self._stream) + "\n")
        self._stream.flush()

    def _guarded(self, write: Callable[[], None]) -> None:
        """Write unless the stream is, or turns out to be, closed."""
        if self._broken:
            return
        try:
            write()
        except BlockingIOError:
            pass  # a full pipe that somebody made non-blocking: this picture is lost, the next may pass
        except ValueError:
            self._broken = True
        except OSError:
            self._broken = True
            _discard(self._stream)

    def _elapsed(self) -> float:
        return self._clock() - self._started

    def _share(self) -> float:
        return min(self._done / self._total, 1.0) if self._total > 0 else 1.0

    def _percent(self) -> str:
        # Costs are added in any order: 100 % must not miss by a rounding error.
        return f"{int(100 * self._share() + 1e-6)} %"

    def _left(self) -> str:
        seconds = time_left(self._done, self._total, self._elapsed())
        return "" if seconds is None else f"about {duration(seconds)} left"


class Live(Plain):
    """A bar that is redrawn in place.

    It is redrawn by the calls themselves: a thread would outlive a lost terminal with a traceback.
    """

    _interval = REFRESH_INTERVAL
    _rich: RichProgress | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._guarded(self._start)
        return self

    def log(self, text: str) -> None:
        """Do without: the bar tells."""

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        class Unbroken(Console):
            def on_broken_pipe(self) -> None:
                """Leave it to `_guarded`; rich would end the program and close its standard output."""
                raise

        # Cropped, since rich's ellipsis is not ASCII; no markup, since names may hold brackets.
        self._rich = Progress(
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="crop", ratio=1),
            ),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[numbers]}", markup=False, table_column=Column(no_wrap=True)),
            console=Unbroken(file=self._stream, force_terminal=True),
            auto_refresh=False,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        # The bar counts shares, so that a total of 0 is a full bar.
        self._task = self._rich.add_task("", total=1.0, numbers=self._percent())
        self._rich.start()
        self._show()

    def _show(self) -> None:
        if self._rich is None:
            return
        self._rich.update(
            self._task,
            completed=self._share(),
            description=encodable(self._description, self._stream),
            numbers=", ".join(part for part in (self._percent(), self._left()) if part),
            refresh=True,
        )

    def _closing(self, text: str) -> None:
        self._guarded(self._show)
        if self._rich is not None:
            self._guarded(self._rich.stop)
            self._rich = None
        self.note(text)

    def _line(self, text: str) -> None:
        if self._rich is None:
            super()._line(text)
            return
        self._rich.console.print(
            encodable(text, self._stream), markup=False, highlight=False, emoji=False, soft_wrap=True
        )


def time_left(done: float, total: float, elapsed: float) -> float | None:
    """Estimate the seconds left from the cost done in `elapsed` seconds; None before and after the work."""
    if not 0 < done < total:
        return None
    return elapsed * (total - done) / done


def duration(seconds: float) -> str:
    """Return a duration in two units at most: ``42 s``, ``3 min 05 s``, ``2 h 07 min``, ``1 d 03 h``."""
    whole = max(round(seconds), 0)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller:02d} {name}"
    return f"{whole} s"


def encodable(text: str, stream: TextIO) -> str:
    """Return the text with escapes for what the stream's encoding lacks."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return ascii(text)[1:-1]


def _is_live(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    except (AttributeError, OSError, ValueError):
        return False


def _discard(stream: TextIO) -> None:
    """Point a broken stream's descriptor at nothing.

    What is still in its buffer would otherwise fail again when the interpreter flushes it, and turn the
    exit code into 120.
    """
    try:
        descriptor = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
    except (AttributeError, OSError, ValueError):
        pass
