"""What the figures show, as plain numbers: lines of accuracies with their spread, panel by panel.

Every number is that of ``fedande table``: the mean over clients, then over the complete (repeat, fold). The
spread is the sample standard deviation over repeats of a repeat's mean over folds (and over data sets, where
the line is such a mean); it takes at least two repeats. What was not computed is NaN.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedande_mpi.cell import METHODS
from fedande_mpi.errors import ResultsError
from fedande_mpi.measured import Measured, Place, Results
from fedande_mpi.panels import Group, Line, Panel, Sheet

FIGURES = ("1", "2", "3", "4", "convergence", "communication")
WEIGHTED = ("discriminative", "hybrid")

_FAVOURITE = "kr-vs-k"  # what the paper says of it under privacy is what figure 2 shows


class NothingToDrawError(ResultsError):
    """The results lack what a figure shows."""


def sheet(results: Results, figure: str, dataset: str | None = None) -> Sheet:
    """Gather what a figure shows.

    Parameters
    ----------
    results : Results
    figure : {"1", "2", "3", "4", "convergence", "communication"}
    dataset : str, optional
        The one data set of figure 2 (default: kr-vs-k, or else the first), ``convergence`` and
        ``communication`` (default: each).

    Returns
    -------
    Sheet

    Raises
    ------
    NothingToDrawError
        If the results lack what the figure shows; it says what is missing.
    ResultsError
        If there is no such figure or data set.
    """
    makers: dict[str, Callable[[Results, str | None], Sheet]] = {
        "1": _figure_1,
        "2": _figure_2,
        "3": lambda results, _: _multiples(results, "3", results.datasets, _by_scope()),
        "4": lambda results, _: _multiples(results, "4", results.datasets, _by_method()),
        "convergence": _convergence,
        "communication": _communication,
    }
    if figure not in makers:
        raise ResultsError(f"--figure: expected one of {', '.join(FIGURES)}, got '{figure}'")
    if dataset is not None and dataset not in results.datasets:
        near = difflib.get_close_matches(dataset, results.datasets, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(results.datasets)}"
        raise ResultsError(f"--dataset: expected a data set of the results, got '{dataset}'; {hint}")
    return makers[figure](results, dataset)


# --- accuracy against C ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _View:
    """Which cells a panel shows."""

    title: str
    scope: str
    methods: tuple[str, ...] = METHODS

    @property
    def needs(self) -> str:
        which = "" if self.methods == METHODS else f"{' or '.join(self.methods)} "
        return f"{self.scope} {which}cells"

    def shows(self, place: Place) -> bool:
        return place.scope == self.scope and place.method in self.methods


def _by_scope() -> list[_View]:
    return [_View("local", "local"), _View("federated", "federated")]


def _by_method() -> list[_View]:
    return [
        _View("generative", "federated", ("generative",)),
        _View("discriminative", "federated", WEIGHTED),
    ]


def _figure_1(results: Results, dataset: str | None) -> Sheet:
    """Mean over the data sets that have every cell drawn, so that all points average the same ones."""
    views = _by_scope()
    _require(results, "1", results.datasets, views)
    drawn = {place.at("") for place in results.cells if any(view.shows(place) for view in views)}
    missing = {
        name: [place for place in sorted(drawn) if place.at(name) not in results.cells]
        for name in results.datasets
    }
    common = [name for name, places in missing.items() if not places]
    if not common:
        name, places = min(missing.items(), key=lambda item: len(item[1]))
        raise NothingToDrawError(
            f"figure 1: expected a data set with every cell drawn, found none; {name} has most, without "
            f"{places[0].at(name)} and {len(places) - 1} others; run them, or select fewer models (PATH:n=0)"
        )
    heading = f"mean over {len(common)} data sets" if len(common) > 1 else common[0]
    left_out = ", ".join(name for name in results.datasets if name not in common)
    note = (
        f"figure 1: {left_out} left out, without some of its cells; selecting models (PATH:n=0) takes more in"
    )
    return Sheet("clients", (_clients_group(results, heading, common, views),), note if left_out else "")


def _figure_2(results: Results, dataset: str | None) -> Sheet:
    views = _by_method()
    chosen = dataset or (_FAVOURITE if _FAVOURITE in results.datasets else results.datasets[0])
    return _multiples(results, "2", [chosen], views)


def _multiples(results: Results, figure: str, datasets: Sequence[str], views: list[_View]) -> Sheet:
    _require(results, figure, datasets, views)
    shown = [
        name
        for name in datasets
        if any(view.shows(place) for view in views for place in results.cells if place.dataset == name)
    ]
    return Sheet("clients", tuple(_clients_group(results, name, [name], views) for name in shown))


def _require(results: Results, figure: str, datasets: Sequence[str], views: list[_View]) -> None:
    places = [place for place in results.cells if place.dataset in datasets]
    for view in views:
        if not any(view.shows(place) for place in places):
            where = f" of {datasets[0]}" if len(datasets) == 1 else ""
            raise NothingToDrawError(
                f"figure {figure}: expected {view.needs}{where}, found none; run them first"
            )


def _clients_group(results: Results, heading: str, datasets: list[str], views: list[_View]) -> Group:
    clients = sorted({p.clients for p in results.cells if any(view.shows(p) for view in views)})
    panels = []
    for view in views:
        lines = []
        for n, method in _models(p for p in results.cells if view.shows(p) and p.dataset in datasets):
            points = []
            for count in clients:
                places = [Place(name, n, method, view.scope, count) for name in datasets]
                cells = [results.cells[place] for place in places if place in results.cells]
                # A mean over other data sets than its neighbours' would be no point of this line.
                complete = len(cells) == len(datasets)
                points.append(_averaged(cells, [cell.last for cell in cells]) if complete else _NOTHING)
            y, sd = np.array(points).T
            lines.append(Line(n, method, np.array(clients, dtype=np.float64), y, sd))
        mixed = view.methods == WEIGHTED and any(line.method == "hybrid" for line in lines)
        title = f"{view.title}, hybrid" if mixed else view.title
        panels.append(Panel(title, tuple(lines), _ceiling(results, datasets, lines)))
    return Group(heading, tuple(panels))


# --- accuracy over rounds ----------------------------------------------------------------------------------


def _convergence(results: Results, dataset: str | None) -> Sheet:
    return _over_rounds(results, dataset, "rounds")


def _communication(results: Results, dataset: str | None) -> Sheet:
    return _over_rounds(results, dataset, "bytes")


def _over_rounds(results: Results, dataset: str | None, axis: str) -> Sheet:
    """Gather each data set's federated models at the smallest and at the largest C, round by round."""
    wanted = [dataset] if dataset else results.datasets
    cells = {p: c for p, c in results.cells.items() if p.scope == "federated" and p.dataset in wanted}
    traces = {place: _trace(place, cell, axis) for place, cell in cells.items()}
    known = {place for place, line in traces.items() if np.isfinite(line.x + line.y).any()}
    # Convergence needs two rounds to compare; traffic has a meaning for a single point too.
    moving = {p for p in known if axis == "bytes" or np.isfinite(traces[p].y).sum() > 1}
    if not moving:
        what = "with bytes sent" if axis == "bytes" else 'with several rounds evaluated (evaluate = "all")'
        name = "communication" if axis == "bytes" else "convergence"
        where = f" of {dataset}" if dataset else ""
        raise NothingToDrawError(
            f"{name}: expected federated cells{where} {what}, found none; run them first"
        )
    counts = sorted({place.clients for place in moving})
    groups = []
    for name in (name for name in wanted if any(place.dataset == name for place in moving)):
        panels = []
        for count in counts[:1] + counts[1:][-1:]:
            here = sorted(p for p in known if p.dataset == name and p.clients == count)
            lines = [traces[p] for p in sorted(here, key=lambda p: (p.n, METHODS.index(p.method)))]
            panels.append(Panel(f"C = {count}", tuple(lines), _ceiling(results, [name], lines)))
        groups.append(Group(name, tuple(panels)))
    return Sheet(axis, tuple(groups))


def _trace(place: Place, cell: Measured, axis: str) -> Line:
    """Line of one cell over its rounds; without what has no place on a logarithmic axis, nothing sent."""
    points = [_averaged([cell], [index]) for index in range(len(cell.rounds))]
    y, sd = np.array(points).T
    x = np.array(cell.rounds, dtype=np.float64)
    if axis == "bytes":
        x = np.where(cell.sent > 0, cell.sent, np.nan)
    return Line(place.n, place.method, x, y, sd)


# --- numbers -----------------------------------------------------------------------------------------------

_NOTHING = (np.nan, np.nan)


def _averaged(cells: list[Measured], rounds: list[int]) -> tuple[float, float]:
    """Mean over cells, each at its own round, and standard deviation over their common repeats."""
    mean = float(np.mean([cell.accuracy[index] for cell, index in zip(cells, rounds, strict=True)]))
    common = set.intersection(*(set(cell.repeats) for cell in cells))
    means = [
        np.mean([cell.repeats[repeat][index] for cell, index in zip(cells, rounds, strict=True)])
        for repeat in sorted(common)
    ]
    return mean, float(np.std(means, ddof=1)) if len(means) > 1 else np.nan


def _models(places: Iterable[Place]) -> list[tuple[int, str]]:
    return sorted({(p.n, p.method) for p in places}, key=lambda model: (model[0], METHODS.index(model[1])))


def _ceiling(results: Results, datasets: list[str], lines: list[Line]) -> float | None:
    """Return the best mean accuracy of the lines' models with all rows in one place, where all data sets have it."""
    found = []
    # A hybrid's weights, with nothing to federate, are those of a discriminative model.
    for n, method in {
        (line.n, "discriminative" if line.method == "hybrid" else line.method) for line in lines
    }:
        places = [Place(name, n, method, "centralised", 1) for name in datasets]
        if all(place in results.cells for place in places):
            cells = [results.cells[place] for place in places]
            found.append(_averaged(cells, [cell.last for cell in cells])[0])
    return max(found, default=None)
