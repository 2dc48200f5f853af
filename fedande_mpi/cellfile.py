"""The file of a cell while a run fills it: whatever happens to it or beside it, no complete unit is lost."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from fedande_mpi.celldata import CellData, CellInfo
from fedande_mpi.errors import DamagedFile, ResultsError
from fedande_mpi.merging import union
from fedande_mpi.results import open_cell, read_cell, write_cell
from fedande_mpi.storage import check_still_there, remove_leftovers

Signature = tuple[int, int, int] | None


def signature(path: Path) -> Signature:
    """Return what changes when a file is replaced; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def stored_cell(directory: Path, info: CellInfo) -> CellData:
    """Load the cell to see what is missing of it; changes nothing on disk.

    A damaged file has nothing. A unit whose sidecar has gone is missing.

    Raises
    ------
    ResultsError
        As :func:`fedande_mpi.results.open_cell`, except for damage.
    """
    try:
        cell = open_cell(directory, info)
    except DamagedFile:
        return CellData.empty(info)
    for unit, sidecar in list(cell.saved.items()):
        if not sidecar.exists():
            cell.arrays["/complete"][unit] = 0
            del cell.saved[unit]
    return cell


def set_aside(path: Path) -> Path:
    """Rename a damaged file to ``*.corrupt``, beside earlier ones, and return the new path."""
    number = 1
    while True:
        aside = path.with_name(path.name + ("" if number == 1 else f".{number}") + ".corrupt")
        if not aside.exists():
            os.rename(path, aside)
            return aside
        number += 1


class CellFile:
    """A cell that this run has claimed, and its file.

    Parameters
    ----------
    directory : Path
    info : CellInfo
    overwrite : collection of (int, int)
        Units to compute again although they are complete; the file keeps them until the first save.

    Attributes
    ----------
    cell : CellData
    aside : Path or None
        Where a damaged file was set aside.

    Raises
    ------
    ResultsError
        If the file is of a newer format, or of another configuration or data set.
    """

    def __init__(
        self, directory: Path, info: CellInfo, *, overwrite: Collection[tuple[int, int]] = ()
    ) -> None:
        self.path = directory / f"{info.name}.h5"
        self.aside: Path | None = None
        remove_leftovers(self.path)
        self._seen = signature(self.path)
        try:
            open_cell(directory, info)
        except DamagedFile:
            self.aside = set_aside(self.path)
            self._seen = None
        except ResultsError:  # a file of something else; told to overwrite it
            if not overwrite:
                raise
            self.cell = CellData.empty(info)
            return
        self.cell = stored_cell(directory, info)
        for unit in overwrite:
            self.cell.arrays["/complete"][unit] = 0
            self.cell.saved.pop(unit, None)

    def save(self) -> None:
        """Write the file as a whole, with what another job has put into it meanwhile.

        That happens when this process stood still so long that its claim was taken over.

        Raises
        ------
        ResultsError
            If it cannot be written; the old file is intact.
        """
        check_still_there(self.path.parent)
        now = signature(self.path)
        if now is not None and now != self._seen:
            self._absorb()
        write_cell(self.path.parent, self.cell)
        self._seen = signature(self.path)

    def _absorb(self) -> None:
        try:
            theirs = read_cell(self.path)
        except DamagedFile:
            self.aside = set_aside(self.path)
            return
        if theirs.info.identity == self.cell.info.identity:
            self.cell = union(self.cell, theirs, self.path)
