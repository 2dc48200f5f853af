"""Imports point down only, there is one door to MPI, and what takes long to load is loaded late."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "fedande_mpi"

# From the bottom up. A module may import from the lines above its own, and from what precedes it in its line.
LAYERS = """
errors costs
programs launching links serial windows collectives messages comm leaving signals jit magnitudes vectors progress
known table columns synthetic games arff_source csv_source openml_source registry datasets partition ande
keys cell config formulas touched bundles softmax cll line_search lbfgs local privacy metrics indexing odds evaluation
aggregation arrangement unit release block tally partial scores host server federation
schema storage settings celldata results sidecar merging cellfile reservation checkpoint validation checking formatpage
formatting conditions reporting analysis statistics selection comparison contrasts statements claims
measured panels curves style drawing figures planning rehearsal calibration jobs balance recording experiment batch
watching verify encoding centralised classifier
cli __main__
"""
ORDER = LAYERS.split()

HEAVY = ("matplotlib", "mpi4py", "openml", "pandas", "scipy.stats", "sklearn", "xarray")
"""Slow to load, or, like MPI, not to be touched unless it is used."""

DERIVED = {"classifier": ("sklearn",)}
"""Modules whose classes are derived from such a package's; they are themselves loaded when they are used."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted name of everything imported anywhere below a node, as ``package.module.name``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = ".".join(part for part in ("fedande_mpi" if node.level else "", node.module or "") if part)
            yield from (f"{home}.{alias.name}" for alias in node.names)


def at_import_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the import statements that run when a module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (found for other in child.orelse for found in at_import_time(other))
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from at_import_time(child)


def below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def test_each_module_has_one_place() -> None:
    assert len(set(ORDER)) == len(ORDER)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    module = name_of(path)
    if module == "__init__":  # gathers the public names
        return
    assert module in ORDER, f"give {module} a place in LAYERS"
    used = {name.split(".")[1] for name in imported(parsed(path)) if name.startswith("fedande_mpi.")}
    wrong = sorted(used - {"__version__"} - set(ORDER[: ORDER.index(module)]))
    assert not wrong, f"{module} imports {wrong}, not below it in LAYERS"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_comm_is_the_only_door_to_mpi(path: Path) -> None:
    uses_mpi = any(below(name, ("mpi4py",)) for name in imported(parsed(path)))
    assert not uses_mpi or name_of(path) == "comm"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_slow_packages_are_imported_inside_functions(path: Path) -> None:
    early = {name for node in at_import_time(parsed(path)) for name in imported(node)}
    needed = DERIVED.get(name_of(path), ())
    assert not sorted(name for name in early if below(name, HEAVY) and not below(name, needed))


def test_importing_the_package_and_its_command_loads_nothing_slow() -> None:
    program = "\n".join(
        [
            "import sys, fedande_mpi",
            "import fedande_mpi.cli" if (PACKAGE / "cli.py").exists() else "",
            f"print(*(name for name in {HEAVY!r} if name in sys.modules))",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == []


def test_the_import_readers_see_what_they_should() -> None:
    tree = ast.parse(
        "import a.b\nfrom . import c\nfrom .d import e\nif TYPE_CHECKING:\n import f\n"
        "try:\n import g\nexcept ImportError:\n pass\ndef late():\n import h\nclass K:\n import i\n"
    )
    early = {name for node in at_import_time(tree) for name in imported(node)}
    assert early == {"a.b", "fedande_mpi.c", "fedande_mpi.d.e", "g", "i"}
    assert set(imported(tree)) == early | {"f", "h"}
