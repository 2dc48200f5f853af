"""Tables and summaries made from result files."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from fedande_mpi.celldata import CellData
from fedande_mpi.errors import ResultsError
from fedande_mpi.formatting import Table, format_table
from fedande_mpi.merging import merge
from fedande_mpi.reporting import mean_ranks, nan_mean, summarise, table, table_rows
from fedande_mpi.results import write_cell
from tests.result_files import discriminative, filled, generative

HEADER = "dataset,model,method,scope,clients,epsilon,round,repeats,folds,accuracy,accuracy_sd,cll"


def columns(text):
    return list(csv.DictReader(io.StringIO(text)))


# --- table -------------------------------------------------------------------------------------------------


def test_a_cell_is_one_row_at_its_last_round(tmp_path):
    write_cell(tmp_path, filled(discriminative()))
    text = format_table(table(tmp_path), "csv")
    assert text.splitlines()[0] == HEADER
    (row,) = columns(text)
    # accuracy = .5 + round/10 + repeat/100 + fold/1000 + client/10000, by tests/result_files.py
    units = np.array([0.7 + r / 100 + f / 1000 + 0.0001 for r in range(2) for f in range(3)])
    assert row == {
        "dataset": "tic-tac-toe", "model": "A1DE-w", "method": "discriminative", "scope": "federated",
        "clients": "3", "epsilon": "", "round": "2", "repeats": "2", "folds": "3",
        "accuracy": f"{units.mean():.6f}", "accuracy_sd": f"{units.std(ddof=1):.6f}",
        "cll": f"{-1 / 3 - 0.01:.6f}",
    }  # fmt: skip


def test_only_complete_units_count(tmp_path):
    write_cell(tmp_path, filled(discriminative(), units=[(1, 2)]))
    (row,) = table_rows(tmp_path)
    assert row["accuracy"] == pytest.approx(0.7121)
    assert row["accuracy_sd"] is None
    assert (row["repeats"], row["folds"]) == (1, 1)
    assert columns(format_table(table(tmp_path), "csv"))[0]["accuracy_sd"] == ""


def test_the_last_evaluated_round_counts(tmp_path):
    cell = filled(discriminative())
    for path in ("/test/accuracy", "/test/cll"):
        cell.arrays[path][:, :, 2] = np.nan
    write_cell(tmp_path, cell)
    assert table_rows(tmp_path)[0]["round"] == 1


def test_every_evaluated_round_is_a_row(tmp_path):
    cell = filled(discriminative())
    cell.arrays["/test/accuracy"][:, :, 1] = np.nan
    write_cell(tmp_path, cell)
    assert [row["round"] for row in table_rows(tmp_path, rounds=True)] == [0, 2]


def test_a_client_that_was_not_scored_is_left_out(tmp_path):
    cell = filled(discriminative(), units=[(0, 0)])
    for path in ("/test/accuracy", "/test/cll"):
        cell.arrays[path][:, :, :, 2] = np.nan
    write_cell(tmp_path, cell)
    assert table_rows(tmp_path)[0]["accuracy"] == pytest.approx(0.70005)


def test_an_infinite_cll_stays_infinite(tmp_path):
    cell = filled(discriminative())
    cell.arrays["/test/cll"][0, 0, 2, 0] = -np.inf
    write_cell(tmp_path, cell)
    assert columns(format_table(table(tmp_path), "csv"))[0]["cll"] == "-inf"
    assert json.loads(format_table(table(tmp_path), "json"))[0]["cll"] == "-inf"


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (discriminative(), ""),
        (generative(), "1"),
        (generative(epsilon=0.1), "0.1"),
        (generative(epsilon=float("inf")), "inf"),
        (generative(epsilon=None, scope="local"), "inf"),
    ],
)
def test_epsilon_is_empty_finite_or_infinite(tmp_path, cell, shown):
    write_cell(tmp_path, filled(cell))
    assert columns(format_table(table(tmp_path), "csv"))[0]["epsilon"] == shown


def test_a_centralised_cell_has_one_client(tmp_path):
    write_cell(tmp_path, filled(generative(scope="centralised", n_clients=5)))
    assert table_rows(tmp_path)[0]["clients"] == 1


def test_other_keys_that_differ_are_columns(tmp_path):
    config = discriminative().config
    write_cell(
        tmp_path, filled(discriminative("a", config=config.replace("local_steps = 5", "local_steps = 7")))
    )
    write_cell(tmp_path, filled(discriminative("b", config=config.replace("repeats = 2", "repeats = 3"))))
    write_cell(tmp_path, filled(generative()))
    text = format_table(table(tmp_path), "csv")
    # Neither what only one method has, nor a key that changes no result, nor another method's section.
    assert text.splitlines()[0] == f"{HEADER},local_steps"
    assert [(row["model"], row["local_steps"]) for row in columns(text)] == [
        ("A1DE", ""), ("A1DE-w", "5"), ("A1DE-w", "7"),
    ]  # fmt: skip


def test_a_data_set_that_changed_under_its_name_is_told_apart(tmp_path):
    write_cell(tmp_path, filled(discriminative("a")))
    write_cell(tmp_path, filled(discriminative("b", dataset_sha256="e" * 64)))
    assert "dataset_sha256" in table(tmp_path).columns
    write_cell(tmp_path / "x", filled(discriminative("a")))
    write_cell(tmp_path / "x", filled(discriminative("c", dataset="car", dataset_sha256="e" * 64)))
    assert "dataset_sha256" not in table(tmp_path / "x").columns


def test_rows_are_sorted_by_their_keys(tmp_path):
    for clients in (10, 5, 100):
        write_cell(tmp_path, filled(discriminative(f"d{clients}", n_clients=clients)))
    write_cell(tmp_path, filled(discriminative("car", dataset="car", n_clients=7)))
    assert [(r["dataset"], r["clients"]) for r in table_rows(tmp_path)] == [
        ("car", 7), ("tic-tac-toe", 5), ("tic-tac-toe", 10), ("tic-tac-toe", 100),
    ]  # fmt: skip


def test_a_merged_file_gives_the_same_table(tmp_path):
    write_cell(tmp_path / "run", filled(discriminative()))
    write_cell(tmp_path / "run", filled(generative()))
    merge(tmp_path / "run", tmp_path / "all.h5")
    expected = format_table(table(tmp_path / "run"), "csv")
    assert format_table(table(tmp_path / "all.h5"), "csv") == expected
    assert format_table(table([tmp_path / "all.h5", tmp_path / "run"]), "csv") == expected


def test_nothing_complete_is_an_error(tmp_path):
    write_cell(tmp_path, CellData.empty(discriminative()))
    with pytest.raises(ResultsError, match="found none in 1 cells"):
        table(tmp_path)


# --- pivot -------------------------------------------------------------------------------------------------


@pytest.fixture
def grid(tmp_path):
    for clients in (3, 10):
        write_cell(tmp_path, filled(discriminative(f"d{clients}", n_clients=clients)))
        write_cell(tmp_path, filled(generative(f"g{clients}", n_clients=clients)))
    return tmp_path


def test_a_pivot_has_the_other_differing_keys_as_columns(grid):
    pivot = table(grid, by="dataset,method")
    assert pivot.columns == (
        "dataset", "method", "A1DE C=3", "A1DE C=10", "A1DE-w C=3", "A1DE-w C=10",
    )  # fmt: skip
    assert [row["method"] for row in pivot.rows] == ["discriminative", "generative"]
    assert pivot.rows[0]["A1DE C=3"] is None
    assert pivot.rows[0]["A1DE-w C=3"] == pytest.approx(0.7061)


def test_n_stands_for_the_model_weighted_or_not(grid):
    pivot = table(grid, by=["n", "clients"])
    assert pivot.columns == ("n", "clients", "discriminative", "generative")
    assert [(row["n"], row["clients"]) for row in pivot.rows] == [(1, 3), (1, 10)]


def test_a_pivot_without_other_keys_has_one_column(grid):
    assert table(grid, by="model,method,clients").columns == ("model", "method", "clients", "accuracy")


def test_a_pivot_over_rounds(tmp_path):
    write_cell(tmp_path, filled(discriminative()))
    assert table(tmp_path, rounds=True, by="model").columns == ("model", "round=0", "round=1", "round=2")
    assert table(tmp_path, rounds=True, by="round").columns == ("round", "accuracy")


def test_a_pivot_takes_any_setting_dotted_or_not(grid):
    assert table(grid, by="discriminative.local_steps").columns[0] == "local_steps"


def test_an_unknown_key_is_refused_with_the_nearest(grid):
    with pytest.raises(ResultsError, match=r"got 'datsaet'; did you mean 'dataset'\?"):
        table(grid, by="datsaet")


def test_epsilon_is_no_column_where_it_follows_from_the_others(tmp_path):
    for scope in ("federated", "local"):
        write_cell(
            tmp_path, filled(generative(scope, scope=scope, epsilon=1.0 if scope == "federated" else None))
        )
    assert table(tmp_path, by="dataset").columns == ("dataset", "federated", "local")
    write_cell(tmp_path, filled(generative("more noise", epsilon=0.1)))
    columns = table(tmp_path, by="dataset").columns
    assert columns == ("dataset", "federated epsilon=0.1", "federated epsilon=1", "local epsilon=inf")


def test_a_pivot_by_data_sets_ends_with_mean_ranks(tmp_path):
    for dataset in ("car", "flare"):
        write_cell(tmp_path, filled(discriminative(f"d {dataset}", dataset=dataset)))
        write_cell(tmp_path, filled(generative(f"g {dataset}", dataset=dataset)))
    pivot = table(tmp_path, by="dataset")
    assert pivot.ranks == {
        "dataset": "mean rank (2 data sets)", "A1DE generative": 2, "A1DE-w discriminative": 1,
    }  # fmt: skip
    assert len(pivot.rows) == 2
    assert table(tmp_path, by="dataset,n").ranks is None


def ranked(*rows):
    columns = [dict(zip("abc", row, strict=True)) | {"dataset": str(index)} for index, row in enumerate(rows)]
    found = mean_ranks(columns, tuple("abc"))
    return found and [found[name] for name in "abc"]


def test_ranks_begin_with_the_highest_and_are_averaged():
    assert ranked((0.9, 0.8, 0.7), (0.9, 0.7, 0.8), (0.1, 0.3, 0.2)) == [5 / 3, 2, 7 / 3]


def test_ties_share_ranks():
    # 0.50001 and 0.50004 look the same in a table.
    assert ranked((0.50001, 0.50004, 0.4), (0.5, 0.5, 0.5)) == [1.75, 1.75, 2.5]


def test_only_complete_rows_are_ranked():
    assert ranked((0.9, 0.8, 0.7), (0.7, 0.8, 0.9), (0.9, None, 0.7)) == [2, 2, 2]
    assert ranked((0.9, 0.8, 0.7), (0.9, None, 0.7)) is None


# --- selections --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conditions", "clients", "methods"),
    [
        ("C=3", {3}, {"discriminative", "generative"}),
        ("clients=3,clients=10,method=gen*", {3, 10}, {"generative"}),
        ("epsilon=1", {3, 10}, {"generative"}),
        ("model=A1DE-w, discriminative.local_steps=5", {3, 10}, {"discriminative"}),
        (f"dataset_sha256={'d' * 64},C=10", {10}, {"discriminative", "generative"}),
    ],
)
def test_a_table_of_some_cells(grid, conditions, clients, methods):
    rows = table_rows(f"{grid}:{conditions}")
    assert {row["clients"] for row in rows} == clients
    assert {row["method"] for row in rows} == methods
    assert len(rows) == len(clients) * len(methods)


def test_selections_are_united_and_name_each_cell_once(grid):
    assert len(table_rows([f"{grid}:C=3", f"{grid}:method=generative"])) == 3


def test_centralised_cells_have_no_number_of_clients(tmp_path):
    write_cell(tmp_path, filled(generative(scope="centralised", n_clients=1)))
    write_cell(tmp_path, filled(discriminative(n_clients=1)))
    assert [row["scope"] for row in table_rows(f"{tmp_path}:C=1")] == ["federated"]


def test_a_path_that_looks_like_a_selection_is_a_path(tmp_path):
    write_cell(tmp_path / "a:n=1", filled(generative(n=2)))
    assert len(table_rows(tmp_path / "a:n=1")) == 1


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ("C=4", "expected cells with these keys, found none among 4"),
        ("C=three", "expected cells with these keys, found none among 4"),
        ("scoop=local", r"got 'scoop'; did you mean 'scope'\?"),
        ("C=3,10", "could not read 'C=3,10'"),
    ],
)
def test_a_selection_that_selects_nothing_is_refused(grid, conditions, message):
    with pytest.raises(ResultsError, match=message):
        table(f"{grid}:{conditions}")


# --- formats -----------------------------------------------------------------------------------------------


def test_markdown_marks_the_best_of_every_row(grid):
    lines = format_table(table(grid, by="clients"), "md").splitlines()
    assert lines[0] == "| clients | A1DE generative | A1DE-w discriminative |"
    assert lines[1] == "| ------: | --------------: | --------------------: |"
    assert lines[2] == "|       3 |          0.5061 |            **0.7061** |"


def test_markdown_without_pivot_marks_nothing(grid):
    assert "**" not in format_table(table(grid), "md")


def test_equal_numbers_are_all_marked(grid):
    pivot = table(grid, by="clients")
    for row in pivot.rows:
        row["A1DE generative"] = row["A1DE-w discriminative"] + 1e-6
    assert format_table(pivot, "md").splitlines()[2].count("**") == 4


def test_latex_uses_booktabs_and_escapes(tmp_path):
    write_cell(tmp_path, filled(discriminative(dataset="a_b & 5%")))
    write_cell(tmp_path, filled(generative(dataset="a_b & 5%")))
    text = format_table(table(tmp_path, by="dataset"), "latex")
    assert text.splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"dataset & A1DE generative & A1DE-w discriminative \\",
        r"\midrule",
        r"a\_b \& 5\% & 0.5061 & \textbf{0.7061} \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.fixture
def ranks():
    rows = [{"dataset": "car", "a": 0.9, "b": 0.8}, {"dataset": "flare", "a": 0.7, "b": 0.7}]
    values = ("a", "b")
    return Table(("dataset", *values), rows, values, mean_ranks(rows, values))


def test_mean_ranks_are_the_last_row_in_every_format(ranks):
    lines = format_table(ranks, "md").splitlines()
    assert lines[2:] == [
        "| car                     | **0.9000** |     0.8000 |",
        "| flare                   | **0.7000** | **0.7000** |",
        "| mean rank (2 data sets) |   **1.25** |       1.75 |",
    ]
    assert format_table(ranks, "csv").splitlines()[-1] == "mean rank (2 data sets),1.250000,1.750000"
    assert json.loads(format_table(ranks, "json"))[-1] == {
        "dataset": "mean rank (2 data sets)", "a": 1.25, "b": 1.75,
    }  # fmt: skip
    assert format_table(ranks, "latex").splitlines()[-5:] == [
        r"flare & \textbf{0.7000} & \textbf{0.7000} \\",
        r"\midrule",
        r"mean rank (2 data sets) & \textbf{1.25} & 1.75 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_the_lowest_rank_is_best_however_many_digits_it_has():
    table = Table(("dataset", "a", "b"), [], ("a", "b"), {"dataset": "mean rank", "a": 10.5, "b": 9.5})
    assert format_table(table).splitlines()[-1] == "| mean rank | 10.50 | **9.50** |"


def test_json_is_a_list_of_rows(grid):
    rows = json.loads(format_table(table(grid), "json"))
    assert list(rows[0]) == HEADER.split(",")
    assert rows[0]["epsilon"] == 1.0
    assert rows[-1]["epsilon"] is None


def test_an_unknown_format_is_refused(grid):
    with pytest.raises(ResultsError, match="expected one of md, csv, latex, json, got 'xml'"):
        format_table(table(grid), "xml")


def test_means_leave_out_nan_without_warnings():
    values = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan], [-np.inf, 1.0, np.nan]])
    np.testing.assert_array_equal(nan_mean(values, axis=1), [2.0, np.nan, -np.inf])


# --- show --------------------------------------------------------------------------------------------------


def test_a_summary_has_progress_configuration_and_accuracy(tmp_path):
    write_cell(tmp_path, filled(discriminative(), units=[(0, 0), (0, 1)]))
    (summary,) = summarise(tmp_path)
    assert (summary.complete, summary.total) == (2, 6)
    assert summary.info.config == discriminative().config
    assert [number for number, _, _ in summary.accuracy] == [0, 1, 2]
    assert summary.accuracy[2][1] == pytest.approx(0.7006)
    assert summary.accuracy[2][2] == pytest.approx(0.001 / np.sqrt(2))


def test_a_cell_without_results_has_a_summary(tmp_path):
    write_cell(tmp_path, CellData.empty(discriminative()))
    assert summarise(tmp_path)[0].accuracy == []
