"""Where a data set comes from: one syntax, four sources, in this precedence.

1. A path to an ``.arff`` or ``.csv`` file (``.gz`` too).
2. ``NAME.arff``, ``NAME.arff.gz``, ``NAME.csv`` or ``NAME.csv.gz`` in the data directory: the argument
   (``--data-dir``), else the environment's ``FEDANDE_DATA``.
3. A generator: ``tic-tac-toe``, ``kr-vs-k``, ``synthetic:...``.
4. OpenML: ``openml:ID``, or a name of the paper's table.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedande_mpi.arff_source import read_arff
from fedande_mpi.csv_source import read_csv
from fedande_mpi.errors import DataError
from fedande_mpi.games import kr_vs_k, tic_tac_toe
from fedande_mpi.known import KNOWN, KnownDataset, find_known, find_openml_id
from fedande_mpi.synthetic import Synthetic
from fedande_mpi.table import Table

DATA_VARIABLE = "FEDANDE_DATA"
_SUFFIXES = (".arff", ".arff.gz", ".csv", ".csv.gz")
_GENERATORS: dict[str, Callable[[], Table]] = {"tic-tac-toe": tic_tac_toe, "kr-vs-k": kr_vs_k}


@dataclass(frozen=True)
class Source:
    """A data set found, but not read yet.

    Attributes
    ----------
    name : str
        A short name, fit for a file name.
    description : str
        The path, ``generated``, or ``openml:ID``.
    read : callable
        Returns the :class:`~fedande_mpi.table.Table`.
    known : KnownDataset or None
        What the name promises, if the source was given by a name of the table.
    openml_id : int or None
        The number, if it comes from OpenML.
    """

    name: str
    description: str
    read: Callable[[], Table]
    known: KnownDataset | None = None
    openml_id: int | None = None


@dataclass(frozen=True)
class DatasetStatus:
    """One line of ``fedande datasets list``.

    Attributes
    ----------
    known : KnownDataset
        The data set.
    source : str
        Where it would be read from now: a path, ``generated``, or ``openml:ID``.
    cached : bool
        Whether that works without a network.
    """

    known: KnownDataset
    source: str
    cached: bool


def locate(source: str, data_dir: str | Path | None = None) -> Source:
    """Find a data set without reading it.

    Parameters
    ----------
    source : str
        A path, a name, ``openml:ID`` or ``synthetic:...``.
    data_dir : str or Path, optional
        Directory to look for names in; default: ``FEDANDE_DATA`` from the environment.

    Raises
    ------
    DataError
        If no source knows it, or the data directory is none.
    """
    if source.lower().endswith(_SUFFIXES):
        return _from_path(Path(source).expanduser())
    scheme, separator, rest = source.partition(":")
    if separator and scheme == "synthetic":
        spec = Synthetic.parse(rest)
        return Source(spec.name, "generated", spec.table)
    if separator and scheme == "openml":
        if not rest.isdecimal():
            raise DataError(f"expected openml:ID with a number, got {source!r}")
        return _from_openml(f"openml-{int(rest)}", int(rest), None)
    known = find_known(source)
    path = _in_directory(source, data_dir)
    if path is not None:
        return replace(_from_path(path, known), name=source, known=known)
    if source in _GENERATORS:
        return Source(source, "generated", _GENERATORS[source], known)
    if known is not None:
        return _from_openml(source, known.openml_id, known)
    raise _unknown(source, data_dir)


def dataset_status(data_dir: str | Path | None = None) -> list[DatasetStatus]:
    """Tell for each of the paper's twelve data sets where it would be read from.

    Parameters
    ----------
    data_dir : str or Path, optional
        Directory to look for names in; default: ``FEDANDE_DATA`` from the environment.

    Returns
    -------
    list of DatasetStatus
        In the order of the paper's table. Nothing is downloaded; ``openml`` is imported only if a data
        set is neither in the directory nor generated.
    """
    statuses = []
    for known in KNOWN:
        source = locate(known.name, data_dir)
        cached = source.openml_id is None or _openml_cached(source.openml_id)
        statuses.append(DatasetStatus(known, source.description, cached))
    return statuses


def fetch(source: str) -> Path | None:
    """Download a data set into the cache of OpenML, unless it is there.

    Parameters
    ----------
    source : str
        A name of the table or ``openml:ID``.

    Returns
    -------
    Path or None
        The ARFF file in the cache; None if there is nothing to download, because the data set is
        generated.

    Raises
    ------
    DataError
        If the name is unknown or the download fails.
    """
    known = find_known(source)
    if known is None and not source.startswith("openml:"):
        raise _unknown(source, None)
    if known is not None and known.generated:
        return None
    dataset_id = known.openml_id if known is not None else locate(source).openml_id
    assert dataset_id is not None  # the scheme openml: gives one
    from fedande_mpi.openml_source import download

    return download(dataset_id)


def _from_path(path: Path, known: KnownDataset | None = None) -> Source:
    name = path.name[: -len(next(s for s in reversed(_SUFFIXES) if path.name.lower().endswith(s)))]
    reader = read_arff if path.name.lower().endswith((".arff", ".arff.gz")) else read_csv
    return Source(name, str(path), lambda: _without(reader(path), known))


def _from_openml(name: str, dataset_id: int, known: KnownDataset | None) -> Source:
    def read() -> Table:
        from fedande_mpi.openml_source import read_openml

        return _without(read_openml(dataset_id), find_openml_id(dataset_id))

    return Source(name, f"openml:{dataset_id}", read, known, dataset_id)


def _openml_cached(dataset_id: int) -> bool:
    from fedande_mpi.openml_source import cached

    return cached(dataset_id)


def _without(table: Table, known: KnownDataset | None) -> Table:
    return table if known is None else replace(table, drop=table.drop | frozenset(known.drop))


def _in_directory(name: str, data_dir: str | Path | None) -> Path | None:
    origin = "--data-dir" if data_dir else DATA_VARIABLE
    given = data_dir or os.environ.get(DATA_VARIABLE)
    if not given:
        return None
    directory = Path(given).expanduser()
    if not directory.is_dir():
        raise DataError(f"{origin}: expected a directory of ARFF or CSV files, got {str(given)!r}")
    if Path(name).name != name:  # a path, not a name
        return None
    return next((path for path in (directory / f"{name}{s}" for s in _SUFFIXES) if path.is_file()), None)


def _unknown(source: str, data_dir: str | Path | None) -> DataError:
    names = [known.name for known in KNOWN]
    if Path(source).expanduser().exists():
        return DataError(f"{source}: expected a file that ends in {', '.join(_SUFFIXES)}; rename it")
    near = difflib.get_close_matches(source.lower(), names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the names are {', '.join(names)}"
    directory = data_dir or os.environ.get(DATA_VARIABLE)
    where = f", and no file in {directory}" if directory else ""
    return DataError(
        f"unknown data set {source!r}: not a name of the table{where}; {hint} "
        "(also: a path to .arff or .csv, openml:ID, synthetic:m=...)"
    )
