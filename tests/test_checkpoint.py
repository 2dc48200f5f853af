"""Checkpoints within a fold: any arrangement goes on from them to the same bits, and no other is taken up."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedande_mpi.checking import check
from fedande_mpi.checkpoint import Checkpoint, checkpoint_path, checkpoints, progress_of
from fedande_mpi.config import Experiment
from fedande_mpi.errors import Interrupted
from fedande_mpi.experiment import run_experiment
from fedande_mpi.federation import UnitResult, run_unit
from fedande_mpi.host import Host
from fedande_mpi.partial import Collection, Partial, empty_partial
from fedande_mpi.planning import arrange_unit
from fedande_mpi.progress import Silent
from fedande_mpi.serial import SerialComm
from fedande_mpi.unit import Unit
from tests.small_data import make, make_unit, owners, run

IDENTITY = {"versions": "one"}
CASES: dict[str, dict[str, Any]] = {
    "every round": {"evaluate": "all", "save": ("predictions", "weights")},
    "last round": {"evaluate": "last", "save": ("weights",), "granularity": "attribute"},
    "to convergence": {"scope": "local", "max_iterations": 30, "save": ("predictions", "weights")},
    "hybrid": {"method": "hybrid", "epsilon": 1.0, "save": ("predictions",)},
    "pooled": {"method": "generative", "epsilon": 1.0, "save": ("predictions", "weights")},
    "joint": {"method": "generative", "scope": "local", "combine": "joint", "save": ("predictions",)},
    "pooled joint": {"method": "generative", "combine": "joint", "save": ("predictions",)},
}


def unit_of(case: str, **keys: Any) -> Unit:
    """A unit of ten parent sets, each a block of its own, whose checkpoints are due at once."""
    rows = make(5, m=60, d=5, o=3)
    keys = {"n": 2, "missing": "ignore", "block_mib": 1e-6, "checkpoint_minutes": 1e-9, **CASES[case], **keys}
    return make_unit(rows, owners(5, 60, 4, 15), **keys)


def stopped_after(unit: Unit, path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute a unit until it has kept so many checkpoints."""
    kept: list[int] = []
    keep = Checkpoint.keep

    def keep_and_stop(self: Checkpoint, partial: Partial) -> None:
        keep(self, partial)
        kept.append(1)
        if len(kept) == number:
            raise Interrupted("enough")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "keep", keep_and_stop)
        with pytest.raises(Interrupted):
            gone_on(unit, path)


def gone_on(unit: Unit, path: Path) -> UnitResult:
    keeper = Checkpoint(path, unit, IDENTITY)
    done = None if keeper.partial is None else keeper.partial.done
    result = run_unit(SerialComm(), unit, arrange_unit(unit, 1, done), keeper=keeper)
    assert result is not None
    return result


def same_bits(one: UnitResult, other: UnitResult) -> None:
    for name in ("metrics", "objective", "iterations", "evaluations", "stop_reason"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    assert [w.tobytes() for w in one.weights] == [w.tobytes() for w in other.weights]
    assert (one.posterior is None) == (other.posterior is None)
    if one.posterior is not None and other.posterior is not None:
        assert one.posterior.tobytes() == other.posterior.tobytes()


@pytest.mark.parametrize("case", CASES)
def test_going_on_from_checkpoints_gives_the_same_bits(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(unit_of(case, checkpoint_minutes=0.0, block_mib=64.0))
    path = tmp_path / "unit.checkpoint"
    done = []
    for number in (2, 3):
        stopped_after(unit_of(case), path, number, monkeypatch)
        done.append(progress_of(path))
    assert done == [(2, 10), (5, 10)]
    same_bits(gone_on(unit_of(case, block_mib=64.0), path), whole)


class DueAfter:
    """A keeper for whom a checkpoint is due once its host has scored so many blocks."""

    partial: Partial | None = None

    def __init__(self, blocks: int) -> None:
        self.left, self.kept = blocks, []  # type: ignore[var-annotated]

    def due(self) -> bool:
        return self.left <= 0

    def keep(self, partial: Partial) -> None:
        self.kept.append(int(partial.done.sum()))
        self.left = 100


@pytest.mark.parametrize("case", CASES)
def test_the_server_asks_when_the_hosts_are_done_with_a_block(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have nothing else to do with them, and be far ahead."""
    keeper, unit = DueAfter(3), unit_of(case)
    look_back = Host._look_back

    def counted(self: Host, link: Any) -> Any:
        keeper.left -= 1
        yield from look_back(self, link)

    monkeypatch.setattr(Host, "_look_back", counted)
    run_unit(SerialComm(), unit, arrange_unit(unit, 1), keeper=keeper)
    assert keeper.kept == [3]


def test_nothing_is_collected_while_an_earlier_start_is_handed_out() -> None:
    unit = unit_of("every round")
    keeper = DueAfter(0)
    keeper.partial = empty_partial(unit)
    collection = Collection(unit, keeper, 2)
    collection.handed_out(1)
    assert not collection.wants(1, last=False)
    collection.handed_out(0)
    assert collection.wants(1, last=False)


def test_a_shard_that_ends_first_hands_over_what_it_has() -> None:
    unit, keeper = unit_of("every round"), DueAfter(100)
    collection = Collection(unit, keeper, 2)
    assert not collection.wants(0, last=True)  # nothing is due yet
    collection.whole()
    assert collection.wants(0, last=True)
    collection.ended(0)
    assert not collection.wants(1, last=True)  # now the unit is complete


def test_a_unit_without_interruption_is_the_same_with_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "unit.checkpoint"
    same_bits(gone_on(unit_of("every round"), path), run(unit_of("every round", checkpoint_minutes=0.0)))
    assert progress_of(path) == (9, 10)  # the last block makes the unit complete


def test_a_checkpoint_is_due_when_its_minutes_are_over(tmp_path: Path) -> None:
    now = 100.0
    unit = unit_of("every round", checkpoint_minutes=2.0)
    keeper = Checkpoint(tmp_path / "unit.checkpoint", unit, IDENTITY, clock=lambda: now)
    assert not keeper.due()
    now = 220.0
    assert keeper.due()
    never = unit_of("every round", checkpoint_minutes=0.0)
    assert not Checkpoint(tmp_path / "other.checkpoint", never, IDENTITY, clock=lambda: now).due()


def test_what_an_earlier_start_took_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, unit = tmp_path / "unit.checkpoint", unit_of("every round")
    stopped_after(unit, path, 2, monkeypatch)
    partial = Checkpoint(path, unit, IDENTITY).partial
    assert partial is not None
    before, now = partial.seconds, 0.0
    keeper = Checkpoint(path, unit, IDENTITY, clock=lambda: now)
    now = 10.0
    keeper.keep(partial)
    again = Checkpoint(path, unit, IDENTITY).partial
    assert again is not None
    assert again.seconds == before + 10.0


def in_directory(content: bytes, offset: int, value: int) -> bytes:
    """Change a byte of every entry in a zip archive's directory: 6 is the version, 8 the flags."""
    return re.sub(
        rb"PK\x01\x02.{12}",
        lambda found: found[0][:offset] + bytes([value]) + found[0][offset + 1 :],
        content,
        flags=re.DOTALL,
    )


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:300] + bytes([content[300] ^ 1]) + content[301:],
        lambda content: in_directory(content, 8, 1),
        lambda content: in_directory(content, 6, 255),
        lambda content: b"",
    ],
    ids=["half", "one bit", "encrypted", "of another zip", "empty"],
)
def test_a_damaged_checkpoint_is_not_taken_up(
    harm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, unit = tmp_path / "unit.checkpoint", unit_of("every round")
    stopped_after(unit, path, 3, monkeypatch)
    harmed = harm(path.read_bytes())
    assert harmed != path.read_bytes()
    path.write_bytes(harmed)
    keeper = Checkpoint(path, unit, IDENTITY)
    assert keeper.partial is None
    assert "it cannot be read" in keeper.problem
    assert progress_of(path) is None or b"PK" in harmed  # what it reads may be whole


def test_a_checkpoint_of_something_else_is_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, unit = tmp_path / "unit.checkpoint", unit_of("every round")
    stopped_after(unit, path, 3, monkeypatch)
    other = Checkpoint(path, unit, {"versions": "two"})
    assert other.partial is None
    assert other.problem == "it is of other versions"
    elsewhere = Checkpoint(path, dataclasses.replace(unit, fold=1), IDENTITY)
    assert elsewhere.problem == "it is of other fold"
    shape = Checkpoint(path, unit_of("hybrid"), IDENTITY)
    assert shape.partial is None
    assert "it cannot be read (expected " in shape.problem


def test_a_checkpoint_that_does_not_fit_on_the_disk_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, unit = tmp_path / "unit.checkpoint", unit_of("every round")
    stopped_after(unit, path, 2, monkeypatch)
    before, notes = path.read_bytes(), []
    keeper = Checkpoint(path, unit, IDENTITY, note=notes.append)
    assert keeper.partial is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        keeper.keep(keeper.partial)
    (note,) = notes
    assert note.startswith(f"no checkpoint this time: {path}: cannot be written (No space left on device)")
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_run_goes_on_and_tidies_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment.from_mapping(
        {
            "datasets": "tic-tac-toe",
            "n": 1,
            "clients": 3,
            "repeats": 1,
            "only_folds": [0, 1],
            "block_mib": 1e-6,
            "checkpoint_minutes": 1e-9,
            "methods": "discriminative",
            "discriminative": {"rounds": 2, "local_steps": 2},
        }
    )
    notes: list[str] = []
    keep, kept = Checkpoint.keep, []

    def keep_and_stop(self: Checkpoint, partial: Partial) -> None:
        keep(self, partial)
        kept.append(1)
        if len(kept) == 12:  # 8 in the first fold, of 9 parent sets
            raise Interrupted("enough")

    monkeypatch.setattr(Checkpoint, "keep", keep_and_stop)
    with pytest.raises(Interrupted):
        run_experiment(experiment, tmp_path)
    (found,) = check([tmp_path]).notes
    assert found.endswith(".r0.f1: 4 of 9 parent sets are done in a checkpoint; run the same command again")
    stale = tmp_path / found.split(":")[0].replace(".f1", ".f0")
    stale.with_name(stale.name + ".checkpoint").write_bytes(b"killed before it was removed")

    class Notes(Silent):
        def note(self, line: str) -> None:
            notes.append(line)

    run_experiment(experiment, tmp_path, progress=lambda total: Notes())
    assert [line for line in notes if "goes on from a checkpoint, 4 of 9 parent sets done" in line]
    assert not list(tmp_path.glob("*.checkpoint"))
    assert check([tmp_path]).text().startswith("1 cells, 1 complete")


def test_a_first_fold_that_was_stopped_can_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(unit_of("every round"), checkpoint_path(tmp_path, "cell", 0, 0), 3, monkeypatch)
    (found,) = check([tmp_path]).notes
    assert found == "cell.r0.f0: 3 of 10 parent sets are done in a checkpoint; run the same command again"


def test_checkpoints_are_found_by_the_name_of_their_cell(tmp_path: Path) -> None:
    for name, repeat, fold in (("a_C5", 0, 1), ("a_C5", 1, 0), ("a_C50", 0, 0)):
        checkpoint_path(tmp_path, name, repeat, fold).touch()
    (tmp_path / "other.checkpoint").touch()
    found = [unit for unit, _ in checkpoints(tmp_path)]
    assert sorted(found) == [("a_C5", (0, 1)), ("a_C5", (1, 0)), ("a_C50", (0, 0))]


def test_progress_of_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "x.checkpoint"
    path.write_bytes(b"no archive")
    assert progress_of(path) is None
    np.savez(tmp_path / "other.npz", something=np.zeros(1))
    assert progress_of(tmp_path / "other.npz") is None
