"""A unit in a single process, against the reference and against itself in other arrangements."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from fedande_mpi import ande, costs, formulas, host, lbfgs, metrics, release
from fedande_mpi.errors import FederationError
from fedande_mpi.federation import run_unit
from fedande_mpi.planning import arrange_unit
from fedande_mpi.serial import SerialComm
from tests import reference
from tests.small_data import (
    Rows,
    assert_metrics,
    indexed,
    make,
    make_unit,
    missing_as_value,
    owners,
    problem,
    run,
    setup,
)

KEEP = {"save": ("predictions", "weights")}
GRANULARITIES = ("parameter", "attribute")


def small(n, mode="complete", *, m=52, d=4, o=3, n_clients=3, n_test=16, **keys):
    """A small unit; ``mode`` says what becomes of missing values. Some test rows have next to nothing else."""
    rows = make(70 + n, m=m, d=d, o=o, missing=0.0 if mode == "complete" else 0.12)
    if mode != "complete":
        rows.X[-3:] = [[0, 0, -1, -1], [0, -1, -1, -1], [-1, -1, -1, -1]]
    rows = missing_as_value(rows) if mode == "value" else rows
    return make_unit(rows, owners(70 + n, m, n_clients, n_test), n=n, **KEEP, **keys)


def same_bits(a, b, *, weights=True):
    for name in ("metrics", "objective", "iterations", "evaluations", "stop_reason"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes(), name
    assert a.posterior.tobytes() == b.posterior.tobytes()
    if weights:
        assert [w.tobytes() for w in a.weights] == [w.tobytes() for w in b.weights]


def clients_of(unit):
    return [(unit.X[unit.owner == c], unit.y[unit.owner == c]) for c in range(unit.cell.clients)]


def expected_posterior(unit, row, models, c):
    """Posterior of a weighted model; where no set is complete, the smoothed prior."""
    return reference.ensemble_mean(row, models) or list(models[0].theta["prior"])


def check_scores(unit, result, at, models_of):
    """Compare posterior (of the last round) and metrics of a scored position."""
    test = unit.held_out
    for c in range(unit.cell.clients):
        models = models_of(c)
        expected = [expected_posterior(unit, row, models, c) for row in test.X]
        if at == len(unit.cell.rounds) - 1:
            np.testing.assert_allclose(result.posterior[c], expected, rtol=1e-7, atol=1e-12)
        assert_metrics(result.metrics[at, :, c], expected, test.y, rtol=1e-7)


@pytest.mark.parametrize("mode", ["complete", "ignore", "value"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("method", ["discriminative", "hybrid"])
@pytest.mark.parametrize("n", range(4))
def test_rounds_equal_the_reference(n, method, granularity, mode):
    smoothing = "laplace" if n % 2 else "m-estimate"
    rule = "rows" if granularity == "attribute" else "mean"
    steps = 3 if n < 2 else 2
    unit = small(
        n,
        mode,
        method=method,
        granularity=granularity,
        smoothing=smoothing,
        pseudocount=0.5,
        aggregation=rule,
        rounds=2,
        local_steps=steps,
    )
    result = run(unit)
    clients = clients_of(unit)
    training = unit.owner >= 0
    initial = 0.0 if method == "discriminative" else 1.0
    history: list[list[reference.Tables]] = [[] for _ in range(3)]
    thetas = []
    objective = np.zeros((3, 3))
    for i, parents in enumerate(unit.sets):
        data = clients if method == "discriminative" else [(unit.X[training], unit.y[training])] * 3
        own = [
            reference.theta(reference.counts(X, y, parents, unit.arity, unit.n_classes), smoothing, 0.5)
            for X, y in data
        ]
        thetas.append(own)
        w = reference.filled(initial, parents, unit.arity, unit.n_classes, granularity)
        history[0].append(w)
        for t in (1, 2):
            done = reference.federated_round(clients, own, parents, unit.arity, w, steps, rule)
            w = done.w
            history[t].append(w)
            objective[t] += done.objective
        for name, table in ande.unpack(result.weights[i], parents, unit.arity, unit.n_classes).items():
            np.testing.assert_allclose(table, w[name], atol=1e-8)
    np.testing.assert_allclose(result.objective[1:], objective[1:], rtol=1e-8)
    for t in range(3):
        check_scores(
            unit,
            result,
            t,
            lambda c, t=t: [
                reference.SPnDE(parents, unit.arity, thetas[i][c], history[t][i])
                for i, parents in enumerate(unit.sets)
            ],
        )


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("n", range(3))
def test_local_training_equals_the_reference(n, granularity):
    unit = small(n, "ignore", scope="local", granularity=granularity, max_iterations=4)
    result = run(unit)
    models: list[list[reference.SPnDE]] = [[] for _ in range(3)]
    objective = np.zeros(3)
    for i, parents in enumerate(unit.sets):
        for c, (X, y) in enumerate(clients_of(unit)):
            theta = reference.theta(reference.counts(X, y, parents, unit.arity, unit.n_classes))
            w = reference.filled(0.0, parents, unit.arity, unit.n_classes, granularity)
            model = reference.SPnDE(parents, unit.arity, theta, w)
            w, value = reference.local_steps(X, y, model, 4)
            models[c].append(model._replace(w=w))
            objective[c] += value
            got = ande.unpack(result.weights[i][c], parents, unit.arity, unit.n_classes)
            for name, table in got.items():
                np.testing.assert_allclose(table, w[name], atol=1e-8)
    np.testing.assert_allclose(result.objective[0], objective, rtol=1e-8)
    check_scores(unit, result, 0, lambda c: models[c])


@pytest.mark.parametrize("mode", ["complete", "ignore", "value"])
@pytest.mark.parametrize("combine", ["mean", "joint"])
@pytest.mark.parametrize("scope", ["federated", "local", "centralised"])
@pytest.mark.parametrize("n", range(4))
def test_generative_models_equal_the_reference(n, scope, combine, mode):
    smoothing = "m-estimate" if n % 2 else "laplace"
    unit = small(
        n,
        mode,
        n_clients=1 if scope == "centralised" else 3,
        method="generative",
        scope=scope,
        combine=combine,
        smoothing=smoothing,
    )
    result = run(unit)
    training = unit.owner >= 0
    for c, (X, y) in enumerate(clients_of(unit)):
        if scope == "federated":
            X, y = unit.X[training], unit.y[training]
        expected = [
            reference.generative(row, X, y, n, unit.arity, unit.n_classes, combine, smoothing)
            for row in unit.held_out.X
        ]
        np.testing.assert_allclose(result.posterior[c], expected, rtol=1e-9, atol=1e-13)
        assert_metrics(result.metrics[0, :, c], expected, unit.held_out.y)


@pytest.mark.parametrize("combine", ["mean", "joint"])
@pytest.mark.parametrize("mode", ["complete", "ignore"])
@pytest.mark.parametrize("n", range(3))
def test_exact_generative_federations_of_any_size_equal_the_central_model_to_the_bit(n, mode, combine):
    rows = make(80 + n, m=90, missing=0.12 if mode == "ignore" else 0.0)
    common = {"n": n, "method": "generative", "combine": combine, **KEEP}
    central = make_unit(rows, owners(80, 90, 1, 20), scope="centralised", clients=1, **common)
    expected = run(central)
    for n_clients in (1, 2, 5, 20, 70):
        result = run(make_unit(rows, owners(80, 90, n_clients, 20), clients=n_clients, **common))
        for c in range(n_clients):
            assert result.posterior[c].tobytes() == expected.posterior[0].tobytes()
            assert result.metrics[:, :, c].tobytes() == expected.metrics[:, :, 0].tobytes()


@pytest.mark.parametrize("method", ["generative", "hybrid"])
def test_after_noise_rows_without_a_complete_parent_set_get_the_pooled_prior(method):
    unit = small(2, "ignore", method=method, epsilon=1.0)
    posterior = run(unit).posterior
    counts = ande.count_tables(unit.X[:-16], unit.y[:-16], unit.sets[0], unit.arity, 3)
    pooled = release.pooled_release(unit)(0, unit.sets[0], counts)
    for row in (-1, -2):
        np.testing.assert_allclose(posterior[:, row], np.tile(np.exp(pooled[0]), (3, 1)), rtol=1e-12)


def test_hybrid_starts_from_the_generative_model():
    hybrid = run(small(1, method="hybrid", rounds=1, epsilon=2.0))
    generative = run(small(1, method="generative", epsilon=2.0))
    np.testing.assert_allclose(hybrid.metrics[0], generative.metrics[0], rtol=1e-12)


@pytest.mark.parametrize("method", ["discriminative", "generative", "hybrid"])
@pytest.mark.parametrize(
    "change",
    [
        {"transport": "reduce"},
        {"block_mib": 1e-6},
        {"block_mib": 0.005, "transport": "reduce"},
    ],
    ids=str,
)
def test_transport_and_blocks_change_no_bit(method, change):
    keys = {"rounds": 2, "l2": 0.01} if method != "generative" else {"combine": "joint"}
    expected = run(small(2, "ignore", method=method, **keys))
    same_bits(run(small(2, "ignore", method=method, **keys, **change)), expected)


@pytest.mark.parametrize("scope", ["federated", "local"])
@pytest.mark.parametrize("method", ["discriminative", "generative"])
def test_calls_of_any_length_change_no_bit(method, scope, monkeypatch):
    keys = {"rounds": 2, "local_steps": 12} if (method, scope) == ("discriminative", "federated") else {}
    if method == "discriminative":
        keys["max_iterations"] = 40
    expected = run(small(1, "ignore", method=method, scope=scope, **keys))
    for seconds in (1e-9, 1e-5):
        monkeypatch.setattr(costs, "CALL_SECONDS", seconds)
        same_bits(run(small(1, "ignore", method=method, scope=scope, **keys)), expected)


@pytest.mark.parametrize("method", ["discriminative", "generative"])
def test_calls_of_any_length_change_no_bit_of_rows_in_bundles(method, monkeypatch):
    rows = make(5, m=2400)
    unit = make_unit(rows, owners(5, 2400, 2, 900), n=1, method=method, save=("predictions",))
    for which in (unit.owner == 0, unit.owner < 0):
        assert indexed(rows, np.flatnonzero(which), np.array([0]))["lists"].n_joint > 0
    expected = run(unit)
    for seconds in (1e-9, 1e-5):
        monkeypatch.setattr(costs, "CALL_SECONDS", seconds)
        same_bits(run(unit), expected)


@pytest.mark.parametrize("method", ["discriminative", "generative", "hybrid"])
def test_renaming_the_clients_changes_nothing_but_their_order(method):
    keys = {"rounds": 2, "aggregation": "rows"} if method != "generative" else {}
    unit = small(1, n_clients=4, method=method, **keys)
    new_name = np.array([2, 0, 3, 1, -1])
    renamed = dataclasses.replace(unit, owner=new_name[unit.owner].astype(np.int32))
    a, b = run(unit), run(renamed)
    assert a.metrics.tobytes() == b.metrics[:, :, new_name[:4]].tobytes()
    assert a.objective.tobytes() == b.objective[:, new_name[:4]].tobytes()
    assert [w.tobytes() for w in a.weights] == [w.tobytes() for w in b.weights]


@pytest.mark.parametrize("method", ["discriminative", "generative"])
def test_renaming_values_changes_nothing(method):
    unit = small(2, method=method)
    flipped = dataclasses.replace(unit, X=(unit.arity - 1 - unit.X).astype(np.int32))
    a, b = run(unit), run(flipped)
    np.testing.assert_allclose(a.posterior, b.posterior, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(a.objective, b.objective, rtol=1e-9)


def test_global_generators_play_no_part():
    keys = {"method": "hybrid", "rounds": 1, "epsilon": 1.0}
    expected = run(small(1, **keys))
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    same_bits(run(small(1, **keys)), expected)


def test_scipys_optimiser_takes_the_same_steps():
    compiled, scipy = (run(small(1, rounds=3, optimizer=name)) for name in ("compiled", "scipy"))
    for a, b in zip(compiled.weights, scipy.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)
    for name in ("iterations", "evaluations", "stop_reason"):
        np.testing.assert_array_equal(getattr(compiled, name), getattr(scipy, name))


def test_counts_are_summed_over_parent_sets_and_the_worst_reason_is_kept():
    unit = small(1)
    X, y = clients_of(unit)[0]
    rows = Rows(X, y, unit.arity, unit.n_classes)

    def alone(limit):
        states = []
        for at in range(len(unit.sets)):
            made, state, _ = problem(setup(rows, [y.size], unit.sets), 0, at)
            lbfgs.begin(state)
            lbfgs.advance(made, state, limit, limit)
            states.append(state.counters)
        return np.array(states)

    limit = int(alone(15_000)[:, lbfgs.ITERATIONS].min()) + 1
    result = run(small(1, scope="local", max_iterations=limit))
    counters = alone(limit)
    assert np.unique(counters[:, lbfgs.STATUS]).size > 1
    assert result.iterations[0, 0] == counters[:, lbfgs.ITERATIONS].sum()
    assert result.evaluations[0, 0] == counters[:, lbfgs.EVALUATIONS].sum()
    assert result.stop_reason[0, 0] == counters[:, lbfgs.STATUS].max()


def test_zero_local_steps_run_until_convergence():
    result = run(small(0, rounds=1, local_steps=0))
    assert (result.stop_reason[1] > 0).all()
    assert (result.iterations[1] > 5).all()
    assert (run(small(0, rounds=1, local_steps=0, max_iterations=7)).iterations[1] == 7).all()


def test_before_the_first_round_nothing_is_trained():
    result = run(small(1, rounds=2))
    assert np.isnan(result.objective[0]).all()
    for name in ("iterations", "evaluations", "stop_reason"):
        assert (getattr(result, name)[0] == -1).all()
    assert np.isfinite(result.objective[1:]).all()
    # zero weights: uniform
    np.testing.assert_allclose(result.metrics[0, 1], -np.log(3))


def test_only_the_last_round_is_scored_when_asked():
    every, last = run(small(1, rounds=3)), run(small(1, rounds=3, evaluate="last"))
    assert np.isnan(last.metrics[:3]).all()
    assert last.metrics[3].tobytes() == every.metrics[3].tobytes()


def test_the_pull_keeps_clients_near_the_common_weights():
    free, pulled = run(small(1, rounds=1)), run(small(1, rounds=1, l2=1e6))
    assert max(np.abs(w).max() for w in pulled.weights) < 1e-3 < max(np.abs(w).max() for w in free.weights)


# ------------------------------------------------------------------ unusual clients


@pytest.mark.parametrize("n", range(3))
def test_clients_with_one_row_or_one_class(n):
    unit = small(n, rounds=3)
    owner = unit.owner.copy()
    first = np.flatnonzero(owner >= 0)[0]
    one_class = unit.y == unit.y[first]
    owner[owner >= 0] = 2
    owner[(unit.owner >= 0) & one_class & (unit.owner != 1)] = 1
    owner[first] = 0
    unit = dataclasses.replace(unit, owner=owner)
    assert unit.n_rows[0] == 1
    assert np.unique(unit.y[owner == 1]).size == 1
    result = run(unit)
    for w in result.weights:
        assert np.isfinite(w).all()
    assert np.isfinite(result.metrics).all()


@pytest.mark.parametrize("rule", ["mean", "rows"])
@pytest.mark.parametrize("transport", ["gather", "reduce"])
def test_empty_clients_take_part_but_leave_the_average(transport, rule):
    keys = {"rounds": 2, "transport": transport, "aggregation": rule}
    without = run(small(1, **keys))
    result = run(small(1, clients=5, allow_empty=True, **keys))
    for a, b in zip(without.weights, result.weights, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-14)
    assert result.metrics.shape[2] == 5
    assert np.isfinite(result.metrics).all()
    assert (result.objective[1:, 3:] == 0).all()


@pytest.mark.parametrize("scope", ["federated", "local"])
def test_empty_clients_have_a_uniform_generative_model(scope):
    unit = small(1, clients=4, allow_empty=True, method="generative", scope=scope)
    result = run(unit)
    assert np.isfinite(result.metrics).all()
    if scope == "local":
        np.testing.assert_allclose(result.posterior[3], 1 / 3)


def test_without_test_rows_metrics_are_undefined():
    unit = small(1, n_test=0, rounds=1)
    result = run(unit)
    assert np.isnan(result.metrics).all()
    assert np.isfinite(result.objective[1]).all()


@pytest.mark.parametrize("transport", ["gather", "reduce"])
def test_an_update_that_is_not_finite_stops_the_run_and_names_its_place(transport, monkeypatch):
    unit = small(1, rounds=3, transport=transport)
    plain = host.local.run_pairs
    calls = []

    def broken(*arguments):
        plain(*arguments)
        calls.append(1)
        if len(calls) == 2:
            arguments[9][1, unit.bounds(unit.sets, "parameter")[2]] = np.nan

    monkeypatch.setattr(host.local, "run_pairs", broken)
    with pytest.raises(FederationError, match=r"client 1 for parent set \(2,\) in round 2") as caught:
        run(unit)
    assert any(note.startswith("rank 0") and "round 2" in note for note in caught.value.__notes__)


def test_poll_may_end_the_unit():
    unit = small(1)

    class Stop(Exception):
        pass

    def poll():
        raise Stop

    with pytest.raises(Stop):
        run_unit(SerialComm(), unit, arrange_unit(unit, 1), poll)


@pytest.mark.parametrize("block_mib", [64.0, 1e-6])
def test_progress_adds_up_to_the_whole_unit(block_mib):
    unit = small(1, rounds=4, block_mib=block_mib)
    shares = []
    run_unit(SerialComm(), unit, arrange_unit(unit, 1), got_on=shares.append)
    assert sum(shares) == pytest.approx(1.0)


def test_nothing_is_kept_that_was_not_asked_for():
    unit = small(1, rounds=1)
    result = run(dataclasses.replace(unit, cell=dataclasses.replace(unit.cell, save=())))
    assert result.weights == []
    assert result.posterior is None


def test_the_common_weights_score_with_each_clients_own_theta():
    unit = small(0, rounds=2)
    result = run(unit)
    for c, (X, y) in enumerate(clients_of(unit)):
        counts = ande.count_tables(X, y, [], unit.arity, unit.n_classes)
        log_theta = ande.log_theta(counts, [], unit.arity)
        w = result.weights[0].reshape(-1, unit.n_classes)
        p = formulas.predict_proba(unit.held_out.X, [], unit.arity, w, log_theta)
        np.testing.assert_allclose(result.posterior[c], p, rtol=1e-12)
        accuracy = result.metrics[2, metrics.METRICS.index("accuracy"), c]
        assert accuracy == np.mean(p.argmax(axis=1) == unit.held_out.y)
