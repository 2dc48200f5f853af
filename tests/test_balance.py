"""The summary of where the ranks spent their time, and its advice."""

from __future__ import annotations

import pytest

from fedande_mpi.balance import Balance


def seconds(local: float, wait: float, evaluate: float = 0.0) -> dict[str, float]:
    return {"local": local, "wait": wait, "evaluate": evaluate}


def hints(balance: Balance) -> list[str]:
    return [line.partition("hint: ")[2] for line in balance.lines() if "hint: " in line]


def test_nothing_computed_has_no_summary() -> None:
    assert Balance(3).lines() == []


def test_units_add_up_rank_by_rank() -> None:
    balance = Balance(3)
    balance.add({1: seconds(1.0, 0.5, 0.25), 2: seconds(2.0, 0.5)}, 0.5, 4.0, can_split=False)
    balance.add({1: seconds(2.0, 0.5)}, 0.25, 6.0, can_split=False)
    lines = balance.lines()
    assert lines[0].split()[-3:] == ["local", "evaluate", "wait"]
    assert lines[1].split() == ["rank", "1", "3.0", "0.2", "1.0"]
    assert lines[2].split() == ["rank", "2", "2.0", "0.0", "0.5"]
    assert "averages at rank 0 0.8 of 10.0 on the clock" in lines[3]
    assert "imbalance 1.24" in lines[4]  # 3.25 over 2.625


def test_of_many_ranks_the_least_and_the_most_busy_are_shown() -> None:
    balance = Balance(41)
    balance.add({rank: seconds(100.0 - rank, 1.0) for rank in range(1, 41)}, 0.0, 100.0, can_split=False)
    shown = [line.split()[1] for line in balance.lines() if line.startswith("  rank")]
    assert shown == ["40", "1"]


@pytest.mark.parametrize(
    ("n_ranks", "hosts", "aggregate", "can_split", "hint"),
    [
        (3, {1: seconds(10, 1), 2: seconds(10, 1)}, 0.5, True, None),
        (3, {1: seconds(10, 0), 2: seconds(2, 8)}, 0.5, True, "more shards"),
        (3, {1: seconds(10, 0), 2: seconds(2, 8)}, 0.5, False, "use fewer ranks"),
        (3, {1: seconds(3, 7), 2: seconds(3, 7)}, 0.5, False, "wait for messages"),
        (3, {1: seconds(3, 7), 2: seconds(3, 7)}, 5.0, False, 'transport="reduce"'),
        (5, {1: seconds(10, 1), 2: seconds(10, 1)}, 0.5, False, "2 ranks never had work"),
    ],
)
def test_the_advice_fits(
    n_ranks: int, hosts: dict[int, dict[str, float]], aggregate: float, can_split: bool, hint: str | None
) -> None:
    balance = Balance(n_ranks)
    balance.add(hosts, aggregate, 11.0, can_split=can_split)
    given = hints(balance)
    assert len(given) == (hint is not None)
    assert hint is None or hint in given[0]


def test_one_process_gets_no_advice() -> None:
    balance = Balance(1)
    balance.add({0: seconds(1.0, 9.0)}, 5.0, 10.0, can_split=True)
    assert hints(balance) == []
    assert "imbalance" not in "".join(balance.lines())
