"""The experiment: a grid of cells, read from TOML, checked key by key.

`load_experiment` reads a file and `Experiment.cells` lists the grid's points; a `Cell` is all that one run
needs to know.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedande_mpi.cell import METHODS, SCOPES, SECTIONS, Cell, Common, Discriminative, Generative, Hybrid
from fedande_mpi.errors import ConfigError
from fedande_mpi.keys import checked, choice, integer, key, keys, many, nearest, never, text, written

__all__ = [
    "Cell",
    "Discriminative",
    "Experiment",
    "Generative",
    "Hybrid",
    "config_reference",
    "load_experiment",
    "parse_override",
]


@dataclass(frozen=True, kw_only=True)
class Experiment(Common):
    """A grid of cells. Lists may be given as one value.

    ``generative`` and ``hybrid`` are tuples: one section for each epsilon. ``further`` holds the grids of the
    ``[[grid]]`` tables.

    Raises
    ------
    ConfigError
        For a value that is not accepted, or a grid without any cell.
    """

    name: str = key("experiment", text(file_name=True), "its name; results go to results/NAME", changes=never)
    datasets: tuple[str, ...] = key(
        (), many(text()), "names, openml:ID, synthetic:..., or paths", example=["tic-tac-toe"]
    )
    n: tuple[int, ...] = key((1,), many(integer(0)), "orders of dependence: 0 = NB, 1 = A1DE, ...")
    methods: tuple[str, ...] = key(("discriminative",), many(choice(*METHODS)), "what to learn, and how")
    scopes: tuple[str, ...] = key(("federated",), many(choice(*SCOPES)), "who learns from what")
    clients: tuple[int, ...] = key(
        (5,), many(integer(1)), "numbers of clients C; a centralised model has one cell whatever they are"
    )
    discriminative: Discriminative = field(default_factory=Discriminative)
    generative: tuple[Generative, ...] = (Generative(),)
    hybrid: tuple[Hybrid, ...] = (Hybrid(),)
    further: tuple[Experiment, ...] = ()

    def __post_init__(self) -> None:
        checked(self)
        for name in ("generative", "hybrid"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, Generative) else tuple(value))
        for fold in self.only_folds or ():
            if fold >= self.folds:
                raise ConfigError(
                    f"only_folds: expected folds 0 to {self.folds - 1}, came {fold}; they are counted "
                    f"from 0: choose a smaller one or raise folds"
                )
        if not self.cells():
            raise ConfigError(
                f"methods and scopes: expected at least one pair that exists, came "
                f"{written(self.methods)} and {written(self.scopes)} ({'; '.join(self.skipped())}); "
                f"add a method or a scope"
            )

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any], overrides: Sequence[str | Mapping[str, Any]] = ()
    ) -> Experiment:
        """Build an experiment from what a TOML file holds.

        The top level is the first grid, and each ``[[grid]]`` table a further one: the top level with its
        own keys put over. A top level without ``datasets`` only holds what its ``[[grid]]`` tables share.

        Parameters
        ----------
        mapping : mapping
            Keys and sections.
        overrides : sequence of str or mapping, optional
            ``key=value`` pairs with dotted keys, or mappings like `mapping`, put over every grid.
        """
        top = dict(mapping)
        tables = top.pop("grid", [])
        if not (isinstance(tables, list) and all(isinstance(table, Mapping) for table in tables)):
            raise ConfigError(f"grid: expected [[grid]] tables, came {written(tables)}; write [[grid]]")
        extra = [parse_override(each) if isinstance(each, str) else each for each in overrides]
        shared = "datasets" not in top and all("datasets" in table for table in tables) and bool(tables)
        grids = [] if shared else [_build(cls, [top, *extra])]
        for number, table in enumerate(tables, start=1):
            try:
                if "name" in table:
                    raise ConfigError("name: expected at the top of the file only, came here; move it there")
                grids.append(_build(cls, [top, table, *extra]))
            except ConfigError as error:
                raise ConfigError(f"[[grid]] number {number}: {error}") from None
        return replace(grids[0], further=tuple(grids[1:]))

    def cells(self) -> tuple[Cell, ...]:
        """Return the grid's points, each once: data sets as listed, then the cheap ones first.

        Raises
        ------
        ConfigError
            Where two grids ask for different folds and repeats of one cell.
        """
        found: dict[str, Cell] = {}
        for cell in itertools.chain.from_iterable(grid._points() for grid in (self, *self.further)):
            name = json.dumps([cell.dataset, cell.settings()], sort_keys=True)
            other = found.get(name, cell)
            if not (_covers(cell, other) or _covers(other, cell)):
                raise ConfigError(
                    f"[[grid]]: expected one choice of repeats and only_folds for {cell}, came two that "
                    f"differ; give both grids the same"
                )
            found[name] = other if _covers(other, cell) else cell
        place: dict[str, int] = {}
        for cell in found.values():
            place.setdefault(cell.dataset, len(place))
        return tuple(
            sorted(
                found.values(),
                key=lambda cell: (
                    place[cell.dataset],
                    cell.n,
                    SCOPES.index(cell.scope),
                    METHODS.index(cell.method),
                    cell.clients,
                ),
            )
        )

    def skipped(self) -> tuple[str, ...]:
        """Return a note for each pair of method and scope that was asked for and does not exist."""
        notes = []
        for grid in (self, *self.further):
            for method, scope in itertools.product(grid.methods, grid.scopes):
                if grid.combine == "joint" and method != "generative":
                    notes.append(f'{method} skipped: combine = "joint" exists only for generative models')
                elif method == "hybrid" and scope != "federated":
                    notes.append(f"hybrid {scope} skipped: hybrid exists only in the federated scope")
        return tuple(dict.fromkeys(notes))

    def _points(self) -> Iterator[Cell]:
        common = {name: getattr(self, name) for name in keys(Common)}
        for dataset, n, method, scope in itertools.product(self.datasets, self.n, self.methods, self.scopes):
            federated = scope == "federated"
            if (method == "hybrid" and not federated) or (self.combine == "joint" and method != "generative"):
                continue
            for clients in (1,) if scope == "centralised" else self.clients:
                cell = Cell(**common, dataset=dataset, n=n, method=method, scope=scope, clients=clients)
                match method:
                    case "discriminative":
                        yield replace(cell, discriminative=self.discriminative)
                    case "generative":
                        for generative in self.generative if federated else (Generative(),):
                            yield replace(cell, generative=generative)
                    case _:
                        for hybrid in self.hybrid:
                            yield replace(cell, hybrid=hybrid)


def _covers(one: Cell, other: Cell) -> bool:
    return one.repeats >= other.repeats and set(one.fold_numbers) >= set(other.fold_numbers)


def load_experiment(path: str | Path, overrides: Sequence[str | Mapping[str, Any]] = ()) -> Experiment:
    """Read an experiment from a TOML file.

    Parameters
    ----------
    path : str or Path
        The file; its stem is the experiment's name where it gives none.
    overrides : sequence of str or mapping, optional
        ``key=value`` pairs with dotted keys, or mappings, put over what the file says.

    Raises
    ------
    ConfigError
        For a file that cannot be read, or a key or value that is not accepted.
    """
    path = Path(path)
    try:
        mapping = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: expected a readable experiment in TOML, came '{error.strerror}'; check the path"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML in UTF-8, came {error}; correct the file there") from None
    try:
        return Experiment.from_mapping({"name": path.stem.lstrip(".")} | mapping, overrides)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_override(override: str) -> dict[str, Any]:
    """Return ``a.b=v`` as the nested mapping ``{"a": {"b": v}}``; v is read as TOML, else as a string."""
    dotted, equals, raw = (part.strip() for part in override.partition("="))
    names = dotted.split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set: expected key=value, came '{override}'; write for example --set clients=5")
    value: Any = raw
    try:
        parsed = tomllib.loads(f"value = {raw}")
        value = parsed["value"] if parsed.keys() == {"value"} else raw
    except tomllib.TOMLDecodeError as error:
        if raw.startswith(("[", "{", '"', "'")):
            raise ConfigError(
                f"--set {dotted}: expected a value in TOML, came {raw} ({error}); quote each string, "
                f'and the whole for the shell: --set \'{dotted}=["a", "b"]\''
            ) from None
    for name in reversed(names):
        value = {name: value}
    nested: dict[str, Any] = value
    return nested


def _build(cls: type[Experiment], layers: Sequence[Mapping[str, Any]]) -> Experiment:
    """Build one grid from mappings, the later ones put over the earlier."""
    top: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for layer in layers:
        for name, value in layer.items():
            if name not in SECTIONS:
                top[name] = value
            elif isinstance(value, Mapping):
                sections[name] |= value
            else:
                raise ConfigError(
                    f"{name}: expected a table, came {written(value)}; write [{name}] and its keys below it"
                )
    if "grid" in top:
        raise ConfigError(
            "grid: expected [[grid]] tables at the top of the file only, came one elsewhere; move it there"
        )
    _refuse_unknown(top, None)
    for name, section in sections.items():
        _refuse_unknown(section, name)
    discriminative = Discriminative(**sections["discriminative"])
    generative = tuple(Generative(**section) for section in _sweep(sections["generative"]))
    hybrid = tuple(Hybrid(**section) for section in _sweep(sections["hybrid"]))
    return cls(**top, discriminative=discriminative, generative=generative, hybrid=hybrid)


def _sweep(section: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    epsilon = section.get("epsilon")
    if isinstance(epsilon, list) and epsilon:
        yield from (dict(section) | {"epsilon": value} for value in epsilon)
    else:
        yield dict(section)


def _refuse_unknown(given: Mapping[str, Any], section: str | None) -> None:
    """Refuse a key that does not exist at the top (section None) or in a section."""
    known: dict[str | None, list[str]] = {None: list(keys(Experiment))}
    known |= {name: list(keys(cls)) for name, cls in SECTIONS.items()}
    everywhere = [name for names in known.values() for name in names]

    def homes(name: str) -> str:
        return " or ".join(f"[{home}]" if home else "the top" for home in known if name in known[home])

    for name in given:
        if name in known[section]:
            continue
        choices = known[section] if section else [*known[None], *SECTIONS, "grid"]
        if name in everywhere:
            remedy = f"it belongs to {homes(name)}"
        elif near := nearest(name, choices):
            remedy = f"did you mean '{near}'?"
        elif near := nearest(name, everywhere):
            remedy = f"did you mean '{near}' in {homes(near)}?"
        else:
            remedy = f"the keys there are {', '.join(choices)}"
        where = f"[{section}]" if section else "the top level"
        raise ConfigError(f"expected a known key in {where}, came '{name}'; {remedy}")


def config_reference() -> str:
    """Return the reference of all keys in Markdown (``docs/configuration.md``)."""
    lines = [
        "# Configuration",
        "",
        "An experiment is a TOML file. A key that takes a list also takes one value. `[[grid]]` tables are",
        "further grids: the top level with their own keys put over it (a top level without `datasets` is",
        "only what they share). `--set key=value` puts a value over every grid, as in",
        "`--set generative.epsilon=inf`.",
        "Paths are relative to the working directory.",
        "",
        "Keys marked * change no result: they may differ when a run is continued.",
    ]
    tables: dict[str, type[Experiment] | type[Discriminative] | type[Generative]] = {"Top level": Experiment}
    tables |= {f"`[{name}]`": cls for name, cls in SECTIONS.items()}
    for title, cls in tables.items():
        lines += ["", f"## {title}", "", "| key | default | accepts | meaning |", "|---|---|---|---|"]
        declared_keys = keys(cls)
        if cls is Experiment:  # what makes the grid comes before what its cells share
            common = keys(Common)
            declared_keys = {
                name: declared_keys[name] for name in declared_keys if name not in common
            } | common
        for name, declared in declared_keys.items():
            mark = " *" if declared.metadata["changes"] is never else ""
            default = "" if declared.default is None else f"`{written(declared.default)}`"
            if name == "datasets":
                default = "(required)"
            expected = declared.metadata["check"].expected
            lines.append(f"| `{name}`{mark} | {default} | {expected} | {declared.metadata['description']} |")
    return "\n".join(lines) + "\n"
