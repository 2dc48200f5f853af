"""Made-up data: deterministic, of the size asked for, and learnable as its kind says."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedande_mpi.errors import DataError
from fedande_mpi.synthetic import Synthetic


def draw(text: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    *attributes, label = Synthetic.parse(text).table().columns
    return np.stack([column.codes for column in attributes], axis=1), label.codes


def information(x: NDArray[np.int32], y: NDArray[np.int32]) -> float:
    """Return the mutual information of two columns of codes, in nats."""
    joint = np.zeros((x.max() + 1, y.max() + 1))
    np.add.at(joint, (x, y), 1 / len(x))
    independent = joint.sum(1, keepdims=True) * joint.sum(0)
    return float((joint * np.log(np.where(joint > 0, joint / independent, 1))).sum())


def test_size_and_dictionary() -> None:
    table = Synthetic.parse("m=50,d=11,o=4,arity=12,seed=3").table()
    assert [column.name for column in table.columns] == [f"x{i:02d}" for i in range(11)] + ["class"]
    assert {len(column.codes) for column in table.columns} == {50}
    assert table.columns[0].values == tuple(f"v{i:02d}" for i in range(12))
    assert table.columns[-1].values == ("c0", "c1", "c2", "c3")
    X, y = draw("m=5000,d=3,o=4,arity=5")
    assert set(X.ravel()) == set(range(5))
    assert set(y) == set(range(4))


@pytest.mark.parametrize("kind", ["mixture", "noise", "xor"])
@pytest.mark.parametrize("arity", [2, 4])
def test_the_seed_decides_every_row(kind: str, arity: int) -> None:
    text = f"m=200,d=4,arity={arity},kind={kind},seed="
    (X, y), (again_X, again_y), (other_X, _) = draw(text + "1"), draw(text + "1"), draw(text + "2")
    np.testing.assert_array_equal(X, again_X)
    np.testing.assert_array_equal(y, again_y)
    assert (other_X != X).any()


def test_mixture_attributes_tell_classes_apart_and_depend_on_each_other_within_a_class() -> None:
    X, y = draw("m=20000,d=6,arity=3")
    assert max(information(X[:, j], y) for j in range(6)) > 0.01
    assert max(information(X[y == 0, i], X[y == 0, j]) for i in range(6) for j in range(i)) > 0.01


def test_noise_attributes_tell_nothing_of_the_class() -> None:
    X, y = draw("m=20000,d=6,arity=3,kind=noise")
    assert max(information(X[:, j], y) for j in range(6)) < 0.001


def test_xor_needs_two_attributes_at_once() -> None:
    X, y = draw("m=20000,d=4,arity=4,kind=xor")
    assert max(information(X[:, j], y) for j in range(4)) < 0.001
    np.testing.assert_array_equal(y, (X[:, 0] + X[:, 1]) % 2)


def test_defaults_and_name() -> None:
    assert Synthetic.parse("") == Synthetic()
    assert Synthetic.parse(" d = 3 , seed=7 ").name == "synthetic-m1000-d3-o2-arity3-seed7-kindmixture"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m=0", "expected m >= 1, got m=0"),
        ("o=1", "expected o >= 2"),
        ("seed=-1", "expected seed >= 0"),
        ("m=1e3", "whole number for m, got '1e3'"),
        ("sede=1", "did you mean seed"),
        ("m", "expected m, d, o, arity, seed, kind as key=value, got 'm'"),
        ("m=1,m=2", "m is given twice"),
        ("kind=and", "expected kind=mixture or noise or xor, got kind=and"),
        ("kind=xor,o=3,arity=2", "needs o=2"),
        ("kind=xor", "an even arity"),
    ],
)
def test_bad_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Synthetic.parse(text)
