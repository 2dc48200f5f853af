"""What a directory of results has and lacks."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from fedande_mpi.checking import check
from fedande_mpi.cli import main
from fedande_mpi.errors import ResultsError
from fedande_mpi.reservation import reserve
from fedande_mpi.results import write_cell
from tests.result_files import CONFIG, filled, info, save_sidecar


def test_a_complete_directory_has_nothing_to_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cell(tmp_path, filled(info()))
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "1 cells, 1 complete, no problem\n"


def test_missing_folds_are_named_and_are_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cell(tmp_path, filled(info(), [(0, 0), (0, 2), (1, 1)]))
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"missing {info().name}: repeat 0 folds 1; repeat 1 folds 0, 2",
        "1 cells, 0 complete, 3 folds missing in 1: run the same command again, no problem",
    ]


@pytest.mark.parametrize(("folds", "units"), [("1", [(0, 1), (1, 1)]), ("[0, 2]", [(0, 0), (1, 0), (1, 2)])])
def test_only_what_the_configuration_asks_for_can_be_missing(
    tmp_path: Path, folds: str, units: list[tuple[int, int]]
) -> None:
    write_cell(tmp_path, filled(info(config=f"only_folds = {folds}\n{CONFIG}"), units))
    expected = [] if folds == "1" else [(0, 2)]
    assert check([tmp_path]).missing.get(info().name, []) == expected


def test_a_damaged_file_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_cell(tmp_path, filled(info()))
    path.write_bytes(path.read_bytes()[:1000])
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"PROBLEM {path}: expected a readable result file, but it is damaged")
    assert out.endswith("1 problems\n")


def test_a_file_against_the_schema_is_a_problem(tmp_path: Path) -> None:
    path = write_cell(tmp_path, filled(info()))
    with h5py.File(path, "r+") as file:
        file["test/accuracy"][0, 0] = 2.0
    (problem,) = check([path]).problems
    assert "repeat 0, fold 0: /test/accuracy is outside 0 to 1" in problem


def test_a_sidecar_that_is_gone_or_damaged_is_a_problem(tmp_path: Path) -> None:
    cell = filled(info())
    for fold in range(3):
        save_sidecar(tmp_path, cell, 0, fold)
    write_cell(tmp_path, cell)
    assert check([tmp_path]).problems == []
    cell.saved[0, 0].unlink()
    cell.saved[0, 1].write_bytes(b"half")
    gone, damaged = check([tmp_path]).problems
    assert gone.startswith(f"{cell.saved[0, 0]}: expected a result file, found none")
    assert gone.endswith("; run again")
    assert damaged.startswith(f"{cell.saved[0, 1]}: expected a readable result file")
    assert damaged.endswith("; delete it and run again")


def test_a_sidecar_that_was_asked_for_and_never_written_is_a_problem(tmp_path: Path) -> None:
    write_cell(tmp_path, filled(info(config=f'save = ["weights"]\n{CONFIG}'), [(1, 2)]))
    assert check([tmp_path]).problems == [f"{info().name}: repeat 1 fold 2 has no sidecar"]


def test_what_else_lies_about_is_noted(tmp_path: Path) -> None:
    path = write_cell(tmp_path, filled(info()))
    (tmp_path / f"{path.name}.corrupt").write_bytes(b"")
    (tmp_path / f".{info().name}.host.1.0.tmp").write_bytes(b"")
    held = reserve(tmp_path, info().name)
    assert held is not None
    with held:
        found = check([tmp_path])
    assert found.problems == []
    corrupt, claim, temporary = found.notes
    assert "a damaged file that a run set aside" in corrupt
    assert claim.startswith(f"{info().name}: claimed by process ")
    assert "1 temporary files" in temporary


def test_a_path_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="expected result files"):
        check([tmp_path])
