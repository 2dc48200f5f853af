"""The file of a cell while it is filled: damage, leftovers, and what others write meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedande_mpi import cellfile, storage
from fedande_mpi.cellfile import CellFile, set_aside, stored_cell
from fedande_mpi.errors import ResultsError
from fedande_mpi.results import read_cell, write_cell
from tests.result_files import filled, info, save_sidecar, unit_values

ALL = [(repeat, fold) for repeat in range(2) for fold in range(3)]


def record(file: CellFile, *units: tuple[int, int]) -> None:
    for unit in units:
        file.cell.record(*unit, unit_values(info(), *unit))


def test_a_cell_is_begun_saved_and_continued(tmp_path: Path) -> None:
    file = CellFile(tmp_path, info())
    record(file, (0, 0))
    file.save()
    record(file, (0, 1))
    file.save()
    again = CellFile(tmp_path, info())
    assert again.cell.complete_units() == [(0, 0), (0, 1)]
    assert again.aside is None


def test_overwriting_keeps_the_old_file_until_the_first_save(tmp_path: Path) -> None:
    path = write_cell(tmp_path, filled(info()))
    file = CellFile(tmp_path, info(), overwrite=ALL)
    assert read_cell(path).complete_units() == ALL
    record(file, (0, 0))
    file.save()
    assert read_cell(path).complete_units() == [(0, 0)]


def test_overwriting_some_units_keeps_the_others(tmp_path: Path) -> None:
    path = write_cell(tmp_path, filled(info()))
    file = CellFile(tmp_path, info(), overwrite=ALL[:1])
    assert file.cell.complete_units() == ALL[1:]
    record(file, ALL[0])
    file.save()
    assert read_cell(path).complete_units() == ALL


# --- damage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.95])
def test_a_truncated_file_is_set_aside_and_the_cell_begun_anew(tmp_path: Path, keep: float) -> None:
    path = write_cell(tmp_path, filled(info()))
    content = path.read_bytes()
    damaged = content[: int(keep * len(content)) if isinstance(keep, float) else keep]
    path.write_bytes(damaged)
    assert stored_cell(tmp_path, info()).complete_units() == []
    assert path.exists()  # a look changes nothing
    file = CellFile(tmp_path, info())
    assert file.aside == path.with_name(path.name + ".corrupt")
    assert file.aside.read_bytes() == damaged
    assert file.cell.complete_units() == []
    record(file, (0, 0))
    file.save()
    assert read_cell(path).complete_units() == [(0, 0)]


def test_a_file_overwritten_in_its_middle_is_set_aside(tmp_path: Path) -> None:
    path = write_cell(tmp_path, filled(info()))
    with open(path, "r+b") as stream:
        stream.seek(100)
        stream.write(b"\xff" * 2000)
    assert CellFile(tmp_path, info()).aside is not None


def test_earlier_damaged_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "cell.h5"
    for number in range(3):
        path.write_text(str(number))
        set_aside(path)
    assert sorted(found.name for found in tmp_path.iterdir()) == [
        "cell.h5.2.corrupt",
        "cell.h5.3.corrupt",
        "cell.h5.corrupt",
    ]


@pytest.mark.parametrize("error", [PermissionError(13, "no"), OSError(5, "Input/output error")])
def test_a_file_that_cannot_be_read_just_now_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    path = write_cell(tmp_path, filled(info()))

    def failing(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(storage, "open", failing, raising=False)
    with pytest.raises(ResultsError, match="cannot be read"):
        CellFile(tmp_path, info())
    assert path.exists()


def test_a_unit_whose_sidecar_has_gone_is_missing(tmp_path: Path) -> None:
    cell = filled(info())
    save_sidecar(tmp_path, cell, 0, 1)
    save_sidecar(tmp_path, cell, 1, 1)
    write_cell(tmp_path, cell)
    cell.saved[0, 1].unlink()
    assert stored_cell(tmp_path, info()).missing() == [(0, 1)]
    assert CellFile(tmp_path, info()).cell.missing() == [(0, 1)]


# --- others ------------------------------------------------------------------------------------------------


def test_what_another_job_wrote_meanwhile_is_kept(tmp_path: Path) -> None:
    slow = CellFile(tmp_path, info())
    record(slow, (0, 0))
    slow.save()
    # it stands still; another takes the cell over and does more
    fast = CellFile(tmp_path, info())
    record(fast, (0, 1), (0, 2), (1, 0))
    fast.save()
    record(slow, (0, 1))  # the unit it was in the middle of
    slow.save()
    assert read_cell(slow.path).complete_units() == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert slow.cell.is_complete(1, 0)
    fast.cell.record(1, 1, unit_values(info(), 1, 1))
    fast.save()
    assert read_cell(slow.path).complete_units() == [*ALL[:5]]


def test_two_jobs_that_disagree_about_a_unit_are_told(tmp_path: Path) -> None:
    slow = CellFile(tmp_path, info())
    record(slow, (0, 0))
    fast = CellFile(tmp_path, info())
    fast.cell.record(0, 0, unit_values(info(), 0, 0) | {"/test/accuracy": np.zeros((3, 3))})
    fast.save()
    with pytest.raises(
        ResultsError, match="/test/accuracy of repeat 0, fold 0 is not what another file says"
    ):
        slow.save()


def test_a_temporary_that_another_job_tidied_up_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CellFile(tmp_path, info())
    record(file, (0, 0))
    replace, calls = os.replace, []

    def tidied(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 1:
            cellfile.remove_leftovers(file.path)
        replace(source, target)

    monkeypatch.setattr(storage.os, "replace", tidied)
    file.save()
    assert read_cell(file.path).complete_units() == [(0, 0)]
    assert list(tmp_path.iterdir()) == [file.path]


def test_a_vanished_directory_is_not_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "results"
    directory.mkdir()
    file = CellFile(directory, info())
    record(file, (0, 0))
    file.save()
    directory.rename(tmp_path / "moved")
    record(file, (0, 1))
    with pytest.raises(ResultsError, match=r"results: expected the directory.*vanished.*bring it back"):
        file.save()
    assert not directory.exists()
    assert read_cell(tmp_path / "moved" / file.path.name).complete_units() == [(0, 0)]


# --- temporaries -------------------------------------------------------------------------------------------


def test_only_temporaries_of_the_claimed_cell_are_removed(tmp_path: Path) -> None:
    name = info().name
    mine = [f".{name}.elsewhere.1.0.tmp", f".{name}.r0.f1.some.host.17.4711_3.tmp"]
    others = [f".{name[:-1]}.elsewhere.1.0.tmp", ".notes.tmp", f"{name}.txt", f".{name}.swp"]
    for entry in (*mine, *others):
        (tmp_path / entry).write_bytes(b"half a file")
    CellFile(tmp_path, info())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_temporaries_of_any_cell_are_removed_after_a_day(tmp_path: Path) -> None:
    young, old, foreign = (tmp_path / name for name in (".a.host.1.0.tmp", ".b.host.2.0.tmp", ".mine.tmp"))
    for path in (young, old, foreign):
        path.write_bytes(b"half a file")
        age = 3600 * (23 if path == young else 25)
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    storage.remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == [young, foreign]
