"""Recorded cases: they are replayed in every arrangement, and a wrong number is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from fedande_mpi import ande, formulas
from fedande_mpi.errors import DataError
from fedande_mpi.serial import SerialComm
from fedande_mpi.verify import TOLERANCE, read_case, verify_case

Case = dict[str, Any]

CASES = (
    *("car-n2", "car-n3", "kr-vs-k-n1", "soybean-n0", "soybean-n1"),
    *("tic-tac-toe-n0", "tic-tac-toe-n1", "tic-tac-toe-n1-init1-weighted", "tic-tac-toe-n2"),
)
VARIANTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "reduce": {"transport": "reduce"},
    "shards": {"shards": 2},
    "tiny-block": {"block_mib": 0.001},
    "scipy": {"optimizer": "scipy"},
}


def small_case() -> Case:
    """Two clients, three attributes, one round of two steps, by the public functions and SciPy."""
    rng = np.random.default_rng(3)
    arity, o, m = np.array([2, 3, 2]), 3, 40
    X = rng.integers(0, arity, (m, 3)).astype(np.int32)
    y = rng.integers(0, o, m).astype(np.int32)
    client = np.arange(m) % 3 - 1
    X_test, y_test = X[client < 0], y[client < 0]
    case: Case = {"X": X, "y": y, "card": arity, "o": o, "n": 1, "client": client, "n_clients": 2}
    case |= {"rounds": 1, "local_steps": 2, "initial_weight": 0.0, "pseudocount": 1.0, "aggregation": "mean"}
    sets = ande.parent_sets(3, 1)
    learned, generative = np.zeros((2, y_test.size, o)), np.zeros((2, y_test.size, o))
    for index, parents in enumerate(sets):
        thetas, updates, objectives = [], [], []
        for c in range(2):
            own = client == c
            theta = ande.log_theta(ande.count_tables(X[own], y[own], parents, arity, o), parents, arity)

            def objective(w: Any, own: Any = own, theta: Any = theta, parents: Any = parents) -> Any:
                return formulas.negative_cll(w, X[own], y[own], parents, arity, theta)

            found = minimize(
                objective, np.zeros(theta.size), jac=True, method="L-BFGS-B", options={"maxiter": 2}
            )
            thetas.append(theta)
            updates.append(found.x)
            objectives.append(found.fun)
        w = np.mean(updates, axis=0)
        for name, table in ande.unpack(w, parents, arity, o).items():
            case[f"w{index}_{name}"] = table
        case[f"objective{index}"] = np.array([objectives])
        for c, theta in enumerate(thetas):
            learned[c] += formulas.predict_proba(X_test, parents, arity, w, theta) / len(sets)
            generative[c] += formulas.predict_proba(X_test, parents, arity, 1.0, theta) / len(sets)
    case["federated_posterior"] = learned
    case["federated_accuracy"] = (learned.argmax(axis=2) == y_test).mean(axis=1)[None]
    case["local_generative_posterior"] = generative
    case["local_generative_accuracy"] = (generative.argmax(axis=2) == y_test).mean(axis=1)
    return {name: np.asarray(value) for name, value in case.items()}


SCORES = [
    f"{model}_{what}" for model in ("federated", "local_generative") for what in ("posterior", "accuracy")
]


@pytest.fixture(scope="module")
def small() -> Case:
    return small_case()


def replay(case: Case, **options: Any) -> dict[str, float]:
    found = verify_case(SerialComm(), case, **options)
    assert found is not None
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CASES)
def test_a_golden_case_agrees_in_one_process(golden: Path, name: str, variant: str) -> None:
    found = replay(read_case(golden / f"{name}.npz"), **VARIANTS[variant])
    assert set(found) == {"weights", "objective", "posterior", "accuracy"}
    assert max(found.values()) <= TOLERANCE


def test_every_golden_case_is_among_those_above(golden: Path) -> None:
    assert sorted(path.stem for path in golden.glob("*.npz")) == sorted(CASES)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_case_made_from_the_formulas_agrees(small: Case, variant: str) -> None:
    assert max(replay(small, **VARIANTS[variant]).values()) <= TOLERANCE


@pytest.mark.parametrize(
    ("key", "change", "number", "least"),
    [
        ("w0_prior", lambda a: a + 2e-6, "weights", 1.9e-6),
        ("w1_parents", lambda a: a - 1e-3, "weights", 0.9e-3),
        ("w2_child0", lambda a: a * 1.01, "weights", 1e-5),
        ("objective1", lambda a: a * (1 + 1e-5), "objective", 0.9e-5),
        ("objective1", lambda a: a[:, :-1], "objective", np.inf),
        ("federated_posterior", lambda a: a + 1e-5, "posterior", 0.9e-5),
        ("local_generative_posterior", lambda a: a[::-1], "posterior", 1e-3),
        ("federated_accuracy", lambda a: a + 0.01, "accuracy", 0.009),
        ("local_generative_accuracy", lambda a: a - 0.01, "accuracy", 0.009),
        ("w0_child1", lambda a: a[:, :, :-1], "weights", np.inf),
        ("federated_posterior", lambda a: np.where(a == a.max(), np.nan, a), "posterior", np.inf),
    ],
)
def test_a_doctored_number_is_seen(
    small: Case, key: str, change: Callable[[Any], Any], number: str, least: float
) -> None:
    found = replay(small | {key: change(small[key])})
    assert found[number] >= least
    assert all(value <= TOLERANCE for name, value in found.items() if name != number)


def test_a_case_that_records_no_answers_is_refused(small: Case) -> None:
    answers = ("w", "objective", "federated_", "local_generative", "pooled_")
    bare = {name: value for name, value in small.items() if not name.startswith(answers)}
    with pytest.raises(DataError, match="nothing to compare"):
        verify_case(SerialComm(), bare)


def test_only_what_a_case_records_is_compared(small: Case) -> None:
    kept = {name: value for name, value in small.items() if not name.startswith(("objective", "w2_"))}
    found = replay(kept)
    assert np.isnan(found["objective"])
    assert found["weights"] <= TOLERANCE


def test_an_objective_of_0_is_compared_as_it_is(small: Case) -> None:
    idle = small | {"n_clients": np.asarray(3)}
    idle = {name: value for name, value in idle.items() if name.startswith("objective") or name not in SCORES}
    idle = {name: value for name, value in idle.items() if not name.startswith("w")}
    for name in [name for name in idle if name.startswith("objective")]:
        idle[name] = np.append(idle[name], [[0.0]], axis=1)
    assert replay(idle)["objective"] <= TOLERANCE


def test_a_case_of_other_parent_sets_is_refused(small: Case) -> None:
    assert replay(small | {"parent_sets": ande.parent_sets(3, 1)})["weights"] <= TOLERANCE
    with pytest.raises(DataError, match=r"lexicographic order, got other parent_sets"):
        replay(small | {"parent_sets": ande.parent_sets(3, 1)[::-1]})


def test_rows_averaging_is_replayed(small: Case) -> None:
    uneven = small["client"].copy()
    uneven[uneven == 1] = np.where(np.arange((uneven == 1).sum()) < 8, 0, 1)
    by_mean = replay(small | {"client": uneven})
    by_rows = replay(small | {"client": uneven, "aggregation": np.array("rows")})
    assert by_mean["weights"] != by_rows["weights"]


def test_a_file_that_is_no_case_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "case.npz"
    text.write_text("no archive")
    empty = tmp_path / "empty.npz"
    np.savez(empty, X=np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"expected a recorded case \(\.npz\), got .*case\.npz"):
        read_case(text)
    with pytest.raises(DataError, match="without y, card, o"):
        read_case(empty)
    with pytest.raises(DataError, match=r"absent\.npz"):
        read_case(tmp_path / "absent.npz")
