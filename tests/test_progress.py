"""Progress: what is shown where, and that showing it never ends a run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fedande_mpi import progress
from fedande_mpi.progress import Live, Plain, Silent, duration, encodable, make_progress, time_left


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding: str) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding=encoding, errors="strict", write_through=True)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        return self.bytes.getvalue().decode(self.encoding)


class Broken(io.StringIO):
    """A stream that fails from the n-th write on."""

    def __init__(self, error: Exception, sound: int = 0, terminal: bool = False) -> None:
        super().__init__()
        self.error, self.sound, self.tries, self.terminal = error, sound, 0, terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.tries += 1
        if self.tries > self.sound:
            raise self.error
        return super().write(text)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def terminal_kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_quiet_is_silent() -> None:
    assert isinstance(make_progress(1, quiet=True), Silent)


def test_no_stream_at_all_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert isinstance(make_progress(1), Silent)


def test_a_terminal_gets_the_live_bar() -> None:
    assert isinstance(make_progress(1, stream=Terminal("utf-8")), Live)


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    assert type(make_progress(1, stream=Terminal("utf-8"))) is Plain


def test_a_closed_stream_gets_plain_lines_that_do_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    with make_progress(1, stream=stream) as shown:
        shown.note("lost")


def test_plain_lines_are_at_least_30_s_apart(clock: Clock) -> None:
    stream = io.StringIO()
    with make_progress(100, stream=stream, clock=clock) as shown:
        shown.unit("car A1DE")
        for _ in range(10):  # 10 s each
            clock.now += 10.0
            shown.advance(1.0)
    assert lines(stream) == [
        "3 %, 30 s elapsed, about 16 min 10 s left, car A1DE",
        "6 %, 1 min 00 s elapsed, about 15 min 40 s left, car A1DE",
        "9 %, 1 min 30 s elapsed, about 15 min 10 s left, car A1DE",
        "done after 1 min 40 s",
    ]


def test_a_short_run_has_one_plain_line(clock: Clock) -> None:
    stream = io.StringIO()
    with make_progress(1, stream=stream, clock=clock) as shown:
        shown.advance(1.0)
    assert lines(stream) == ["done after 0 s"]


def test_a_note_is_shown_at_once(clock: Clock) -> None:
    stream = io.StringIO()
    make_progress(1, stream=stream, clock=clock).note("hybrid local skipped")
    assert lines(stream) == ["hybrid local skipped"]


def test_an_error_shows_how_far_the_run_came_and_passes(clock: Clock) -> None:
    stream = io.StringIO()
    shown = make_progress(4, stream=stream, clock=clock)
    shown.advance(1.0)
    with pytest.raises(KeyError), shown:
        raise KeyError
    assert lines(stream) == ["stopped at 25 % after 0 s"]


@pytest.mark.parametrize(
    ("total", "amounts", "percent"), [(0, [], "100 %"), (1, [0.1] * 10, "100 %"), (1, [5], "100 %")]
)
def test_the_percentage_ends_at_100(total: float, amounts: list[float], percent: str, clock: Clock) -> None:
    stream = io.StringIO()
    shown = make_progress(total, stream=stream, clock=clock)
    for amount in amounts:
        shown.advance(amount)
    clock.now += 31
    shown.advance(0.0)
    assert lines(stream)[0].startswith(percent)


@pytest.mark.parametrize(
    ("done", "total", "elapsed", "left"),
    [(0, 10, 5, None), (10, 10, 5, None), (0, 0, 5, None), (2, 10, 5, 20.0), (12, 10, 5, None)],
)
def test_time_left(done: float, total: float, elapsed: float, left: float | None) -> None:
    assert time_left(done, total, elapsed) == left


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (97_300, "1 d 03 h"),
    ],
)
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_the_live_bar_fits_the_encoding(encoding: str, clock: Clock) -> None:
    stream = Terminal(encoding)
    with make_progress(2, stream=stream, clock=clock) as shown:
        shown.unit("naïve [bold] μ " + "x" * 200)  # cropped without an ellipsis outside ASCII
        clock.now += 1
        shown.advance(1.0)
        shown.note("skipped: μ")
    text = stream.text()
    assert "50 %, about 1 s left" in text
    assert "[bold]" in text
    assert ("skipped: μ" if encoding == "utf-8" else "skipped: \\u03bc") in text
    assert text.endswith("done after 1 s\n")


def test_the_live_bar_is_drawn_at_most_ten_times_a_second(clock: Clock) -> None:
    stream = Terminal("utf-8")
    with make_progress(1000, stream=stream, clock=clock) as shown:
        before = len(stream.text())
        for _ in range(99):
            clock.now += 0.001
            shown.advance(1.0)
        assert len(stream.text()) == before


def test_a_note_before_the_bar_starts_is_a_plain_line(clock: Clock) -> None:
    stream = Terminal("utf-8")
    make_progress(1, stream=stream, clock=clock).note("early")
    assert stream.text() == "early\n"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("sound", [0, 1, 3])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "I/O"), ValueError("closed")])
def test_a_broken_stream_is_left_alone(error: Exception, sound: int, terminal: bool, clock: Clock) -> None:
    stream = Broken(error, sound, terminal)
    with make_progress(3, stream=stream, clock=clock) as shown:
        for _ in range(5):
            clock.now += 31
            shown.advance(1.0)
            shown.note("a note")
    assert stream.tries <= sound + 2  # rich tries once more to end its picture


def test_a_full_pipe_loses_lines_only(clock: Clock) -> None:
    stream = Broken(BlockingIOError(), sound=0)
    with make_progress(3, stream=stream, clock=clock) as shown:
        shown.note("lost")
        stream.sound = 100
        shown.note("kept")
    assert "kept" in lines(stream)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "no-such-encoding", None])
def test_encodable_never_fails(encoding: str | None) -> None:
    class Stream(io.StringIO):
        pass

    Stream.encoding = encoding  # type: ignore[assignment]
    assert encodable("plain", Stream()) == "plain"
    assert encodable("μ \udc80", Stream())


def test_a_reader_that_leaves_does_not_change_the_exit_code() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = (
        "from fedande_mpi.progress import make_progress\n"
        "with make_progress(1) as shown:\n    shown.note('x'); shown.note('y')\nraise SystemExit(3)"
    )
    try:
        code = subprocess.run([sys.executable, "-c", program], stderr=writing, timeout=60).returncode
    finally:
        os.close(writing)
    assert code == 3


def test_rich_is_imported_for_a_terminal_only() -> None:
    program = (
        "import sys\nfrom fedande_mpi.progress import make_progress\n"
        "with make_progress(1) as shown:\n    shown.note('x')\nassert 'rich' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, timeout=60, check=True)


def test_intervals_are_what_the_design_says() -> None:
    assert progress.PLAIN_INTERVAL == 30.0
