"""How the compiled loops are compiled: Numba, cached on disk, one cache for one version of the sources."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic

_F = TypeVar("_F", bound=Callable[..., Any])

_intrinsic = cast(Callable[[Callable[..., Any]], Callable[[Any], Any]], intrinsic)

KERNEL_MODULES = (
    "jit",
    "magnitudes",
    "vectors",
    "touched",
    "bundles",
    "cll",
    "lbfgs",
    "local",
    "metrics",
    "odds",
    "evaluation",
    "aggregation",
)
"""The modules with compiled loops; a change in one of them makes the cache of all stale."""


@cache
def _source_stamp() -> str:
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for name in KERNEL_MODULES:
        path = folder / f"{name}.py"
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


def compiled(function: _F) -> _F:
    """Compile a function of arrays and numbers on first use, and keep the machine code on disk.

    Multiply-add contraction is on, reassociation is off: sums keep the order they are written in.
    """
    dispatcher = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function)
    # Numba's cache looks at the file of the function alone, not at the files of what it calls and inlines:
    # without this, an edited kernel would keep running in its old form inside a caller of another module.
    cache_file: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = _source_stamp()
    return cast(_F, dispatcher)


def is_cached(*functions: Callable[..., Any]) -> bool:
    """Say whether the machine code of compiled functions is on disk, as far as Numba tells."""
    for function in functions:
        cache_file: Any = getattr(getattr(function, "_cache", None), "_cache_file", None)
        if not hasattr(cache_file, "load") or not hasattr(cache_file, "_load_index"):
            return False
        if not cache_file._load_index():
            return False
    return True


def reducing(function: _F) -> _F:
    """Compile a sum that may be reassociated, so that it runs in vector registers.

    The order is fixed when it is compiled: the same numbers give the same sum in every call.
    """
    return cast(_F, numba.njit(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})(function))


def inlined(function: _F) -> _F:
    """Compile a function that is only called from compiled ones.

    What lets Python call it would take longer to compile than most such functions.
    """
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(_F, numba.njit(error_model="numpy", fastmath={"contract"}, **options)(function))


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
