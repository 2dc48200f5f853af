"""Tables as text: Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from typing import Any

from fedande_mpi.errors import ResultsError

FORMATS = ("md", "csv", "latex", "json")
DIGITS = 4
"""Of an accuracy in a table; what looks equal with them is equally good."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows and the columns they have, in order.

    Attributes
    ----------
    columns : tuple of str
    rows : list of dict
        Column to value; None where there is none.
    values : tuple of str
        In a pivot, the columns that hold accuracies.
    ranks : dict, optional
        In a pivot whose rows are data sets, a last row: the mean rank of every column.
    """

    columns: tuple[str, ...]
    rows: list[Row]
    values: tuple[str, ...] = ()
    ranks: Row | None = None

    @property
    def all_rows(self) -> list[Row]:
        """Rows with that of the ranks, if there is one."""
        return self.rows if self.ranks is None else [*self.rows, self.ranks]


def value_text(value: Any) -> str:
    """Value as text; numbers have as many digits as they need."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _cell_text(name: str, value: Any, table: Table, digits: int) -> str:
    statistic = name in table.values or name in ("accuracy", "accuracy_sd", "cll")
    if statistic and isinstance(value, float) and math.isfinite(value):
        return f"{value:.{digits}f}"
    return value_text(value)


def format_table(table: Table, style: str = "md") -> str:
    """Write a table as text.

    Parameters
    ----------
    table : Table
    style : {"md", "csv", "latex", "json"}
        Six digits in ``csv``, all in ``json``, four in the others (two for mean ranks), where the best of
        every row of a pivot is bold. ``latex`` needs the package booktabs.

    Returns
    -------
    str
        With a final newline.

    Raises
    ------
    ResultsError
        If the style is unknown.
    """
    if style == "csv":
        return _csv(table)
    if style == "json":
        return _json(table)
    if style not in FORMATS:
        raise ResultsError(f"--format: expected one of {', '.join(FORMATS)}, got '{style}'")
    escape, bold = (_escape_md, "**{}**") if style == "md" else (_escape_latex, r"\textbf{{{}}}")
    lines = [[escape(name) for name in table.columns]]
    for row in table.all_rows:
        ranks = row is table.ranks
        shown = {name: _cell_text(name, row[name], table, 2 if ranks else DIGITS) for name in table.columns}
        # Compared as shown: what looks equal is equally good.
        texts = [shown[name] for name in table.values if shown[name]]
        best = (min if ranks else max)(texts, key=float, default=None)
        marked = set(table.values) if len(table.values) > 1 else set()
        lines.append(
            [
                bold.format(text) if name in marked and text and text == best else escape(text)
                for name, text in shown.items()
            ]
        )
    right = [any(isinstance(row[name], int | float) for row in table.rows) for name in table.columns]
    return _md(lines, right) if style == "md" else _latex(lines, right, ruled=table.ranks is not None)


def _csv(table: Table) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.all_rows:
        writer.writerow([_cell_text(name, row[name], table, 6) for name in table.columns])
    return stream.getvalue()


def _json(table: Table) -> str:
    def plain(value: Any) -> Any:
        # JSON has no infinity and no NaN.
        if isinstance(value, float) and not math.isfinite(value):
            return None if math.isnan(value) else str(value)
        return list(value) if isinstance(value, tuple) else value

    rows = [{name: plain(row[name]) for name in table.columns} for row in table.all_rows]
    return json.dumps(rows, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _escape_md(text: str) -> str:
    return text.replace("|", "\\|")


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: "\\" + character for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def _md(lines: list[list[str]], right: list[bool]) -> str:
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(right))]
    rule = ["-" * (w - 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True)]
    text = ""
    for line in (lines[0], rule, *lines[1:]):
        padded = (t.rjust(w) if r else t.ljust(w) for t, w, r in zip(line, widths, right, strict=True))
        text += f"| {' | '.join(padded)} |\n"
    return text


def _latex(lines: list[list[str]], right: list[bool], ruled: bool) -> str:
    """Write it with booktabs; `ruled`: with a rule above the last row."""
    head, *body = [" & ".join(line) + r" \\" for line in lines]
    if ruled:
        body.insert(-1, r"\midrule")
    columns = "".join("r" if numeric else "l" for numeric in right)
    parts = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}", ""])
