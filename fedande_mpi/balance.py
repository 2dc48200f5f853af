"""Where the ranks spent their time, how evenly, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PURPOSES = ("local", "evaluate", "wait")

_WORTH = 10.0
_UNEVEN = 1.2
_WAITING = 0.4
_AVERAGING = 0.25
_SHOWN = 16
"""What is worth a word: a run of so many seconds; busiest over mean; share of the hosts' time in waits; share of
rank 0's in averages. So many ranks are listed one by one."""


@dataclass
class Balance:
    """Seconds of every rank, summed over units.

    Attributes
    ----------
    n_ranks : int
    seconds : dict of int to dict of str to float
        For each rank that hosted clients its seconds in ``local``, ``evaluate`` and ``wait``.
    aggregate : float
        Seconds of rank 0 in averages.
    wall : float
        Seconds of all units on the clock.
    can_split : bool
        Whether a unit had fewer shards than parent sets and hosts.
    """

    n_ranks: int
    seconds: dict[int, dict[str, float]] = field(default_factory=dict)
    aggregate: float = 0.0
    wall: float = 0.0
    can_split: bool = False

    def add(
        self, hosts: Mapping[int, Mapping[str, float]], aggregate: float, wall: float, *, can_split: bool
    ) -> None:
        """Add a unit."""
        for rank, seconds in hosts.items():
            mine = self.seconds.setdefault(rank, dict.fromkeys(PURPOSES, 0.0))
            for name in PURPOSES:
                mine[name] += seconds[name]
        self.aggregate += aggregate
        self.wall += wall
        self.can_split |= can_split

    def _busy(self, rank: int) -> float:
        return self.seconds[rank]["local"] + self.seconds[rank]["evaluate"]

    def lines(self) -> list[str]:
        """Return the summary, one fact a line; empty when nothing was computed."""
        if not self.seconds:
            return []
        ranks = sorted(self.seconds)
        lines = ["seconds by rank     local  evaluate      wait"]
        listed = ranks if len(ranks) <= _SHOWN else sorted(ranks, key=self._busy)[:: max(1, len(ranks) - 1)]
        for rank in listed:
            numbers = "  ".join(f"{self.seconds[rank][name]:8.1f}" for name in PURPOSES)
            lines.append(f"  rank {rank:<6} {numbers}")
        if len(ranks) > len(listed):
            lines[0] += f"   (least and most busy of {len(ranks)})"
        lines.append(f"  averages at rank 0 {self.aggregate:.1f} of {self.wall:.1f} on the clock")
        if self.n_ranks > 1:
            busy = [self._busy(rank) for rank in ranks]
            mean = sum(busy) / len(busy)
            imbalance = max(busy) / mean if mean else 1.0
            lines.append(f"  imbalance {imbalance:.2f} (busiest rank over mean)")
            lines += [f"  hint: {text}" for text in self._advice(imbalance)]
        return lines

    def _advice(self, imbalance: float) -> list[str]:
        advice: list[str] = []
        if self.wall < _WORTH:
            return advice
        idle = self.n_ranks - 1 - len(self.seconds)
        if idle > 0:
            advice.append(f"{idle} ranks never had work: use fewer ranks")
        if imbalance > _UNEVEN:
            if self.can_split:
                advice.append("some ranks have more work than others: try more shards (--set shards=N)")
            else:
                advice.append("some ranks have more work than others: use fewer ranks")
            return advice
        waited = sum(seconds["wait"] for seconds in self.seconds.values())
        total = waited + sum(map(self._busy, self.seconds))
        if self.wall and self.aggregate > _AVERAGING * self.wall:
            advice.append('rank 0 is busy with averages: try --set transport="reduce", or fewer ranks')
        elif total and waited > _WAITING * total:
            advice.append("the ranks mostly wait for messages: use fewer ranks")
        return advice
