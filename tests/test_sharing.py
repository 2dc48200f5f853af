"""Several jobs in one directory of results, and damaged files in it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import h5py
import pytest

from fedande_mpi import experiment as experiments
from fedande_mpi import reservation
from fedande_mpi.config import Experiment
from fedande_mpi.errors import ResultsError
from fedande_mpi.experiment import run_experiment
from fedande_mpi.progress import Silent
from fedande_mpi.reservation import Holder, file_system_time, read_claim
from tests.mpi.launch import assert_same_bytes

GRID: dict[str, Any] = {
    "datasets": "synthetic:m=90,d=4,o=3,arity=3,seed=2",
    "n": [0, 1],
    "clients": [3, 4],
    "methods": "generative",
    "folds": 3,
    "repeats": 1,
}


class Log(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.logged: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def log(self, text: str) -> None:
        self.logged.append(text)


def run(directory: Path, **options: Any) -> Log:
    log = Log()
    run_experiment(Experiment.from_mapping(GRID), directory, progress=lambda total: log, **options)
    return log


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    run(directory)
    return directory


def claim(directory: Path, name: str) -> Path:
    directory.mkdir(exist_ok=True)
    holder = dataclasses.replace(Holder.this_process({}), host="elsewhere")
    path = directory / f"{name}.claim"
    path.write_text(json.dumps(dataclasses.asdict(holder)))
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.h5"))


def test_a_cell_is_claimed_while_it_is_computed_and_only_then(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    unit = experiments.run_unit

    def looking(*arguments: Any) -> Any:
        seen.append([path.stem for path in tmp_path.glob("*.claim")])
        return unit(*arguments)

    monkeypatch.setattr(experiments, "run_unit", looking)
    run(tmp_path)
    assert [len(claims) for claims in seen] == [1] * 12
    assert sorted({claims[0] for claims in seen}) == names(whole)
    assert {path.suffix for path in tmp_path.iterdir()} == {".h5"}


def test_a_cell_that_a_living_job_holds_is_left_to_it(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = names(whole)[1]
    path = claim(tmp_path, theirs)

    def heartbeat(self: Any) -> None:
        later = path.stat().st_mtime + 10
        os.utime(path, (later, later))

    monkeypatch.setattr(experiments.Runner, "_pause", heartbeat)
    log = run(tmp_path)
    assert names(tmp_path) == [name for name in names(whole) if name != theirs]
    assert path.exists()
    (note,) = [note for note in log.notes if "left to another job" in note]
    assert "on elsewhere" in note
    path.unlink()
    run(tmp_path)
    assert_same_bytes(whole, tmp_path)


def test_a_cell_whose_holder_turns_out_to_be_dead_is_computed_at_the_end(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = claim(tmp_path, names(whole)[0])
    waits: list[list[str]] = []

    def minutes_pass(self: Any) -> None:
        waits.append(names(tmp_path))
        old = file_system_time(tmp_path) - reservation.STALE - 1
        os.utime(path, (old, old))

    monkeypatch.setattr(experiments.Runner, "_pause", minutes_pass)
    run(tmp_path)
    assert waits == [names(whole)[1:]]  # the other cells come first
    assert_same_bytes(whole, tmp_path)


def test_a_cell_that_the_other_job_has_finished_is_not_computed_again(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = names(whole)[0]
    path = claim(tmp_path, name)

    def finished(self: Any) -> None:
        (tmp_path / f"{name}.h5").write_bytes((whole / f"{name}.h5").read_bytes())
        path.unlink()

    monkeypatch.setattr(experiments.Runner, "_pause", finished)
    log = run(tmp_path)
    assert len([line for line in log.logged if "accuracy" in line]) == 9
    assert_same_bytes(whole, tmp_path)


def test_a_job_that_stood_still_hands_its_cell_over_and_loses_nothing_of_the_other(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = experiments.run_unit
    calls: list[str] = []

    def standing_still(comm: Any, made: Any, arrangement: Any, poll: Any, *rest: Any) -> Any:
        result = unit(comm, made, arrangement)
        calls.append(f"{made.cell} {made.fold}")
        if (
            len(calls) == 2
        ):  # in the second fold of the first cell: another job takes it over and completes it
            (held,) = tmp_path.glob("*.claim")
            other = (whole / f"{held.stem}.h5").read_bytes()
            (tmp_path / f"{held.stem}.h5").write_bytes(other)
            held.unlink()
            monkeypatch.setattr(reservation, "HEARTBEAT", 0.0)
            poll()
        return result

    monkeypatch.setattr(experiments, "run_unit", standing_still)
    log = run(tmp_path)
    assert len(calls) == len(set(calls)) == 11  # the last fold of that cell is the other's
    assert any("another has taken it over" in note for note in log.notes)
    assert_same_bytes(whole, tmp_path)


def test_shares_begin_with_different_cells_and_end_with_all(tmp_path: Path, whole: Path) -> None:
    orders = []
    for number in range(4):
        log = run(tmp_path / str(number), share=(number, 4))
        orders.append([line.partition(" repeat")[0] for line in log.logged if "accuracy" in line])
        assert_same_bytes(whole, tmp_path / str(number))
    assert len({order[0] for order in orders}) == 4


def test_overwriting_tasks_compute_a_cell_once(tmp_path: Path, whole: Path) -> None:
    run(tmp_path)
    before = {path: path.stat().st_ino for path in tmp_path.glob("*.h5")}

    class Meanwhile(Log):
        def log(self, text: str) -> None:
            if not self.logged:  # after this task's first fold another one has done the last cell
                last = tmp_path / f"{names(whole)[-1]}.h5"
                fresh = tmp_path / "fresh"
                fresh.write_bytes((whole / last.name).read_bytes())
                fresh.replace(last)
            super().log(text)

    mine = Meanwhile()
    run_experiment(Experiment.from_mapping(GRID), tmp_path, overwrite=True, progress=lambda total: mine)
    assert len([line for line in mine.logged if "accuracy" in line]) == 9
    assert all(path.stat().st_ino != inode for path, inode in before.items())
    assert_same_bytes(whole, tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "empty"])
def test_a_damaged_cell_is_set_aside_computed_again_and_reported(
    tmp_path: Path, whole: Path, damage: str
) -> None:
    run(tmp_path)
    path = sorted(tmp_path.glob("*.h5"))[2]
    content = path.read_bytes()
    damaged = {"truncated": content[:2000], "overwritten": b"\0" * 200 + content[200:], "empty": b""}[damage]
    path.write_bytes(damaged)
    log = run(tmp_path)
    (note,) = [note for note in log.notes if "damaged" in note]
    aside = path.with_name(path.name + ".corrupt")
    assert f"set aside as {aside}, computing it anew" in note
    assert aside.read_bytes() == damaged
    assert len([line for line in log.logged if "accuracy" in line]) == 3
    assert_same_bytes(whole, tmp_path)


def test_a_directory_that_vanishes_is_named_and_keeps_what_it_has(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, moved = tmp_path / "results", tmp_path / "moved"
    unit = experiments.run_unit

    def vanishing(*arguments: Any) -> Any:
        if len(list(directory.glob("*.h5"))) == 2:
            directory.rename(moved)
        return unit(*arguments)

    monkeypatch.setattr(experiments, "run_unit", vanishing)
    with pytest.raises(ResultsError, match=r"results: expected the directory of results.*has vanished"):
        run(directory)
    assert not directory.exists()
    monkeypatch.undo()
    moved.rename(directory)
    run(directory)
    assert_same_bytes(whole, directory)


def test_the_log_has_a_line_for_every_unit_with_rates_and_a_summary(tmp_path: Path) -> None:
    log = Log()
    keys = GRID | {"methods": "discriminative", "n": 1, "clients": 3, "only_folds": 1}
    run_experiment(Experiment.from_mapping(keys), tmp_path, progress=lambda total: log)
    unit, head, rank, averages = log.logged
    assert "A1DE-w discriminative federated C=3 repeat 0 fold 1: " in unit
    for part in (" s, ", " rounds/s", " models/s", " MiB/s between clients and server", "accuracy 0."):
        assert part in unit
    with h5py.File(next(tmp_path.glob("*.h5"))) as file:
        local = file["timing/local"][0, 1].sum()
    assert head.startswith("seconds by rank")
    assert rank.split()[:3] == ["rank", "0", f"{local:.1f}"]
    assert "averages at rank 0" in averages


def test_the_interruption_of_a_run_gives_its_claim_back(tmp_path: Path) -> None:
    def poll() -> None:
        if list(tmp_path.glob("*.claim")):
            assert read_claim(next(tmp_path.glob("*.claim"))) is not None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, poll=poll)
    assert list(tmp_path.glob("*.claim")) == []
