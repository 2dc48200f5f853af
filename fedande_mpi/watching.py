"""Following a running job from its files alone, on any machine that sees them (``fedande show --watch``)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from fedande_mpi.cellfile import Signature, signature
from fedande_mpi.checking import missing_units
from fedande_mpi.errors import ResultsError
from fedande_mpi.merging import find_files
from fedande_mpi.progress import duration, encodable
from fedande_mpi.reporting import statistics
from fedande_mpi.reservation import file_system_time, read_claim
from fedande_mpi.results import cell_groups, read_group
from fedande_mpi.schema import FIELDS
from fedande_mpi.storage import open_whole

INTERVAL = 5.0
"""Seconds between two looks."""

_FIELDS = tuple(f for f in FIELDS if f.path in ("/complete", "/test/accuracy", "/test/cll"))


@dataclass(frozen=True)
class Seen:
    """A cell as its file shows it.

    Attributes
    ----------
    done, wanted : int
        Folds.
    accuracy : float or None
        At the last evaluated round, mean over clients and folds.
    """

    name: str
    done: int
    wanted: int
    accuracy: float | None


@dataclass
class Watch:
    """A directory under observation; a file is read again only when it has been replaced."""

    directory: Path
    clock: Callable[[], float] = time.monotonic
    _cells: dict[Path, tuple[Signature, list[Seen]]] = field(default_factory=dict)
    _first: tuple[float, int] | None = None

    def look(self) -> tuple[str, bool]:
        """Return the state as text, and whether all is complete and nobody is at work."""
        if not self.directory.is_dir():
            return f"{self.directory}: nothing there yet", False
        cells = self._read()
        claims = {path.stem: read_claim(path) for path in sorted(self.directory.glob("*.claim"))}
        done, wanted = sum(cell.done for cell in cells), sum(cell.wanted for cell in cells)
        now = self.clock()
        self._first = self._first or (now, done)
        complete = sum(cell.done == cell.wanted for cell in cells)
        line = f"{complete} of {len(cells)} cells begun are complete, {done} of {wanted} folds"
        if done > self._first[1] and now > self._first[0]:
            line += f", {60 * (done - self._first[1]) / (now - self._first[0]):.1f} folds/min"
        lines = [line]
        by_name = {cell.name: cell for cell in cells}
        at = file_system_time(self.directory) if claims else 0.0
        for name, claim in claims.items():
            if claim is None:
                continue
            cell = by_name.get(name)
            state = "first fold" if cell is None else f"{cell.done} of {cell.wanted} folds"
            if cell is not None and cell.accuracy is not None:
                state += f", accuracy {cell.accuracy:.4f}"
            silent = duration(max(0.0, at - claim.touched))
            lines.append(f"  {name}: {state}; {claim.holder or 'somebody'}, heard of {silent} ago")
        return "\n".join(lines), bool(cells) and done == wanted and not claims

    def _read(self) -> list[Seen]:
        try:
            files = find_files(self.directory)
        except ResultsError:
            return []
        for path in files:
            now = signature(path)
            if path not in self._cells or self._cells[path][0] != now:
                try:
                    with open_whole(path) as file:
                        found = [
                            read_group(name, group, path, _FIELDS) for name, group in cell_groups(file, path)
                        ]
                except ResultsError:
                    continue  # a damaged file: the run sets it aside
                seen = []
                for cell in found:
                    done, rows = len(cell.complete_units()), statistics(cell)
                    accuracy = rows[-1]["accuracy"] if rows else None
                    seen.append(Seen(cell.info.name, done, done + len(missing_units(cell)), accuracy))
                self._cells[path] = now, seen
        return [cell for path in files if path in self._cells for cell in self._cells[path][1]]


def watch(
    directory: Path,
    stream: TextIO,
    *,
    interval: float = INTERVAL,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print the state of a directory whenever it changes, until all is complete and nobody is at work.

    On a terminal each picture replaces the one before.
    """
    live = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    observed = Watch(directory, clock)
    last, over = "", 0
    while True:
        text, complete = observed.look()
        if live or text != last:
            clear = "\x1b[H\x1b[J" if live else ""
            stream.write(clear + encodable(text, stream) + "\n")
            stream.flush()
            last = text
        # between two cells nobody holds a claim for a moment
        over = over + 1 if complete else 0
        if over == 2:
            return
        sleep(interval)
