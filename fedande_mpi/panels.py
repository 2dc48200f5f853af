"""The parts of a figure as plain numbers: sheets of groups of panels of lines."""

from __future__ import annotations

from dataclasses import dataclass

from fedande_mpi.reporting import FloatArray


@dataclass(frozen=True)
class Line:
    """A model in a panel.

    Attributes
    ----------
    n : int
    method : str
    x, y, sd : (k,) array
        NaN where there is nothing: a gap.
    """

    n: int
    method: str
    x: FloatArray
    y: FloatArray
    sd: FloatArray


@dataclass(frozen=True)
class Panel:
    """Lines on one pair of axes.

    Attributes
    ----------
    title : str
    lines : tuple of Line
    ceiling : float or None
        Accuracy of the best centralised model among the panel's.
    """

    title: str
    lines: tuple[Line, ...]
    ceiling: float | None


@dataclass(frozen=True)
class Group:
    """Panels side by side, with one heading and one scale of accuracies."""

    heading: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Sheet:
    """A figure.

    Attributes
    ----------
    axis : {"clients", "rounds", "bytes"}
        What x is.
    groups : tuple of Group
    note : str
        What a reader of the figure should know; empty if nothing.
    """

    axis: str
    groups: tuple[Group, ...]
    note: str = ""
