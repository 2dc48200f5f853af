"""Checkpoints within a fold: the parent sets that are done, so that a long fold is not begun again.

One file beside the cell, ``<cell>.r<repeat>.f<fold>.checkpoint``, written whole every ``checkpoint_minutes`` and
removed when the fold is complete. It is a NumPy archive (whose checksums tell a damaged one) and nobody's
result: one of other sources, versions or processors, or that cannot be read, is left out and the fold computed
anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.errors import ResultsError
from fedande_mpi.metrics import Sums
from fedande_mpi.partial import Partial, empty_partial
from fedande_mpi.storage import check_still_there, write_file
from fedande_mpi.unit import Unit

FORMAT = 1
"""Version of the arrays in a checkpoint."""

_NAME = re.compile(r"(.+)\.r(\d+)\.f(\d+)\.checkpoint")


def checkpoint_path(directory: Path, name: str, repeat: int, fold: int) -> Path:
    """Path of the checkpoint of a cell's unit."""
    return directory / f"{name}.r{repeat}.f{fold}.checkpoint"


def checkpoints(directory: Path) -> Iterator[tuple[tuple[str, tuple[int, int]], Path]]:
    """Yield the name of the cell and the (repeat, fold) of every checkpoint in a directory, and its path."""
    for path in sorted(directory.glob("*.checkpoint")):
        if found := _NAME.fullmatch(path.name):
            yield (found[1], (int(found[2]), int(found[3]))), path


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, if it is there."""
    with contextlib.suppress(OSError):
        path.unlink()


def progress_of(path: Path) -> tuple[int, int] | None:
    """Return how many parent sets of a checkpoint are done, and of how many; None if it cannot be read."""
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            done = archive["done"]
            return int(done.sum()), done.size
    except Exception:  # NumPy and zipfile raise whatever a damaged archive leads them to
        return None


@cache
def _program() -> dict[str, str]:
    """Return what decides the last bits of a result: all sources of the package, the processor it is compiled for."""
    from llvmlite import binding

    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return {"sources": digest.hexdigest(), "processor": str(binding.get_host_cpu_name())}


class Checkpoint:
    """The checkpoint of one unit; a `fedande_mpi.partial.Keeper`.

    Parameters
    ----------
    path : Path
    unit : Unit
    identity : mapping
        What has to be the same for going on from it, by name, beside the unit, the sources and the processor.
    note : callable
        Told what the user should know.
    mine : callable
        Whether the cell is still this job's; a job that lost it keeps its hands off.
    clock : callable
        Seconds.

    Attributes
    ----------
    partial : Partial or None
        What an earlier start has left.
    problem : str
        Why what is there was not taken up; empty if all is well.
    """

    def __init__(
        self,
        path: Path,
        unit: Unit,
        identity: dict[str, Any],
        note: Callable[[str], None] = lambda line: None,
        mine: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.problem = path, ""
        self._note, self._mine = note, mine
        self._identity = {"format": FORMAT, "repeat": unit.repeat, "fold": unit.fold, **identity}
        self._clock = clock
        self._begin = self._kept = clock()
        self._every = 60.0 * unit.cell.checkpoint_minutes
        self.partial = self._read(unit)
        self._before = self.partial.seconds if self.partial is not None else 0.0

    def due(self) -> bool:
        """Whether ``checkpoint_minutes`` have passed since the last one, or the start."""
        return self._every > 0.0 and self._clock() - self._kept >= self._every

    def keep(self, partial: Partial) -> None:
        """Write one; where that fails, say so and go on with an earlier one, which is intact.

        Raises
        ------
        ResultsError
            If the directory of results has vanished.
        """
        check_still_there(self.path.parent)
        if not self._mine():
            return
        partial.seconds = self._before + self._clock() - self._begin
        arrays = _arrays(partial) | {"identity": np.array(json.dumps(self._identity | _program()))}

        def write(stream: BinaryIO) -> None:
            np.savez(stream, **arrays)  # type: ignore[arg-type]

        try:
            write_file(self.path, write)
        except ResultsError as error:  # results are smaller, and may find room
            self._note(f"no checkpoint this time: {error}")
        self._kept = self._clock()

    def _read(self, unit: Unit) -> Partial | None:
        try:
            with open(self.path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
                theirs, mine = json.loads(str(archive["identity"])), self._identity | _program()
                other = sorted(name for name in theirs | mine if theirs.get(name) != mine.get(name))
                if other:
                    self.problem = f"it is of other {', '.join(other)}"
                    return None
                partial = _partial(dict(archive), unit)
        except FileNotFoundError:
            return None
        except Exception as error:  # NumPy and zipfile raise whatever a damaged archive leads them to
            self.problem = f"it cannot be read ({' '.join(str(error).split()) or type(error).__name__})"
            return None
        if partial.done.all() or not partial.done.any():
            self.problem = "it says that all or none is done"
            return None
        return partial


def _arrays(partial: Partial) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {
        "done": partial.done,
        "top": partial.top,
        "tally": partial.tally,
        "seconds": np.array(partial.seconds),
    }
    for at, sums in enumerate(partial.sums):
        arrays |= {f"{name}{at}": values for name, values in sums._asdict().items()}
    # of sets that are done only: others may be computed, but are not in the sums
    arrays |= {f"weights{index}": rows for index, rows in partial.weights.items() if partial.done[index]}
    return arrays


def _partial(arrays: dict[str, NDArray[Any]], unit: Unit) -> Partial:
    """Put the arrays of a file together; a ValueError or KeyError where they are not those of the unit."""
    like = _arrays(empty_partial(unit))
    for name, expected in like.items():
        if arrays[name].shape != expected.shape or arrays[name].dtype != expected.dtype:
            raise ValueError(f"expected {name} {expected.shape}, got {arrays[name].shape}")
    weights = {
        int(name.removeprefix("weights")): arrays[name] for name in arrays if name.startswith("weights")
    }
    if unit.keeps_weights and sorted(weights) != np.flatnonzero(arrays["done"]).tolist():
        raise ValueError("expected the weights of the parent sets that are done")
    return Partial(
        done=arrays["done"],
        sums=[Sums(arrays[f"posterior{at}"], arrays[f"rest{at}"]) for at in range(len(unit.evaluated))],
        top=arrays["top"],
        tally=arrays["tally"],
        weights=weights,
        seconds=float(arrays["seconds"]),
    )
