"""Verdicts on the paper's statements: on made-up accuracies, and on small experiments."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from fedande_mpi.claims import COLUMNS, RANK_FROM, claims, claims_markdown, evaluate_claims
from fedande_mpi.cli import main
from fedande_mpi.config import Experiment
from fedande_mpi.contrasts import Place, growth, minus
from fedande_mpi.errors import ResultsError
from fedande_mpi.experiment import run_experiment
from fedande_mpi.results import write_cell
from fedande_mpi.selection import Scores
from fedande_mpi.statements import CLAIMS
from fedande_mpi.statistics import holm
from tests.result_files import filled, info

NAMES = [claim.name for claim in CLAIMS]
GENERAL = [claim.name for claim in CLAIMS if claim.dataset is None]
CLIENTS = (5, 20, 100)
UNITS = tuple(itertools.product(range(1), range(5)))


def cell(accuracy, dataset, n, method, scope, clients, epsilon=None, units=UNITS, **keys):
    """Scores of a cell: one accuracy, or one for each unit."""
    model = ("NB" if n == 0 else f"A{n}DE") + ("-w" if method == "discriminative" else "")
    keys |= {"dataset": dataset, "model": model, "n": n, "method": method, "scope": scope}
    keys |= {"clients": clients}
    if method == "generative":
        keys["epsilon"] = math.inf if epsilon is None else epsilon
    values = dict(zip(units, np.broadcast_to(accuracy, len(units)).tolist(), strict=True))
    folds = {repeat: b"folds" for repeat, _ in units}
    return Scores(keys, values, folds, 5, 1000, f"{dataset}-{model}-{scope}-{clients}")


def grid(accuracy, datasets, epsilons=(1.0,), clients=CLIENTS, orders=(0, 1, 2), noise=0.002, units=UNITS):
    """All cells of the paper's grid; `accuracy` is a function of (n, method, scope, C, epsilon)."""
    rng = np.random.default_rng(np.random.SeedSequence(3))
    cells = []
    for dataset in datasets:
        for n, method, scope, c in itertools.product(
            orders, ("generative", "discriminative"), ("federated", "local"), clients
        ):
            noisy = method == "generative" and scope == "federated"
            for epsilon in epsilons if noisy else (None,):
                scores = accuracy(n, method, scope, c, epsilon) + noise * rng.normal(size=len(units))
                cells.append(cell(scores, dataset, n, method, scope, c, epsilon, units))
    return cells


def verdicts(scores, without_privacy=False):
    """Claim to verdict, as `claims` gives it."""
    outcomes = evaluate_claims(scores, without_privacy)
    adjusted = holm([np.nan if outcome.p is None else outcome.p for outcome in outcomes])
    words = ["not enough data" if np.isnan(p) else "holds" if p < 0.05 else "fails" for p in adjusted]
    return dict(zip(NAMES, words, strict=True))


def outcome(scores, name, without_privacy=False):
    return evaluate_claims(scores, without_privacy)[NAMES.index(name)]


def paper(n, method, scope, clients, epsilon):
    """Accuracies of which every general statement is true."""
    doublings = math.log2(clients / 5)
    if scope == "local":
        weighted = method == "discriminative"
        return 0.75 + 0.01 * n - 0.03 * doublings if weighted else 0.70 + 0.01 * n - 0.01 * doublings
    return 0.80 + 0.03 * n - 0.005 * n * doublings if method == "discriminative" else 0.76 + 0.02 * n


# --- claims about data sets in general ---------------------------------------------------------------------


@pytest.mark.parametrize("n_sets", [4, RANK_FROM + 1])
def test_each_general_claim_holds_where_it_is_true_and_fails_where_the_contrary_is(n_sets):
    names = [f"set-{i}" for i in range(n_sets)]
    found = verdicts(grid(paper, names))
    assert {name: found[name] for name in GENERAL} == dict.fromkeys(GENERAL, "holds")
    contrary = verdicts(grid(lambda *at: 1 - paper(*at), names))
    assert {name: contrary[name] for name in GENERAL} == dict.fromkeys(GENERAL, "fails")


def test_a_general_claim_needs_three_data_sets():
    assert set(verdicts(grid(paper, ["a", "b"])).values()) == {"not enough data"}
    assert verdicts(grid(paper, ["a", "b", "c"]))["accuracy grows with n"] == "holds"


def test_the_rank_test_takes_over_where_it_can_pass_holms_rule():
    level = 0.05 / len(CLAIMS)
    assert 2.0**-RANK_FROM <= level < 2.0 ** (1 - RANK_FROM)
    for n_sets in (RANK_FROM, RANK_FROM - 1):
        cells = grid(paper, [f"set-{i}" for i in range(n_sets)])
        exact = outcome(cells, "federated beats local").p == 2.0**-n_sets
        assert exact == (n_sets == RANK_FROM)


def test_effects_are_the_mean_differences():
    cells = grid(paper, "abc", noise=0)
    weighted = [0.80 + 0.03 * n - 0.005 * n * math.log2(c / 5) for n in range(3) for c in CLIENTS]
    found = outcome(cells, "discriminative beats generative under epsilon = 1")
    assert found.effect == pytest.approx(np.mean(weighted) - 0.78)
    assert found.low < found.effect < found.high
    assert found.cells == 3 * 3 * 3 * 2


def test_equal_effects_of_few_data_sets_are_not_certain():
    # three data sets, one fold of 200 rows each, and one row more: no evidence, though there is no variance
    units = ((0, 0),)
    cells = [
        cell(0.5 + 0.005 * (scope == "federated"), name, 0, "generative", scope, 5, units=units)
        for name in "abc"
        for scope in ("federated", "local")
    ]
    assert outcome(cells, "federated beats local").p > 0.05


def test_one_data_set_that_disagrees_is_seen_by_every_test():
    cells = grid(paper, "abc") + grid(lambda *at: 1 - paper(*at), "d")
    assert verdicts(cells)["federated beats local"] == "fails"


def test_best_at_every_c_is_lost_at_one_c():
    def almost(n, method, scope, clients, epsilon):
        lost = (n, method, scope, clients) == (1, "discriminative", "federated", 20)
        return paper(n, method, scope, clients, epsilon) + 0.2 * lost

    found = outcome(grid(almost, "abcdef", noise=0), "A2DE-w is best at every C")
    assert found.effect == pytest.approx(0.86 - 0.02 - (0.83 - 0.01 + 0.2))
    assert found.p > 0.9


def test_a_cell_without_partner_is_not_used():
    cells = [each for each in grid(paper, "abc") if (each.keys["n"], each.keys["scope"]) != (2, "local")]
    whole = outcome(grid(paper, "abc"), "federated beats local")
    assert outcome(cells, "federated beats local").cells == whole.cells * 2 / 3


def test_only_units_that_all_cells_have_are_compared():
    units = ((0, 0), (0, 1))
    cells = []
    for name in "abc":
        cells.append(cell([0.9, 0.1], name, 0, "generative", "federated", 5, units=units))
        cells.append(cell([0.8], name, 0, "generative", "local", 5, units=units[:1]))
    assert outcome(cells, "federated beats local").effect == pytest.approx(0.1)


# --- claims about one data set -----------------------------------------------------------------------------


def nb_wins_late(n, method, scope, clients, epsilon):
    return 0.6 - 0.05 * n * (1 if clients > 20 else -1) if method == "generative" else 0.9


def collapses(n, method, scope, clients, epsilon):
    return 0.3 if (n, method) == (2, "generative") and clients >= 20 else 0.7


def stays_best(n, method, scope, clients, epsilon):
    return 0.9 if (n, method) == (2, "discriminative") else 0.7


def peaks(n, method, scope, clients, epsilon):
    return 0.7 + 0.05 * (clients == 20)


def valley(n, method, scope, clients, epsilon):
    return 0.7 - 0.05 * (clients == 20)


def rises(n, method, scope, clients, epsilon):
    return 0.7 + 0.001 * clients


def flat(n, method, scope, clients, epsilon):
    return 0.7


def a_little(n, method, scope, clients, epsilon):
    return 0.7 + 0.03 * n


def helps_counted(n, method, scope, clients, epsilon):
    return 0.7 + 0.03 * n * (method == "generative")


A1DE, A2DE, A2DEW, PEAK, FLARE, SOYBEAN, VOTES = (claim.name for claim in CLAIMS if claim.dataset)


@pytest.mark.parametrize(
    ("name", "world", "verdict"),
    [
        (A1DE, nb_wins_late, "holds"),
        (A1DE, flat, "fails"),
        (A2DE, collapses, "holds"),
        (A2DE, nb_wins_late, "fails"),
        (A2DEW, stays_best, "holds"),
        (A2DEW, collapses, "fails"),
        (PEAK, peaks, "holds"),
        (PEAK, valley, "fails"),
        (PEAK, rises, "fails"),
        (FLARE, flat, "holds"),
        (FLARE, a_little, "fails"),
        (SOYBEAN, flat, "holds"),
        (SOYBEAN, helps_counted, "fails"),
        (VOTES, helps_counted, "holds"),
        (VOTES, a_little, "fails"),
        (VOTES, flat, "fails"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_each_claim_about_one_data_set(name, world, verdict):
    dataset = CLAIMS[NAMES.index(name)].dataset
    found = verdicts(grid(world, [dataset]))
    assert found[name] == verdict
    others = {other for other in NAMES if CLAIMS[NAMES.index(other)].dataset != dataset}
    assert {found[other] for other in others} == {"not enough data"}


def test_a_claim_about_one_data_set_needs_two_folds():
    one = grid(flat, ["flare"], noise=0, units=((0, 0),))
    assert outcome(one, FLARE).p is None
    assert outcome(one, FLARE).cells == 18
    assert outcome(grid(flat, ["flare"], noise=0, units=((0, 0), (0, 1))), FLARE).p is not None


def test_the_noise_of_folds_can_hide_that_n_makes_no_difference():
    assert verdicts(grid(flat, ["flare"], noise=0.1))[FLARE] == "fails"


def test_large_c_and_small_c_must_be_there():
    assert outcome(grid(nb_wins_late, ["kr-vs-k"], clients=(5, 20)), A1DE).p is None
    assert outcome(grid(collapses, ["kr-vs-k"], clients=(20, 100)), A2DE).p is None
    assert outcome(grid(peaks, ["connect-4"], clients=(5, 20)), PEAK).p is None


# --- privacy -----------------------------------------------------------------------------------------------


def noisy_loses(n, method, scope, clients, epsilon):
    return 0.6 if epsilon == 1 else 0.9 if method == "generative" else 0.8


def test_without_privacy_the_exact_counts_are_judged():
    name = "discriminative beats generative under epsilon = 1"
    cells = grid(noisy_loses, "abcd", epsilons=(0.1, 1.0, math.inf))
    assert outcome(cells, name).effect == pytest.approx(0.2, abs=0.01)
    assert outcome(cells, name, without_privacy=True).effect == pytest.approx(-0.1, abs=0.01)


def test_exact_counts_stand_in_except_where_the_claim_is_about_noise():
    cells = grid(noisy_loses, "abcd", epsilons=(math.inf,))
    assert outcome(cells, "discriminative beats generative under epsilon = 1").p is None
    found = outcome(cells, "federated beats local")
    assert found.cells == len(cells)


def test_without_privacy_noisy_cells_are_never_used():
    cells = grid(noisy_loses, "abcd", epsilons=(1.0,))
    assert outcome(cells, "discriminative beats generative under epsilon = 1", without_privacy=True).p is None
    assert outcome(cells, "federated beats local", without_privacy=True).cells == 4 * 3 * 3 * 2


# --- what is refused ---------------------------------------------------------------------------------------


def test_two_cells_in_one_place_are_refused_with_what_tells_them_apart():
    cells = [cell(0.5, "a", 0, "generative", "local", 5, seed=seed) for seed in (1, 2)]
    with pytest.raises(ResultsError, match=r"a NB local C=5, found two that differ in seed; .* PATH:seed=2"):
        evaluate_claims(cells)


# --- false alarms ------------------------------------------------------------------------------------------


def test_accuracies_that_are_all_noise_seldom_support_anything():
    rng = np.random.default_rng(np.random.SeedSequence(11))
    datasets = [*"abc", "kr-vs-k", "connect-4", "house-votes-84"]
    wrong = 0
    for _ in range(80):
        levels = iter(rng.normal(0.5, 0.02, size=1_000))
        cells = grid(lambda *at, levels=levels: next(levels), datasets, noise=0.02)
        wrong += "holds" in verdicts(cells).values()
    assert wrong <= 9  # at most 80 x 0.05 = 4 expected; more than 9 has a chance of 1 %


# --- parts -------------------------------------------------------------------------------------------------


def test_growth_is_the_rise_of_the_fitted_line():
    places = [Place(n, "generative", "local", 5) for n in range(4)]
    x = [0.0, 1.0, 2.0, 4.0]
    values = np.array([0.1, 0.5, 0.4, 0.9])
    weights = growth({at: {place: 1.0} for at, place in zip(x, places, strict=True)})
    slope = np.polyfit(x, values, 1)[0]
    assert sum(weights[place] * value for place, value in zip(places, values, strict=True)) == pytest.approx(
        4 * slope
    )
    assert growth({0: {places[0]: 1.0}, 3: {places[1]: 1.0}}) == pytest.approx(
        minus({places[1]: 1.0}, {places[0]: 1.0})
    )


def test_the_page_is_current():
    page = Path(__file__).resolve().parent.parent / "docs" / "claims.md"
    assert page.read_text(encoding="utf-8") == claims_markdown(), "write claims_markdown() to docs/claims.md"


# --- files and commands ------------------------------------------------------------------------------------


def test_the_command_prints_a_row_for_every_claim(tmp_path, capsys):
    for name, scope in (("f", "federated"), ("l", "local")):
        write_cell(tmp_path, filled(info(name=name, scope=scope, config_sha256=name * 64)))
    assert main(["claims", str(tmp_path), "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "claim,verdict,effect,low,high,cells"
    assert len(lines) == 1 + len(CLAIMS)
    assert lines[1] == "federated beats local,not enough data,,,,2"


def small(kind, tmp_path):
    """Verdicts on a small experiment with made-up data, with noise on the counts and without."""
    experiment = Experiment.from_mapping(
        {
            "datasets": [f"synthetic:m=160,d=3,o=2,arity=2,kind={kind},seed={seed}" for seed in (1, 2, 3)],
            "n": [0, 1],
            "methods": ["generative", "discriminative"],
            "scopes": ["federated", "local"],
            "clients": [2, 4],
            "folds": 2,
            "repeats": 2,
            "max_iterations": 20,
            "discriminative": {"rounds": 2},
            "generative": {"epsilon": [1.0, math.inf]},
        }
    )
    run_experiment(experiment, tmp_path)
    tables = [claims(tmp_path, without_privacy=without) for without in (False, True)]
    assert all(table.columns == COLUMNS for table in tables)
    return [{row["claim"]: row["verdict"] for row in table.rows} for table in tables]


@pytest.mark.slow
def test_labels_that_are_noise_support_nothing(tmp_path):
    for found in small("noise", tmp_path):
        assert set(found.values()) == {"fails", "not enough data"}


@pytest.mark.slow
def test_on_an_exclusive_or_accuracy_grows_with_n(tmp_path):
    for found in small("xor", tmp_path):
        assert found["accuracy grows with n"] == "holds"
