"""What the paper says about accuracies, written as sums over cells that must be positive.

:mod:`fedande_mpi.contrasts` tests such sums, :mod:`fedande_mpi.claims` gives the verdicts; ``docs/claims.md`` is
generated from this list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from fedande_mpi.contrasts import Part, Place, Sum, add, growth, mean, minus

MARGIN = 0.02  # differences below it make no difference
COLLAPSE = 0.10  # losing more is a collapse
MANY_CLIENTS = 50  # a large C

WEIGHTED, COUNTED = "discriminative", "generative"

Cells = frozenset[Place]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper.

    Attributes
    ----------
    name : str
    parts : callable
        From the cells that a data set has to the parts of the statement; none without the cells it needs.
    cells, effect : str
        What `parts` does, for readers.
    dataset : str or None
        The data set it is about; None: data sets in general.
    private : bool
        Whether it is about noisy counts, so that exact ones cannot stand in for them.
    """

    name: str
    parts: Callable[[Cells], Iterator[Part]]
    cells: str
    effect: str
    dataset: str | None = None
    private: bool = False


def _with(place: Place, key: str, value: object) -> Place:
    changed: dict[str, Any] = {key: value}
    return place._replace(**changed)


def _of(cells: Cells, **keys: object) -> Cells:
    return frozenset(place for place in cells if all(getattr(place, k) == v for k, v in keys.items()))


def _differences(cells: Cells, key: str, a: object, b: object) -> dict[Place, Sum]:
    """Return cell minus partner for each cell whose `key` is `a` and that has a partner where it is `b`."""
    partners = {place: _with(place, key, b) for place in _of(cells, **{key: a})}
    return {place: minus({place: 1.0}, {other: 1.0}) for place, other in partners.items() if other in cells}


def _growths(values: Mapping[Place, Sum], axis: str) -> list[Sum]:
    """Return the growth of values along an axis for each group that differs in nothing else; C is in logs."""
    groups: dict[Place, dict[float, Sum]] = {}
    for place, value in values.items():
        at: int = getattr(place, axis)
        group = groups.setdefault(_with(place, axis, None), {})
        group[math.log2(at) if axis == "clients" else at] = value
    return [growth(group) for group in groups.values() if len(group) > 1]


def _each(cells: Cells) -> dict[Place, Sum]:
    return {place: {place: 1.0} for place in cells}


def _by_n_and_clients(cells: Cells) -> dict[int, dict[int, Sum]]:
    """Return the cells of one method and scope as {n: {C: cell}}, both ascending."""
    found: dict[int, dict[int, Sum]] = {}
    for place in sorted(cells):
        found.setdefault(place.n, {})[place.clients] = {place: 1.0}
    return found


def _one(sums: list[Sum]) -> Iterator[Part]:
    """Yield the mean as the only part, if there is anything."""
    if sums:
        yield Part(mean(sums))


def _federated_beats_local(cells: Cells) -> Iterator[Part]:
    return _one(list(_differences(cells, "scope", "federated", "local").values()))


def _that_gap_grows(cells: Cells) -> Iterator[Part]:
    return _one(_growths(_differences(cells, "scope", "federated", "local"), "clients"))


def _weighted_beats_counted(cells: Cells) -> Iterator[Part]:
    return _one(list(_differences(_of(cells, scope="federated"), "method", WEIGHTED, COUNTED).values()))


def _grows_with_n(cells: Cells) -> Iterator[Part]:
    return _one(_growths(_each(cells), "n"))


def _more_in_federation(cells: Cells) -> Iterator[Part]:
    return _one(_growths(_differences(cells, "scope", "federated", "local"), "n"))


def _best(cells: Cells) -> Iterator[Part]:
    federated = _of(cells, scope="federated")
    for place in sorted(_of(federated, n=2, method=WEIGHTED)):
        rivals = sorted(_of(federated, clients=place.clients) - {place})
        if len(rivals) > 1:
            for rival in rivals:
                label = (place.clients, rival.n, rival.method)
                yield Part(minus({place: 1.0}, {rival: 1.0}), label=label)


def _gap_narrows(cells: Cells) -> Iterator[Part]:
    federated = _of(cells, scope="federated")
    top = max((place.n for place in _of(federated, method=WEIGHTED)), default=0)
    leaders = {place.clients: place for place in _of(federated, n=top, method=WEIGHTED)}
    models = {(place.n, place.method) for place in federated} - {(top, WEIGHTED)}
    rivals = sorted(
        model
        for model in models
        if leaders.keys() <= {place.clients for place in _of(federated, n=model[0], method=model[1])}
    )
    if len(leaders) < 2 or not rivals or top == 0:
        return
    gaps = {
        math.log2(clients): minus(
            {leader: 1.0}, mean({Place(n, method, "federated", clients): 1.0} for n, method in rivals)
        )
        for clients, leader in leaders.items()
    }
    yield Part(add((-1.0, growth(gaps))))


def _counted_gains(cells: Cells) -> Iterator[Part]:
    return _one(_growths(_differences(_of(cells, scope="local"), "method", COUNTED, WEIGHTED), "clients"))


def _a1de_below_nb(cells: Cells) -> Iterator[Part]:
    counted = _differences(_of(cells, scope="federated", method=COUNTED), "n", 0, 1)
    if counted and (most := max(counted)).clients >= MANY_CLIENTS:
        yield Part(counted[most])


def _a2de_collapses(cells: Cells) -> Iterator[Part]:
    a2de = sorted(_of(cells, scope="federated", method=COUNTED, n=2))
    if a2de and a2de[0].clients < 20:
        for place in a2de:
            if place.clients >= 20:
                yield Part(minus({a2de[0]: 1.0}, {place: 1.0}), -COLLAPSE, label=place.clients)


def _peaks_in_the_middle(cells: Cells) -> Iterator[Part]:
    series = _by_n_and_clients(_of(cells, scope="federated", method=COUNTED))
    shared = set.intersection(*(set(points) for points in series.values())) if series else set()
    by_clients = {c: mean(points[c] for points in series.values()) for c in sorted(shared)}
    if len(by_clients) < 3:
        return
    first, *middle, last = by_clients
    for peak in middle:
        for end in (first, last):
            yield Part(minus(by_clients[peak], by_clients[end]), alternative=peak, label=end)


def _n_makes_no_difference(cells: Cells) -> Iterator[Part]:
    for method in (COUNTED, WEIGHTED):
        by_n = _by_n_and_clients(_of(cells, scope="federated", method=method))
        for low, high in combinations(by_n, 2):
            shared = sorted(by_n[low].keys() & by_n[high].keys())
            change = mean(minus(by_n[high][c], by_n[low][c]) for c in shared)
            if change:
                for sign in (1.0, -1.0):
                    yield Part(add((sign, change)), MARGIN, label=(method, low, high, sign))


def _helps_counted_only(cells: Cells) -> Iterator[Part]:
    federated = _of(cells, scope="federated")
    counted, weighted = (_growths(_each(_of(federated, method=m)), "n") for m in (COUNTED, WEIGHTED))
    if counted and weighted:
        yield Part(mean(counted), label=COUNTED)
        yield Part(add((-1.0, mean(weighted))), MARGIN, label=WEIGHTED)


_BEST_CELLS = "federated, every C with A2DE-w and at least two of NB, A1DE, A2DE, NB-w, A1DE-w"
_BEST_EFFECT = "A2DE-w - model, for every C and every other model; all must be positive"
_N_CELLS = "federated, every method, every C and two n"
_N_EFFECT = (
    f"{MARGIN} - difference and {MARGIN} + difference (TOST) of the mean over C, every method and pair of n"
)

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "federated beats local",
        _federated_beats_local,
        "every n, method and C that is both federated and local",
        "mean of federated - local",
    ),
    Claim(
        "the gap between federated and local grows with C",
        _that_gap_grows,
        "every n and method that is both federated and local at two C or more",
        "growth of (federated - local) over log C, mean over n and method",
    ),
    Claim(
        "discriminative beats generative under epsilon = 1",
        _weighted_beats_counted,
        "federated, every n and C that has both methods",
        "mean of discriminative - generative",
        private=True,
    ),
    Claim(
        "accuracy grows with n",
        _grows_with_n,
        "every method, scope and C that has two n or more",
        "growth over n, mean over method, scope and C",
    ),
    Claim(
        "in federation accuracy grows more with n",
        _more_in_federation,
        "every method and C that is both federated and local for two n or more",
        "growth over n of (federated - local), mean over method and C",
    ),
    Claim("A2DE-w is best at every C", _best, _BEST_CELLS, _BEST_EFFECT),
    Claim(
        "the gap between models narrows with C",
        _gap_narrows,
        "federated; the discriminative model of the highest n > 0, and the others that have all its C, two or more",
        "minus the growth over log C of (that model - mean of the others)",
    ),
    Claim(
        "generative gains ground when clients have little data",
        _counted_gains,
        "local, every n that has both methods at two C or more (more clients, less data each)",
        "growth of (generative - discriminative) over log C, mean over n",
    ),
    Claim(
        "kr-vs-k under privacy: generative A1DE falls below NB at large C",
        _a1de_below_nb,
        f"federated generative n = 0 and 1 at the largest C, which is at least {MANY_CLIENTS}",
        "NB - A1DE",
        dataset="kr-vs-k",
        private=True,
    ),
    Claim(
        "kr-vs-k under privacy: A2DE collapses from C = 20",
        _a2de_collapses,
        "federated generative n = 2 at the smallest C, which is below 20, and at every C from 20",
        f"A2DE at the smallest C - A2DE at C - {COLLAPSE:.2f}, for every C from 20; all must be positive",
        dataset="kr-vs-k",
        private=True,
    ),
    Claim(
        "kr-vs-k under privacy: A2DE-w stays best",
        _best,
        _BEST_CELLS,
        _BEST_EFFECT,
        dataset="kr-vs-k",
        private=True,
    ),
    Claim(
        "connect-4 under privacy: accuracy peaks at a middle C",
        _peaks_in_the_middle,
        "federated generative, every n, at three C or more that all these n have",
        "mean over n at a middle C - at the first C, and - at the last C; both positive for one of the middle C",
        dataset="connect-4",
        private=True,
    ),
    Claim("flare: n makes no difference", _n_makes_no_difference, _N_CELLS, _N_EFFECT, dataset="flare"),
    Claim("soybean: n makes no difference", _n_makes_no_difference, _N_CELLS, _N_EFFECT, dataset="soybean"),
    Claim(
        "house votes: n helps generative, not discriminative",
        _helps_counted_only,
        "federated, every C, both methods with two n or more",
        f"growth over n of generative, and {MARGIN} - growth of discriminative, means over C; both must be positive",
        dataset="house-votes-84",
    ),
)
