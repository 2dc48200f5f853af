"""A cell of an experiment in memory: what it is, and the results of its units, a (repeat, fold) each."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedande_mpi.errors import ResultsError
from fedande_mpi.schema import FIELDS, Array

_BY_PATH = {f.path: f for f in FIELDS}


@dataclass(frozen=True)
class CellInfo:
    """What a cell is: everything its file says about it apart from results.

    Attributes
    ----------
    name : str
        File name without ``.h5``.
    dataset, dataset_sha256 : str
        Name and digest of the data set.
    model : str
        ``NB``, ``A1DE``, ``A1DE-w`` ...
    n : int
        Dependence order.
    method, scope : str
    n_clients : int
        C; 1 when centralised.
    epsilon : float or None
        Privacy budget; ``inf`` for exact counts, None where no counts are sent.
    epsilon_scope, sensitivity : str
        Empty where there are none.
    config : str
        TOML that reproduces the cell alone.
    config_sha256 : str
        Digest of every key that changes a result, and of the data.
    rounds : tuple of int
        Round numbers, the coordinates of the round dimension.
    n_repeats, n_folds, n_rows : int
    settings : Mapping
        The keys that change a result, nested or dotted; to say which differ from a file's.
    """

    name: str
    dataset: str
    dataset_sha256: str
    model: str
    n: int
    method: str
    scope: str
    n_clients: int
    epsilon: float | None
    epsilon_scope: str
    sensitivity: str
    config: str
    config_sha256: str
    rounds: tuple[int, ...]
    n_repeats: int
    n_folds: int
    n_rows: int
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each dimension."""
        return {
            "repeat": self.n_repeats,
            "fold": self.n_folds,
            "round": len(self.rounds),
            "client": 1 if self.scope == "centralised" else self.n_clients,
            "row": self.n_rows,
        }

    @property
    def identity(self) -> tuple[object, ...]:
        """What two files of the same cell have in common, whatever they are called."""
        names = ("config_sha256", "dataset_sha256", "dataset", "model", "n", "method", "scope", "n_clients")
        return (*(getattr(self, name) for name in names), self.rounds, self.n_folds, self.n_rows)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(eq=False)
class CellData:
    """A cell in memory.

    Attributes
    ----------
    info : CellInfo
    arrays : dict of str to ndarray
        One array for each field's path.
    created : str
        When the file was begun, ISO 8601, UTC.
    saved : dict of (int, int) to Path
        Sidecar of each (repeat, fold) that has one.
    """

    info: CellInfo
    arrays: dict[str, Array]
    created: str = field(default_factory=_now)
    saved: dict[tuple[int, int], Path] = field(default_factory=dict)

    @classmethod
    def empty(cls, info: CellInfo) -> CellData:
        """Cell with nothing computed yet."""
        sizes = info.sizes
        return cls(info, {f.path: f.empty(sizes) for f in FIELDS})

    def is_complete(self, repeat: int, fold: int) -> bool:
        """Whether everything of a (repeat, fold) is there."""
        return bool(self.arrays["/complete"][repeat, fold])

    def complete_units(self) -> list[tuple[int, int]]:
        """Every complete (repeat, fold), in order."""
        return [(int(r), int(f)) for r, f in np.argwhere(self.arrays["/complete"] == 1)]

    def missing(
        self, repeats: int | Iterable[int] | None = None, folds: int | Iterable[int] | None = None
    ) -> list[tuple[int, int]]:
        """List the (repeat, fold) still to do.

        Parameters
        ----------
        repeats, folds : int or iterable of int, optional
            How many, or which; all by default.

        Returns
        -------
        list of (int, int)
            In order.
        """

        def numbers(given: int | Iterable[int] | None, size: int) -> Iterable[int]:
            if given is None:
                return range(size)
            return range(given) if isinstance(given, int) else list(given)

        wanted_folds = list(numbers(folds, self.info.n_folds))
        return [
            (repeat, fold)
            for repeat in numbers(repeats, self.info.n_repeats)
            for fold in wanted_folds
            if not self.is_complete(repeat, fold)
        ]

    def record(self, repeat: int, fold: int, values: Mapping[str, Any]) -> None:
        """Store the results of a (repeat, fold) and mark it complete, or change nothing.

        Parameters
        ----------
        repeat, fold : int
        values : Mapping of str to array_like
            For each path the field's values without the leading repeat and fold; ``/folds/test_fold``
            without the repeat. A path left out keeps its fill value.

        Raises
        ------
        ResultsError
            If a path is unknown, a shape or type does not fit, or the fold of the rows is not the one
            that another fold of the same repeat recorded.
        """
        checked = {path: self._check(path, repeat, content) for path, content in values.items()}
        for path, content in checked.items():
            unit = (repeat, fold) if _BY_PATH[path].per_unit else repeat
            self.arrays[path][unit] = content[()]
        self.arrays["/complete"][repeat, fold] = 1

    def _check(self, path: str, repeat: int, value: Any) -> Array:
        known = _BY_PATH.get(path)
        if known is None or path == "/complete":
            names = ", ".join(f.path for f in FIELDS[1:])
            raise ResultsError(f"{self.info.name}: '{path}' is not a field to record; the fields are {names}")
        content = np.asarray(value, dtype=object) if known.is_text else np.asarray(value)
        shape = known.shape(self.info.sizes)[2 if known.per_unit else 1 :]
        if content.shape != shape:
            raise ResultsError(f"{self.info.name}: {path} expects shape {shape}, got {content.shape}")
        if known.is_text:
            if not all(isinstance(text, str) for text in content.flat):
                raise ResultsError(f"{self.info.name}: {path} expects text, got {type(value).__name__}")
            return content
        if not np.can_cast(content.dtype, known.dtype, "same_kind"):
            raise ResultsError(f"{self.info.name}: {path} expects {known.dtype}, got {content.dtype}")
        if path == "/folds/test_fold":
            stored = self.arrays[path][repeat]
            if np.any(stored != known.fill) and not np.array_equal(stored, content):
                raise ResultsError(
                    f"{self.info.name}: the folds of repeat {repeat} are not those recorded before, as when "
                    "NumPy has changed in between; use --overwrite to compute the cell anew"
                )
        return content


def extended(info: CellInfo, stored: CellData) -> CellData:
    """Give a stored cell room for the repeats of `info`; it keeps all it has."""
    if info.n_repeats <= stored.info.n_repeats:
        kept = dataclasses.replace(info, n_repeats=stored.info.n_repeats, config=stored.info.config)
        return CellData(kept, stored.arrays, stored.created, stored.saved)
    cell = CellData.empty(info)
    for path, content in stored.arrays.items():
        cell.arrays[path][: stored.info.n_repeats] = content
    return CellData(info, cell.arrays, stored.created, stored.saved)
