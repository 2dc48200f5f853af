"""Data sets: the same from every source, and refused where they are not what they should be."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedande_mpi.datasets import (
    KNOWN,
    Dataset,
    KnownDataset,
    check,
    dataset_status,
    discretise,
    fetch,
    load_dataset,
)
from fedande_mpi.errors import DataError
from fedande_mpi.games import kr_vs_k, tic_tac_toe

WEATHER = """@relation weather
@attribute outlook {sunny,overcast,rainy}
@attribute windy {yes,no}
@attribute play {yes,no}
@data
sunny,no,no
rainy,?,yes
overcast,yes,yes
rainy,yes,no
sunny,no,?
overcast,no,yes
"""

NUMBERS = """@relation numbers
@attribute a real
@attribute b {u,v}
@attribute c integer
@attribute class {p,q}
@data
1.5,u,3,p
?,v,1,q
0.5,u,2,p
4,v,2,q
2.5,v,?,q
"""


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return str(path)


def named(dataset: Dataset) -> list[tuple[str, ...]]:
    """Return the rows as names of values; -1 as a dash."""
    return [
        (
            *("-" if c < 0 else v[c] for v, c in zip(dataset.value_names, x, strict=True)),
            dataset.class_names[y],
        )
        for x, y in zip(dataset.X, dataset.y, strict=True)
    ]


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDANDE_DATA", raising=False)


# ---------------------------------------------------------------- what a data set is


def test_codes_are_positions_in_the_declared_lists_and_rows_are_in_canonical_order(tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path, "weather.arff", WEATHER))
    assert dataset.name == "weather"
    assert dataset.attribute_names == ("outlook", "windy")
    assert dataset.value_names == (("sunny", "overcast", "rainy"), ("yes", "no", "?"))
    assert dataset.class_names == ("yes", "no")
    assert named(dataset) == [
        ("overcast", "no", "yes"),
        ("overcast", "yes", "yes"),
        ("rainy", "?", "yes"),
        ("rainy", "yes", "no"),
        ("sunny", "no", "no"),
    ]
    assert dataset.X.tolist() == [[1, 1], [1, 0], [2, 2], [2, 0], [0, 1]]
    assert (dataset.X.dtype, dataset.y.dtype, dataset.arity.dtype) == (np.int32, np.int32, np.int64)
    assert dataset.arity.tolist() == [3, 3]
    assert (dataset.n_instances, dataset.n_attributes, dataset.n_classes) == (5, 2, 2)
    assert dataset.n_dropped == 1
    assert not dataset.numeric


def test_ignored_missing_cells_are_minus_one_in_the_same_rows(tmp_path: Path) -> None:
    path = write(tmp_path, "weather.arff", WEATHER)
    value, ignore = load_dataset(path), load_dataset(path, missing="ignore")
    assert ignore.arity.tolist() == [3, 2]
    assert ignore.value_names[1] == ("yes", "no")
    np.testing.assert_array_equal(ignore.X, np.where([[0, 0], [0, 0], [0, 1], [0, 0], [0, 0]], -1, value.X))
    np.testing.assert_array_equal(ignore.y, value.y)
    assert ignore.digest != value.digest


def test_the_name_of_missing_cells_cannot_clash(tmp_path: Path) -> None:
    text = WEATHER.replace("{yes,no}\n@attribute play", "{yes,no,'?'}\n@attribute play")
    assert load_dataset(write(tmp_path, "weather.arff", text)).value_names[1] == ("yes", "no", "?", "??")


def test_take_keeps_the_dictionary(tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path, "numbers.arff", NUMBERS), bins=2)
    some = dataset.take([3, 0])
    assert some.X.tolist() == dataset.X[[3, 0]].tolist()
    assert some.y.tolist() == dataset.y[[3, 0]].tolist()
    np.testing.assert_array_equal(some.numeric[0], dataset.numeric[0][[3, 0]])
    assert some.value_names == dataset.value_names
    assert dataset.take(dataset.y == 0).n_instances == 2


# ---------------------------------------------------------------- the same from every source


def shuffled(text: str, seed: int) -> str:
    head, rows = text.split("@data\n")
    lines = rows.splitlines()
    return head + "@data\n" + "\n".join(lines[i] for i in np.random.default_rng(seed).permutation(len(lines)))


@pytest.mark.parametrize("missing", ["value", "ignore"])
def test_permuted_rows_give_the_same_data_set(tmp_path: Path, missing: str) -> None:
    digests = {
        load_dataset(write(tmp_path, f"{seed}.arff", shuffled(WEATHER, seed)), missing=missing).digest  # type: ignore[arg-type]
        for seed in range(5)
    }
    assert len(digests) == 1


def test_another_order_of_the_declared_values_gives_the_same_order_of_rows(tmp_path: Path) -> None:
    relabelled = WEATHER.replace("{sunny,overcast,rainy}", "{rainy,sunny,overcast}").replace(
        "{yes,no}", "{no,yes}"
    )
    first, second = (
        load_dataset(write(tmp_path, f"{i}.arff", text)) for i, text in enumerate((WEATHER, relabelled))
    )
    assert named(first) == named(second)
    assert first.X.tolist() != second.X.tolist()


def test_csv_and_arff_give_the_same_data_set(tmp_path: Path) -> None:
    head, rows = WEATHER.split("@data\n")
    del head
    arff = WEATHER.replace("{sunny,overcast,rainy}", "{overcast,rainy,sunny}").replace("{yes,no}", "{no,yes}")
    csv = "outlook,windy,play\n" + rows.replace("?", "")
    paths = (
        write(tmp_path, "a.arff", arff),
        write(tmp_path, "b.arff.gz", arff),
        write(tmp_path, "c.csv", csv),
        write(tmp_path, "d.csv.gz", csv),
    )
    assert len({load_dataset(path).digest for path in paths}) == 1


def test_the_digest_sees_values_classes_and_names(tmp_path: Path) -> None:
    texts = (
        WEATHER,
        WEATHER.replace("rainy,yes,no", "rainy,yes,yes"),
        WEATHER.replace("rainy,yes,no", "rainy,no,no"),
        WEATHER.replace("{sunny,overcast,rainy}", "{overcast,sunny,rainy}"),
        WEATHER.replace("windy", "gusty"),
    )
    assert len({load_dataset(write(tmp_path, "weather.arff", text)).digest for text in texts}) == len(texts)


def test_rows_stay_in_order_when_their_keys_do_not_fit_one_integer(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [",".join(row) for row in rng.choice(["a", "b", "c"], size=(200, 90))]
    header = ",".join(f"x{i}" for i in range(90))
    dataset = load_dataset(write(tmp_path, "wide.csv", "\n".join([header, *rows])))
    assert [",".join(row) for row in named(dataset)] == sorted(rows)


# ---------------------------------------------------------------- the twelve


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_the_twelve(shared_data: Path, known: KnownDataset) -> None:
    ignore = check(known.name, shared_data)  # m, d, o and the number of missing cells
    value = load_dataset(known.name, data_dir=shared_data)
    assert (ignore.X < 0).sum() == known.missing_cells
    assert value.X.min() == 0
    assert (value.arity > value.X).all()
    gained = (ignore.X < 0).any(axis=0)
    np.testing.assert_array_equal(value.arity - ignore.arity, gained)
    np.testing.assert_array_equal(value.y, ignore.y)
    rows = named(value)
    assert rows == sorted(rows)


def test_special_cells_of_the_twelve(shared_data: Path) -> None:
    nursery = load_dataset("nursery", data_dir=shared_data)
    assert np.bincount(nursery.y).min() == 2
    mushroom = load_dataset("mushroom", data_dir=shared_data)
    assert sum(len(np.unique(column)) == 1 for column in mushroom.X.T) == 1


@pytest.mark.parametrize("name", ["tic-tac-toe", "kr-vs-k"])
def test_a_generated_data_set_equals_its_file(shared_data: Path, name: str) -> None:
    made, read = load_dataset(name), load_dataset(str(shared_data / f"{name}.arff.gz"))
    assert made.name == read.name == name
    assert made.digest == read.digest


def test_generators_need_no_files() -> None:
    assert load_dataset("tic-tac-toe").X.shape == (len(tic_tac_toe().columns[0].codes), 9)
    assert load_dataset("kr-vs-k").X.shape == (len(kr_vs_k().columns[0].codes), 6)
    assert check("tic-tac-toe").n_instances == 958
    assert load_dataset("synthetic:m=20,d=3,o=2,arity=2,seed=5").X.shape == (20, 3)


def test_the_data_directory_comes_before_the_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "tic-tac-toe.arff", WEATHER)
    with pytest.raises(DataError, match=r"m = 958, d = 9, o = 2 as in the paper, got m = 5, d = 2, o = 2"):
        load_dataset("tic-tac-toe", data_dir=tmp_path)
    monkeypatch.setenv("FEDANDE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"m = 958"):
        load_dataset("tic-tac-toe")
    (tmp_path / "empty").mkdir()
    assert load_dataset("tic-tac-toe", data_dir=tmp_path / "empty").n_instances == 958  # the argument wins


@pytest.mark.parametrize("name", ["mine.arff", "mine.arff.gz"])
def test_the_data_directory_holds_other_names_too(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, WEATHER)
    assert load_dataset("mine", data_dir=tmp_path).name == "mine"


def test_a_path_is_not_held_to_the_table(tmp_path: Path) -> None:
    assert load_dataset(write(tmp_path, "car.arff", WEATHER)).n_instances == 5


def test_a_named_data_set_may_have_another_class(tmp_path: Path) -> None:
    assert load_dataset("tic-tac-toe", target="top-left-square").n_classes == 3


def test_a_column_that_is_no_attribute_is_dropped_by_name(tmp_path: Path) -> None:
    write(tmp_path, "splice.csv", "Instance_name,a,class\ni1,x,p\ni2,y,q\n")
    with pytest.raises(DataError, match=r"got m = 2, d = 1, o = 2"):
        load_dataset("splice", data_dir=tmp_path)


def test_status_tells_where_each_would_come_from(tmp_path: Path) -> None:
    for known in KNOWN:
        if not known.generated:
            write(tmp_path, f"{known.name}.arff", WEATHER)
    status = {line.known.name: line for line in dataset_status(tmp_path)}
    assert list(status) == [known.name for known in KNOWN]
    assert status["car"].source == str(tmp_path / "car.arff")
    assert status["kr-vs-k"].source == "generated"
    assert all(line.cached for line in status.values())


def test_nothing_is_fetched_for_a_generated_data_set() -> None:
    assert fetch("kr-vs-k") is None


def test_check_counts_missing_cells(tmp_path: Path) -> None:
    rows = "\n".join("y," * 16 + label for label in ["r"] + ["d"] * 434)
    write(tmp_path, "house-votes-84.csv", ",".join(f"x{i}" for i in range(17)) + "\n" + rows)
    with pytest.raises(DataError, match="expected 392 missing cells, got 0"):
        check("house-votes-84", tmp_path)


# ---------------------------------------------------------------- the user's word: target, nominal, bins


def test_target_chooses_the_class(tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path, "weather.arff", WEATHER), target="outlook")
    assert dataset.attribute_names == ("windy", "play")
    assert dataset.class_names == ("sunny", "overcast", "rainy")
    assert dataset.value_names[1] == ("yes", "no", "?")
    assert dataset.n_dropped == 0


def test_numeric_attributes_are_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, "numbers.arff", NUMBERS)
    with pytest.raises(DataError, match=r"numeric 'a', 'c'; set bins = k .* nominal"):
        load_dataset(path)
    with pytest.raises(DataError, match=r"numeric 'c';"):
        load_dataset(path, nominal=["a"])


def test_declared_nominal_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    text = NUMBERS.replace("2.5,v,?,q", "10,v,?,q")
    dataset = load_dataset(write(tmp_path, "numbers.arff", text), nominal=["a", "c"])
    assert dataset.value_names == (("0.5", "1.5", "4", "10", "?"), ("u", "v"), ("1", "2", "3", "?"))
    assert not dataset.numeric


def test_bins_leave_nominal_attributes_alone(tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path, "numbers.arff", NUMBERS), bins=2, nominal=["c"])
    assert list(dataset.numeric) == [0]
    assert dataset.arity.tolist() == [1, 2, 4]
    np.testing.assert_array_equal(dataset.numeric[0], [0.5, 1.5, 2.5, 4, np.nan])  # by size, missing last
    assert (dataset.X[:, 0] == 0).all()


def test_csv_columns_with_broken_numbers_are_numeric(tmp_path: Path) -> None:
    path = write(tmp_path, "r.csv", "a,b,class\n0.5,1,p\n1.5,2,q\n")
    with pytest.raises(DataError, match="numeric 'a';"):
        load_dataset(path)
    assert load_dataset(path, nominal=["a"]).value_names == (("0.5", "1.5"), ("1", "2"))
    assert list(load_dataset(path, bins=2).numeric) == [0]


@pytest.mark.parametrize(("column", "type_"), [("a string", "string"), ("a date", "date")])
def test_text_attributes_are_refused_by_name_unless_declared(tmp_path: Path, column: str, type_: str) -> None:
    path = write(tmp_path, "r.arff", f"@attribute {column}\n@attribute c {{p,q}}\n@data\nx,p\nw,q\n")
    with pytest.raises(DataError, match=rf"got 'a' \({type_}\)"):
        load_dataset(path, bins=2)
    assert load_dataset(path, nominal=["a"]).value_names == (("w", "x"),)


def test_a_numeric_class_must_be_declared(tmp_path: Path) -> None:
    path = write(tmp_path, "numbers.arff", NUMBERS)
    with pytest.raises(DataError, match=r"nominal class, got 'c' of type numeric; .*nominal = \[\"c\"\]"):
        load_dataset(path, target="c", bins=2)
    assert load_dataset(path, target="c", bins=2, nominal=["c"]).class_names == ("1", "2", "3")


# ---------------------------------------------------------------- bins


def made(values: Sequence[float], missing: str = "value") -> Dataset:
    m = len(values)
    return Dataset(
        name="made",
        X=np.zeros((m, 1), dtype=np.int32),
        y=np.zeros(m, dtype=np.int32),
        arity=np.array([1]),
        attribute_names=("a",),
        value_names=(("(-inf, inf)",),),
        class_names=("p", "q"),
        numeric={0: np.array(values, dtype=float)},
        missing=missing,  # type: ignore[arg-type]
    )


def test_bins_hold_equally_many_training_rows() -> None:
    values = np.random.default_rng(1).permutation(100) / 7
    dataset = discretise(made(list(values)), np.arange(100), 5)
    assert np.bincount(dataset.X[:, 0]).tolist() == [20] * 5
    assert dataset.arity.tolist() == [5]
    assert not dataset.numeric
    order = np.argsort(values)
    assert (np.diff(dataset.X[order, 0]) >= 0).all()


def test_cut_points_come_from_the_training_rows_alone() -> None:
    first = discretise(made([1, 2, 3, 4, 100, 200]), [0, 1, 2, 3], 2)
    second = discretise(made([1, 2, 3, 4, -5, 3]), [0, 1, 2, 3], 2)
    assert first.value_names == second.value_names == (("(-inf, 2]", "(2, inf)"),)
    assert first.X[:, 0].tolist() == [0, 0, 1, 1, 1, 1]
    assert second.X[:, 0].tolist() == [0, 0, 1, 1, 0, 1]


def test_coinciding_cut_points_merge_and_no_bin_is_empty() -> None:
    dataset = discretise(made([0, 0, 0, 0, 0, 1, 2, 2, 2, 2]), np.arange(10), 5)
    assert dataset.value_names == (("(-inf, 0]", "(0, 1]", "(1, inf)"),)
    assert np.bincount(dataset.X[:, 0], minlength=dataset.arity[0]).tolist() == [5, 1, 4]


def test_a_constant_attribute_is_one_bin() -> None:
    dataset = discretise(made([3, 3, 3]), [0, 1], 4)
    assert dataset.value_names == (("(-inf, inf)",),)
    assert dataset.arity.tolist() == [1]


def test_missing_numbers_follow_both_modes() -> None:
    values = [1.0, 2.0, 3.0, 4.0, np.nan]
    value = discretise(made(values), [0, 1, 2, 3], 2)  # the missing cell is in a test row
    assert value.value_names == (("(-inf, 2]", "(2, inf)", "?"),)
    assert value.X[:, 0].tolist() == [0, 0, 1, 1, 2]
    ignore = discretise(made(values, "ignore"), [0, 1, 2, 3], 2)
    assert ignore.arity.tolist() == [2]
    assert ignore.X[:, 0].tolist() == [0, 0, 1, 1, -1]


def test_no_number_among_the_training_rows() -> None:
    dataset = discretise(made([np.nan, np.nan, 7]), [0, 1], 3)
    assert dataset.value_names == (("(-inf, inf)", "?"),)
    assert dataset.X[:, 0].tolist() == [1, 1, 0]


def test_discretise_leaves_the_given_data_set_as_it_is() -> None:
    dataset = made([1, 2, 3])
    assert discretise(dataset, [0, 1, 2], 3).X[:, 0].tolist() == [0, 1, 2]
    assert dataset.X.max() == 0
    assert dataset.arity.tolist() == [1]
    done = discretise(dataset, [0, 1, 2], 3)
    assert discretise(done, [0], 2) is done


def test_the_digest_sees_numbers() -> None:
    assert made([1, 2]).digest == made([1.0, 2.0]).digest != made([1, 3]).digest
    assert made([0.0, np.nan]).digest == made([-0.0, -np.nan]).digest


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cars", "unknown data set 'cars': .*did you mean car"),
        ("Mushroom", "did you mean mushroom"),
        ("zzz", "the names are house-votes-84, soybean"),
        ("http://x", "unknown data set"),
        ("openml:", "expected openml:ID with a number"),
        ("openml:-1", "expected openml:ID with a number"),
        ("synthetic:m=0", "synthetic: expected m >= 1"),
        ("absent.arff", "no such file"),
        ("absent.csv.gz", "no such file"),
    ],
)
def test_unknown_sources(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        load_dataset(source)
    assert "\n" not in str(error.value)


def test_an_unknown_name_is_looked_for_in_the_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"no file in {tmp_path}"):
        load_dataset("zzz", data_dir=tmp_path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a file that ends in \.arff"):
        load_dataset(write(tmp_path, "r.data", "x"))


def test_a_data_directory_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="--data-dir: expected a directory"):
        load_dataset("tic-tac-toe", data_dir=tmp_path / "absent")
    monkeypatch.setenv("FEDANDE_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataError, match="FEDANDE_DATA: expected a directory"):
        load_dataset("tic-tac-toe")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "plays"}, "no column 'plays' to be the class; did you mean 'play'"),
        ({"target": "zzz"}, "the columns are 'outlook', 'windy', 'play'"),
        ({"nominal": ["wind"]}, "nominal: there is no column 'wind'; did you mean 'windy'"),
        ({"bins": 1}, "expected bins >= 2, got 1"),
        ({"missing": "drop"}, "expected missing = 'value' or 'ignore', got 'drop'"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(write(tmp_path, "weather.arff", WEATHER), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class\np\nq\n", "expected attributes and a class, got 1 column"),
        ("a,class\nx,p\ny,p\n", "a class of two values or more, 'class' has 1"),
        ("a,class\nx,?\ny,\n", "a class of two values or more, 'class' has 0"),
    ],
)
def test_tables_that_are_no_data_set(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(write(tmp_path, "r.csv", text))


def test_no_row_has_a_class(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'play' is missing in all"):
        load_dataset(write(tmp_path, "r.arff", WEATHER.split("sunny,no,no")[0] + "rainy,no,?\n"))


def test_an_attribute_without_any_value(tmp_path: Path) -> None:
    path = write(tmp_path, "r.csv", "a,class\n?,p\n?,q\n")
    assert load_dataset(path).value_names == (("?",),)
    with pytest.raises(DataError, match="attribute 'a' has no value in any row"):
        load_dataset(path, missing="ignore")


def test_importing_the_module_loads_nothing_heavy() -> None:
    code = (
        "import sys, fedande_mpi.datasets as d; d.load_dataset('tic-tac-toe');"
        "print({'openml', 'pandas', 'arff', 'requests', 'scipy', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"
