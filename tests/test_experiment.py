"""Experiments in one process: files, resuming, and the same bytes whatever came between."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fedande_mpi import (
    Experiment,
    count_tables,
    load_dataset,
    log_theta,
    predict_proba,
    run_experiment,
)
from fedande_mpi.cell import model_name
from fedande_mpi.errors import ConfigError, FedandeError, Interrupted, ResultsError
from fedande_mpi.progress import Silent
from fedande_mpi.reporting import table_rows
from fedande_mpi.sidecar import read_sidecar, unpack_weights
from fedande_mpi.validation import validate
from tests.mpi.launch import all_results, assert_same_bytes, results

Keys = dict[str, Any]

SMALL: Keys = {
    "datasets": ["synthetic:m=90,d=4,o=3,arity=3,seed=2"],
    "clients": [4],
    "folds": 3,
    "repeats": 1,
    "discriminative": {"rounds": 2},
    "hybrid": {"rounds": 2, "epsilon": 1.0},
}


def experiment(**keys: Any) -> Experiment:
    """Return the small experiment with keys put over; sections are merged."""
    return Experiment.from_mapping(SMALL, [keys])


def run(directory: Path, **keys: Any) -> list[Path]:
    return run_experiment(experiment(**keys), directory)


def cells(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.glob("*.h5")) if ".r0.f" not in path.name]


# --- what is written ---------------------------------------------------------------------------------------

EVERYTHING: Keys = {
    "n": [0, 1, 2],
    "methods": ["generative", "discriminative", "hybrid"],
    "scopes": ["federated", "local", "centralised"],
    "max_iterations": 30,
    "save": ["weights", "predictions"],
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("everything")
    assert sorted(run(directory, **EVERYTHING)) == cells(directory)
    return directory


def test_the_whole_table_of_methods_and_scopes_gives_valid_files(everything: Path) -> None:
    assert len(cells(everything)) == 3 * 7
    assert [problem for path in cells(everything) for problem in validate(path)] == []


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    (path,) = run(tmp_path, n=1)
    assert path.name.startswith("synthetic-m90-d4-o3-arity3-seed2-")
    assert "_A1DE-w_federated_C4_" in path.name
    with h5py.File(path) as file:
        assert file.attrs["n_clients"] == 4
        assert file["round"][...].tolist() == [0, 1, 2]
        assert file["test/accuracy"].shape == (1, 3, 3, 4)
        assert np.isfinite(file["test/accuracy"][...]).all()
        assert np.isnan(file["train/objective"][:, :, 0]).all()
        assert (file["train/objective"][:, :, 1:] > 0).all()
        assert (file["train/iterations"][:, :, 1:] <= 4 * 5).all()  # four parent sets, five steps
        assert file["complete"][...].tolist() == [[1, 1, 1]]
        assert file["provenance/mpi_size"][...].tolist() == [[1, 1, 1]]
        assert np.isnan(file["timing/server_cpu"][...]).all()  # it hosted the clients as well
        assert (file["timing/unit"][...] > 0).all()


def test_case_24_bytes_are_numbers_times_8_times_participants(tmp_path: Path) -> None:
    paths = run(tmp_path, n=1, methods=["discriminative", "generative"])
    per_set = (1 + 3 + 3 * 9) * 3  # prior, parents, three children; three classes
    for path in paths:
        with h5py.File(path) as file:
            up, down = file["communication/bytes_up"][0, 0], file["communication/bytes_down"][0, 0]
            if file.attrs["method"] == "discriminative":
                assert up.tolist() == down.tolist() == [0, *[4 * per_set * 8 * 4] * 2]
            else:  # the class counts travel once
                assert up.tolist() == down.tolist() == [(4 * (per_set - 3) + 3) * 8 * 4]


def test_evaluate_last_scores_the_last_round_only_and_alike(tmp_path: Path) -> None:
    (every,) = run(tmp_path / "all")
    (last,) = run(tmp_path / "last", evaluate="last")
    for name in ("accuracy", "cll", "brier", "macro_f1"):
        with h5py.File(every) as one, h5py.File(last) as other:
            assert np.isnan(other[f"test/{name}"][:, :, :-1]).all()
            assert np.array_equal(one[f"test/{name}"][:, :, -1], other[f"test/{name}"][:, :, -1])


def test_exact_generative_models_are_equal_for_every_c_to_the_bit(tmp_path: Path) -> None:
    paths = run(
        tmp_path, n=2, methods="generative", scopes=["federated", "centralised"], clients=[1, 3, 7, 30]
    )
    scores = set()
    for path in paths:
        with h5py.File(path) as file:
            metrics = np.stack(
                [file[f"test/{name}"][...] for name in ("accuracy", "cll", "brier", "macro_f1")]
            )
        assert (metrics == metrics[..., :1]).all()
        scores.add(metrics[..., 0].tobytes())
    assert len(paths) == 5
    assert len(scores) == 1


def test_pairs_that_do_not_exist_are_noted(tmp_path: Path) -> None:
    notes: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    keys: Keys = {"methods": ["hybrid", "generative"], "scopes": ["local", "federated"], "only_folds": 0}
    run_experiment(experiment(**keys), tmp_path, progress=lambda total: Notes())
    assert notes == ["hybrid local skipped: hybrid exists only in the federated scope"]
    run_experiment(experiment(**keys), tmp_path, progress=lambda total: Notes())
    assert sum(note.endswith(": complete") for note in notes) == 3


def test_progress_adds_up_to_the_total(tmp_path: Path) -> None:
    given: list[float] = []
    units: list[str] = []

    class Sum(Silent):
        def advance(self, amount: float) -> None:
            given.append(amount)

        def unit(self, description: str) -> None:
            units.append(description)

    def progress(total: float) -> Sum:
        given.append(-total)
        return Sum()

    keys: Keys = {"methods": ["generative", "discriminative"], "n": [0, 1]}
    run_experiment(experiment(**keys), tmp_path, progress=progress)
    assert given[0] < 0 <= min(given[1:])
    assert sum(given) == pytest.approx(0.0, abs=-1e-9 * given[0])
    assert len(units) == 4 * 3
    assert units[-1].endswith("A1DE-w discriminative federated C=4 repeat 0 fold 2")


# --- determinism -------------------------------------------------------------------------------------------


def test_case_11_disturbed_global_generators_change_nothing(tmp_path: Path) -> None:
    keys: Keys = {"methods": ["generative", "discriminative"], "generative": {"epsilon": 1.0}}
    run(tmp_path / "one", **keys)
    state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        random.seed(99)
        np.random.seed(99)  # noqa: NPY002
        run(tmp_path / "other", **keys)
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])  # noqa: NPY002
    assert_same_bytes(tmp_path / "one", tmp_path / "other")


def test_case_12_another_seed_has_other_folds_owners_and_noise(tmp_path: Path) -> None:
    keys: Keys = {"methods": "generative", "generative": {"epsilon": 1e-3}}
    (one,) = run(tmp_path / "0", seed=0, **keys)
    (other,) = run(tmp_path / "1", seed=1, **keys)
    before, after = results(one), results(other)
    assert one.name != other.name
    for path in ("folds/test_fold", "folds/owner", "test/cll"):
        assert before[path] != after[path]


def test_case_12_the_same_seed_is_the_same_whatever_else_is_switched_on(tmp_path: Path) -> None:
    keys: Keys = {"methods": "generative", "generative": {"epsilon": 1.0}}
    (one,) = run(tmp_path / "one", **keys)
    more: Keys = {"methods": ["generative", "discriminative", "hybrid"], "n": [0, 1], "clients": [2, 4]}
    run(tmp_path / "more", generative={"epsilon": [1.0, 2.0]}, **more)
    assert results(tmp_path / "more" / one.name) == results(one)
    (saved,) = run(tmp_path / "saved", save=["predictions"], **keys)
    assert results(saved) == results(one)


@pytest.mark.parametrize(
    "keys", [{"transport": "reduce", "shards": 1}, {"block_mib": 1e-6}], ids=["reduce", "blocks"]
)
def test_transport_blocks_and_shards_change_no_byte_and_no_name(
    tmp_path: Path, everything: Path, keys: Keys
) -> None:
    run(tmp_path, **EVERYTHING, **keys)
    assert_same_bytes(everything, tmp_path)


# --- resuming ----------------------------------------------------------------------------------------------


def test_more_repeats_extend_the_file_to_what_they_give_at_once(tmp_path: Path) -> None:
    (path,) = run(tmp_path / "grown")
    before = results(path)
    (grown,) = run(tmp_path / "grown", repeats=3)
    assert grown == path
    after = results(path)
    assert after["test/accuracy"][2][: len(before["test/accuracy"][2])] == before["test/accuracy"][2]
    run(tmp_path / "once", repeats=3)
    assert_same_bytes(tmp_path / "once", tmp_path / "grown")


def test_some_folds_and_then_all_give_what_all_give_at_once(tmp_path: Path) -> None:
    for folds in (1, [0, 1]):
        (path,) = run(tmp_path / "parts", only_folds=folds, save=["weights"])
        with h5py.File(path) as file:
            expected = [folds] if isinstance(folds, int) else folds
            assert np.flatnonzero(file["complete"][0]).tolist() == expected
    run(tmp_path / "parts", save=["weights"])
    run(tmp_path / "once", save=["weights"])
    assert_same_bytes(tmp_path / "once", tmp_path / "parts")


def stopped(directory: Path, keys: Keys, looks: int) -> bool:
    """Run until the program has looked for a signal so often; say whether that was before its end."""
    counter = itertools.count()

    def poll() -> None:
        if next(counter) == looks:
            raise Interrupted("stopped by SIGTERM")

    try:
        run_experiment(experiment(**keys), directory, poll=poll)
    except Interrupted:
        return True
    return False


@pytest.mark.parametrize("after", [1, 7, 20, 41, 60])
def test_case_20_interrupted_at_any_time_and_continued_gives_the_same_bytes(
    tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedande_mpi.programs._POLL_SECONDS", 0.0)  # a look at every step
    keys: Keys = {"methods": ["generative", "discriminative"], "n": [0, 1], "save": ["predictions"]}
    run(tmp_path / "whole", **keys)
    interruptions = 0
    while stopped(tmp_path / "parts", keys, after * (1 + interruptions)):
        interruptions += 1
        for path in cells(tmp_path / "parts"):
            assert validate(path) == []
    assert interruptions
    assert_same_bytes(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("method", ["generative", "hybrid"])
def test_case_23_configurations_that_differ_in_epsilon_alone_have_files_of_their_own(
    tmp_path: Path, method: str
) -> None:
    (one,) = run(tmp_path, methods=method, **{method: {"epsilon": 1.0}})
    before = one.read_bytes()
    (other,) = run(tmp_path, methods=method, **{method: {"epsilon": 2.0}})
    (exact,) = run(tmp_path, methods=method, **{method: {"epsilon": float("inf")}})
    assert len({one, other, exact}) == len(cells(tmp_path)) == 3
    assert one.read_bytes() == before
    assert [row["epsilon"] for row in table_rows(tmp_path)] == [1.0, 2.0, float("inf")]


def test_case_23_a_complete_file_is_left_alone(tmp_path: Path) -> None:
    (path,) = run(tmp_path)
    stamp, content = path.stat(), path.read_bytes()
    for keys in ({}, {"transport": "reduce", "block_mib": 1.0, "only_folds": 1}):
        run(tmp_path, **keys)
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)
    assert path.read_bytes() == content


def test_case_23_overwrite_computes_a_complete_file_again(tmp_path: Path) -> None:
    (path,) = run(tmp_path)
    before, inode = results(path), path.stat().st_ino
    with h5py.File(path, "r+") as file:
        file["test/accuracy"][...] = 0.0
    assert results(path) != before
    run_experiment(experiment(), tmp_path, overwrite=True)
    assert results(path) == before
    assert path.stat().st_ino != inode


def test_case_23_overwrite_keeps_the_folds_it_was_not_asked_for(tmp_path: Path) -> None:
    (path,) = run(tmp_path)
    before = results(path)
    run_experiment(experiment(only_folds=0), tmp_path, overwrite=True)
    assert results(path) == before


def test_what_cannot_be_released_is_refused_before_any_cell(tmp_path: Path) -> None:
    data = tmp_path / "gaps.csv"
    rows = [f"{'ab'[i % 2]},{'xyz?'[i % 4]},{'no' if i % 3 else 'yes'}" for i in range(40)]
    data.write_text("\n".join(["one,two,label", *rows]) + "\n")
    keys: Keys = {"missing": "ignore", "methods": "generative", "datasets": ["tic-tac-toe", str(data)]}
    with pytest.raises(ConfigError, match="marginals of joint tables"):
        run(tmp_path / "results", **keys, generative={"epsilon": 1.0, "sensitivity": "joint"})
    assert cells(tmp_path / "results") == []


def test_a_data_set_that_changed_under_its_name_has_another_file(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    rows = [f"{'ab'[i % 2]},{'xyz'[i % 3]},{'no' if i % 4 else 'yes'}" for i in range(40)]
    data.write_text("\n".join(["one,two,label", *rows]) + "\n")
    (one,) = run(tmp_path / "results", datasets=str(data))
    data.write_text("\n".join(["one,two,label", *rows, "a,x,yes"]) + "\n")
    (other,) = run(tmp_path / "results", datasets=str(data))
    assert one != other
    assert len(cells(tmp_path / "results")) == 2


def test_a_file_of_another_experiment_under_the_same_name_is_refused(tmp_path: Path) -> None:
    (path,) = run(tmp_path, seed=1)
    (other,) = run(tmp_path, seed=2)
    path.replace(other)
    before = other.read_bytes()
    with pytest.raises(ResultsError, match=r"differs in seed.*--overwrite"):
        run(tmp_path, seed=2)
    assert other.read_bytes() == before


# --- refused before any work -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"clients": [2, 61]}, "61 clients for 60 training rows"),
        ({"n": [0, 4]}, "n = 4 for d = 4"),
        ({"folds": 91}, "90 rows for 91 folds"),
        ({"datasets": ["tic-tac-toe", "no-such-data"]}, "no-such-data"),
    ],
    ids=["clients", "n", "folds", "data"],
)
def test_what_cannot_run_is_refused_before_anything_is_computed(
    tmp_path: Path, keys: Keys, message: str
) -> None:
    with pytest.raises(FedandeError, match=message):
        run(tmp_path, **keys)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_beyond_the_memory_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedande_mpi.experiment.available_memory", lambda: 2**20)
    with pytest.raises(ConfigError, match="within 1 MiB of free memory"):
        run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_case_4_more_clients_than_rows_run_when_allowed(tmp_path: Path) -> None:
    (path,) = run(tmp_path, clients=70, allow_empty=True)
    with h5py.File(path) as file:
        owner = file["folds/owner"][0, 0]
        assert len(set(owner[owner >= 0].tolist())) == 60
        assert np.isfinite(file["test/cll"][...]).all()
        numbers = 4 * (1 + 3 + 3 * 9) * 3
        assert file["communication/bytes_up"][0, 0, 1] == numbers * 8 * 60  # ten send nothing


def test_a_class_without_training_rows_is_allowed(tmp_path: Path) -> None:
    data = tmp_path / "rare.csv"
    rows = [f"{'ab'[i % 2]},{'xyz'[i % 3]},{'no' if i % 4 else 'yes'}" for i in range(30)]
    data.write_text("\n".join(["one,two,label", *rows, "b,z,once"]) + "\n")
    paths = run(tmp_path / "r", datasets=str(data), methods=["generative", "discriminative", "hybrid"])
    for path in paths:
        assert validate(path) == []
        with h5py.File(path) as file:
            assert np.isfinite(file["test/cll"][...]).all()


def test_numeric_attributes_are_cut_on_each_folds_training_rows(tmp_path: Path) -> None:
    data = tmp_path / "numbers.csv"
    rows = [f"{i * i % 37 / 4},{'xyz'[i % 3]},{'no' if i * i % 37 > 18 else 'yes'}" for i in range(60)]
    data.write_text("\n".join(["width,kind,label", *rows]) + "\n")
    (path,) = run(tmp_path / "r", datasets=str(data), bins=4)
    assert table_rows(path)[0]["accuracy"] > 0.8


# --- what is saved beside ----------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["parameter", "attribute"])
@pytest.mark.parametrize("missing", [False, True])
def test_saved_weights_reproduce_the_saved_predictions_through_public_functions(
    tmp_path: Path, granularity: str, missing: bool
) -> None:
    data = tmp_path / "data.csv"
    rows = [[f"a{i % 3}", f"b{i * i % 4}", f"c{i // 4 % 2}", "no" if i * i % 5 else "yes"] for i in range(60)]
    if missing:
        rows[5][1] = rows[20][2] = rows[41][0] = "?"
    data.write_text("\n".join(["a,b,c,label", *map(",".join, rows)]) + "\n")
    solver = {"granularity": granularity}
    paths = run(
        tmp_path / "r",
        datasets=str(data),
        n=[0, 1, 2],
        methods=["discriminative", "hybrid"],
        scopes=["federated", "local", "centralised"],
        clients=3,
        max_iterations=30,
        only_folds=1,
        save=["weights", "predictions"],
        discriminative=solver,
        hybrid=solver | {"epsilon": float("inf")},
    )
    dataset = load_dataset(str(data))
    assert len(paths) == 3 * 4
    for path in paths:
        with h5py.File(path) as file:
            owner = file["folds/owner"][0, 1]
            hybrid = file.attrs["method"] == "hybrid"
            n = int(file.attrs["n"])
            assert file.attrs["model"] == model_name(n, "discriminative")
            accuracy = file["test/accuracy"][0, 1, -1]
        weights, predictions = read_sidecar(path.with_suffix(".r0.f1.h5"))
        assert weights is not None
        assert predictions is not None
        assert weights.arity.tolist() == dataset.arity.tolist()
        assert predictions.row.tolist() == np.flatnonzero(owner < 0).tolist()
        assert predictions.label.tolist() == dataset.y[owner < 0].tolist()
        X = dataset.X[predictions.row]
        for client in range(predictions.posterior.shape[0]):
            mine = owner >= 0 if hybrid else owner == client
            shares = []
            for at, parents in enumerate(weights.parent_sets):
                block = slice(weights.offsets[at], weights.offsets[at + 1])
                w = weights.values[min(client, len(weights.values) - 1), block]
                counts = count_tables(dataset.X[mine], dataset.y[mine], parents, dataset.arity, 2)
                theta = log_theta(counts, parents, dataset.arity)
                shares.append(predict_proba(X, parents, dataset.arity, w, theta))
                tables = unpack_weights(w, parents, dataset.arity, 2)
                if granularity == "attribute":  # stored for every parameter, equal within a table
                    child = next(tables[name] for name in tables if name.startswith("child"))
                    assert (child == child[:, :, :1]).all()
            posterior = np.mean(shares, axis=0)
            assert posterior == pytest.approx(predictions.posterior[client], abs=1e-12)
            assert (posterior.argmax(axis=1) == predictions.label).mean() == pytest.approx(accuracy[client])


def test_a_cell_opens_its_sidecars_through_links(tmp_path: Path) -> None:
    (path,) = run(tmp_path, save=["predictions"])
    with h5py.File(path) as file:
        for fold in range(3):
            posterior = file[f"saved/r0_f{fold}/predictions/posterior"]
            assert posterior.shape == (4, 30, 3)
            assert np.allclose(posterior[...].sum(axis=2), 1.0)


# --- at full size ------------------------------------------------------------------------------------------

TWELVE = {
    "house-votes-84": (435, 16, 2),
    "soybean": (683, 35, 19),
    "tic-tac-toe": (958, 9, 2),
    "flare": (1066, 11, 6),
    "car": (1728, 6, 4),
    "splice": (3190, 60, 3),
    "kr-vs-kp": (3196, 36, 2),
    "mushroom": (8124, 22, 2),
    "phishing-websites": (11055, 30, 2),
    "nursery": (12960, 8, 5),
    "kr-vs-k": (28056, 6, 18),
    "connect-4": (67557, 42, 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWELVE)
def test_one_fold_of_a1de_w_runs_on_each_of_the_twelve(tmp_path: Path, shared_data: Path, name: str) -> None:
    keys: Keys = {"datasets": [name], "data_dir": str(shared_data), "clients": 5, "evaluate": "last"}
    keys |= {"repeats": 1, "only_folds": 0}
    dataset = load_dataset(name, data_dir=str(shared_data))
    assert (dataset.n_instances, dataset.n_attributes, dataset.n_classes) == TWELVE[name]
    (path,) = run_experiment(Experiment.from_mapping(keys), tmp_path)
    assert validate(path) == []
    (row,) = table_rows(path)
    majority = np.bincount(dataset.y).max() / dataset.n_instances
    assert row["accuracy"] > majority - 0.02
    assert row["cll"] < 0


def accuracy(tmp_path: Path, seeds: range, **keys: Any) -> dict[tuple[str, int], float]:
    """Return the mean accuracy of each model and number of clients over seeds."""
    found: dict[tuple[str, int], list[float]] = {}
    for seed in seeds:
        given = Experiment.from_mapping({"repeats": 1, "evaluate": "last", "seed": seed} | keys)
        run_experiment(given, tmp_path / str(seed))
        for row in table_rows(tmp_path / str(seed)):
            found.setdefault((row["model"], row["clients"]), []).append(row["accuracy"])
    return {key: float(np.mean(values)) for key, values in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "clients", "expected", "tolerance"),
    [
        ("tic-tac-toe", 5, (0.973, 0.933, 0.898), 0.015),
        ("tic-tac-toe", 20, (0.872, 0.824, 0.850), 0.015),
        ("car", 20, (0.885, 0.906, 0.920), 0.008),
        ("nursery", 5, (None, 0.96, None), 0.01),
    ],
)
def test_accuracies_are_those_of_the_prototype(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    name: str,
    clients: int,
    expected: tuple[float | None, ...],
    tolerance: float,
) -> None:
    keys: Keys = {"datasets": name, "clients": clients}
    keys["n"] = [n for n, value in enumerate(expected) if value is not None]
    if name != "tic-tac-toe":
        keys["data_dir"] = str(request.getfixturevalue("shared_data"))
    found = accuracy(tmp_path, range(3), **keys)
    for n, value in enumerate(expected):
        if value is not None:
            assert found[model_name(n, "discriminative"), clients] == pytest.approx(value, abs=tolerance)


def test_the_helpers_see_a_difference(tmp_path: Path) -> None:
    (one,) = run(tmp_path / "one", only_folds=0)
    (other,) = run(tmp_path / "other", only_folds=0)
    assert_same_bytes(tmp_path / "one", tmp_path / "other")
    change: Callable[[Any], Any] = lambda values: np.nextafter(values, 2.0)  # noqa: E731
    with h5py.File(other, "r+") as file:
        file["test/accuracy"][0, 0, 0] = change(file["test/accuracy"][0, 0, 0])
    with pytest.raises(AssertionError, match="differs in"):
        assert_same_bytes(tmp_path / "one", tmp_path / "other")
    other.unlink()
    with pytest.raises(AssertionError):
        assert_same_bytes(tmp_path / "one", tmp_path / "other")
    assert all_results(tmp_path / "other") == {}
    assert results(one)
