"""Many result files as one: finding them, reading them all, packing them, checking them."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from fedande_mpi.celldata import CellData, extended
from fedande_mpi.errors import ResultsError
from fedande_mpi.results import CELLS_GROUP, cell_groups, fill_group, read_group
from fedande_mpi.schema import FIELDS, FORMAT, FORMAT_VERSION, Field
from fedande_mpi.storage import open_whole, write_whole

Paths = str | Path | Iterable[str | Path]

_SIDECAR = re.compile(r"\.r\d+\.f\d+\.h5$")
_PER_REPEAT = tuple(f.path for f in FIELDS if not f.per_unit)
_MEASURED = ("/timing/", "/provenance/")  # what may differ between two runs of the same unit


def find_files(paths: Paths) -> list[Path]:
    """Find result files; sidecars are passed over.

    Parameters
    ----------
    paths : str, Path or iterable of them
        Files, directories (with everything below them) and glob patterns.

    Returns
    -------
    list of Path
        Each file once, in the order given; those of a directory sorted.

    Raises
    ------
    ResultsError
        If a path gives no result file.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise ResultsError("expected result files or directories, got none; give at least one path")
    found: dict[Path, Path] = {}
    for entry in map(Path, given):
        if entry.is_dir():
            candidates = sorted(p for p in entry.rglob("*.h5") if p.is_file())
        elif entry.exists():
            candidates = [entry]
        else:
            candidates = sorted(Path(match) for match in glob.glob(str(entry), recursive=True))
        if not candidates:
            expected = "result files (*.h5) in it" if entry.is_dir() else "a file, a directory or a pattern"
            raise ResultsError(f"{entry}: expected {expected}, found none; check the path")
        for path in candidates:
            if not _SIDECAR.search(path.name):
                found.setdefault(path.resolve(), path)
    return list(found.values())


def read_cells(paths: Paths, fields: Iterable[Field] = FIELDS) -> list[CellData]:
    """Read every cell in files, merged files and directories.

    Parts of one cell (from jobs that did other folds or repeats) become one cell.

    Parameters
    ----------
    paths : str, Path or iterable of them
        As for :func:`find_files`.
    fields : iterable of Field, optional
        Read only these; ``/complete`` must be among them.

    Returns
    -------
    list of CellData
        In the order found.

    Raises
    ------
    ResultsError
        If a file cannot be read, or two files contradict each other about the same unit.
    """
    chosen = tuple(fields)
    cells: dict[tuple[object, ...], CellData] = {}
    for path in find_files(paths):
        with open_whole(path) as file:
            for name, group in cell_groups(file, path):
                cell = read_group(name, group, path, chosen)
                known = cells.get(cell.info.identity)
                cells[cell.info.identity] = cell if known is None else union(known, cell, path)
    return list(cells.values())


def union(first: CellData, second: CellData, path: Path) -> CellData:
    """Return the units of both; of a unit that both have, the first's.

    Raises
    ------
    ResultsError
        If they contradict each other about a unit; `path` is the file of the second.
    """
    if second.info.n_repeats > first.info.n_repeats:
        first = extended(second.info, first)
    for repeat, fold in second.complete_units():
        paths = [f.path for f in FIELDS[1:] if f.path in second.arrays]
        theirs = {p: second.arrays[p][_index(p, repeat, fold)] for p in paths}
        if not first.is_complete(repeat, fold):
            first.record(repeat, fold, theirs)
            if (repeat, fold) in second.saved:
                first.saved[repeat, fold] = second.saved[repeat, fold]
            continue
        for name, content in theirs.items():
            ours = first.arrays[name][_index(name, repeat, fold)]
            if not name.startswith(_MEASURED) and not np.array_equal(ours, content, equal_nan=True):
                raise ResultsError(
                    f"{path}: {name} of repeat {repeat}, fold {fold} is not what another file says of the "
                    f"same cell ({first.info.name}); leave one of the two out"
                )
    return first


def _index(path: str, repeat: int, fold: int) -> tuple[int, ...]:
    return (repeat,) if path in _PER_REPEAT else (repeat, fold)


def merge(paths: Paths, output: str | Path) -> int:
    """Pack many cells into one file that every reader accepts.

    The file has one group ``/cells/<name>`` for each cell, laid out as a cell's own file. Sidecars are not
    copied: their links are kept, relative to the place of the new file.

    Parameters
    ----------
    paths : str, Path or iterable of them
        As for :func:`find_files`; merged files too.
    output : str or Path
        May be one of `paths`; it is replaced as a whole. It is built in memory.

    Returns
    -------
    int
        Number of cells in it.

    Raises
    ------
    ResultsError
        As :func:`read_cells`; or if two different cells have one name, or the file cannot be written.
    """
    output = Path(output)
    cells: dict[str, CellData] = {}
    for cell in read_cells(paths):
        if cells.setdefault(cell.info.name, cell) is not cell:
            raise ResultsError(
                f"{cell.info.name}: two different cells have this name; rename one of the files"
            )

    def build(file: h5py.File) -> None:
        file.attrs["format"] = FORMAT
        file.attrs["format_version"] = FORMAT_VERSION
        for name, cell in sorted(cells.items()):
            fill_group(file.create_group(f"{CELLS_GROUP}/{name}"), cell, output.parent)

    write_whole(output, build)
    return len(cells)
