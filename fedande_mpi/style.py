"""What models look like in print, and matplotlib's settings for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fedande_mpi.cell import METHODS, model_name
from fedande_mpi.errors import ResultsError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Of n = 0, 1, ...: those of Okabe and Ito, which colour-blind readers tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: dict[str, Any] = {
    "generative": "-",
    "discriminative": (0, (3.2, 1.3)),
    "hybrid": (0, (4.5, 1.3, 1.0, 1.3)),
}
CEILING: dict[str, Any] = {"color": "0.35", "linewidth": 0.6, "linestyle": "-"}
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.3,
    "grid.color": "0.88",
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.0,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "fedande",  # the same file for the same numbers
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Use our style, whatever the user's is, and give that back."""
    try:
        import matplotlib
    except ImportError as error:
        raise ResultsError(
            "figures expect matplotlib, which is not installed; pip install 'fedande-mpi[plot]'"
        ) from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def label(n: int, method: str) -> str:
    """Name of a model in a legend."""
    return f"{model_name(n, 'generative')} hybrid" if method == "hybrid" else model_name(n, method)


def line_style(n: int, method: str) -> dict[str, Any]:
    """Style of a model: colour and marker by n, dashes and filling by method."""
    colour = COLOURS[n % len(COLOURS)]
    filling = {"generative": colour, "discriminative": "white", "hybrid": "0.8"}[method]
    return {
        "color": colour,
        "linestyle": DASHES[method],
        "marker": MARKERS[n % len(MARKERS)],
        "markerfacecolor": filling,
        "markeredgewidth": 0.7,
        "zorder": 2 + METHODS.index(method) / 10,
    }
