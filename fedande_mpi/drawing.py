"""Drawing: what a figure's lines, panels and legend look like in print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedande_mpi.cell import METHODS
from fedande_mpi.panels import Group, Line, Panel, Sheet
from fedande_mpi.style import CEILING, label, line_style, style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELS = {"clients": "number of clients C", "rounds": "round", "bytes": "bytes sent, both ways, all clients"}

# Inches: a pair of panels is one column of a paper; two pairs side by side fill a page.
_COLUMN = 3.4
_LEFT, _RIGHT, _BETWEEN = 0.48, 0.07, 0.16
_ABOVE, _BELOW = 0.34, 0.2
_X_LABEL, _LEGEND_ROW = 0.15, 0.15
_PANEL, _ONLY_PANEL, _LEAST_PANEL = 1.0, 1.45, 0.7  # heights: among many, in a figure of one pair, at least
_PAGE = 8.8


def draw(content: Sheet) -> Figure:
    """Draw a figure: two groups of panels in a row, or one if there is only one.

    Parameters
    ----------
    content : Sheet

    Returns
    -------
    matplotlib.figure.Figure
    """
    with style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        groups = content.groups
        across = min(2, len(groups))
        down = -(-len(groups) // across)
        models, notes = _legend_entries(content)
        blocks = _legend_blocks(models, notes, across * _COLUMN)
        foot = 0.06 + _LEGEND_ROW * sum(len(block[0]) for block in blocks)
        # The paper's twelve data sets fit one page; what is more grows.
        room = (_PAGE - foot - _X_LABEL) / down - _ABOVE - _BELOW
        height = min(max(room, _LEAST_PANEL), _PANEL if len(groups) > 1 else _ONLY_PANEL)
        size = (across * _COLUMN, down * (_ABOVE + height + _BELOW) + _X_LABEL + foot)
        drawn = Figure(figsize=size)
        FigureCanvasAgg(drawn)

        def place(x: float, y: float, width: float, height: float) -> tuple[float, float, float, float]:
            return (x / size[0], y / size[1], width / size[0], height / size[1])

        for index, group in enumerate(groups):
            row, column = divmod(index, across)
            width = (_COLUMN - _LEFT - _RIGHT + _BETWEEN) / len(group.panels) - _BETWEEN
            bottom = size[1] - (row + 1) * (_ABOVE + height) - row * _BELOW
            first: Axes | None = None
            for offset, panel in enumerate(group.panels):
                left = column * _COLUMN + _LEFT + offset * (width + _BETWEEN)
                axes = drawn.add_axes(place(left, bottom, width, height), sharey=first)
                _draw_panel(axes, panel)
                _scale_x(axes, content, group, wide=width > 2)
                if first is None:
                    first = axes
                    up = 1 + 0.19 / height
                    axes.text(0, up, _short(group.heading), transform=axes.transAxes, weight="bold", size=7.5)
                else:
                    axes.tick_params(labelleft=False)
        centre = (_LEFT + size[0] - _RIGHT) / 2
        drawn.supxlabel(_LABELS[content.axis], size=7.5, x=centre / size[0], y=foot / size[1], va="bottom")
        middle = (foot + _X_LABEL + _BELOW + size[1] - _ABOVE) / 2
        drawn.supylabel("accuracy", size=7.5, x=0.02 / size[0], y=middle / size[1], ha="left")
        bottom = 0.02
        for block in reversed(blocks):
            _draw_legend(drawn, block, bottom / size[1])
            bottom += _LEGEND_ROW * len(block[0])
        return drawn


def _short(heading: str) -> str:
    """Leave out the middle of a name that is too long to be a heading."""
    return heading if len(heading) <= 40 else f"{heading[:19]}…{heading[-19:]}"


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", pad=3)
    if panel.ceiling is not None:
        axes.axhline(panel.ceiling, label="ceiling", zorder=1.5, **CEILING)
    for line in panel.lines:
        look = line_style(line.n, line.method)
        axes.plot(line.x, line.y, label=label(line.n, line.method), **look)
        _draw_band(axes, line, look["color"])
    if not any(np.isfinite(line.y).any() for line in panel.lines):
        axes.text(0.5, 0.5, "no results", color="0.5", ha="center", va="center", transform=axes.transAxes)
    axes.locator_params(axis="y", nbins=5)


def _draw_band(axes: Axes, line: Line, colour: str) -> None:
    known = np.isfinite(line.x + line.sd)
    if not known.any():
        return
    low, high = line.y - line.sd, line.y + line.sd
    axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0, zorder=1)
    # A band has no width where both neighbours are missing.
    around = np.pad(known, 1)
    alone = known & ~around[:-2] & ~around[2:]
    axes.vlines(line.x[alone], low[alone], high[alone], color=colour, alpha=0.35, linewidth=2, zorder=1)


def _scale_x(axes: Axes, content: Sheet, group: Group, wide: bool) -> None:
    """Give x the ticks of the figure (clients, rounds), or of the group (bytes)."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    among = (group,) if content.axis == "bytes" else content.groups
    lines: list[Line] = [line for each in among for panel in each.panels for line in panel.lines]
    xs = np.unique(np.concatenate([line.x[np.isfinite(line.x)] for line in lines]))
    if content.axis == "rounds":
        axes.set_xlim(xs[0] - 0.4, xs[-1] + 0.4)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        return
    axes.set_xscale("log")
    margin = max(1.2, (xs[-1] / xs[0]) ** 0.07)
    axes.set_xlim(xs[0] / margin, xs[-1] * margin)
    axes.xaxis.set_minor_locator(NullLocator())
    if content.axis == "clients":
        axes.xaxis.set_major_locator(FixedLocator(xs.tolist()))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        return
    axes.xaxis.set_major_locator(FixedLocator(_bytes_ticks(*axes.get_xlim(), 0.14 if wide else 0.28)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))


def _bytes_ticks(low: float, high: float, apart: float) -> list[float]:
    """Round numbers with room for their labels, `apart` as a part of the axis."""
    span = np.log10(high / low)
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks: list[float] = []
    for mantissas in ((1,), (1, 2, 5)):
        candidates = [mantissa * 10.0**exponent for exponent in exponents for mantissa in mantissas]
        # A label at the very end would run into the next panel's.
        ticks = [tick for tick in candidates if 0.05 <= np.log10(tick / low) / span <= 0.9]
        if len(ticks) > 1:
            break
    step = np.ceil(apart * span * len(mantissas))
    return ticks[:: max(1, int(step))]


def bytes_text(value: float) -> str:
    """Write a number of bytes shortly: ``10 kB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


# --- legend ------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    Entry = tuple[Artist, str]
    Columns = list[list[Entry]]


def _legend_entries(content: Sheet) -> tuple[Columns, list[Entry]]:
    """List models, a column for each n with its methods below each other, and what else there is to say."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    panels = [panel for group in content.groups for panel in group.panels]
    models = {(line.n, line.method) for panel in panels for line in panel.lines}
    columns: Columns = [
        [
            (Line2D([], [], **line_style(n, method)), label(n, method))
            if (n, method) in models
            else _nothing()
            for method in METHODS
            if any(method == other for _, other in models)
        ]
        for n in sorted({n for n, _ in models})
    ]
    notes: list[Entry] = []
    if any(panel.ceiling is not None for panel in panels):
        notes.append((Line2D([], [], **CEILING), "centralised, best"))
    if any(np.isfinite(line.sd).any() for panel in panels for line in panel.lines):
        notes.append((Patch(facecolor="0.85"), "± sd over repeats"))
    return columns, notes


def _nothing() -> Entry:
    from matplotlib.lines import Line2D

    return (Line2D([], [], linestyle="none"), "")


def _legend_blocks(models: Columns, notes: list[Entry], width: float) -> list[Columns]:
    """Arrange the legend within a width in inches: blocks from above, each a list of equally long columns."""
    rows = max(len(models[0]), len(notes))
    beside = [(column + [_nothing()] * rows)[:rows] for column in (*models, *([notes] if notes else []))]
    if _legend_width(beside) <= width:
        return [beside]
    below = [[[note] for note in notes]] if notes else []
    # Many n beside each other may be too wide as well; there are three methods at most.
    turned = [list(row) for row in zip(*models, strict=True)]
    return [models if _legend_width(models) <= width else turned, *below]


def _legend_width(columns: Columns) -> float:
    """Estimate it in inches: handle and gaps, and 4.1 points for a character."""
    return sum(30 + 4.1 * max(len(text) for _, text in column) for column in columns) / 72


def _draw_legend(drawn: Figure, columns: Columns, bottom: float) -> None:
    from matplotlib.legend import Legend

    entries = [entry for column in columns for entry in column]
    drawn.add_artist(
        Legend(
            drawn,
            [handle for handle, _ in entries],
            [text for _, text in entries],
            loc="lower center",
            bbox_to_anchor=(0.5, bottom),
            bbox_transform=drawn.transFigure,
            ncols=len(columns),
            frameon=False,
            handlelength=2.4,
            handletextpad=0.5,
            columnspacing=0.9,
            labelspacing=0.25,
            borderaxespad=0,
            borderpad=0,
        )
    )
