"""Following a running job from its files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from fedande_mpi import watching
from fedande_mpi.cli import main
from fedande_mpi.reservation import reserve
from fedande_mpi.results import write_cell
from fedande_mpi.watching import Watch, watch
from tests.result_files import filled, info

OTHER = "tic-tac-toe_NB_local_C5_01234567"


class Time:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_directory_fills_until_all_is_complete_and_nobody_is_at_work(tmp_path: Path) -> None:
    clock, directory = Time(), tmp_path / "results"
    watched = Watch(directory, clock)
    assert watched.look() == (f"{directory}: nothing there yet", False)
    directory.mkdir()
    held = reserve(directory, info().name, {"SLURM_JOB_ID": "17"})
    assert held is not None
    with held:
        text, over = watched.look()
        first, cell = text.splitlines()
        assert first == "0 of 0 cells begun are complete, 0 of 0 folds"
        assert cell.startswith(f"  {info().name}: first fold; process ")
        assert ", job 17, heard of " in cell
        write_cell(directory, filled(info(), [(0, 0), (0, 1)]))
        clock.now += 30
        text, over = watched.look()
        assert text.startswith("0 of 1 cells begun are complete, 2 of 6 folds, 4.0 folds/min\n")
        assert ": 2 of 6 folds, accuracy 0.7" in text
        write_cell(directory, filled(info()))
        assert not over
        assert not watched.look()[1]  # its job may still write
    text, over = watched.look()
    assert text.startswith("1 of 1 cells begun are complete, 6 of 6 folds")
    assert over


def test_a_file_is_read_again_only_when_it_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cell(tmp_path, filled(info(), [(0, 0)]))
    watched = Watch(tmp_path)
    first = watched.look()
    monkeypatch.setattr(watching, "open_whole", None)
    assert watched.look() == first


def test_a_damaged_file_does_not_end_it(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(b"half")
    assert Watch(tmp_path).look() == ("0 of 0 cells begun are complete, 0 of 0 folds", False)


def test_it_prints_changes_and_ends_when_all_is_complete(tmp_path: Path) -> None:
    write_cell(tmp_path, filled(info(), [(0, 0)]))
    stream, naps = io.StringIO(), []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            write_cell(tmp_path, filled(info()))

    watch(tmp_path, stream, interval=7.0, clock=Time(), sleep=sleep)
    assert naps == [7.0] * 4  # it looks twice at the end: between two cells nobody holds a claim
    first, second = stream.getvalue().splitlines()
    assert first.startswith("0 of 1 cells")
    assert second.startswith("1 of 1 cells")


def test_the_command_follows_one_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--watch", str(tmp_path), str(tmp_path)]) == 1
    assert "expected one directory to watch, got 2" in capsys.readouterr().err


def test_the_command_is_left_by_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "watch", interrupted)
    assert main(["show", "--watch", str(tmp_path)]) == 0
