"""ARFF as it is found in the wild."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedande_mpi.arff_source import read_arff
from fedande_mpi.errors import DataError
from fedande_mpi.table import Table

HEAD = "@relation r\n@attribute a {x,y}\n@attribute class {p,q}\n@data\n"


def read(tmp_path: Path, text: str) -> Table:
    path = tmp_path / "r.arff"
    path.write_bytes(text.encode())
    return read_arff(path)


def cells(table: Table) -> list[tuple[str, ...]]:
    """Return the rows as text, missing cells as a bare ?."""
    names = [[*column.values, "?"] for column in table.columns]
    return list(
        zip(*([n[c] for c in col.codes] for n, col in zip(names, table.columns, strict=True)), strict=True)
    )


PLAIN = [("x", "p"), ("y", "q")]

SPELLINGS = {
    "plain": HEAD + "x,p\ny,q\n",
    "no newline at the end": HEAD + "x,p\ny,q",
    "spaces after commas": HEAD + "x, p\n  y ,  q  \n",
    "CRLF": (HEAD + "x,p\ny,q\n").replace("\n", "\r\n"),
    "CR": (HEAD + "x,p\ny,q\n").replace("\n", "\r"),
    "upper-case keywords": HEAD.replace("@relation", "@RELATION").replace("@data", "@DATA") + "x,p\ny,q\n",
    "tabs in the header": HEAD.replace("@attribute a ", "@attribute\ta\t\t") + "x,p\ny,q\n",
    "tab-separated rows": HEAD + "x\tp\ny\t q\n",
    "tabs beside commas": HEAD + "x,\tp\ny\t,q\n",
    "spaces in the list": HEAD.replace("{x,y}", " { x, y }") + "x,p\ny,q\n",
    "tab at the end of the list": HEAD.replace("{x,y}", "{x,y\t}") + "x,p\ny,q\n",
    "no space before the list": HEAD.replace("a {", "a{") + "x,p\ny,q\n",
    "quotes": HEAD.replace("a {x,y}", "'a' {'x',\"y\"}") + "'x','p'\n\"y\",q\n",
    "comments and empty lines": "% top\n\n"
    + HEAD.replace("@data", "% here\n@data")
    + "\nx,p\n% in\n  % den\ny,q\n\n",
    "comments behind": HEAD.replace("{x,y}", "{x,y} % c, {d}") + "x,p % 'c'\ny,q\t% c\n",
    "byte-order mark": "\ufeff" + HEAD + "x,p\ny,q\n",
    "no relation": HEAD.removeprefix("@relation r\n") + "x,p\ny,q\n",
    "sparse": HEAD + "{}\n{0 y, 1 q}\n",
    "sparse with spaces and quotes": HEAD + "{ }\n{ 0 'y' ,1\tq } % c\n",
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_of_a_file_reads_the_same(tmp_path: Path, text: str) -> None:
    table = read(tmp_path, text)
    assert [(c.name, c.kind, c.values) for c in table.columns] == [
        ("a", "nominal", ("x", "y")),
        ("class", "nominal", ("p", "q")),
    ]
    assert cells(table) == PLAIN


def test_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "r.ARFF.GZ"
    path.write_bytes(gzip.compress(SPELLINGS["plain"].encode()))
    assert cells(read_arff(path)) == PLAIN


def test_declared_values_keep_their_order_and_the_unused(tmp_path: Path) -> None:
    table = read(tmp_path, "@attribute x  { 1,-1, 0 }\n@attribute c {p,q}\n@data\n-1,p\n1,q\n")
    assert table.columns[0].values == ("1", "-1", "0")
    assert table.columns[0].codes.tolist() == [1, 0]
    assert table.columns[0].codes.dtype == np.int32


def test_quoted_names_and_values(tmp_path: Path) -> None:
    text = r"""@attribute 'a{' {'x, 1', 'it\'s', "say \"é\"", '?', '', ' pad ', 'tab\t', '\u00e9%', don't,50%}
@attribute "the class" {p,q}
@data
'x, 1',p
'it\'s',p
"say \"é\"",p
'?',p
?,p
'',p
' pad ',p
'tab\t',p
'\u00e9%',p
don't,p
50%,q
"""
    table = read(tmp_path, text)
    assert [column.name for column in table.columns] == ["a{", "the class"]
    assert table.columns[0].values == (
        *("x, 1", "it's", 'say "é"', "?", "", " pad ", "tab\t", "é%", "don't", "50%"),
    )
    assert table.columns[0].codes.tolist() == [0, 1, 2, 3, -1, 4, 5, 6, 7, 8, 9]


def test_an_undeclared_question_mark_is_missing(tmp_path: Path) -> None:
    assert cells(read(tmp_path, HEAD + "?,p\nx, ?\n{0 ?}\n")) == [("?", "p"), ("x", "?"), ("?", "p")]


def test_a_question_mark_in_a_list_declares_nothing(tmp_path: Path) -> None:
    table = read(tmp_path, HEAD.replace("{x,y}", "{x,?,y}") + "x,p\n?,q\n")
    assert table.columns[0].values == ("x", "y")
    assert table.columns[0].codes.tolist() == [0, -1]


@pytest.mark.parametrize("word", ["numeric", "REAL", "Integer", "real % c"])
def test_numeric_attributes(tmp_path: Path, word: str) -> None:
    table = read(
        tmp_path, f"@attribute a {word}\n@attribute c {{p,q}}\n@data\n10,p\n1.50,q\n1.5,p\n?,p\n-2e1,q\n"
    )
    column = table.columns[0]
    assert column.kind == "numeric"
    assert column.values == ("-20", "1.5", "10")
    np.testing.assert_array_equal(column.numbers(), [10, 1.5, 1.5, np.nan, -20])


def test_sparse_numeric_cells_default_to_zero(tmp_path: Path) -> None:
    table = read(tmp_path, "@attribute a numeric\n@attribute c {p,q}\n@data\n{1 q}\n{0 3}\n")
    assert table.columns[0].numbers().tolist() == [0, 3]
    assert table.columns[1].codes.tolist() == [1, 0]


@pytest.mark.parametrize(("declaration", "kind"), [("string", "string"), ("date 'yyyy-MM'", "date")])
def test_text_is_read_for_whoever_drops_or_declares_it(tmp_path: Path, declaration: str, kind: str) -> None:
    table = read(
        tmp_path, f"@attribute a {declaration}\n@attribute c {{p,q}}\n@data\n'2001-02',p\n'2000-01',q\n"
    )
    assert table.columns[0].kind == kind
    assert table.columns[0].values == ("2000-01", "2001-02")


BAD = {
    "empty": ("", "the end of the file"),
    "no rows": (HEAD + "% nothing\n", "rows below @data"),
    "no data": (HEAD.replace("@data\n", ""), "the end of the file"),
    "no attributes": ("@relation r\n@data\nx\n", "line 2 .*@attribute"),
    "not ARFF": ("a,class\nx,p\n", "line 1 is 'a,class', expected @relation"),
    "too short": (HEAD + "x,p\ny\n", "line 6 has 1 values, expected 2"),
    "too long": (HEAD + "% c\nx,p,q\n", "line 6 has 3 values, expected 2"),
    "comma at the end": (HEAD + "x,p,\n", "line 5 leaves value 3 empty"),
    "empty cell": (HEAD + ",p\n", r"line 5 leaves value 1 empty; write \?"),
    "empty cell beside quotes": (HEAD + "'x',\n", "line 5 leaves value 2 empty"),
    "undeclared": (HEAD + "x,p\n\nz,q\n", "line 7 has 'z' for 'a', expected one of {x, y}"),
    "other case": (HEAD + "X,p\n", "line 5 has 'X' for 'a'"),
    "unquoted space": (HEAD + "x y,p\n", "line 5 has 'x y' without quotes"),
    "unquoted space beside quotes": (HEAD + "x y,'p'\n", "line 5 cannot be read at"),
    "text behind a quote": (HEAD + "'x'y,p\n", "line 5 cannot be read"),
    "open quote": (HEAD + "'x,p\n", "line 5 cannot be read"),
    "instance weight": (HEAD + "x,p,{2}\n", "line 5 carries an instance weight"),
    "unquoted space in the list": (
        HEAD.replace("{x,y}", "{x y,z}") + "z,p\n",
        "line 2 has 'x y' without quotes",
    ),
    "open list": (HEAD.replace("{x,y}", "{x,y") + "x,p\n", "line 2 declares 'a' by a list that"),
    "text behind the list": (
        HEAD.replace("{x,y}", "{x,y} z") + "x,p\n",
        "line 2 declares 'a' by a list that",
    ),
    "value twice": (HEAD.replace("{x,y}", "{x,y,x}") + "x,p\n", "line 2 declares the value 'x' of 'a' twice"),
    "attribute twice": (
        HEAD.replace("class", "a") + "x,p\n",
        r"line 3 declares 'a' again \(first in line 2\)",
    ),
    "no type": (HEAD.replace(" {x,y}", "") + "x,p\n", "line 2 declares 'a' as ''"),
    "relational": (HEAD.replace("{x,y}", "relational") + "x,p\n", "line 2 declares 'a' as 'relational'"),
    "no name": (HEAD.replace(" a {x,y}", "") + "x,p\n", "line 2 declares no attribute"),
    "no number": ("@attribute a real\n@attribute c {p,q}\n@data\n1,p\nnan,q\n", "line 5 has 'nan' for 'a'"),
    "sparse index": (HEAD + "{2 x}\n", "line 5 has index 2, expected increasing indices up to 1"),
    "sparse order": (HEAD + "{1 p, 0 x}\n", "line 5 has index 0"),
    "sparse syntax": (HEAD + "{0 x 1 p}\n", "line 5 cannot be read at"),
    "sparse end": (HEAD + "{0 x\n", "line 5 starts with {"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path, text)
    assert "r.arff: " in str(error.value)
    assert "\n" not in str(error.value)


def test_a_long_quoted_list_that_cannot_be_read_is_refused_at_once(tmp_path: Path) -> None:
    values = ",".join(f"'v {i}'" for i in range(1000))
    with pytest.raises(DataError, match="line 1"):
        read(tmp_path, f"@attribute a {{{values}}} x\n@data\nx\n")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_arff(tmp_path / "absent.arff")
    with pytest.raises(DataError, match="cannot be read"):
        read_arff(tmp_path)
    latin = tmp_path / "latin.arff"
    latin.write_bytes(SPELLINGS["plain"].replace("x", "é").encode("latin-1"))
    with pytest.raises(DataError, match="expected UTF-8 text, got byte 0xe9"):
        read_arff(latin)


@pytest.mark.parametrize("damage", ["no gzip", "cut", "flipped"])
def test_damaged_gzip(tmp_path: Path, damage: str) -> None:
    content = bytearray(gzip.compress((HEAD + "x,p\ny,q\n" * 500).encode()))
    if damage == "no gzip":
        content = bytearray(HEAD.encode())
    elif damage == "cut":
        del content[-12:]
    else:
        content[12:20] = b"\xff" * 8
    path = tmp_path / "r.arff.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        read_arff(path)
