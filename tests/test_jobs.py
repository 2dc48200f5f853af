"""From an experiment to the units that are missing of it, and its plan as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedande_mpi import jobs
from fedande_mpi.config import Experiment
from fedande_mpi.errors import ConfigError, FedandeError
from fedande_mpi.experiment import run_experiment
from fedande_mpi.jobs import Library, cell_info, make_unit, plan_text, prepare

Keys = dict[str, Any]

SMALL: Keys = {"datasets": ["synthetic:m=90,d=4,o=3,arity=3,seed=2"], "clients": 4, "folds": 3, "repeats": 2}


def experiment(**keys: Any) -> Experiment:
    return Experiment.from_mapping(SMALL, [keys])


def unit(repeat: int = 0, fold: int = 0, **keys: Any) -> Any:
    (cell,) = experiment(**keys).cells()
    return make_unit(cell, Library()(cell), repeat, fold)


# --- units -------------------------------------------------------------------------------------------------


def test_a_unit_holds_out_its_fold_and_deals_the_rest() -> None:
    made, test_fold = unit(1, 2)
    assert (made.repeat, made.fold) == (1, 2)
    assert (made.owner == -1).tolist() == (test_fold == 2).tolist()
    assert np.bincount(made.owner[made.owner >= 0]).tolist() == [15, 15, 15, 15]
    assert sorted(np.bincount(test_fold).tolist()) == [30, 30, 30]


def test_case_12_a_draw_depends_on_what_it_is_for_and_on_nothing_else() -> None:
    (made, folds), (again, _) = unit(), unit()
    assert made.owner.tolist() == again.owner.tolist()
    same_folds = {"clients": 5, "n": 2, "methods": "generative"}
    for key, value in same_folds.items():
        other, other_folds = unit(**{key: value})
        assert other_folds.tolist() == folds.tolist()
        assert (other.owner.tolist() == made.owner.tolist()) == (key != "clients")
    for changed in (unit(repeat=1), unit(seed=2)):
        assert changed[1].tolist() != folds.tolist()
        assert changed[0].owner.tolist() != made.owner.tolist()


def test_numeric_attributes_are_cut_on_the_training_rows_of_the_fold(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    rows = [f"{i / 2},{'no' if i % 3 else 'yes'}" for i in range(30)]
    path.write_text("\n".join(["width,label", *rows]) + "\n")
    codes = []
    for fold in range(3):
        made, _ = unit(fold=fold, datasets=str(path), n=0, bins=3)
        training = made.X[made.owner >= 0, 0]
        assert made.arity.tolist() == [3]
        assert np.ptp(np.bincount(training)) <= 2  # equal frequencies on what is learned from
        codes.append(made.X[:, 0].tolist())
    assert len(set(map(tuple, codes))) > 1


# --- what is missing ---------------------------------------------------------------------------------------


def test_everything_is_missing_of_a_new_directory(tmp_path: Path) -> None:
    (job,) = prepare(experiment(), tmp_path, 1, Library())
    assert job.units == tuple((repeat, fold) for repeat in range(2) for fold in range(3))


def test_only_the_folds_asked_for_are_missing(tmp_path: Path) -> None:
    (job,) = prepare(experiment(only_folds=[2, 0]), tmp_path, 1, Library())
    assert job.units == ((0, 0), (0, 2), (1, 0), (1, 2))


def test_what_is_complete_is_not_missing_unless_it_is_overwritten(tmp_path: Path) -> None:
    run_experiment(experiment(only_folds=1, repeats=1), tmp_path)
    (job,) = prepare(experiment(), tmp_path, 1, Library())
    assert job.units == ((0, 0), (0, 2), (1, 0), (1, 1), (1, 2))
    (job,) = prepare(experiment(), tmp_path, 1, Library(), overwrite=True)
    assert len(job.units) == 6
    (job,) = prepare(experiment(), None, 1, Library())
    assert len(job.units) == 6


def test_a_data_set_is_loaded_once_for_all_cells_that_read_it_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = jobs.load_for

    def counted(cell: Any) -> Any:
        loaded.append(cell.missing)
        return load(cell)

    monkeypatch.setattr(jobs, "load_for", counted)
    grid = {"n": [0, 1], "methods": ["generative", "discriminative"], "clients": [2, 3]}
    library = Library()
    assert len(prepare(experiment(**grid), None, 1, library)) == 8
    assert loaded == ["value"]
    prepare(experiment(missing="ignore"), None, 1, library)
    assert loaded == ["value", "ignore"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"clients": 61}, "at most one client per training row, got 61 clients for 60 training rows"),
        ({"n": 4}, "0 <= n < d, got n = 4 for d = 4"),
        ({"folds": 100}, "at least one row per fold, got 90 rows for 100 folds"),
        ({"datasets": "absent.csv"}, r"absent\.csv"),
    ],
    ids=["clients", "n", "folds", "data"],
)
def test_case_4_what_the_data_are_too_small_for_is_refused_with_the_numbers(keys: Keys, message: str) -> None:
    with pytest.raises(FedandeError, match=message):
        prepare(experiment(**keys), None, 1, Library())


def test_the_last_client_that_fits_is_accepted_and_empty_ones_if_allowed() -> None:
    assert prepare(experiment(clients=60), None, 1, Library())
    assert prepare(experiment(clients=61, allow_empty=True), None, 1, Library())
    with pytest.raises(ConfigError, match="set allow_empty = true"):
        prepare(experiment(clients=61), None, 1, Library())


# --- what a file says --------------------------------------------------------------------------------------


def test_the_scope_of_epsilon_is_said_where_counts_are_noised() -> None:
    found = {}
    for method, epsilon in (("generative", 2.0), ("generative", float("inf")), ("hybrid", 2.0)):
        (cell,) = experiment(methods=method, **{method: {"epsilon": epsilon}}).cells()
        info = cell_info(cell, Library()(cell))
        found[method, epsilon] = (info.epsilon, info.epsilon_scope, info.sensitivity)
    assert found == {
        ("generative", 2.0): (2.0, "counts", "paper"),
        ("generative", float("inf")): (float("inf"), "", ""),
        ("hybrid", 2.0): (2.0, "counts", "paper"),
    }
    (cell,) = experiment().cells()
    assert cell_info(cell, Library()(cell)).epsilon is None


def test_a_name_depends_on_what_changes_a_result_alone() -> None:
    def name(**keys: Any) -> str:
        (cell,) = experiment(**keys).cells()
        return cell_info(cell, Library()(cell)).name

    same: list[Keys] = [{"transport": "reduce"}, {"shards": 2}, {"block_mib": 1.0}, {"repeats": 5}]
    same += [{"only_folds": 1}, {"data_dir": "elsewhere"}, {"name": "other"}, {"allow_empty": True}]
    assert {name(**keys) for keys in same} == {name()}
    changing: list[Keys] = [{"seed": 2}, {"folds": 4}, {"evaluate": "last"}, {"pseudocount": 2.0}]
    changing += [{"save": ["weights"]}, {"optimizer": "scipy"}, {"discriminative": {"rounds": 3}}]
    assert len({name(), *(name(**keys) for keys in changing)}) == 1 + len(changing)


# --- the plan ----------------------------------------------------------------------------------------------


def test_a_plan_names_every_cell_its_size_and_the_total() -> None:
    text = plan_text(experiment(n=[0, 1], methods=["generative", "hybrid"], scopes=["federated", "local"]), 3)
    lines = text.splitlines()
    assert lines[0].split("  ")[0] == "cell"
    assert sum("C=4" in line for line in lines) == 6
    (row,) = [line for line in lines if " A1DE-w hybrid federated C=4" in line]
    units, sets, weights, traffic, grid, *_ = row.split("C=4")[1].split()
    assert (units, sets, grid) == ("6", "4", "2x1")
    assert weights == str(4 * (1 + 3 + 3 * 9) * 3)
    assert float(traffic) == pytest.approx(2 * 4 * 93 * 8 * 4 / 2**20, abs=0.05)
    assert "6 cells, 36 units (folds), about " in text
    assert "3 ranks: about " in text
    assert "skipped: hybrid local skipped" in text
