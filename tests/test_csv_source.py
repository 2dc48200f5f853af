"""CSV: a header, sorted values, and one clear line for what cannot be read."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedande_mpi.csv_source import read_csv
from fedande_mpi.errors import DataError
from fedande_mpi.table import Column, Table


def read(tmp_path: Path, text: str) -> Table:
    path = tmp_path / "r.csv"
    path.write_bytes(text.encode())
    return read_csv(path)


def column(tmp_path: Path, *cells: str) -> Column:
    return read(tmp_path, "a,c\n" + "".join(f"{cell},p\n" for cell in cells)).columns[0]


def test_values_are_sorted_as_text(tmp_path: Path) -> None:
    got = column(tmp_path, "b", "10", "9", "B")
    assert got.kind == "nominal"
    assert got.values == ("10", "9", "B", "b")
    assert got.codes.tolist() == [3, 0, 1, 2]


def test_values_are_sorted_as_numbers_if_all_are(tmp_path: Path) -> None:
    got = column(tmp_path, "10", "9", "-1", "?", "+2", "1.0")
    assert got.kind == "nominal"
    assert got.values == ("-1", "1.0", "+2", "9", "10")


def test_a_column_with_a_broken_number_is_numeric(tmp_path: Path) -> None:
    got = column(tmp_path, "10", "0.5", "", "1e-3")
    assert got.kind == "numeric"
    np.testing.assert_array_equal(got.numbers(), [10, 0.5, np.nan, 0.001])


@pytest.mark.parametrize("word", ["nan", "inf", "0.5x", "1_0"])
def test_words_are_no_numbers(tmp_path: Path, word: str) -> None:
    assert column(tmp_path, "0.5", word).kind == "nominal"


def test_empty_cells_and_question_marks_are_missing(tmp_path: Path) -> None:
    assert column(tmp_path, "x", "", "?", " ? ", '"?"').codes.tolist() == [0, -1, -1, -1, -1]


def test_quotes_spaces_empty_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    table = read(tmp_path, '\ufeff"a, b", class\r\n\r\n"x, ""1""", p\r\n y ,"q"\r\n\r\n')
    assert [(c.name, c.values) for c in table.columns] == [("a, b", ('x, "1"', "y")), ("class", ("p", "q"))]


def test_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "r.csv.gz"
    path.write_bytes(gzip.compress(b"a,c\nx,p\n"))
    assert read_csv(path).columns[0].values == ("x",)


BAD = {
    "empty": ("", "expected a header line and rows, got an empty file"),
    "no rows": ("a,c\n\n", "expected rows below the header"),
    "too short": ("a,c\nx,p\nx\n", "line 3 has 1 values, expected 2"),
    "too long": ("a,c\nx,p,q\n", "line 2 has 3 values, expected 2"),
    "unnamed column": (",a,c\n1,x,p\n", "column 1 has no name"),
    "name twice": ("x,x,p\nx,y,q\n", "names 'x' twice"),
    "semicolons": ("a;c\nx;p\n", "separated by commas, got 'a;c'"),
    "open quote": ('a,c\n"x,p\n', "line 2 is not CSV"),
    "text behind a quote": ('a,c\n"x"y,p\n', "line 2 is not CSV"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path, text)
    assert "r.csv: " in str(error.value)
    assert "\n" not in str(error.value)
