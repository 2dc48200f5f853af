"""Runs of 4 or 8 numbers in vector registers, for loops over rows that use a few cells each; copies past the caches.

The compiler puts loops into vector registers, not straight lines of code, and a loop over a handful of classes
is too short to gain by it. So these say what they want: every row lists the cells it uses, a cell has
``stride`` numbers, and a run of them is gathered into one register or scattered from one. There a number does
not meet its neighbours: each lane adds or multiplies in the order of the cells, as a plain loop would.

The loops over the runs of a row stand where they are used: in a function of their own, called for some rows at a
time, they take 3 to 10 % longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_intrinsic = cast(Callable[[Callable[..., Any]], Callable[..., Any]], intrinsic)

_ir: Any = cgutils  # which has no types of its own
_PAST = 4
_INDEX, _LANE, _REAL = ir.IntType(64), ir.IntType(32), ir.DoubleType()


def _run(
    context: Any, builder: Any, kind: Any, array: Any, index: Any, n_lanes: int, number: Any = _REAL
) -> Any:
    """Point to `n_lanes` numbers of an array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.VectorType(number, n_lanes).as_pointer())


def _pick(builder: Any, run: Any, lanes: Iterable[int]) -> Any:
    """Make a run of some lanes of another."""
    chosen = [ir.Constant(_LANE, lane) for lane in lanes]
    mask = ir.Constant(ir.VectorType(_LANE, len(chosen)), chosen)
    return builder.shuffle_vector(run, ir.Constant(run.type, ir.Undefined), mask)


def _cell(context: Any, builder: Any, kind: Any, cells: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, cells).data
    return builder.zext(builder.load(builder.gep(data, [index])), _INDEX)


def _gather(n_lanes: int, operation: str, neutral: float) -> Callable[..., Any]:
    @_intrinsic
    def gather(
        typing_context: Any,
        values: Any,
        cells: Any,
        first: Any,
        n_cells: Any,
        stride: Any,
        lane: Any,
        out: Any,
        at: Any,
    ) -> Any:
        integer = types.int64
        signature = types.void(values, cells, integer, integer, integer, integer, out, integer)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values, cells, first, n_cells, stride, lane, out, at = arguments
            start = ir.Constant(ir.VectorType(_REAL, n_lanes), [neutral] * n_lanes)
            result = _ir.alloca_once_value(builder, start)
            with _ir.for_range(builder, n_cells) as loop:
                cell = _cell(context, builder, signature.args[1], cells, builder.add(first, loop.index))
                index = builder.add(builder.mul(cell, stride), lane)
                run = _run(context, builder, signature.args[0], values, index, n_lanes)
                term = builder.load(run, align=8)
                builder.store(getattr(builder, operation)(builder.load(result), term), result)
            run = _run(context, builder, signature.args[6], out, at, n_lanes)
            builder.store(builder.load(result), run, align=8)
            return context.get_dummy_value()

        return signature, generate

    return gather


def _scatter(n_lanes: int) -> Callable[..., Any]:
    @_intrinsic
    def scatter(
        typing_context: Any,
        values: Any,
        at: Any,
        cells: Any,
        first: Any,
        n_cells: Any,
        stride: Any,
        lane: Any,
        out: Any,
    ) -> Any:
        integer = types.int64
        signature = types.void(values, integer, cells, integer, integer, integer, integer, out)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values, at, cells, first, n_cells, stride, lane, out = arguments
            run = _run(context, builder, signature.args[0], values, at, n_lanes)
            term = builder.load(run, align=8)
            with _ir.for_range(builder, n_cells) as loop:
                cell = _cell(context, builder, signature.args[2], cells, builder.add(first, loop.index))
                index = builder.add(builder.mul(cell, stride), lane)
                run = _run(context, builder, signature.args[7], out, index, n_lanes)
                builder.store(builder.fadd(builder.load(run, align=8), term), run, align=8)
            return context.get_dummy_value()

        return signature, generate

    return scatter


def _fold(n_lanes: int, operation: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    @_intrinsic
    def fold(typing_context: Any, values: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            run = _run(context, builder, signature.args[0], arguments[0], arguments[1], n_lanes)
            result = builder.load(run, align=8)
            while result.type.count > 1:
                half = result.type.count // 2
                result = operation(builder, *(_pick(builder, result, range(i, i + half)) for i in (0, half)))
            return builder.extract_element(result, ir.Constant(_LANE, 0))

        return types.float64(values, types.int64), generate

    return fold


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _with_all(n_lanes: int, operation: str) -> Callable[..., Any]:
    @_intrinsic
    def change(typing_context: Any, values: Any, at: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            run = _run(context, builder, signature.args[0], arguments[0], arguments[1], n_lanes)
            numbers = builder.load(run, align=8)
            one = builder.insert_element(
                ir.Constant(numbers.type, ir.Undefined), arguments[2], ir.Constant(_LANE, 0)
            )
            changed = getattr(builder, operation)(numbers, _pick(builder, one, [0] * n_lanes))
            builder.store(changed, run, align=8)
            return context.get_dummy_value()

        return types.void(values, types.int64, types.float64), generate

    return change


def _count(n_lanes: int) -> Callable[..., Any]:
    @_intrinsic
    def count(typing_context: Any, values: Any, at: Any, factor: Any, out: Any, first: Any) -> Any:
        signature = types.void(values, types.int64, types.float64, out, types.int64)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values, at, factor, out, first = arguments
            run = builder.load(_run(context, builder, signature.args[0], values, at, n_lanes), align=8)
            start = ir.Constant(run.type, ir.Undefined)
            one = builder.insert_element(start, factor, ir.Constant(_LANE, 0))
            run = builder.fmul(run, _pick(builder, one, [0] * n_lanes))
            kind = ir.FunctionType(run.type, [run.type])
            rint = _ir.get_or_insert_function(builder.module, kind, f"llvm.rint.v{n_lanes}f64")
            whole = builder.fptosi(builder.call(rint, [run]), ir.VectorType(_INDEX, n_lanes))
            sums = _run(context, builder, signature.args[3], out, first, n_lanes, _INDEX)
            builder.store(builder.add(builder.load(sums, align=8), whole), sums, align=8)
            return context.get_dummy_value()

        return signature, generate

    return count


@_intrinsic
def copy_past_caches(typing_context: Any, values: Any, first: Any, n: Any, out: Any, at: Any) -> Any:
    """Copy ``values[first : first + n]`` to ``out[at : at + n]``, past the caches.

    For what is too large for them and is read much later: a plain copy reads each line before it writes it, and
    pushes out what is used next. Other threads and processes see the copy before whatever is written after it.
    """
    integer = types.int64
    signature = types.void(values, integer, integer, out, integer)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, first, n, out, at = arguments
        source = builder.gep(context.make_array(signature.args[0])(context, builder, values).data, [first])
        target = builder.gep(context.make_array(signature.args[3])(context, builder, out).data, [at])
        size, run = ir.Constant(_INDEX, _PAST), ir.VectorType(_REAL, _PAST).as_pointer()
        past = builder.module.add_metadata([ir.Constant(_LANE, 1)])

        def copy_one(index: Any) -> None:
            builder.store(builder.load(builder.gep(source, [index])), builder.gep(target, [index]))

        # single numbers up to where a run of them is aligned, runs, and what is left
        place = builder.lshr(builder.ptrtoint(target, _INDEX), ir.Constant(_INDEX, 3))
        head = builder.and_(builder.neg(place), ir.Constant(_INDEX, _PAST - 1))
        head = builder.select(builder.icmp_signed("<", head, n), head, n)
        tail = builder.add(head, builder.mul(builder.sdiv(builder.sub(n, head), size), size))
        with _ir.for_range(builder, head) as loop:
            copy_one(loop.index)
        with _ir.for_range_slice(builder, head, tail, size) as (index, _):
            numbers = builder.load(builder.bitcast(builder.gep(source, [index]), run), align=8)
            place = builder.bitcast(builder.gep(target, [index]), run)
            builder.store(numbers, place, align=8 * _PAST).set_metadata("nontemporal", past)
        with _ir.for_range_slice(builder, tail, n, ir.Constant(_INDEX, 1)) as (index, _):
            copy_one(index)
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def fetch(typing_context: Any, values: Any, at: Any) -> Any:
    """Bring ``values[at]`` into the first-level cache, ahead of its use."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, flag, flag, flag])
        function = _ir.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, *(ir.Constant(flag, value) for value in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(values, types.int64), generate


add_4, add_8 = _gather(4, "fadd", 0.0), _gather(8, "fadd", 0.0)
"""``add(values, cells, first, n_cells, stride, lane, out, at)``: ``out[at : at + 4 or 8]`` becomes the sum, over the
cells ``cells[first : first + n_cells]``, of ``values[cell * stride + lane ...]``."""

multiply_4, multiply_8 = _gather(4, "fmul", 1.0), _gather(8, "fmul", 1.0)
"""The product instead of the sum."""

scatter_4, scatter_8 = _scatter(4), _scatter(8)
"""``scatter(values, at, cells, first, n_cells, stride, lane, out)``: ``values[at : at + 4 or 8]`` is added to
``out[cell * stride + lane ...]`` of each of the cells."""

total_4, total_8 = (_fold(n, lambda builder, a, b: builder.fadd(a, b)) for n in (4, 8))
"""``total(values, at)``: the sum of ``values[at : at + 4 or 8]``, by halves."""

largest_4, largest_8 = _fold(4, _larger), _fold(8, _larger)
"""The largest instead of the sum."""

subtract_4, subtract_8 = _with_all(4, "fsub"), _with_all(8, "fsub")
"""``subtract(values, at, number)``: ``number`` is subtracted from ``values[at : at + 4 or 8]``."""

scale_4, scale_8 = _with_all(4, "fmul"), _with_all(8, "fmul")
"""They are multiplied with it instead."""

count_2, count_4, count_8 = _count(2), _count(4), _count(8)
"""``count(values, at, factor, out, first)``: each of ``values[at : at + 2, 4 or 8]``, times the factor and rounded to a
whole number, is added to the 64-bit integers from ``out[first]`` on."""
