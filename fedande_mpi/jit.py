"""How the compiled loops are compiled: Numba, cached on disk, one cache for one version of the sources."""

from __future__ import annotations

import gc
import glob
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, update_wrapper
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.registry import cpu_target
from numba.extending import intrinsic

_F = TypeVar("_F", bound=Callable[..., Any])

_intrinsic = cast(Callable[[Callable[..., Any]], Callable[[Any], Any]], intrinsic)

KERNEL_MODULES = (
    "jit",
    "magnitudes",
    "vectors",
    "touched",
    "bundles",
    "softmax",
    "cll",
    "line_search",
    "lbfgs",
    "local",
    "metrics",
    "indexing",
    "odds",
    "evaluation",
    "aggregation",
)
"""The modules with compiled loops; a change in one of them makes the cache of all stale."""


@cache
def _source_stamp() -> str:
    folder = Path(__file__).parent
    digest = hashlib.sha256(numba.__version__.encode())
    for name in KERNEL_MODULES:
        path = folder / f"{name}.py"
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:16]


@cache
def _processor() -> str:
    """Return a name for what this process compiles for."""
    return hashlib.sha256(repr(cpu_target.target_context.codegen().magic_tuple()).encode()).hexdigest()[:8]


class _NoEnvironment:
    """A code generator that tells a function without machine code no address of its Python environment."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def set_env(self, name: str, environment: Any) -> None:
        """Leave it out."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)


class _Part(JITCodeLibrary):
    """The code of a function for its callers alone: not optimised, without machine code.

    Numba would optimise every function and make machine code of it, and then again as a part of each of its
    callers: with six levels of calls that took half of the time to compile.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    @property
    def codegen(self) -> Any:
        return _NoEnvironment(self._codegen)


class _ForCallers(CompilerBase):
    """Numba's compiler, writing to a `_Part`."""

    def define_pipelines(self) -> list[Any]:
        state, part, passes = self.state, cast(Any, _Part), cast(Any, DefaultPassBuilder)
        state["library"] = part(state.targetctx.codegen(), state.func_id.func_qualname)
        return [passes.define_nopython_pipeline(state)]


_REPLACED = ("_optimize_final_module", "_finalize_final_module", "get_pointer_to_function", "codegen")


def _part(function: Callable[..., Any], fastmath: set[str]) -> Any:
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    # a Numba that calls them otherwise compiles longer, and the same
    if all(hasattr(JITCodeLibrary, name) for name in _REPLACED):
        options["pipeline_class"] = _ForCallers
    return numba.njit(error_model="numpy", fastmath=fastmath, **options)(function)


_entries: list[_Entry] = []


class _Entry:
    """A compiled function, as Python calls it and as compiled functions do.

    These take in its code (`_Part`); machine code of its own is made when Python calls it for the first time.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.part = _part(function, {"contract"})
        options: dict[str, Any] = {"cache": True, "nogil": True, "no_cfunc_wrapper": True}
        self.dispatcher: Any = numba.njit(error_model="numpy", fastmath={"contract"}, **options)(function)
        # Numba's cache looks at the file of the function alone, not at the files of what it calls and inlines:
        # without this, an edited kernel would keep running in its old form inside a caller of another module.
        # And it numbers its files anew for other sources, and writes their names down before them: who is killed in
        # between, or compiles beside a processor of another kind, would leave a name under which there is other code.
        file = self.cache_file
        if hasattr(file, "_source_stamp"):
            file._source_stamp = _source_stamp()
        if all(hasattr(file, name) for name in ("_index_path", "_data_name_pattern")):
            path = Path(file._index_path)
            file._index_path = str(path.with_suffix(f".{_processor()}.{_source_stamp()}{path.suffix}"))
            file._data_name_pattern = f"{path.stem}.{_processor()}.{_source_stamp()}.{{number:d}}.nbc"
        _entries.append(self)

    @property
    def cache_file(self) -> Any:
        """What Numba knows of the machine code on disk, None where it has changed and tells nothing."""
        return getattr(getattr(self.dispatcher, "_cache", None), "_cache_file", None)

    @property
    def _numba_type_(self) -> Any:
        return self.part._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)


def compiled(function: _F) -> _F:
    """Compile a function of arrays and numbers on first use, and keep the machine code on disk.

    Multiply-add contraction is on, reassociation is off: sums keep the order they are written in.
    """
    return cast(_F, _Entry(function))


def is_cached(*functions: Callable[..., Any]) -> bool:
    """Say whether the machine code of compiled functions is on disk, as far as Numba tells."""
    for function in functions:
        file: Any = getattr(function, "cache_file", None)
        if not hasattr(file, "_load_index") or not hasattr(file, "_data_path"):
            return False
        if not any(Path(file._data_path(name)).exists() for name in file._load_index().values()):
            return False
    return True


def forget_older() -> None:
    """Remove from disk what other sources were compiled to, for this kind of processor."""
    for entry in _entries:
        index = Path(getattr(entry.cache_file, "_index_path", ""))
        name, _, _ = index.name.partition("-")  # what follows is the function's line
        for path in index.parent.glob(f"{glob.escape(name)}-*.{_processor()}.*") if name else ():
            if f".{_source_stamp()}." not in path.name:
                path.unlink(missing_ok=True)


@contextmanager
def compiling() -> Iterator[None]:
    """Put off the collection of garbage while much is compiled.

    Numba makes objects by the million, most of which stay: looking through them again and again is a sixth of the
    time to compile everything. All that is put off is 130 MiB.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def reducing(function: _F) -> _F:
    """Compile a sum that may be reassociated, so that it runs in vector registers; for compiled functions only.

    The order is fixed when it is compiled: the same numbers give the same sum in every call.
    """
    return cast(_F, _part(function, {"contract", "reassoc", "nsz"}))


def inlined(function: _F) -> _F:
    """Compile a function that is only called from compiled ones."""
    return cast(_F, _part(function, {"contract"}))


@_intrinsic
def settled(typing_context: Any, value: Any) -> Any:
    """Return a float64 as it is: a product is rounded, not fused with the sum that it goes into.

    Where a number is reached in several ways, this keeps the bits alike.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        real = context.get_value_type(numba.types.float64)
        fence = builder.module.declare_intrinsic("llvm.arithmetic.fence", [real])
        return builder.call(fence, args)

    return numba.types.float64(numba.types.float64), generate


@_intrinsic
def float_bits(typing_context: Any, value: Any) -> Any:
    """Reinterpret a float64 as the int64 with the same bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(numba.types.int64))

    return numba.types.int64(numba.types.float64), generate


@_intrinsic
def bits_float(typing_context: Any, value: Any) -> Any:
    """Reinterpret an int64 as the float64 with the same bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(numba.types.float64))

    return numba.types.float64(numba.types.int64), generate
