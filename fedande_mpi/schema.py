"""The result format: one table of fields drives creation, validation, ``fedande schema`` and the docs.

Version 1. Within a version fields may be added (an old file then reads as the fill value), so a reader
ignores what it does not know. A changed meaning, shape, unit or type, or a removed field, raises
``FORMAT_VERSION``, and a file with a newer version than the reader's is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = "fedande-results"
SIDECAR_FORMAT = "fedande-sidecar"
FORMAT_VERSION = 1

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Attribute:
    """An attribute of a cell.

    Attributes
    ----------
    name : str
    kind : type
        ``str``, ``int`` or ``float``.
    description : str
    """

    name: str
    kind: type[str] | type[int] | type[float]
    description: str


@dataclass(frozen=True)
class Dimension:
    """A dimension, and the HDF5 dimension scale that carries its name.

    Attributes
    ----------
    name : str
    description : str
    coordinate : bool
        Whether the scale holds values. Without, it is a bare name and takes no room in the file.
    """

    name: str
    description: str
    coordinate: bool = True


@dataclass(frozen=True)
class Field:
    """A dataset.

    Attributes
    ----------
    path : str
        Absolute path within the cell.
    dims : tuple of str
        Names of its dimensions, in order.
    dtype : str
        A NumPy type code, or ``"str"`` for variable-length UTF-8.
    fill : float, int or str
        Value of what is not there (not yet computed, or undefined).
    units : str
        ``"1"`` when it has none. Seconds are ``s``: xarray takes the word for a time span.
    description : str
    """

    path: str
    dims: tuple[str, ...]
    dtype: str
    fill: float | int | str
    units: str
    description: str

    @property
    def is_text(self) -> bool:
        """Whether it holds strings."""
        return self.dtype == "str"

    @property
    def per_unit(self) -> bool:
        """Whether every (repeat, fold) has its own values."""
        return self.dims[:2] == ("repeat", "fold")

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Shape, given the size of each dimension."""
        return tuple(sizes[name] for name in self.dims)

    def empty(self, sizes: Mapping[str, int]) -> Array:
        """Array of the field's shape that holds its fill value."""
        return np.full(self.shape(sizes), self.fill, dtype=object if self.is_text else self.dtype)


ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("format", str, f'always "{FORMAT}"'),
    Attribute("format_version", int, f"{FORMAT_VERSION}; a reader refuses a newer one"),
    Attribute("created", str, "when the file was begun, ISO 8601, UTC"),
    Attribute("config", str, "TOML that reproduces this cell alone"),
    Attribute("config_sha256", str, "digest of every key that changes a result, and of the data"),
    Attribute("dataset", str, "name of the data set"),
    Attribute("dataset_sha256", str, "digest of its content in canonical row order"),
    Attribute("n", int, "dependence order: number of parent attributes of each SPnDE"),
    Attribute("model", str, "NB, A1DE, A2DE, ...; with -w when it has weights"),
    Attribute("method", str, "discriminative, generative or hybrid"),
    Attribute("scope", str, "federated, local or centralised"),
    Attribute("n_clients", int, "C, number of clients; 1 when centralised"),
    Attribute("epsilon", float, "privacy budget of the counts; inf: exact counts; NaN: no counts are sent"),
    Attribute("epsilon_scope", str, 'what epsilon protects: "counts", or empty'),
    Attribute("sensitivity", str, 'rule of the noise\'s scale: "paper" or "joint", or empty'),
)

DIMENSIONS: tuple[Dimension, ...] = (
    Dimension("repeat", "repetition of the cross-validation, from 0"),
    Dimension("fold", "fold held out for testing, from 0"),
    Dimension("round", "federated round; 0 is the state before the first, a single 1 where there are none"),
    Dimension("client", "client, from 0; one when centralised"),
    Dimension("row", "row of the data set in canonical order, from 0"),
)

_UNIT = ("repeat", "fold")
_ROUND = (*_UNIT, "round")
_CLIENT = (*_ROUND, "client")
_NAN = float("nan")

FIELDS: tuple[Field, ...] = (
    Field("/complete", _UNIT, "i1", 0, "1", "1 once everything of the (repeat, fold) is there; set last"),
    Field(
        "/test/accuracy", _CLIENT, "f8", _NAN, "1",
        "fraction of the fold's test rows classified correctly; NaN: round not evaluated, or no test row",
    ),
    Field(
        "/test/cll", _CLIENT, "f8", _NAN, "nat",
        "mean over the test rows of log P(y|x), <= 0; a P(y|x) below 2^-3k (k = 62 - ceil(log2 |P|); "
        "under 1e-46 for up to 2,000 parent sets) counts as half of that; "
        "NaN: round not evaluated, or no test row",
    ),
    Field(
        "/test/brier", _CLIENT, "f8", _NAN, "1",
        "mean over the test rows of the squared distance of P(.|x) from the true class, 0 to 2; "
        "NaN: round not evaluated, or no test row",
    ),
    Field(
        "/test/macro_f1", _CLIENT, "f8", _NAN, "1",
        "mean F1 over the classes that occur among labels or predictions; NaN: round not evaluated, or no test row",
    ),
    Field(
        "/train/objective", _CLIENT, "f8", _NAN, "nat",
        "-CLL of the client's rows under its own weights after its steps and before averaging, "
        "summed over rows and parent sets; NaN: nothing was optimised",
    ),
    Field(
        "/train/iterations", _CLIENT, "i4", -1, "1",
        "iterations of the optimiser, summed over parent sets; -1: nothing was optimised",
    ),
    Field(
        "/train/evaluations", _CLIENT, "i4", -1, "1",
        "evaluations of objective and gradient, summed over parent sets; -1: nothing was optimised",
    ),
    Field(
        "/train/stop_reason", _CLIENT, "i1", -1, "1",
        "why the optimiser stopped, the worst over parent sets: 0 step limit, 1 gradient, "
        "2 objective change, 3 line search failed; -1: nothing was optimised",
    ),
    Field(
        "/communication/bytes_down", _ROUND, "i8", -1, "byte",
        "what the federation would send from the server: values x itemsize x participants; -1: none computed",
    ),
    Field(
        "/communication/bytes_up", _ROUND, "i8", -1, "byte",
        "what the federation would send to the server: values x itemsize x participants; -1: none computed",
    ),
    Field(
        "/timing/local", _ROUND, "f8", _NAN, "s",
        "counts and local steps, the busiest host; of the last start, as all in /timing but unit",
    ),
    Field("/timing/wait", _ROUND, "f8", _NAN, "s", "waiting for messages, the host that waited longest"),
    Field("/timing/aggregate", _ROUND, "f8", _NAN, "s", "averaging at the server"),
    Field("/timing/evaluate", _ROUND, "f8", _NAN, "s", "scoring the test rows, the busiest host"),
    Field("/timing/unit", _UNIT, "f8", _NAN, "s", "the whole (repeat, fold), wall clock, all starts together"),
    Field(
        "/timing/server_cpu", _UNIT, "f8", _NAN, "s",
        "processor time of rank 0 from the first broadcast to the last gather; "
        "NaN: rank 0 hosts clients too, or there are no rounds",
    ),
    Field(
        "/timing/server_wall", _UNIT, "f8", _NAN, "s",
        "wall clock from the first broadcast to the last gather; NaN: as server_cpu",
    ),
    Field("/provenance/mpi_size", _UNIT, "i4", -1, "1", "number of MPI ranks"),
    Field("/provenance/shards", _UNIT, "i4", -1, "1", "number of shards of the parent sets"),
    Field("/provenance/hostname", _UNIT, "str", "", "1", "host of rank 0"),
    Field("/provenance/versions", _UNIT, "str", "", "1", "versions of the software, a JSON object"),
    Field("/provenance/started", _UNIT, "str", "", "1", "when the (repeat, fold) began, ISO 8601, UTC"),
    Field(
        "/folds/test_fold", ("repeat", "row"), "i4", -1, "1",
        "fold that holds the row out; -1: no fold of the repeat is done yet",
    ),
    Field(
        "/folds/owner", (*_UNIT, "row"), "i4", -2, "1",
        "client that owns the row; -1: held out; -2: not done yet",
    ),
)  # fmt: skip

SIDECAR_ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("format", str, f'always "{SIDECAR_FORMAT}"'),
    Attribute("format_version", int, f"{FORMAT_VERSION}; a reader refuses a newer one"),
    Attribute("config_sha256", str, "as in the cell"),
    Attribute("dataset_sha256", str, "as in the cell"),
    Attribute("repeat", int, "repetition"),
    Attribute("fold", int, "fold"),
)

SIDECAR_DIMENSIONS: tuple[Dimension, ...] = (
    Dimension("model", "weight vectors: 1 where all clients share them, otherwise one for each client"),
    Dimension("weight", "parameters of all parent sets, one after the other", coordinate=False),
    Dimension("parent_set", "parent sets, in lexicographic order"),
    Dimension("parent_set_edge", "parent sets, and one past the last", coordinate=False),
    Dimension("parent", "position within a parent set, ascending", coordinate=False),
    Dimension("attribute", "attributes of the data set, from 0"),
    Dimension("client", "client, from 0"),
    Dimension("test_row", "rows held out by the fold, in canonical order", coordinate=False),
    Dimension("class", "classes, in declared order, from 0"),
)

SIDECAR_FIELDS: tuple[Field, ...] = (
    Field(
        "/weights/values", ("model", "weight"), "f8", _NAN, "1",
        "weights after the last round, every parent set's block as described below",
    ),
    Field(
        "/weights/offsets", ("parent_set_edge",), "i8", -1, "1",
        "block of parent set i is values[:, offsets[i]:offsets[i + 1]]",
    ),
    Field("/weights/parent_sets", ("parent_set", "parent"), "i4", -1, "1", "attribute indices, ascending"),
    Field("/weights/arity", ("attribute",), "i8", -1, "1", "number of values of each attribute"),
    Field(
        "/predictions/posterior", ("client", "test_row", "class"), "f8", _NAN, "1",
        "P(y|x) of the test rows after the last round",
    ),
    Field("/predictions/row", ("test_row",), "i8", -1, "1", "index of the test row in canonical order"),
    Field("/predictions/label", ("test_row",), "i4", -1, "1", "true class of the test row"),
)  # fmt: skip


def format_fill(field: Field) -> str:
    """Fill value as the docs print it."""
    if field.is_text:
        return "empty"
    return "NaN" if field.fill != field.fill else str(field.fill)


def listing(fields: tuple[Field, ...], dimensions: tuple[Dimension, ...]) -> list[str]:
    """Lines in the manner of ``h5ls -r``, with names in place of sizes."""
    entries = {f"/{dim.name}": f"Dataset {{{dim.name}}}" for dim in dimensions}
    for field in fields:
        group = field.path.rpartition("/")[0]
        if group:
            entries.setdefault(group, "Group")
        entries[field.path] = f"Dataset {{{', '.join(field.dims)}}}"
    width = max(len(path) for path in entries) + 2
    return [f"{'/':<{width}}Group", *(f"{path:<{width}}{kind}" for path, kind in entries.items())]


def schema_text() -> str:
    """Describe the format as plain text, for ``fedande schema``.

    Returns
    -------
    str
        Attributes, dimensions and fields of a cell file and of a sidecar.
    """
    parts = (
        (f"{FORMAT}, version {FORMAT_VERSION}", ATTRIBUTES, DIMENSIONS, FIELDS),
        (
            f"{SIDECAR_FORMAT}, version {FORMAT_VERSION}: one per unit of a run with save = [...]",
            SIDECAR_ATTRIBUTES,
            SIDECAR_DIMENSIONS,
            SIDECAR_FIELDS,
        ),
    )
    lines: list[str] = []
    for title, attributes, dimensions, fields in parts:
        lines += [title, "", "attributes"]
        lines += [f"  {a.name:<16}{a.kind.__name__:<7}{a.description}" for a in attributes]
        lines += ["", "dimensions"]
        lines += [f"  {d.name:<16}{d.description}" for d in dimensions]
        lines += ["", "datasets (path, type, units, dimensions, fill value)"]
        for f in fields:
            dims = f"({', '.join(f.dims)})"
            lines.append(f"  {f.path:<28}{f.dtype:<5}{f.units:<6}{dims:<34}{format_fill(f)}")
            lines.append(f"      {f.description}")
        lines.append("")
    return "\n".join(lines)
