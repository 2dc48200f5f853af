"""Figures of the results for print (``fedande plot``, extra ``plot``): PNG, PDF and SVG.

====================  ====================================================================================
figure                shows, where no other is said: accuracy against the number of clients C
====================  ====================================================================================
``1``                 mean over the data sets that have every cell drawn; local left, federated right
``2``                 one data set, federated; generative left, discriminative (and hybrid) right
``3``                 every data set, as figure 1: local left, federated right
``4``                 every data set, as figure 2: generative left, discriminative right
``convergence``       every data set, federated: accuracy after every round, at the smallest and largest C
``communication``     the same against the bytes sent until then, both ways, by all clients
====================  ====================================================================================

Colour and marker stand for n; generative models are solid, discriminative dashed, hybrid ones dash-dotted.
The thin grey line is the best centralised model among those of the panel; where cells are selected by C, select
them too (``DIR:C=5 DIR:scope=centralised``). Bands are one sample standard deviation over repeats to either
side. A cell that is not there leaves a gap. A pair of panels is one column of a paper wide, and no text is
smaller than 7 points.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedande_mpi.conditions import Selections
from fedande_mpi.curves import FIGURES, NothingToDrawError, sheet
from fedande_mpi.drawing import draw
from fedande_mpi.errors import ResultsError
from fedande_mpi.measured import read_results
from fedande_mpi.panels import Sheet
from fedande_mpi.storage import check_writable, write_bytes
from fedande_mpi.style import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg")

_NO_DATES: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
}


@dataclass(frozen=True)
class Plotted:
    """What :func:`plot` did.

    Attributes
    ----------
    written : list of Path
    skipped : list of str
        For each figure that the results do not allow, what is missing.
    notes : list of str
        What else is to be known, such as data sets left out of a mean.
    """

    written: list[Path]
    skipped: list[str]
    notes: list[str]


def plot(
    paths: Selections,
    output: str | Path,
    figures: Sequence[str] | None = None,
    formats: Sequence[str] = ("png",),
    dataset: str | None = None,
) -> Plotted:
    """Draw figures into files.

    Parameters
    ----------
    paths : str, Path or iterable of them
        Result files, directories, glob patterns; as ``PATH:KEY=VALUE,...`` some of their cells.
    output : str or Path
        Directory of the files ``figure1.png``, ``convergence.png`` ...; with `dataset`, figures of that one
        carry its name.
    figures : sequence of str, optional
        Some of ``FIGURES``; by default all that the results allow.
    formats : sequence of str
        Some of png, pdf, svg; an entry may hold several, with commas.
    dataset : str, optional
        As in :func:`figure`.

    Returns
    -------
    Plotted

    Raises
    ------
    ResultsError
        If one of `figures` lacks its results, or no figure can be drawn; if a file cannot be written; if
        matplotlib is not installed.
    """
    kinds = list(dict.fromkeys(kind.strip() for entry in formats for kind in entry.split(",")))
    for kind in kinds:
        if kind not in FORMATS:
            raise ResultsError(f"--format: expected some of {', '.join(FORMATS)}, got '{kind}'")
    with style():
        pass  # says at once when there is no matplotlib
    results = read_results(paths)
    # Everything is gathered first: a figure asked for in vain leaves no files of the others.
    sheets: dict[str, Sheet] = {}
    skipped: list[str] = []
    for name in figures or FIGURES:
        try:
            sheets[name] = sheet(results, name, dataset)
        except NothingToDrawError as error:
            if figures:
                raise
            skipped.append(str(error))
    if not sheets:
        reasons = "; ".join(text.removesuffix("; run them first") for text in skipped)
        raise ResultsError(
            f"expected results for at least one figure, found none ({reasons}); run more of them"
        )
    check_writable(output)
    written = []
    for name, content in sheets.items():
        stem = f"figure{name}" if name.isdigit() else name
        if dataset is not None and name not in ("1", "3", "4"):
            stem += "-" + re.sub(r"[^A-Za-z0-9.+-]+", "-", dataset).strip("-.")
        drawn = draw(content)
        for kind in kinds:
            path = Path(output) / f"{stem}.{kind}"
            write_bytes(path, image(drawn, kind))
            written.append(path)
    return Plotted(written, skipped, [content.note for content in sheets.values() if content.note])


def figure(paths: Selections, name: str, dataset: str | None = None) -> Figure:
    """Draw one figure.

    Parameters
    ----------
    paths : str, Path or iterable of them
        Result files, directories, glob patterns; as ``PATH:KEY=VALUE,...`` some of their cells.
    name : {"1", "2", "3", "4", "convergence", "communication"}
    dataset : str, optional
        The one data set of figure 2 (default: kr-vs-k, or else the first of the results), ``convergence`` and
        ``communication`` (default: each of them).

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot, so nothing has to be closed.

    Raises
    ------
    ResultsError
        If its results are missing, or matplotlib is not installed.
    """
    return draw(sheet(read_results(paths), name, dataset))


def image(drawn: Figure, kind: str) -> bytes:
    """Return a figure as the content of a file (png, pdf, svg): the same bytes every time."""
    stream = io.BytesIO()
    with style():
        drawn.savefig(stream, format=kind, metadata=_NO_DATES[kind])
    return stream.getvalue()
