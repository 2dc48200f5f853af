from __future__ import annotations

import csv
import pickle
import subprocess
import sys
from dataclasses import replace
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedande_mpi import ande, centralised, evaluation, indexing
from fedande_mpi.cell import Cell, Discriminative
from fedande_mpi.datasets import Dataset, load_dataset
from fedande_mpi.errors import FedandeError
from fedande_mpi.federation import UnitResult, run_unit
from fedande_mpi.jobs import make_unit
from fedande_mpi.partition import stratified_folds
from fedande_mpi.planning import arrange_unit
from fedande_mpi.serial import SerialComm
from fedande_mpi.unit import Unit

pytest.importorskip("sklearn", reason="the classifier is a scikit-learn estimator")

import joblib
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, PredefinedSplit, cross_val_score
from sklearn.naive_bayes import CategoricalNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedande_mpi.classifier import AnDEClassifier

TOY = [["sun", "warm"], ["sun", "cold"], ["rain", "warm"], ["rain", "cold"], ["rain", "cold"]]
LABELS = ["out", "in", "in", "in", "in"]


# ------------------------------------------------------------ scikit-learn's own checks: all of them apply


@parametrize_with_checks(
    [
        AnDEClassifier(),
        AnDEClassifier(n=0),
        AnDEClassifier(weighted=True),
        AnDEClassifier(combine="joint", smoothing="m-estimate", missing="ignore"),
    ]
)
def test_scikit_learns_common_checks(estimator: Any, check: Any) -> None:
    check(estimator)


# ------------------------------------------------------------ the centralised cell of an experiment


@pytest.fixture(scope="module")
def boards() -> Dataset:
    return load_dataset("tic-tac-toe")


def with_gaps(dataset: Dataset, missing: Any) -> Dataset:
    """Remove cells, so that some rows keep fewer than two and one keeps none."""
    rng = np.random.default_rng(5)
    X = dataset.X[::3].copy()
    X[rng.random(X.shape) < 0.2] = -1
    X[:40][rng.random((40, X.shape[1])) < 0.9] = -1
    X[7] = -1
    gone = Dataset(
        name="gaps",
        X=X,
        y=dataset.y[::3],
        arity=dataset.arity,
        attribute_names=dataset.attribute_names,
        value_names=dataset.value_names,
        class_names=dataset.class_names,
        missing="ignore",
    )
    if missing == "ignore":
        return gone
    values = tuple((*names, "?") for names in gone.value_names)
    X = np.where(X < 0, gone.arity, X).astype(np.int32)
    return replace(gone, X=X, arity=gone.arity + 1, value_names=values, missing="value")


def cell_of(dataset: Dataset, **keys: Any) -> tuple[Unit, UnitResult]:
    cell = Cell(
        dataset=dataset.name,
        scope="centralised",
        clients=1,
        save=("weights", "predictions"),
        missing=dataset.missing,
        **keys,
    )
    unit, _ = make_unit(cell, dataset, 0, 0)
    result = run_unit(SerialComm(), unit, arrange_unit(unit, 1))
    assert result is not None
    assert result.posterior is not None
    return unit, result


def texts(dataset: Dataset) -> np.ndarray:
    """Return the cells as text, None where missing."""
    names = [[None if value == "?" else value for value in values] + [None] for values in dataset.value_names]
    columns = [np.array(values, dtype=object)[dataset.X[:, j]] for j, values in enumerate(names)]
    return np.stack(columns, axis=1)


def fitted(dataset: Dataset, unit: Unit, **keys: Any) -> tuple[AnDEClassifier, np.ndarray]:
    X = texts(dataset)
    categories = [[None if value == "?" else value for value in values] for values in dataset.value_names]
    model = AnDEClassifier(missing=dataset.missing, categories=categories, **keys)
    train = unit.owner >= 0
    return model.fit(X[train], dataset.y[train]), X[~train]


@pytest.mark.parametrize("keys", [{}, {"combine": "joint"}, {"smoothing": "m-estimate", "pseudocount": 0.7}])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_generative_posteriors_are_those_of_the_centralised_cell(
    boards: Dataset, n: int, keys: dict[str, Any]
) -> None:
    unit, result = cell_of(boards, n=n, method="generative", **keys)
    model, X = fitted(boards, unit, n=n, **keys)
    np.testing.assert_array_equal(model.predict_proba(X), result.posterior[0])
    assert model.score(X, unit.held_out.y) == result.metrics[0, 0, 0]
    cll = model.predict_log_proba(X)[np.arange(len(X)), unit.held_out.y].mean()
    np.testing.assert_allclose(cll, result.metrics[0, 1, 0], rtol=1e-14)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("granularity", "limit"), [("parameter", 15_000), ("attribute", 50)])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_weights_and_posteriors_are_those_of_the_centralised_cell(
    boards: Dataset, n: int, granularity: str, limit: int
) -> None:
    keys: dict[str, Any] = {"granularity": granularity, "initial_weight": 0.25}
    section = Discriminative(**keys)
    unit, result = cell_of(boards, n=n, method="discriminative", discriminative=section, max_iterations=limit)
    model, X = fitted(boards, unit, n=n, weighted=True, max_iterations=limit, **keys)
    np.testing.assert_array_equal(model.predict_proba(X), result.posterior[0])
    assert fsum(model.objective_) == result.objective[0, 0]
    assert model.n_iter_.sum() == result.iterations[0, 0]
    for parents, weights in zip(model.parent_sets_, result.weights, strict=True):
        expected = ande.unpack(weights[0], parents, unit.arity, unit.n_classes)
        tables = model.tables(parents, "weight")
        assert tables.keys() == expected.keys()
        assert all(np.array_equal(tables[name], expected[name]) for name in tables)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("missing", ["value", "ignore"])
def test_missing_cells_are_those_of_the_centralised_cell(
    boards: Dataset, missing: str, weighted: bool
) -> None:
    dataset = with_gaps(boards, missing)
    method = "discriminative" if weighted else "generative"
    unit, result = cell_of(dataset, n=2, method=method, max_iterations=20)
    if weighted:
        with pytest.warns(ConvergenceWarning, match="did not converge"):
            model, X = fitted(dataset, unit, n=2, weighted=True, max_iterations=20)
    else:
        model, X = fitted(dataset, unit, n=2)
    assert (unit.held_out.X < 0).all(axis=1).any() or missing == "value"
    had_a_say = (unit.held_out.X >= 0).sum(axis=1) >= 2
    assert missing == "value" or (~had_a_say).sum() >= 3
    proba = model.predict_proba(X)
    np.testing.assert_array_equal(proba[had_a_say], result.posterior[0][had_a_say])
    np.testing.assert_allclose(proba, result.posterior[0], rtol=1e-13)


def test_blocks_of_parent_sets_change_no_bit(boards: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = boards.X[::4], boards.y[::4]
    keys: dict[str, Any] = {"n": 2, "weighted": True, "local_steps": 3}
    whole = AnDEClassifier(**keys).fit(X, y).predict_log_proba(X)
    monkeypatch.setattr(centralised, "BLOCK_BYTES", 1)
    monkeypatch.setattr(centralised, "_STEP_WORK", 1.0)
    np.testing.assert_array_equal(AnDEClassifier(**keys).fit(X, y).predict_log_proba(X), whole)


def test_local_steps_limit_the_iterations_without_a_warning(boards: Dataset) -> None:
    model = AnDEClassifier(weighted=True, local_steps=4).fit(boards.X, boards.y)
    assert model.n_iter_.tolist() == [4] * 9


def test_l2_pulls_to_the_initial_weights(boards: Dataset) -> None:
    keys: dict[str, Any] = {"n": 0, "weighted": True, "initial_weight": 1.0}
    far, near = (AnDEClassifier(l2=l2, **keys).fit(boards.X, boards.y) for l2 in (0.0, 100.0))
    spread = [np.abs(model.tables((), "weight")["child4"] - 1.0).max() for model in (far, near)]
    assert spread[1] < 0.5 * spread[0]
    # -CLL without the penalty
    loss = -near.predict_log_proba(boards.X)[np.arange(len(boards.y)), boards.y].sum()
    np.testing.assert_allclose(near.objective_, loss, rtol=1e-12)


# ------------------------------------------------------------ other programs


def test_nb_is_scikit_learns(boards: Dataset) -> None:
    X, y = boards.X, boards.y
    train = np.arange(len(y)) % 3 > 0
    smoothed = np.bincount(y[train]) + 1.0
    theirs = CategoricalNB(alpha=1.0, min_categories=boards.arity, class_prior=smoothed / smoothed.sum())
    ours = AnDEClassifier(n=0, categories=[np.arange(a) for a in boards.arity])
    for model in (theirs, ours):
        model.fit(X[train], y[train])
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(X), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["tic-tac-toe", "car"])
@pytest.mark.parametrize(("n", "classifier"), [(0, "NB"), (1, "A1DE"), (2, "A2DE")])
def test_accuracy_is_wekas(reference: Path, shared_data: Path, name: str, n: int, classifier: str) -> None:
    with (reference / "weka-centralised.csv").open() as file:
        accuracy = {
            (row["dataset"], row["classifier"]): float(row["accuracy"]) for row in csv.DictReader(file)
        }
    dataset = load_dataset(name, data_dir=shared_data)
    keys: dict[str, Any] = {"smoothing": "m-estimate", "combine": "joint"} if n else {}
    model = AnDEClassifier(n=n, categories=[np.arange(a) for a in dataset.arity], **keys)
    repeats = [stratified_folds(dataset.y, 5, seed=1, repeat=repeat) for repeat in range(5)]
    found = [cross_val_score(model, dataset.X, dataset.y, cv=PredefinedSplit(each)) for each in repeats]
    assert np.mean(found) == pytest.approx(accuracy[name, classifier], abs=0.01)


# ------------------------------------------------------------ what goes in


@pytest.fixture(scope="module")
def toy_proba() -> np.ndarray:
    return np.asarray(AnDEClassifier().fit(TOY, LABELS).predict_proba(TOY))


@pytest.mark.parametrize("dtype", [object, str])
def test_texts_may_come_in_any_array(toy_proba: np.ndarray, dtype: type) -> None:
    X = np.array(TOY, dtype=dtype)
    np.testing.assert_array_equal(AnDEClassifier().fit(X, LABELS).predict_proba(TOY), toy_proba)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float32, bool, object])
def test_codes_are_categories_like_texts(toy_proba: np.ndarray, dtype: type) -> None:
    codes = np.array([[row[0] == "rain", row[1] == "cold"] for row in TOY]).astype(dtype)
    model = AnDEClassifier().fit(codes, LABELS)
    np.testing.assert_array_equal(model.predict_proba(codes), toy_proba)
    # 1, 1.0 and True are one category
    np.testing.assert_array_equal(model.predict_proba(codes.astype(float)), toy_proba)


def test_a_column_may_mix_types() -> None:
    X = np.array([["a", 1], [2, 1], ["a", (3,)], [2, 1.0]], dtype=object)
    model = AnDEClassifier().fit(X, [0, 1, 0, 1])
    assert [len(values) for values in model.categories_] == [2, 2]
    assert model.score(X, [0, 1, 0, 1]) == 1.0


@pytest.mark.parametrize("labels", [[False, True], ["b", "a"], [7, -1], [1.0, 0.0]])
def test_labels_of_any_type_come_back(labels: list[Any]) -> None:
    y = np.array([labels[0]] + [labels[1]] * 4)
    model = AnDEClassifier().fit(TOY, y)
    np.testing.assert_array_equal(model.classes_, sorted(labels))
    assert model.predict(TOY).dtype == y.dtype
    assert model.predict([["sun", "warm"]]) == [labels[0]]


def test_data_frames_give_names_and_declared_categories(toy_proba: np.ndarray) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(TOY, columns=["sky", "air"])
    model = AnDEClassifier().fit(frame, pd.Series(LABELS, dtype="category"))
    np.testing.assert_array_equal(model.predict_proba(frame), toy_proba)
    assert model.feature_names_in_.tolist() == ["sky", "air"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["air", "sky"]])
    # a category that does not occur has its cell all the same, and the order is the declared one
    frame["sky"] = pd.Categorical(frame["sky"], ["sun", "snow", "rain"])
    declared = AnDEClassifier().fit(frame, LABELS)
    assert declared.categories_[0].tolist() == ["sun", "snow", "rain"]
    given = AnDEClassifier(categories=[["sun", "snow", "rain"], ["cold", "warm"]]).fit(TOY, LABELS)
    np.testing.assert_array_equal(declared.predict_proba(frame), given.predict_proba(TOY))
    # other codes for the same categories
    frame["sky"] = frame["sky"].cat.reorder_categories(["rain", "sun", "snow"])
    np.testing.assert_array_equal(declared.predict_proba(frame), given.predict_proba(TOY))


@pytest.mark.parametrize("kind", ["object", "string", "category", "Int64", "float"])
@pytest.mark.parametrize("missing", ["value", "ignore"])
def test_every_kind_of_missing_cell_is_one(missing: Any, kind: str) -> None:
    pd = pytest.importorskip("pandas")
    gaps = [[None, "warm"], ["sun", "cold"], ["rain", None], ["rain", "cold"], ["sun", "cold"]]
    model = AnDEClassifier(missing=missing).fit(gaps, LABELS)
    assert model.arity_.tolist() == ([3, 3] if missing == "value" else [2, 2])
    frame = pd.DataFrame(gaps)
    if kind == "object":
        frame = frame.astype(object)
        frame.iloc[0, 0], frame.iloc[2, 1] = pd.NA, float("nan")
    elif kind in ("string", "category"):
        frame = frame.astype(kind)
    else:
        code = {"rain": 0, "sun": 1, "cold": 0, "warm": 1}
        frame = frame.apply(lambda column: column.map(code)).astype(kind)
    same = AnDEClassifier(missing=missing).fit(frame, LABELS)
    np.testing.assert_array_equal(same.predict_proba(frame), model.predict_proba(gaps))


def test_nan_in_a_list_of_texts_is_missing_not_a_text() -> None:
    model = AnDEClassifier().fit([["a", float("nan")], ["b", "x"], ["a", "x"]], [0, 1, 0])
    assert [values.tolist() for values in model.categories_] == [["a", "b"], ["x"]]
    assert model.arity_.tolist() == [2, 2]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [0, 1])
def test_an_unknown_category_is_like_a_missing_cell(boards: Dataset, n: int, weighted: bool) -> None:
    keys: dict[str, Any] = {"n": n, "weighted": weighted, "local_steps": 5}
    X = texts(boards)[::4]
    y = boards.y[::4]
    rows = X[:50].copy()
    rows[:, 3] = rows[10, :] = None
    expected = AnDEClassifier(missing="ignore", **keys).fit(X, y).predict_proba(rows)
    unknown = np.where(rows == None, "new", rows)  # noqa: E711  elementwise
    for model in (AnDEClassifier(missing="ignore", **keys), AnDEClassifier(**keys)):
        model.fit(X, y)
        np.testing.assert_array_equal(model.predict_proba(unknown), expected)
        np.testing.assert_array_equal(model.predict_proba(rows), expected)
    if n == 1 or not weighted:  # of the row without a known cell, nothing but the class is left
        prior = (np.bincount(y) + 1) / (len(y) + 2)
        np.testing.assert_allclose(expected[10], prior, rtol=1e-13)


def test_unknown_categories_can_be_refused() -> None:
    model = AnDEClassifier(handle_unknown="error").fit(TOY, LABELS)
    with pytest.raises(ValueError, match=r"unknown 'snow' in column 0: declare them"):
        model.predict([["snow", "cold"]])
    with pytest.raises(FedandeError, match="unknown None in column 1"):
        model.predict([["sun", None]])
    model.set_params(missing="ignore").fit(TOY, LABELS).predict([["sun", None]])
    with pytest.raises(FedandeError, match="unknown 'sun' in column 0"):
        model.set_params(categories=[["rain"], ["cold", "warm"]]).fit(TOY, LABELS)


def test_an_undeclared_frame_category_is_unknown_only_where_it_occurs() -> None:
    pd = pytest.importorskip("pandas")
    model = AnDEClassifier(handle_unknown="error").fit(TOY, LABELS)
    rows = pd.DataFrame(TOY[:2]).astype({0: pd.CategoricalDtype(["sun", "snow"])})
    np.testing.assert_array_equal(model.predict(rows.to_numpy()), model.predict(rows))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"n": 2}, r"expected n < d, got n = 2 for 2 feature\(s\)"),
        ({"n": -1}, "n = a whole number >= 0, got -1"),
        ({"n": True}, "n = a whole number >= 0, got True"),
        ({"n": 1.0}, r"n = a whole number >= 0, got 1\.0"),
        ({"smoothing": "none"}, "smoothing = 'laplace' or 'm-estimate', got 'none'"),
        ({"pseudocount": 0}, "pseudocount = a number > 0, got 0"),
        ({"pseudocount": float("nan")}, "pseudocount = a number > 0, got nan"),
        ({"l2": -1}, "l2 = a number >= 0, got -1"),
        ({"initial_weight": float("inf")}, "initial_weight = a number that is finite, got inf"),
        ({"max_iterations": 0}, "max_iterations = a whole number >= 1, got 0"),
        ({"combine": "joint", "weighted": True}, "expected weighted=False for combine='joint'"),
        ({"categories": "all"}, "categories = 'auto' or a list of 2, got 'all'"),
        ({"categories": [["a"]]}, "expected categories of 2 attributes, got 1"),
        ({"categories": [["a", "a"], ["b"]]}, "expected distinct categories, got 'a', 'a' for column 0"),
    ],
)
def test_wrong_parameters_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(FedandeError, match=message) as caught:
        AnDEClassifier(**keys).fit(TOY, LABELS)
    assert isinstance(caught.value, ValueError)


def test_cells_that_cannot_be_categories_are_refused() -> None:
    X = np.empty((2, 2), dtype=object)
    X[:] = "a"
    X[1, 1] = ["a", "list"]
    with pytest.raises(FedandeError, match="got a cell of type list in column 1"):
        AnDEClassifier().fit(X, [0, 1])


def test_tables_beyond_the_memory_are_refused_with_the_way_out() -> None:
    X = np.random.default_rng(0).normal(size=(5000, 12))
    with pytest.raises(FedandeError, match=r"GiB for n = 3, 12 attributes of up to 5000 .*KBinsDiscretizer"):
        AnDEClassifier(n=3).fit(X, np.arange(5000) % 2)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_the_number_of_cells_is_known_without_listing_the_sets(n: int) -> None:
    arity = np.array([2, 3, 1, 5, 4])
    assert centralised.n_cells(arity, n) == ande.cells_per_set(ande.parent_sets(5, n), arity).sum()


# ------------------------------------------------------------ what comes out


def test_log_probabilities_stay_finite_where_probabilities_vanish() -> None:
    X = np.repeat([[0] * 60, [1] * 60], 40, axis=0)
    y = np.repeat([0, 1], 40)
    model = AnDEClassifier(n=0).fit(X, y)
    assert model.predict_proba(X)[0, 1] == 0.0
    assert np.isfinite(model.predict_log_proba(X)).all()
    # 24 more cells speak for class 0 than for class 1: P(1|x) is 41^-24
    mixed = np.array([[0] * 42 + [1] * 18])
    np.testing.assert_allclose(model.predict_log_proba(mixed)[0, 1], -24 * np.log(41), rtol=1e-9)


def test_the_tables_are_named_probabilities(boards: Dataset) -> None:
    model = AnDEClassifier(n=2).fit(boards.X, boards.y)
    tables = model.tables((1, 4))
    assert list(tables) == ["prior", "parents", *(f"child{j}" for j in (0, 2, 3, 5, 6, 7, 8))]
    assert tables["child0"].shape == (2, 9, 3)
    for table in tables.values():
        np.testing.assert_allclose(table.sum(axis=-1), 1.0, rtol=1e-12)
    counts = model.tables((1, 4), "count")
    assert counts["parents"].sum() == len(boards.y)
    with pytest.raises(FedandeError, match=r"one of parent_sets_, such as \(0, 1\), got \(4, 1\)"):
        model.tables((4, 1))
    with pytest.raises(FedandeError, match="expected a weighted model"):
        model.tables((1, 4), "weight")


def test_a_copy_predicts_the_same_bits(boards: Dataset) -> None:
    model = AnDEClassifier(weighted=True, local_steps=2).fit(boards.X, boards.y)
    with pytest.raises(NotFittedError):
        clone(model).predict(boards.X)
    twin = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(twin.predict_proba(boards.X), model.predict_proba(boards.X))


def test_it_works_in_a_pipeline_and_a_grid_search() -> None:
    X = np.random.default_rng(1).uniform(-1, 1, size=(200, 3))
    y = (X[:, 0] > 0) ^ (X[:, 1] > 0)
    bins = KBinsDiscretizer(4, encode="ordinal", strategy="uniform")
    search = GridSearchCV(make_pipeline(bins, AnDEClassifier()), {"andeclassifier__n": [0, 1, 2]}, cv=3)
    search.fit(X, y)
    assert search.best_params_["andeclassifier__n"] > 0
    assert search.best_score_ > 0.8


def test_a_single_class_is_predicted() -> None:
    for keys in ({}, {"weighted": True}, {"combine": "joint"}):
        model = AnDEClassifier(**keys).fit(TOY, ["only"] * 5)  # type: ignore[arg-type]
        assert model.predict_proba(TOY).tolist() == [[1.0]] * 5
        assert model.predict([["snow", None]]).tolist() == ["only"]


def test_a_column_without_a_value_says_nothing() -> None:
    X = [[*row, None] for row in TOY]
    for missing in ("value", "ignore"):
        model = AnDEClassifier(n=0, missing=missing).fit(X, LABELS)
        plain = AnDEClassifier(n=0).fit(TOY, LABELS)
        np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(TOY), rtol=1e-14)


def test_without_scikit_learn_one_line_says_what_to_install() -> None:
    program = """
import sys
sys.modules["sklearn"] = None  # what Python does with a package that is not there
import fedande_mpi
try:
    fedande_mpi.AnDEClassifier
except fedande_mpi.errors.FedandeError as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == (
        "AnDEClassifier expects scikit-learn 1.6 or newer, which is not installed; "
        "pip install 'fedande-mpi[sklearn]'\n"
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_a_model_mapped_into_memory_predicts_the_same_and_compiles_nothing_more(
    tmp_path: Path, weighted: bool
) -> None:
    chance = np.random.default_rng(3)
    X, y = chance.integers(0, 3, (200, 5)), chance.integers(0, 3, 200)
    model = AnDEClassifier(weighted=weighted).fit(X, y)
    expected = model.predict_proba(X)
    joblib.dump(model, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    loops: list[Any] = [indexing.index_sets, evaluation.score]
    compiled = [set(loop.dispatcher.signatures) for loop in loops]
    assert (mapped.predict_proba(X) == expected).all()
    assert [set(loop.dispatcher.signatures) for loop in loops] == compiled
