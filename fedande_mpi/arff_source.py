r"""ARFF files, by a small strict parser.

The two libraries were tried first, on the paper's twelve data sets and on the forms below:

* ``scipy.io.arff`` refuses soybean (a space after a comma in a declared list), sparse rows, indented
  comments and values outside ASCII, and accepts rows that are too long.
* ``liac-arff`` reads the twelve, but takes exponential time on a list of quoted values followed by
  anything else, such as a comment (0.8 s for 14 values, nine times more for every two), returns the text
  ``nan`` as a value of an INTEGER attribute, accepts a value declared twice, keeps the backslash in
  ``'it\'s'`` as a name, refuses a tab after ``@attribute``, trailing comments, tab-separated rows and
  dates, and names no attribute in its errors.

Grammar, after Weka's reference: keywords in any case; ``%`` starts a comment where a value could start;
values and names may be quoted by ``'`` or ``"`` with backslash escapes; rows are separated by commas or
tabs; ``{index value, ...}`` is a sparse row whose other cells hold the first declared value, or 0; an
unquoted ``?`` is missing. Refused by name: relational attributes and instance weights. String and date
attributes are read, for whoever drops or declares them, and refused later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fedande_mpi.errors import DataError
from fedande_mpi.table import Column, Kind, Table, encode, is_number, number_text, observed_column, open_text

_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
# a value, then what ends it: a comma, a tab, a comment, or the end
_CELL = re.compile(rf"\s*({_QUOTED}|[^\s,'\"{{}}%][^\s,{{}}]*|)(\s*,\s*|[ ]*\t\s*|\s*$|\s+(?=%))")
_PAIR = re.compile(rf"\s*(\d+)\s+({_QUOTED}|[^\s,'\"{{}}]+)\s*(,|$)")
_NAME = re.compile(rf"\s*({_QUOTED}|[^\s,'\"{{}}%][^\s{{}}]*)\s*(.*)", re.DOTALL)
# braces and what they hold; a quote opens a quotation only where a value can start
_BRACES = re.compile(
    rf"\{{((?:(?<![^\s,{{])(?:{_QUOTED})|[^'\"}}]|(?<=[^\s,{{])['\"])*)\}}\s*(?:%.*)?", re.DOTALL
)
_SPECIAL = re.compile(r"""['"{}%\t]""")
_KEYWORD = re.compile(r"@?\w*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}

_KINDS: dict[str, Kind] = {
    "numeric": "numeric",
    "real": "numeric",
    "integer": "numeric",
    "string": "string",
    "date": "date",
}


@dataclass(frozen=True)
class _Attribute:
    name: str
    kind: Kind
    values: tuple[str, ...]


class _SyntaxError(Exception):
    """What is wrong with the text at hand; the caller adds file and line."""


def read_arff(path: Path) -> Table:
    """Read an ARFF file, dense or sparse.

    Parameters
    ----------
    path : Path
        The file; gzipped if the name ends in ``.gz``.

    Returns
    -------
    Table
        Columns in file order. The values of nominal columns are as declared.

    Raises
    ------
    DataError
        If the file is not ARFF, holds no row, a row of another length, a value that is not declared, or
        cannot be read. The message names the file and the line.
    """
    with open_text(path) as file:
        lines = file.read().replace("\r\n", "\n").replace("\r", "\n").split("\n")
    attributes, first = _read_header(path, lines)
    rows: list[Sequence[str | None]] = []
    numbers: list[int] = []
    defaults = [attribute.values[0] if attribute.values else "0" for attribute in attributes]
    for number, line in enumerate(lines[first:], start=first + 1):
        text = line.strip()
        if not text or text.startswith("%"):
            continue
        try:
            row = _sparse_row(text, defaults) if text.startswith("{") else _dense_row(text)
            if len(row) != len(attributes):
                raise _SyntaxError(f"has {len(row)} values, expected {len(attributes)}, one per attribute")
        except _SyntaxError as error:
            _refuse(path, number, error)
        rows.append(row)
        numbers.append(number)
    if not rows:
        raise DataError(f"{path}: expected rows below @data, got none")
    cells = zip(*rows, strict=True)
    return Table(tuple(_column(path, a, c, numbers) for a, c in zip(attributes, cells, strict=True)))


def _refuse(path: Path, line: int, error: object) -> NoReturn:
    raise DataError(f"{path}: line {line} {error}") from None


def _read_header(path: Path, lines: Sequence[str]) -> tuple[list[_Attribute], int]:
    """Return the attributes and the index of the first line of the data."""
    attributes: list[_Attribute] = []
    declared: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("%"):
            continue
        keyword = text[: _KEYWORD.match(text).end()]  # type: ignore[union-attr]
        match keyword.lower():
            case "@relation":
                pass
            case "@attribute":
                try:
                    attribute = _attribute(text.removeprefix(keyword))
                except _SyntaxError as error:
                    _refuse(path, number, error)
                if attribute.name in declared:
                    first = declared[attribute.name]
                    _refuse(
                        path, number, f"declares {attribute.name!r} again (first in line {first}); rename one"
                    )
                declared[attribute.name] = number
                attributes.append(attribute)
            case "@data":
                if not attributes:
                    _refuse(path, number, "starts the data, expected @attribute lines before it")
                return attributes, number
            case _:
                _refuse(path, number, f"is {text[:40]!r}, expected @relation, @attribute or @data")
    raise DataError(f"{path}: expected @data and rows, got the end of the file")


def _attribute(text: str) -> _Attribute:
    match = _NAME.fullmatch(text)
    if match is None:
        raise _SyntaxError("declares no attribute, expected @attribute NAME TYPE")
    name, declaration = _unquote(match[1]), match[2].strip()
    if declaration.startswith("{"):
        listed = _BRACES.fullmatch(declaration)
        if listed is None:
            raise _SyntaxError(
                f"declares {name!r} by a list that cannot be read, expected {{value, ...}} on one line"
            )
        # an unquoted ? in the list stands for missing cells, as it does in the rows
        body = listed[1].strip()
        values = tuple(value for value in _dense_row(body) if value is not None) if body else ()
        if len(set(values)) != len(values):
            twice = next(value for i, value in enumerate(values) if value in values[:i])
            raise _SyntaxError(f"declares the value {twice!r} of {name!r} twice; remove one")
        return _Attribute(name, "nominal", values)
    word = declaration.split(maxsplit=1)[0].lower() if declaration else ""
    if word not in _KINDS:
        raise _SyntaxError(
            f"declares {name!r} as {declaration[:40]!r}, "
            "expected {value, ...}, numeric, real, integer, string or date"
        )
    return _Attribute(name, _KINDS[word], ())


def _dense_row(text: str) -> Sequence[str | None]:
    if _SPECIAL.search(text) is None:  # the usual case, at a tenth of the cost
        cells = text.split(",")
        if " " in text:
            cells = [cell.strip() for cell in cells]
            for cell in cells:
                if " " in cell:
                    raise _SyntaxError(
                        f"has {cell!r} without quotes, expected values without spaces or quoted"
                    )
        if "" in cells:
            raise _SyntaxError(f"leaves value {cells.index('') + 1} empty; write ? for a missing value")
        return [None if cell == "?" else cell for cell in cells] if "?" in cells else cells
    row: list[str | None] = []
    position, ended = 0, ","
    while "," in ended or ("\t" in ended and not text.startswith("%", position)):
        match = _CELL.match(text, position)
        if match is None:
            if text.startswith("{", position):
                raise _SyntaxError("carries an instance weight, which is not supported; remove it")
            raise _SyntaxError(f"cannot be read at {text[position:][:30]!r}; quote values with spaces")
        if not match[1]:
            raise _SyntaxError(f"leaves value {len(row) + 1} empty; write ? for a missing value")
        row.append(_value(match[1]))
        position, ended = match.end(), match[2]
    return row


def _sparse_row(text: str, defaults: Sequence[str]) -> Sequence[str | None]:
    braces = _BRACES.fullmatch(text)
    if braces is None:
        raise _SyntaxError("starts with { and is no sparse row, expected {index value, ...}")
    body = braces[1].strip()
    row: list[str | None] = list(defaults)
    position, last = 0, -1
    while position < len(body):
        pair = _PAIR.match(body, position)
        if pair is None:
            raise _SyntaxError(f"cannot be read at {body[position:][:30]!r}, expected index value")
        index = int(pair[1])
        if not last < index < len(row):
            raise _SyntaxError(f"has index {index}, expected increasing indices up to {len(row) - 1}")
        row[index] = _value(pair[2])
        position, last = pair.end(), index
    return row


def _value(text: str) -> str | None:
    return None if text == "?" else _unquote(text)


def _unquote(text: str) -> str:
    if text[0] not in "'\"":
        return text
    if "\\" not in text:
        return text[1:-1]
    return _ESCAPE.sub(
        lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else _ESCAPES.get(m[1], m[1]), text[1:-1]
    )


def _column(path: Path, attribute: _Attribute, cells: Sequence[str | None], lines: Sequence[int]) -> Column:
    if attribute.kind == "nominal":
        try:
            return Column(attribute.name, "nominal", attribute.values, encode(cells, attribute.values))
        except KeyError as error:
            value = error.args[0]
            shown = ", ".join(attribute.values[:6]) + (", ..." if len(attribute.values) > 6 else "")
            _refuse(
                path,
                lines[cells.index(value)],
                f"has {value!r} for {attribute.name!r}, expected one of {{{shown}}}",
            )
    if attribute.kind == "numeric":
        # equal numbers written differently are one value
        texts = {cell for cell in set(cells) if cell is not None}
        for text in texts:
            if not is_number(text):
                line = lines[cells.index(text)]
                _refuse(path, line, f"has {text!r} for {attribute.name!r}, expected a number")
        plain = {text: number_text(float(text)) for text in texts}
        cells = [None if cell is None else plain[cell] for cell in cells]
    return observed_column(attribute.name, cells, attribute.kind)
