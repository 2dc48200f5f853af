"""Two selections compared, several models ranked, and the scores they are read from."""

from __future__ import annotations

import csv
import io
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedande_mpi.cli import main
from fedande_mpi.comparison import ALL, compare
from fedande_mpi.errors import ResultsError
from fedande_mpi.results import write_cell
from fedande_mpi.selection import common_units, read_scores
from tests.result_files import filled, info

DATASETS = ("alpha", "beta", "delta", "gamma")


def put(directory, dataset, n, method, scope="federated", clients=3, epsilon=None, shift=0.0, **settings):
    """Write a cell whose accuracies have a mean of their own; with its name."""
    model = ("NB" if n == 0 else f"A{n}DE") + ("-w" if method == "discriminative" else "")
    name = "_".join(map(str, (dataset, model, scope, clients, epsilon, *settings.values())))
    toml = f'seed = {settings.get("seed", 1)}\nn = [{n}]\nmethods = ["{method}"]\nscopes = ["{scope}"]\n'
    toml += f"clients = [{clients}]\n[{method}]\n"
    toml += "".join(f"{key} = {value}\n" for key, value in settings.items() if key != "seed")
    if method == "generative":
        epsilon = math.inf if epsilon is None else epsilon
        toml += f"epsilon = {epsilon}\n"
    cell = filled(
        info(
            name=name,
            dataset=dataset,
            dataset_sha256=dataset.ljust(64, "0"),
            model=model,
            n=n,
            method=method,
            scope=scope,
            n_clients=clients,
            epsilon=epsilon,
            config=toml,
            config_sha256=name.ljust(64, "0"),
        )
    )
    rng = np.random.default_rng(list(name.encode()))
    accuracy = cell.arrays["/test/accuracy"]
    accuracy[:] = (0.7 + shift + 0.02 * rng.normal(size=accuracy.shape[:3]))[..., None]
    cell.arrays["/test/brier"][:] = 1 - accuracy
    write_cell(directory, cell)
    return cell


@pytest.fixture
def results(tmp_path):
    """Both methods, n = 0 and 1, C = 3 and 5, on four data sets; a centralised model beside them."""
    for dataset, n in itertools.product(DATASETS, (0, 1)):
        for clients in (3, 5):
            put(tmp_path, dataset, n, "discriminative", clients=clients, shift=0.1 + 0.1 * n)
            put(tmp_path, dataset, n, "generative", clients=clients, epsilon=1.0)
        put(tmp_path, dataset, n, "discriminative", scope="centralised", clients=1, shift=0.3)
    return tmp_path


def rows(table, **keys):
    return [row for row in table.rows if all(row[key] == value for key, value in keys.items())]


# --- two selections ----------------------------------------------------------------------------------------


def test_a_pair_is_tested_over_repeats_and_folds_with_the_correction(tmp_path):
    a = put(tmp_path, "alpha", 1, "discriminative", shift=0.1)
    b = put(tmp_path, "alpha", 1, "generative")
    (row,) = compare(f"{tmp_path}:method=discriminative", f"{tmp_path}:method=generative").rows
    x, y = (cell.arrays["/test/accuracy"][:, :, -1].mean(axis=-1).ravel() for cell in (a, b))
    d = x - y
    error = np.sqrt((1 / 6 + 1 / 2) * d.var(ddof=1))  # 2 repeats of 3 folds
    assert (row["dataset"], row["data_sets"], row["units"]) == ("alpha", 1, 6)
    assert [row["a"], row["b"], row["difference"]] == pytest.approx([x.mean(), y.mean(), d.mean()], abs=1e-6)
    assert row["high"] - row["difference"] == pytest.approx(stats.t.ppf(0.975, 5) * error, abs=2e-6)
    assert row["p"] == pytest.approx(2 * stats.t.sf(d.mean() / error, 5), rel=1e-3)
    assert row["p_holm"] == row["p"]


def test_pairs_agree_in_every_other_key(results):
    table = compare(f"{results}:method=discriminative,scope=federated", f"{results}:method=generative")
    assert table.columns[:3] == ("dataset", "n", "clients")
    single = [row for row in table.rows if row["dataset"] != ALL]
    found = [(row["dataset"], row["n"], row["clients"]) for row in single]
    assert found == list(itertools.product(DATASETS, (0, 1), (3, 5)))


def test_over_data_sets_there_is_one_row_for_each_setting(results):
    table = compare(f"{results}:method=discriminative,scope=federated", f"{results}:method=generative")
    found = rows(table, dataset=ALL)
    assert [(row["n"], row["clients"]) for row in found] == list(itertools.product((0, 1), (3, 5)))
    for row in found:
        singles = [each for each in rows(table, n=row["n"], clients=row["clients"]) if each is not row]
        assert row["data_sets"] == 4
        assert row["difference"] == pytest.approx(np.mean([each["difference"] for each in singles]), abs=1e-6)
        assert row["p"] == 2 * 2**-4  # all of one sign
        assert row["p_holm"] == 4 * row["p"]


def test_two_data_sets_are_too_few_for_a_row_over_them(tmp_path):
    for dataset, method in itertools.product(DATASETS[:2], ("discriminative", "generative")):
        put(tmp_path, dataset, 1, method)
    table = compare(f"{tmp_path}:method=discriminative", f"{tmp_path}:method=generative")
    assert [row["dataset"] for row in table.rows] == ["alpha", "beta"]


def test_a_centralised_model_pairs_with_every_number_of_clients(results):
    table = compare(
        f"{results}:method=discriminative,scope=federated,n=1", f"{results}:scope=centralised,n=1"
    )
    assert [row["clients"] for row in rows(table, dataset="alpha")] == [3, 5]


def test_two_directories_may_differ_in_a_setting(tmp_path):
    put(tmp_path / "a", "alpha", 1, "generative", epsilon=1.0)
    put(tmp_path / "b", "alpha", 1, "generative", epsilon=math.inf)
    (row,) = compare(tmp_path / "a", tmp_path / "b").rows
    assert row["units"] == 6


def test_two_selections_that_do_not_differ_are_refused(results):
    with pytest.raises(ResultsError, match="differ in a key on which each of them agrees"):
        compare(results, results)


def test_a_cell_with_several_partners_is_refused_with_what_tells_them_apart(tmp_path):
    for epsilon in (0.5, 1.0):
        put(tmp_path, "alpha", 1, "generative", epsilon=epsilon)
    for steps in (2, 5):
        put(tmp_path, "alpha", 1, "discriminative", local_steps=steps)
    with pytest.raises(
        ResultsError, match=r"expected one partner for .*, found 2 that differ in local_steps; select"
    ):
        compare(f"{tmp_path}:method=generative", f"{tmp_path}:method=discriminative")


def test_selections_without_pairs_say_what_else_differs(tmp_path):
    put(tmp_path, "alpha", 1, "generative")
    put(tmp_path, "beta", 0, "discriminative")
    put(tmp_path, "beta", 1, "discriminative", clients=5)
    put(tmp_path, "gamma", 1, "generative")
    with pytest.raises(
        ResultsError, match="differ in clients, method only, found none; they also differ in dataset"
    ):
        compare(f"{tmp_path}:method=generative", f"{tmp_path}:dataset=beta,C=5")


def test_scores_on_other_folds_make_no_pairs(tmp_path):
    put(tmp_path, "alpha", 1, "generative")
    cell = put(tmp_path, "alpha", 1, "discriminative", seed=2)
    cell.arrays["/folds/test_fold"][1] = np.roll(cell.arrays["/folds/test_fold"][1], 1)
    write_cell(tmp_path, cell)
    with pytest.raises(ResultsError, match=r"expected the same folds of the same rows, got others .*seed"):
        compare(f"{tmp_path}:method=generative", f"{tmp_path}:method=discriminative")


def test_the_command_prints_it(results, capsys):
    selections = [f"{results}:method=discriminative,scope=federated", f"{results}:method=generative"]
    assert main(["compare", *selections, "--metric", "brier", "--format", "csv"]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(found) == 4 * 4 + 4
    assert all(float(row["difference"]) < 0 for row in found)
    assert main(["compare", str(results), "--metric", "brier", "--format", "md"]) == 0
    assert "critical_difference" in capsys.readouterr().out


# --- several models ----------------------------------------------------------------------------------------


def test_the_models_of_one_selection_are_ranked_for_each_number_of_clients(results):
    table = compare(f"{results}:scope=federated")
    assert (
        table.columns[:4] == ("clients", "model", "epsilon", "data_sets") or table.columns[2] == "data_sets"
    )
    found = rows(table, clients=5)
    assert [row["model"] for row in found[:2]] == ["A1DE-w", "NB-w"]
    assert (found[0]["rank"], found[0]["data_sets"], found[0]["behind"]) == (1, 4, False)
    q = stats.studentized_range.ppf(0.95, 4, np.inf)
    assert found[0]["critical_difference"] == pytest.approx(q * math.sqrt(4 * 5 / (12 * 4)), abs=1e-5)
    for row in found:
        assert row["behind"] == (row["rank"] - 1 > row["critical_difference"])
    assert found[0]["p_holm"] >= found[0]["p"] > 0


def test_low_brier_scores_rank_first(results):
    table = compare(f"{results}:scope=federated,C=3", metric="brier")
    assert table.rows[0]["model"] == "A1DE-w"


def test_centralised_models_take_part_at_every_number_of_clients(results):
    table = compare(f"{results}:method=discriminative")
    for clients in (3, 5):
        assert len(rows(table, clients=clients, scope="centralised")) == 2


def test_data_sets_without_one_of_the_models_are_left_out(results):
    put(results, "omega", 1, "discriminative")
    assert {row["data_sets"] for row in compare(f"{results}:scope=federated").rows} == {4}


def test_two_models_are_not_ranked(results):
    with pytest.raises(ResultsError, match="expected three models with results on the same three data sets"):
        compare(f"{results}:scope=federated,n=1")


# --- scores ------------------------------------------------------------------------------------------------


def test_conditions_select_cells(results):
    def models(conditions):
        return sorted({(s.keys["dataset"], s.keys["model"]) for s in read_scores(f"{results}:{conditions}")})

    assert models("dataset=al*,epsilon=1.0") == [("alpha", "A1DE"), ("alpha", "NB")]
    assert models("model=NB-w,dataset=beta,dataset=gamma") == [("beta", "NB-w"), ("gamma", "NB-w")]
    assert len(read_scores([f"{results}:n=0", f"{results}:n=0,n=1", results])) == len(read_scores(results))
    with pytest.raises(ResultsError, match="expected cells with these keys, found none among 40"):
        read_scores(f"{results}:n=7")
    with pytest.raises(ResultsError, match="got 'metod'; did you mean 'method'"):
        read_scores(f"{results}:metod=generative")


def test_a_score_is_the_mean_over_clients_at_the_last_evaluated_round(tmp_path):
    cell = filled(info())
    cell.arrays["/test/accuracy"][0, 1, 2] = np.nan
    write_cell(tmp_path, cell)
    (scores,) = read_scores(tmp_path)
    # accuracy = .5 + round/10 + repeat/100 + fold/1000 + client/10000, by tests/result_files.py
    assert scores.values[1, 2] == pytest.approx(0.7 + 0.01 + 0.002 + 0.0001)
    assert scores.values[0, 1] == pytest.approx(0.6 + 0.001 + 0.0001)


def test_only_units_that_both_have_are_paired(tmp_path):
    write_cell(tmp_path, filled(info(name="a", config_sha256="a" * 64), [(0, 0), (0, 1), (1, 2)]))
    write_cell(tmp_path, filled(info(name="b", config_sha256="b" * 64), [(0, 1), (1, 1), (1, 2)]))
    assert common_units(read_scores(tmp_path)).shape == (2, 2)
