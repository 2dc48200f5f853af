"""The page ``docs/format.md``, written from the schema."""

from __future__ import annotations

from collections.abc import Iterable

from fedande_mpi.schema import (
    ATTRIBUTES,
    DIMENSIONS,
    FIELDS,
    FORMAT,
    FORMAT_VERSION,
    SIDECAR_ATTRIBUTES,
    SIDECAR_DIMENSIONS,
    SIDECAR_FIELDS,
    SIDECAR_FORMAT,
    Attribute,
    Dimension,
    Field,
    format_fill,
    listing,
)

EXAMPLE = "tic-tac-toe_A1DE-w_federated_C3_0a1b2c3d"

_INTRODUCTION = f"""\
# Result files

<!-- Generated from fedande_mpi/schema.py by fedande_mpi.formatpage.format_markdown(); do not edit. -->

`h5ls -r {EXAMPLE}.h5`, with the dimensions' names in place of their sizes:

```
{{listing}}
```

A run writes one such HDF5 file for each cell of its grid (a data set, model, method, scope and number of
clients C). It is called `<dataset>_<model>_<scope>_C<C>_<hash>.h5`, where the hash covers the data and every
key that changes a result. Any HDF5 program reads it. Every dataset has the attributes `units` and
`description`, and a dimension scale attached to each of its dimensions, so that netCDF programs and xarray
know its coordinates.

A file is always whole: it is written beside its place under another name (`.<cell>.<host>.<pid>.<job>.tmp`,
never read) and then takes the place of the old one. Nothing is changed in place; a reader needs no lock and
may open a file while the run goes on. A (repeat, fold), called a unit, is there once `/complete` is 1; use
only those. Outside `/timing` and `/provenance` every dataset has the same bytes however the run was
distributed or interrupted.
"""

_READING = f"""
## Reading

With h5py alone:

```python
import h5py

with h5py.File("{EXAMPLE}.h5", locking=False) as file:
    print(file.attrs["dataset"], file.attrs["model"], file.attrs["n_clients"])
    done = file["complete"][...] == 1                       # (repeat, fold)
    accuracy = file["test/accuracy"][...][done]             # (unit, round, client)
    print(file["round"][...], accuracy.mean(axis=(0, 2)))   # by round, over units and clients
    print(file["test/cll"].attrs["units"], [dim.label or dim[0].name for dim in file["test/cll"].dims])
```

With xarray (`pip install xarray h5netcdf`):

```python
import xarray as xr

with xr.open_datatree("{EXAMPLE}.h5", engine="h5netcdf") as tree:
    done = tree["complete"] == 1
    print(tree["test/accuracy"].where(done).mean(["repeat", "fold", "client"]))
    print(tree["train/objective"].sel(round=1, client=0))   # the groups inherit the coordinates

with xr.open_dataset("{EXAMPLE}.h5", engine="h5netcdf", group="test") as test:
    print(test["accuracy"].isel(round=-1).mean())
```

With pandas (`pip install 'fedande-mpi[analysis]'`), any number of files, directories or patterns at once:

```python
from fedande_mpi.analysis import open_results

frame = open_results(".")                                   # a row for each cell, unit, round and client
last = frame[frame["round"] == frame["round"].max()]
print(last.groupby(["dataset", "model", "clients"])["accuracy"].mean())
```
"""

_SIDECARS = f"""
## Sidecars: weights and predictions

With `save = ["weights", "predictions"]` every unit has a file `<cell>.r<repeat>.f<fold>.h5` beside the
cell, and the cell an external link `/saved/r<repeat>_f<fold>` to its root. Its path is relative: keep the
files together. A sidecar without weights or predictions lacks the group.

```
{{listing}}
```

The block of one parent set P is an array (cells, o) in C order, o classes. Its rows are the weights of
the prior (1 row); the parents (q rows, one for each state of P; none for n = 0); and for each parent state
the values of every attribute that is not in P, attributes ascending. The code of a parent state is
mixed-radix, first parent most significant. `unpack_weights` takes a block apart: `prior` (o), `parents`
(o, q) and `child{{j}}` (o, q, arity of j).

```python
from fedande_mpi.sidecar import read_sidecar, unpack_weights

weights, predictions = read_sidecar("{EXAMPLE}.r0.f0.h5")
first = weights.values[0, weights.offsets[0] : weights.offsets[1]]
blocks = unpack_weights(first, weights.parent_sets[0], weights.arity, n_classes=2)
print({{name: block.shape for name, block in blocks.items()}})
print((predictions.posterior.argmax(axis=-1) == predictions.label).mean(axis=-1))   # accuracy of each client
```

h5py follows the links by itself: `file["saved/r0_f0/weights/values"]`. netCDF programs do not (they look up
a linked file's dimensions in the wrong file), so `xarray.open_datatree` fails on a cell with sidecars, while
`xarray.open_dataset(..., group="test")` works, and this opens all of it:

```python
from fedande_mpi.analysis import open_tree

with open_tree("{EXAMPLE}.h5") as tree:
    print(tree["saved/r0_f0/predictions/posterior"].mean("test_row"))
```
"""

_MERGED = """
## Merged files

`fedande merge PATH... -o FILE` packs many cells into one file: its root has the attributes `format` and
`format_version`, and a group `/cells/<cell>` for each cell, laid out as above. Whatever reads cells reads
merged files too. Files of one cell with different units (from a job array, say) become one cell; files that
contradict each other are refused. Sidecars stay where they are; links to them are made relative to the new
file.

```python
from fedande_mpi.merging import merge, read_cells

merge("*.h5", "merged.h5")
for cell in read_cells("merged.h5"):
    print(cell.info.name, len(cell.complete_units()), cell.arrays["/test/accuracy"].shape)
```
"""

_VERSIONS = f"""
## Versions

This is version {FORMAT_VERSION}. Fields may be added within a version: ignore what you do not know, and take
a field that an older file lacks as its fill value. A changed meaning, shape, type or unit, or a removed
field, raises the version; a file of a newer version is refused by programs that do not know it.
`fedande schema` prints this page's tables.
"""


def format_markdown() -> str:
    """Write the page on the result format.

    Returns
    -------
    str
        Markdown; ``docs/format.md`` is this text.
    """
    lines = [_INTRODUCTION.replace("{listing}", "\n".join(listing(FIELDS, DIMENSIONS)))]
    lines += [f"## Attributes of a cell (`{FORMAT}`)", "", *_attributes(ATTRIBUTES)]
    lines += ["", "## Dimensions", "", *_dimensions(DIMENSIONS), "", "## Datasets", "", *_fields(FIELDS)]
    lines.append(_READING.rstrip("\n"))
    sidecar = _SIDECARS.replace("{listing}", "\n".join(listing(SIDECAR_FIELDS, SIDECAR_DIMENSIONS)))
    lines.append(sidecar)
    lines += [f"### Attributes of a sidecar (`{SIDECAR_FORMAT}`)", "", *_attributes(SIDECAR_ATTRIBUTES)]
    lines += ["", "### Dimensions of a sidecar", "", *_dimensions(SIDECAR_DIMENSIONS)]
    lines += ["", "### Datasets of a sidecar", "", *_fields(SIDECAR_FIELDS), _MERGED.rstrip("\n"), _VERSIONS]
    return "\n".join(lines).rstrip("\n") + "\n"


def _grid(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines]


def _attributes(attributes: tuple[Attribute, ...]) -> list[str]:
    return _grid(
        ("attribute", "type", "meaning"),
        [(f"`{a.name}`", a.kind.__name__, a.description) for a in attributes],
    )


def _dimensions(dimensions: tuple[Dimension, ...]) -> list[str]:
    return _grid(
        ("dimension", "coordinates", "meaning"),
        [(f"`{d.name}`", "yes" if d.coordinate else "none", d.description) for d in dimensions],
    )


def _fields(fields: tuple[Field, ...]) -> list[str]:
    return _grid(
        ("dataset", "dimensions", "type", "units", "fill", "meaning"),
        [(f"`{f.path}`", ", ".join(f.dims), f.dtype, f.units, format_fill(f), f.description) for f in fields],
    )
