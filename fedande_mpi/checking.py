"""What a directory of results has and lacks: files against the schema, missing folds, leftovers (``fedande check``)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fedande_mpi.celldata import CellData
from fedande_mpi.checkpoint import checkpoints, progress_of
from fedande_mpi.errors import ResultsError
from fedande_mpi.merging import find_files
from fedande_mpi.reservation import read_claim
from fedande_mpi.results import cell_groups, read_group
from fedande_mpi.sidecar import read_sidecar
from fedande_mpi.storage import open_whole
from fedande_mpi.validation import validate

Unit = tuple[int, int]


@dataclass
class Checked:
    """What a check found.

    Attributes
    ----------
    cells : int
    missing : dict of str to list of (int, int)
        The (repeat, fold) that a cell's configuration asks for and its file has not, by the cell's name.
    problems, notes : list of str
        What is wrong, and what one might want to know.
    """

    cells: int = 0
    missing: dict[str, list[Unit]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return it as lines: problems, missing folds, notes, a summary."""
        lines = [f"PROBLEM {line}" for line in self.problems]
        lines += [f"missing {name}: {_units_text(units)}" for name, units in self.missing.items()]
        lines += [f"note    {line}" for line in self.notes]
        folds = sum(map(len, self.missing.values()))
        parts = [f"{self.cells} cells", f"{self.cells - len(self.missing)} complete"]
        if folds:
            parts.append(f"{folds} folds missing in {len(self.missing)}: run the same command again")
        parts.append(f"{len(self.problems)} problems" if self.problems else "no problem")
        return "\n".join([*lines, ", ".join(parts)])


def _units_text(units: Iterable[Unit]) -> str:
    folds: dict[int, list[str]] = {}
    for repeat, fold in units:
        folds.setdefault(repeat, []).append(str(fold))
    return "; ".join(f"repeat {repeat} folds {', '.join(found)}" for repeat, found in folds.items())


def check(paths: Iterable[str | Path]) -> Checked:
    """Check result files against the schema, their sidecars, and what is missing of them.

    Parameters
    ----------
    paths : iterable of str or Path
        Files, directories and patterns.

    Returns
    -------
    Checked

    Raises
    ------
    ResultsError
        If a path has no result file at all.
    """
    found = Checked()
    complete: set[tuple[str, Unit]] = set()
    given = [Path(path) for path in paths]
    for path in _files(given):
        problems = validate(path)
        found.problems += problems
        if problems:
            continue
        with open_whole(path) as file:
            cells = [read_group(name, group, path) for name, group in cell_groups(file, path)]
        for cell in cells:
            found.cells += 1
            missing = missing_units(cell)
            if missing:
                found.missing[cell.info.name] = missing
            found.problems += _sidecars(cell)
            complete |= {(cell.info.name, unit) for unit in cell.complete_units()}
    for directory in filter(Path.is_dir, given):
        _leftovers(directory, complete, found)
    return found


def missing_units(cell: CellData) -> list[Unit]:
    """Return the units that a cell's configuration asks for and that are not complete."""
    config = tomllib.loads(cell.info.config)
    folds = config.get("only_folds")
    if isinstance(folds, int):
        folds = [folds]
    return cell.missing(folds=folds)


def _sidecars(cell: CellData) -> list[str]:
    problems: list[str] = []
    wanted = bool(tomllib.loads(cell.info.config).get("save"))
    for unit in cell.complete_units():
        sidecar = cell.saved.get(unit)
        if sidecar is None:
            if wanted:
                problems.append(f"{cell.info.name}: repeat {unit[0]} fold {unit[1]} has no sidecar")
            continue
        try:
            read_sidecar(sidecar)
        except ResultsError as error:
            hint = "; delete it and run again" if sidecar.exists() else "; run again"
            problems.append(f"{error}{hint}")
    return problems


def _files(paths: list[Path]) -> list[Path]:
    """Find result files; a directory whose first fold is under way, or was stopped, need not have any."""
    begun = [
        path
        for path in paths
        if path.is_dir()
        and not any(path.glob("*.h5"))
        and any(entry.suffix in (".claim", ".checkpoint") for entry in path.iterdir())
    ]
    others = [path for path in paths if path not in begun]
    return find_files(others) if others or not begun else []


def _leftovers(directory: Path, complete: set[tuple[str, Unit]], found: Checked) -> None:
    for path in sorted(directory.rglob("*.corrupt")):
        found.notes.append(f"{path}: a damaged file that a run set aside; delete it when you have seen it")
    for path in sorted(directory.rglob("*.claim")):
        claim = read_claim(path)
        if claim is not None:
            found.notes.append(f"{path.stem}: claimed by {claim.holder or 'somebody'}")
    for unit, path in sorted(checkpoints(directory)):
        done = progress_of(path)
        if unit in complete:
            found.notes.append(f"{path}: a checkpoint of a fold that is complete; the next run removes it")
        elif done is None:
            found.notes.append(f"{path}: a checkpoint that cannot be read; the fold will be computed anew")
        else:
            found.notes.append(
                f"{path.stem}: {done[0]} of {done[1]} parent sets are done in a checkpoint; run the same command again"
            )
    temporaries = len(list(directory.rglob(".*.tmp")))
    if temporaries:
        found.notes.append(f"{directory}: {temporaries} temporary files of jobs that run or were killed")
