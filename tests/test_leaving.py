"""How an error ends a job, and how ranks leave together."""

from __future__ import annotations

import pytest

from fedande_mpi import leaving
from fedande_mpi.errors import ConfigError, FederationError, Interrupted
from fedande_mpi.leaving import Left, ending_job, stop_if_told
from fedande_mpi.serial import SerialComm


class FakeComm(SerialComm):
    """Two ranks of which this is one; records how the job was ended."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.codes: list[int] = []

    def abort(self, code: int) -> None:
        self.codes.append(code)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving.time, "sleep", lambda seconds: None)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("expected this, got that"), 1, "fedande: expected this, got that"),
        (Interrupted("stopped by SIGTERM"), 75, "fedande: stopped by SIGTERM"),
        (KeyboardInterrupt(), 75, "fedande: interrupted; run the same command again"),
        (MemoryError(), 1, "fedande: out of memory"),
        (RuntimeError("odd"), 70, "fedande: unexpected RuntimeError: odd"),
    ],
)
def test_an_error_ends_the_job_with_one_line_and_its_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    fake = FakeComm(rank=0)
    with pytest.raises(type(error)), ending_job(fake):
        raise error
    assert fake.codes == [code]
    printed = capsys.readouterr().err.splitlines()
    assert printed[-1].startswith(message)
    assert (len(printed) == 1) == (code != 70)  # a traceback only for what nobody expects


def test_an_error_keeps_its_notes_on_its_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = FederationError("expected finite weights,\ngot NaN")
    error.add_note("rank 2, client 3, parent set (1,), round 4")
    with pytest.raises(FederationError), ending_job(FakeComm(rank=2)):
        raise error
    assert capsys.readouterr().err == (
        "fedande: expected finite weights, got NaN [rank 2, client 3, parent set (1,), round 4]\n"
    )


def test_an_error_outside_a_unit_names_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError), ending_job(FakeComm(rank=1)):
        raise ConfigError("expected this")
    assert capsys.readouterr().err == "fedande: expected this [rank 1]\n"


def test_an_interruption_leaves_the_word_to_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(leaving.time, "sleep", naps.append)
    for rank in (0, 1):
        with pytest.raises(Interrupted), ending_job(FakeComm(rank)):
            raise Interrupted("stopped")
    assert len(naps) == 1


def test_a_single_process_just_raises(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError), ending_job(SerialComm()):
        raise ConfigError("expected this")
    assert capsys.readouterr().err == ""


def test_nothing_is_ended_without_an_error() -> None:
    fake = FakeComm(rank=0)
    with ending_job(fake):
        pass
    assert fake.codes == []


# --- leaving -----------------------------------------------------------------------------------------------


class Leaving(FakeComm):
    """A rank whose others come, or do not."""

    def __init__(self, rank: int, *, come: bool) -> None:
        super().__init__(rank)
        self.come = come

    def leave(self, seconds: float) -> bool:
        return self.come


@pytest.mark.parametrize("rank", [0, 1])
def test_case_20_ranks_that_leave_together_are_not_aborted_and_rank_0_says_it(
    capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    fake = Leaving(rank, come=True)
    with pytest.raises(Left) as left, ending_job(fake), ending_job(fake):
        raise Interrupted("stopped by SIGTERM")
    assert left.value.code == 75
    assert fake.codes == []
    assert capsys.readouterr().err == ("fedande: stopped by SIGTERM\n" if rank == 0 else "")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_come_has_the_job_aborted_with_75(
    capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    fake = Leaving(rank, come=False)
    with pytest.raises(Interrupted), ending_job(fake):
        raise Interrupted("stopped by SIGTERM")
    assert fake.codes == [75]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_who_is_told_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeComm(rank=1)
    stop_if_told(fake)
    monkeypatch.setattr(fake, "told", lambda: True)
    with pytest.raises(Interrupted, match="run the same command again to continue"):
        stop_if_told(fake)
