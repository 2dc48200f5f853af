"""Configuration: reading, refusing, the grid of cells, and what identifies a cell's result."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedande_mpi.cell import Common
from fedande_mpi.config import (
    Cell,
    Discriminative,
    Experiment,
    Generative,
    Hybrid,
    config_reference,
    load_experiment,
    parse_override,
)
from fedande_mpi.errors import ConfigError
from fedande_mpi.keys import keys, never

SHA = "0" * 64


def experiment(**given_keys: Any) -> Experiment:
    return Experiment.from_mapping({"datasets": "car"} | given_keys)


def one_cell(**given_keys: Any) -> Cell:
    (cell,) = experiment(**given_keys).cells()
    return cell


def refusal(**given_keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        experiment(**given_keys)
    message = str(caught.value)
    assert "\n" not in message
    return message


def summaries(cells: tuple[Cell, ...]) -> list[tuple[str, int, str, str, int]]:
    return [(cell.dataset, cell.n, cell.method, cell.scope, cell.clients) for cell in cells]


# ---------------------------------------------------------------------------------------------- values


def test_the_defaults_are_those_of_the_design() -> None:
    cell = one_cell()
    assert (cell.folds, cell.repeats, cell.seed, cell.smoothing, cell.pseudocount) == (
        5,
        5,
        1,
        "laplace",
        1.0,
    )
    assert (cell.missing, cell.combine, cell.evaluate, cell.save) == ("value", "mean", "all", ())
    assert (cell.optimizer, cell.max_iterations, cell.block_mib) == ("compiled", 15_000, 64.0)
    assert (cell.target, cell.data_dir, cell.bins, cell.only_folds, cell.shards) == (None,) * 5
    assert (cell.transport, cell.allow_empty, cell.nominal) == ("gather", False, ())
    assert Discriminative() == Discriminative(
        rounds=10, local_steps=5, initial_weight=0.0, granularity="parameter", l2=0.0, aggregation="mean"
    )
    assert Generative() == Generative(epsilon=math.inf, mechanism="discrete-laplace", sensitivity="paper")
    assert Hybrid().initial_weight == 1.0


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("datasets", [], "a line of text"),
        ("datasets", "", "a line of text"),
        ("datasets", "a\nb", "a line of text"),
        ("datasets", ["car", 4], "a line of text"),
        ("datasets", "\udc80", "a line of text"),
        ("name", "a/b", "a name without '/'"),
        ("name", "..", "a name without '/'"),
        ("n", -1, "an integer of at least 0"),
        ("n", True, "an integer of at least 0"),
        ("n", [0, 1.0], "an integer of at least 0"),
        ("n", [], "an integer of at least 0"),
        ("methods", "federated", '"generative" or "discriminative" or "hybrid"'),
        ("scopes", "centralized", '"federated" or "local" or "centralised"'),
        ("clients", 0, "an integer of at least 1"),
        ("clients", "5", "an integer of at least 1"),
        ("folds", 1, "an integer of at least 2"),
        ("folds", [5], "an integer of at least 2"),
        ("repeats", 0, "an integer of at least 1"),
        ("seed", -1, "an integer of at least 0"),
        ("seed", 2**63, "an integer of at least 0"),
        ("smoothing", "none", '"laplace" or "m-estimate"'),
        ("pseudocount", 0, "a number above 0"),
        ("pseudocount", math.nan, "a number above 0"),
        ("pseudocount", math.inf, "a number above 0"),
        ("pseudocount", 10**400, "a number above 0"),
        ("missing", "drop", '"value" or "ignore"'),
        ("bins", 1, "an integer of at least 2"),
        ("bins", False, "an integer of at least 2"),
        ("nominal", [""], "a line of text"),
        ("combine", "product", '"mean" or "joint"'),
        ("evaluate", "first", '"all" or "last"'),
        ("only_folds", [], "an integer of at least 0"),
        ("only_folds", -1, "an integer of at least 0"),
        ("only_folds", 5, "folds 0 to 4"),
        ("only_folds", [0, 7], "folds 0 to 4"),
        ("save", ["theta"], '"weights" or "predictions"'),
        ("optimizer", "adam", '"compiled" or "scipy"'),
        ("max_iterations", 0, "an integer of at least 1"),
        ("transport", "pickle", '"gather" or "reduce"'),
        ("shards", 0, "an integer of at least 1"),
        ("block_mib", 0.0, "a number above 0"),
        ("allow_empty", 1, "true or false"),
        ("target", 3, "a line of text"),
        ("data_dir", "", "a line of text"),
        ("discriminative", 3, "a table"),
        ("grid", {"n": 1}, "[[grid]] tables"),
        ("grid", [1], "[[grid]] tables"),
    ],
)
def test_a_wrong_value_is_refused(key: str, value: object, expected: str) -> None:
    message = refusal(**{key: value})
    assert message.startswith(f"{key}: expected {expected}")
    assert ", came " in message
    assert ";" in message  # what to do


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("discriminative", "rounds", 0),
        ("discriminative", "rounds", [5, 10]),
        ("discriminative", "local_steps", -1),
        ("discriminative", "initial_weight", math.inf),
        ("discriminative", "initial_weight", "1"),
        ("discriminative", "granularity", "row"),
        ("discriminative", "l2", -0.1),
        ("discriminative", "aggregation", "median"),
        ("generative", "epsilon", 0),
        ("generative", "epsilon", -1.0),
        ("generative", "epsilon", math.nan),
        ("generative", "epsilon", -math.inf),
        ("generative", "epsilon", True),
        ("generative", "epsilon", [1.0, 0.0]),
        ("generative", "epsilon", []),
        ("generative", "mechanism", "gaussian"),
        ("generative", "sensitivity", 2),
        ("hybrid", "epsilon", 0),
        ("hybrid", "rounds", 0),
    ],
)
def test_a_wrong_value_in_a_section_is_refused_by_its_dotted_name(
    section: str, key: str, value: object
) -> None:
    assert refusal(**{section: {key: value}}).startswith(f"{section}.{key}: expected ")


def test_a_refusal_says_what_was_expected_what_came_and_what_to_do() -> None:
    assert refusal(folds=1) == (
        "folds: expected an integer of at least 2, came 1; write for example folds = 5"
    )


def test_a_section_made_in_python_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"generative\.epsilon: expected a number above 0, or inf, came 0"):
        Generative(epsilon=0)


def test_an_experiment_made_in_python_may_have_one_value_for_a_list() -> None:
    made = Experiment(datasets="car", n=0, clients=[5, 10], generative=Generative(epsilon=1))  # type: ignore[arg-type]
    assert made.datasets == ("car",)
    assert made.clients == (5, 10)
    assert made.generative == (Generative(epsilon=1.0),)


@pytest.mark.parametrize(
    ("given_keys", "message"),
    [
        ({"dataset": "car"}, "in the top level, came 'dataset'; did you mean 'datasets'?"),
        ({"client": 5}, "did you mean 'clients'?"),
        ({"max-iterations": 5}, "did you mean 'max_iterations'?"),
        ({"grids": []}, "did you mean 'grid'?"),
        ({"epsilon": 1.0}, "it belongs to [generative] or [hybrid]"),
        ({"round": 3}, "did you mean 'rounds' in [discriminative] or [hybrid]?"),
        ({"xyzzy": 3}, "the keys there are "),
        ({"discriminative": {"round": 3}}, "in [discriminative], came 'round'; did you mean 'rounds'?"),
        ({"generative": {"folds": 3}}, "in [generative], came 'folds'; it belongs to the top"),
        ({"generative": {"rounds": 3}}, "it belongs to [discriminative] or [hybrid]"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_named(given_keys: dict[str, Any], message: str) -> None:
    assert message in refusal(**given_keys)


def test_data_sets_are_required() -> None:
    with pytest.raises(ConfigError, match=r'^datasets: .*write for example datasets = \["tic-tac-toe"\]$'):
        Experiment.from_mapping({})


# ---------------------------------------------------------------------------------------------- the grid


def test_the_cells_are_data_set_by_data_set_and_then_the_cheap_ones_first() -> None:
    cells = experiment(
        datasets=["nursery", "car"],
        n=[1, 0],
        methods=["discriminative", "generative"],
        scopes=["centralised", "federated"],
        clients=[20, 5],
    ).cells()
    assert summaries(cells)[:7] == [
        ("nursery", 0, "generative", "federated", 5),
        ("nursery", 0, "generative", "federated", 20),
        ("nursery", 0, "discriminative", "federated", 5),
        ("nursery", 0, "discriminative", "federated", 20),
        ("nursery", 0, "generative", "centralised", 1),
        ("nursery", 0, "discriminative", "centralised", 1),
        ("nursery", 1, "generative", "federated", 5),
    ]
    assert [cell.dataset for cell in cells] == ["nursery"] * 12 + ["car"] * 12


def test_the_order_of_the_lists_does_not_change_the_order_of_the_cells() -> None:
    one = experiment(n=[0, 1, 2], methods=["generative", "discriminative"], clients=[5, 20])
    other = experiment(n=[2, 0, 1], methods=["discriminative", "generative"], clients=[20, 5])
    assert one.cells() == other.cells()


def test_centralised_is_one_cell_with_one_client() -> None:
    assert one_cell(scopes="centralised", clients=[5, 10, 20]).clients == 1


def test_equal_entries_of_a_list_are_one() -> None:
    assert len(experiment(n=[1, 1], datasets=["car", "car"], clients=[5, 5]).cells()) == 1


def test_hybrid_is_skipped_outside_of_the_federation_with_a_note() -> None:
    made = experiment(methods=["hybrid", "generative"], scopes=["federated", "local", "centralised"])
    assert ("car", 1, "hybrid", "federated", 5) in summaries(made.cells())
    assert len(made.cells()) == 4
    assert made.skipped() == (
        "hybrid local skipped: hybrid exists only in the federated scope",
        "hybrid centralised skipped: hybrid exists only in the federated scope",
    )


def test_joint_is_skipped_for_weighted_models_with_a_note() -> None:
    made = experiment(
        methods=["discriminative", "generative"], scopes=["federated", "local"], combine="joint"
    )
    assert {cell.method for cell in made.cells()} == {"generative"}
    assert made.skipped() == ('discriminative skipped: combine = "joint" exists only for generative models',)


def test_a_grid_without_cells_is_refused() -> None:
    message = refusal(methods="hybrid", scopes="local")
    assert "hybrid exists only in the federated scope" in message


def test_a_list_of_epsilons_sweeps_the_federated_cells_only() -> None:
    made = experiment(
        methods="generative", scopes=["federated", "local"], generative={"epsilon": [0.1, 1, math.inf]}
    )
    assert [(cell.scope, cell.epsilon) for cell in made.cells()] == [
        ("federated", 0.1),
        ("federated", 1.0),
        ("federated", math.inf),
        ("local", math.inf),
    ]


def test_epsilon_is_none_for_discriminative_and_inf_for_exact_counts() -> None:
    noisy = {"epsilon": 1.0}
    assert one_cell(methods="discriminative", generative=noisy).epsilon is None
    assert one_cell(methods="generative", generative=noisy).epsilon == 1.0
    assert one_cell(methods="generative", scopes="centralised", generative=noisy).epsilon == math.inf
    assert one_cell(methods="hybrid", hybrid={"epsilon": 2}).epsilon == 2.0
    assert one_cell(methods="hybrid", generative=noisy).epsilon == math.inf


def test_a_grid_table_adds_a_grid_with_its_keys_put_over_the_top_level() -> None:
    made = experiment(
        clients=[5, 20],
        discriminative={"rounds": 3, "l2": 0.5},
        grid=[{"clients": 50, "discriminative": {"rounds": 4}}],
    )
    assert [(cell.clients, cell.discriminative.rounds, cell.discriminative.l2) for cell in made.cells()] == [
        (5, 3, 0.5),
        (20, 3, 0.5),
        (50, 4, 0.5),
    ]


def test_a_top_level_without_data_sets_is_only_what_the_tables_share() -> None:
    made = Experiment.from_mapping({"n": 2, "grid": [{"datasets": "car"}, {"datasets": "flare", "n": 0}]})
    assert summaries(made.cells()) == [
        ("car", 2, "discriminative", "federated", 5),
        ("flare", 0, "discriminative", "federated", 5),
    ]


def test_overlapping_grids_have_each_cell_once() -> None:
    assert len(experiment(clients=[5, 10], grid=[{"clients": [10, 20], "transport": "reduce"}]).cells()) == 3


@pytest.mark.parametrize("first", [1, 5])
def test_of_two_grids_with_one_cell_the_one_with_more_repeats_counts(first: int) -> None:
    assert one_cell(repeats=first, grid=[{"repeats": 6 - first}]).repeats == 5


def test_two_grids_that_want_different_parts_of_one_cell_are_refused() -> None:
    assert "give both grids the same" in refusal(
        repeats=5, only_folds=0, grid=[{"repeats": 1, "only_folds": 1}]
    )


def test_an_error_in_a_grid_table_names_its_number() -> None:
    assert refusal(grid=[{"n": 0}, {"folds": 1}]).startswith("[[grid]] number 2: folds: expected ")


def test_a_grid_table_has_no_name() -> None:
    assert "name: expected at the top" in refusal(grid=[{"name": "x"}])


# ---------------------------------------------------------------------------------------------- a cell


@pytest.mark.parametrize(
    ("n", "method", "model"),
    [
        (0, "generative", "NB"),
        (1, "discriminative", "A1DE-w"),
        (2, "hybrid", "A2DE-w"),
        (3, "generative", "A3DE"),
    ],
)
def test_model(n: int, method: str, model: str) -> None:
    assert one_cell(n=n, methods=method).model == model


@pytest.mark.parametrize(
    ("method", "scope", "rounds"),
    [
        ("discriminative", "federated", (0, 1, 2, 3)),
        ("hybrid", "federated", (0, 1, 2)),
        ("generative", "federated", (1,)),
        ("discriminative", "local", (1,)),
        ("discriminative", "centralised", (1,)),
    ],
)
def test_rounds_in_files(method: str, scope: str, rounds: tuple[int, ...]) -> None:
    cell = one_cell(methods=method, scopes=scope, discriminative={"rounds": 3}, hybrid={"rounds": 2})
    assert cell.rounds == rounds


def test_fold_numbers() -> None:
    assert one_cell(folds=3).fold_numbers == (0, 1, 2)
    assert one_cell(only_folds=2).fold_numbers == (2,)
    assert one_cell(only_folds=[3, 1, 1]).fold_numbers == (1, 3)
    assert one_cell(only_folds="all").fold_numbers == (0, 1, 2, 3, 4)


ALWAYS = {"n", "method", "scope", "clients", "folds", "seed", "smoothing", "pseudocount", "missing"}
ALWAYS |= {"nominal", "save"}
IN_ROUNDS = {"evaluate", "rounds", "local_steps", "aggregation", "l2"}
WEIGHTED = {"optimizer", "initial_weight", "granularity"}


@pytest.mark.parametrize(
    ("given_keys", "names"),
    [
        ({"methods": "discriminative"}, WEIGHTED | IN_ROUNDS),
        (
            {"methods": "discriminative", "discriminative": {"local_steps": 0}},
            WEIGHTED | IN_ROUNDS | {"max_iterations"},
        ),
        ({"methods": "discriminative", "scopes": "local"}, WEIGHTED | {"max_iterations"}),
        ({"methods": "discriminative", "scopes": "centralised"}, WEIGHTED | {"max_iterations"}),
        ({"methods": "generative"}, {"combine", "epsilon"}),
        (
            {"methods": "generative", "generative": {"epsilon": 1.0}},
            {"combine", "epsilon", "mechanism", "sensitivity"},
        ),
        ({"methods": "generative", "scopes": "local", "generative": {"epsilon": 1.0}}, {"combine"}),
        ({"methods": "hybrid"}, WEIGHTED | IN_ROUNDS | {"epsilon"}),
        (
            {"methods": "hybrid", "hybrid": {"epsilon": 1.0}},
            WEIGHTED | IN_ROUNDS | {"epsilon", "mechanism", "sensitivity"},
        ),
        ({"methods": "generative", "bins": 3, "target": "y"}, {"combine", "epsilon", "bins", "target"}),
    ],
)
def test_settings_are_the_keys_that_change_a_result_of_this_cell(
    given_keys: dict[str, Any], names: set[str]
) -> None:
    assert set(one_cell(**given_keys).settings()) == ALWAYS | names


@pytest.mark.parametrize(
    "given_keys",
    [
        {"transport": "reduce"},
        {"shards": 2},
        {"block_mib": 1},
        {"only_folds": [0, 2]},
        {"repeats": 9},
        {"data_dir": "data"},
        {"allow_empty": True},
        {"name": "other"},
        {"datasets": "openml:40975"},
        {"generative": {"epsilon": 1.0}},
        {"hybrid": {"rounds": 2}},
        {"combine": "mean"},
        {"pseudocount": 1},
        {"discriminative": {"l2": -0.0}},
    ],
    ids=str,
)
def test_what_changes_no_result_does_not_change_the_fingerprint(given_keys: dict[str, Any]) -> None:
    assert one_cell(**given_keys).fingerprint(SHA) == one_cell().fingerprint(SHA)


@pytest.mark.parametrize(
    "given_keys",
    [
        {"n": 2},
        {"clients": 6},
        {"folds": 6},
        {"seed": 2},
        {"smoothing": "m-estimate"},
        {"pseudocount": 0.5},
        {"missing": "ignore"},
        {"bins": 4},
        {"nominal": "a"},
        {"evaluate": "last"},
        {"save": "weights"},
        {"optimizer": "scipy"},
        {"scopes": "local"},
        {"methods": "generative"},
        {"methods": "hybrid"},
        {"discriminative": {"rounds": 9}},
        {"discriminative": {"granularity": "attribute"}},
        {"discriminative": {"aggregation": "rows"}},
    ],
    ids=str,
)
def test_what_changes_a_result_changes_the_fingerprint(given_keys: dict[str, Any]) -> None:
    assert one_cell(**given_keys).fingerprint(SHA) != one_cell().fingerprint(SHA)


def test_epsilon_and_the_data_change_the_fingerprint() -> None:
    prints = {
        one_cell(methods="generative", generative={"epsilon": epsilon}).fingerprint(sha)
        for epsilon in (0.5, 1, math.inf)
        for sha in ("0" * 64, "1" * 64)
    }
    assert len(prints) == 6


def test_the_fingerprint_stays_the_same_from_version_to_version() -> None:
    # A change here orphans every result file there is: only with a new format version.
    cell = one_cell(methods="generative")
    assert cell.fingerprint(SHA) == "82905b4e7fc272712e7faea28925195d2c7927e5115dc65ed66d6d925eab6f0d"


def test_the_stem_is_a_plain_file_name() -> None:
    stem = one_cell(datasets="x").stem("synthetic:m=5,d=3/..", SHA)
    assert re.fullmatch(r"synthetic-m-5-d-3_A1DE-w_federated_C5_[0-9a-f]{8}", stem)
    assert one_cell().stem("../..", SHA).startswith("data_A1DE-w_")


def test_a_cell_says_what_it_is() -> None:
    assert str(one_cell(n=2, clients=20)) == "car A2DE-w discriminative federated C=20"


SECTION_KEYS = {
    "rounds": st.integers(1, 3),
    "local_steps": st.integers(0, 2),
    "initial_weight": st.sampled_from([0, 0.0, -0.0, 1, 0.1]),
    "granularity": st.sampled_from(["parameter", "attribute"]),
    "l2": st.sampled_from([0, 0.5]),
    "aggregation": st.sampled_from(["mean", "rows"]),
}
NOISE_KEYS = {
    "epsilon": st.sampled_from([1, 1.0, 0.1, math.inf]),
    "mechanism": st.sampled_from(["discrete-laplace", "laplace"]),
    "sensitivity": st.sampled_from(["paper", "joint"]),
}
TOP_KEYS = {
    "n": st.integers(0, 2),
    "methods": st.sampled_from(["generative", "discriminative", "hybrid"]),
    "scopes": st.sampled_from(["federated", "local", "centralised"]),
    "clients": st.integers(1, 2),
    "folds": st.integers(3, 4),
    "repeats": st.integers(1, 2),
    "seed": st.integers(0, 1),
    "pseudocount": st.sampled_from([1, 1.0, 0.1, 1e-300]),
    "target": st.sampled_from(["class", 'odd "name"', "naïve"]),
    "nominal": st.lists(st.sampled_from(["a", "b"]), max_size=2),
    "combine": st.sampled_from(["mean", "joint"]),
    "evaluate": st.sampled_from(["all", "last"]),
    "only_folds": st.sampled_from([0, [0, 2], [2, 0]]),
    "save": st.lists(st.sampled_from(["weights", "predictions"]), max_size=2),
    "max_iterations": st.integers(1, 2),
    "transport": st.sampled_from(["gather", "reduce"]),
    "shards": st.integers(1, 2),
    "block_mib": st.sampled_from([1, 64.0]),
    "allow_empty": st.booleans(),
    "discriminative": st.fixed_dictionaries({}, optional=SECTION_KEYS),
    "generative": st.fixed_dictionaries({}, optional=NOISE_KEYS),
    "hybrid": st.fixed_dictionaries({}, optional=SECTION_KEYS | NOISE_KEYS),
}


def exists(mapping: dict[str, Any]) -> bool:
    method = mapping.get("methods", "discriminative")
    if mapping.get("combine") == "joint" and method != "generative":
        return False
    return method != "hybrid" or mapping.get("scopes", "federated") == "federated"


CELLS = st.fixed_dictionaries({}, optional=TOP_KEYS).filter(exists).map(lambda mapping: one_cell(**mapping))


@given(CELLS, CELLS)
def test_settings_are_equal_exactly_when_fingerprints_are(one: Cell, other: Cell) -> None:
    assert (one.settings() == other.settings()) == (one.fingerprint(SHA) == other.fingerprint(SHA))


@given(CELLS)
def test_the_toml_of_a_cell_reproduces_it_alone(cell: Cell) -> None:
    assert Experiment.from_mapping(tomllib.loads(cell.to_toml())).cells() == (cell,)


@given(CELLS)
def test_the_toml_without_execution_keys_reproduces_its_result(cell: Cell) -> None:
    (other,) = Experiment.from_mapping(tomllib.loads(cell.to_toml(execution=False))).cells()
    assert other.fingerprint(SHA) == cell.fingerprint(SHA)
    assert other.to_toml(execution=False) == cell.to_toml(execution=False)


@given(CELLS)
def test_keys_that_change_no_result_can_all_be_changed(cell: Cell) -> None:
    changed = dataclasses.replace(
        cell,
        **{name: field.default for name, field in keys(Common).items() if field.metadata["changes"] is never},
    )
    assert changed.settings() == cell.settings()


# ---------------------------------------------------------------------------------------------- files, --set


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('datasets = ["car"]\n[generative]\nepsilon = inf\n[[grid]]\nn = 0\n', encoding="utf-8")
    made = load_experiment(path)
    assert made.name == "mine"
    assert [cell.n for cell in made.cells()] == [0, 1]


def test_its_own_name_wins_over_the_file_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "other"\ndatasets = "car"', encoding="utf-8")
    assert load_experiment(str(path)).name == "other"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"folds = \nn = 1", "expected TOML in UTF-8, came .*line 1"),
        (b"# \xff", "expected TOML in UTF-8, came .*0xff"),
        (b'datasets = "car"\nfolds = 1', "folds: expected an integer of at least 2, came 1"),
    ],
)
def test_a_wrong_file_is_refused_by_its_path(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: {message}"):
        load_experiment(path)


@pytest.mark.parametrize("name", ["missing.toml", "", "file/below.toml"])
def test_an_unreadable_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="check the path"):
        load_experiment(tmp_path / name)


@pytest.mark.parametrize(
    ("override", "parsed"),
    [
        ("clients=5", {"clients": 5}),
        ("clients = [5, 10]", {"clients": [5, 10]}),
        ("generative.epsilon=inf", {"generative": {"epsilon": math.inf}}),
        ("datasets=tic-tac-toe", {"datasets": "tic-tac-toe"}),
        ('datasets="tic-tac-toe"', {"datasets": "tic-tac-toe"}),
        ("datasets=synthetic:m=5,d=3", {"datasets": "synthetic:m=5,d=3"}),
        ("allow_empty=true", {"allow_empty": True}),
        ("name=1\nseed=2", {"name": "1\nseed=2"}),
        ("target=", {"target": ""}),
    ],
)
def test_an_override_is_toml_or_else_a_string(override: str, parsed: dict[str, Any]) -> None:
    assert parse_override(override) == parsed


@pytest.mark.parametrize("override", ["clients", "=5", "a..b=1", ".a=1", "datasets=[car, flare]", 'name="x'])
def test_a_wrong_override_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set.*expected .*came "):
        parse_override(override)


def test_overrides_are_put_over_every_grid() -> None:
    made = Experiment.from_mapping(
        {"datasets": "car", "clients": [5, 20], "grid": [{"clients": 50, "n": 0}]},
        ["clients=7", "discriminative.rounds=2", {"seed": 9}],
    )
    assert [(cell.n, cell.clients, cell.discriminative.rounds, cell.seed) for cell in made.cells()] == [
        (0, 7, 2, 9),
        (1, 7, 2, 9),
    ]


def test_overrides_keep_the_other_keys_of_a_section() -> None:
    mapping = {
        "datasets": "car",
        "methods": "generative",
        "generative": {"epsilon": 1, "sensitivity": "joint"},
    }
    (cell,) = Experiment.from_mapping(mapping, ["generative.epsilon=2"]).cells()
    assert cell.generative == Generative(epsilon=2.0, sensitivity="joint")


def test_only_folds_can_be_taken_back() -> None:
    (cell,) = Experiment.from_mapping({"datasets": "car", "only_folds": 0}, ["only_folds=all"]).cells()
    assert cell.only_folds is None


def test_grid_tables_cannot_be_set_or_nested() -> None:
    assert "grid: expected [[grid]] tables at the top" in refusal(grid=[{"grid": [{"n": 0}]}])
    with pytest.raises(ConfigError, match=r"^grid: expected \[\[grid\]\] tables at the top"):
        Experiment.from_mapping({"datasets": "car"}, ["grid=1"])


def test_the_result_files_leave_out_the_same_keys() -> None:
    settings = pytest.importorskip("fedande_mpi.settings")
    unhashed = {name for name, field in keys(Experiment).items() if field.metadata["changes"] is never}
    assert unhashed == settings.EXECUTION_KEYS


def test_the_reference_has_every_key() -> None:
    text = config_reference()
    for cls in (Experiment, Discriminative, Generative, Hybrid):
        for name in keys(cls):
            assert f"| `{name}`" in text


def test_configuration_objects_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        one_cell().seed = 2  # type: ignore[misc]
