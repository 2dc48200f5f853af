"""From summed counts to the pooled model: exact, or noisy under either release."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest

from fedande_mpi import ande, privacy, release
from fedande_mpi.errors import ConfigError
from tests.small_data import make, make_unit, missing_as_value, owners

ROWS = make(60, m=200, d=4, o=3)
OWNER = owners(60, 200, 5, 20)
MECHANISMS = ("discrete-laplace", "laplace")
SENSITIVITIES = ("paper", "joint")
TRAINING = OWNER >= 0


def unit_of(n=1, rows=ROWS, owner=OWNER, **keys):
    return make_unit(rows, owner, method="generative", n=n, **keys)


def summed(unit, index):
    """Counts of all training rows for one parent set."""
    rows = unit.owner >= 0
    return ande.count_tables(unit.X[rows], unit.y[rows], unit.sets[index], unit.arity, unit.n_classes)


def pooled(unit, at=None, do=None):
    """Release the counts of some parent sets, one after another."""
    do = do or release.pooled_release(unit)
    indices = range(len(unit.sets)) if at is None else at
    return np.concatenate([do(index, unit.sets[index], summed(unit, index)).ravel() for index in indices])


def tables_of(unit, flat):
    bounds = unit.bounds(unit.sets, "parameter")
    return [
        ande.unpack(flat[bounds[i] : bounds[i + 1]], parents, unit.arity, unit.n_classes)
        for i, parents in enumerate(unit.sets)
    ]


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
@pytest.mark.parametrize("smoothing", ["laplace", "m-estimate"])
@pytest.mark.parametrize("n", range(4))
def test_without_noise_the_model_is_that_of_the_exact_counts_to_the_bit(n, smoothing, sensitivity):
    unit = unit_of(n, smoothing=smoothing, sensitivity=sensitivity)
    expected = [
        ande.log_theta(
            ande.count_tables(ROWS.X[TRAINING], ROWS.y[TRAINING], parents, ROWS.arity, ROWS.o),
            parents,
            ROWS.arity,
            smoothing,
        ).ravel()
        for parents in unit.sets
    ]
    assert pooled(unit).tobytes() == np.concatenate(expected).tobytes()


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
@pytest.mark.parametrize("n", range(3))
def test_noise_that_rounds_to_nothing_leaves_the_exact_model(n, sensitivity):
    noisy = pooled(unit_of(n, epsilon=1e7, sensitivity=sensitivity))
    assert noisy.tobytes() == pooled(unit_of(n)).tobytes()


@pytest.mark.parametrize("epsilon", [0.01, 1.0])
@pytest.mark.parametrize(("mechanism", "sensitivity"), list(product(MECHANISMS, SENSITIVITIES)))
@pytest.mark.parametrize("n", range(4))
def test_every_noisy_table_is_a_probability_table(n, mechanism, sensitivity, epsilon):
    unit = unit_of(n, mechanism=mechanism, sensitivity=sensitivity, epsilon=epsilon)
    noisy = pooled(unit)
    assert (noisy != pooled(unit_of(n))).any()
    for tables in tables_of(unit, np.exp(noisy)):
        for table in tables.values():
            np.testing.assert_allclose(table.sum(axis=-1), 1.0, rtol=1e-12)
            assert (table > 0).all()


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
@pytest.mark.parametrize("n", range(3))
def test_class_counts_are_noised_once_for_all_parent_sets(n, sensitivity):
    unit = unit_of(n, epsilon=0.1, sensitivity=sensitivity)
    priors = [tables["prior"] for tables in tables_of(unit, pooled(unit))]
    for prior in priors[1:]:
        np.testing.assert_array_equal(prior, priors[0])


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
def test_blocks_and_their_order_change_no_bit(sensitivity):
    unit = unit_of(2, epsilon=0.5, sensitivity=sensitivity)
    whole = pooled(unit)
    bounds = unit.bounds(unit.sets, "parameter")
    do = release.pooled_release(unit)
    for at in ([5], [1, 3], [0], [2, 4]):
        parts = pooled(unit, at, do)
        expected = np.concatenate([whole[bounds[i] : bounds[i + 1]] for i in at])
        assert parts.tobytes() == expected.tobytes()


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
def test_another_seed_fold_repeat_data_set_or_number_of_clients_has_other_noise(sensitivity):
    unit = unit_of(epsilon=1.0, sensitivity=sensitivity)
    others = [
        dataclasses.replace(unit, cell=dataclasses.replace(unit.cell, seed=2)),
        dataclasses.replace(unit, fold=1),
        dataclasses.replace(unit, repeat=1),
        dataclasses.replace(unit, digest="f" * 64),
        dataclasses.replace(unit, cell=dataclasses.replace(unit.cell, clients=6)),
    ]
    drawn = [pooled(each).tobytes() for each in (unit, *others)]
    assert drawn[0] == pooled(unit_of(epsilon=1.0, sensitivity=sensitivity)).tobytes()
    assert len(set(drawn)) == 6


@pytest.mark.parametrize("method", ["generative", "hybrid"])
def test_both_methods_release_the_same(method):
    unit = make_unit(ROWS, OWNER, method=method, epsilon=1.0)
    assert pooled(unit).tobytes() == pooled(unit_of(epsilon=1.0)).tobytes()


def noisy_counts(unit):
    """Counts of every set after noise, before they are clipped and smoothed."""
    noise = (
        release._PaperNoise(unit)
        if unit.cell.generative.sensitivity == "paper"
        else release._JointNoise(unit)
    )
    tables = []
    for at, parents in enumerate(unit.sets):
        counts = summed(unit, at)
        tables.append(
            ande.unpack(
                noise(at, parents, counts.reshape(-1, unit.n_classes)), parents, unit.arity, unit.n_classes
            )
        )
    return tables


def noise_size(unit):
    """Standard deviation of the noise on the child tables, whose cells are each noised once."""
    noise = []
    for at, (parents, noisy) in enumerate(zip(unit.sets, noisy_counts(unit), strict=True)):
        exact = ande.unpack(summed(unit, at), parents, unit.arity, unit.n_classes)
        noise += [(noisy[f"child{j}"] - exact[f"child{j}"]).ravel() for j in ande.children_of(parents, 4)]
    return np.std(np.concatenate(noise))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
@pytest.mark.parametrize("n", range(3))
def test_the_noise_has_the_scale_of_the_sensitivity(n, sensitivity, mechanism):
    unit = unit_of(n, epsilon=0.5, mechanism=mechanism, sensitivity=sensitivity)
    scale = privacy.sensitivity(4, n, sensitivity) / 0.5
    # the sum over five clients has variance 5 * 2 * scale^2
    assert noise_size(unit) == pytest.approx(np.sqrt(10) * scale, rel=0.35)


def test_clients_without_rows_add_no_noise():
    unit = unit_of(epsilon=0.5, clients=100, allow_empty=True)
    scale = privacy.sensitivity(4, 1) / 0.5
    assert noise_size(unit) == pytest.approx(np.sqrt(10) * scale, rel=0.35)


def test_joint_release_gives_each_joint_table_once():
    """The table of two attributes is the child table of either as the other's parent."""
    unit = unit_of(1, epsilon=0.2, sensitivity="joint")
    tables = noisy_counts(unit)
    for i, j in product(range(4), range(4)):
        if i != j:
            np.testing.assert_array_equal(tables[i][f"child{j}"], np.swapaxes(tables[j][f"child{i}"], 1, 2))


def test_joint_release_is_less_noisy_than_the_papers():
    errors = {}
    for sensitivity in SENSITIVITIES:
        unit = unit_of(2, epsilon=1.0, sensitivity=sensitivity)
        errors[sensitivity] = np.abs(pooled(unit) - pooled(unit_of(2))).mean()
    assert errors["joint"] < errors["paper"]


def test_joint_release_of_rows_with_missing_values_is_refused():
    rows = make(61, m=200, d=4, missing=0.1)
    with pytest.raises(ConfigError, match=r'expected sensitivity = "paper".*missing = "value"'):
        release.pooled_release(unit_of(1, rows, epsilon=1.0, sensitivity="joint"))
    release.pooled_release(unit_of(1, rows, epsilon=1.0))
    release.pooled_release(unit_of(1, missing_as_value(rows), epsilon=1.0, sensitivity="joint"))


@pytest.mark.parametrize(
    ("n", "sensitivity", "numbers"),
    [
        (0, "paper", 2 + 2 * 7),
        (0, "joint", 2 * 7),
        (1, "paper", 2 + 2 * (2 + 2 * 5 + 3 + 3 * 4 + 2 + 2 * 5)),
        (1, "joint", 2 * (6 + 4 + 6)),
        (2, "paper", 2 + 2 * (6 + 6 * 2 + 4 + 4 * 3 + 6 + 6 * 2)),
        (2, "joint", 2 * 12),
    ],
)
def test_numbers_that_a_client_sends(n, sensitivity, numbers):
    rows = make(62, m=30, d=3, o=2)._replace(arity=np.array([2, 3, 2]))
    unit = unit_of(n, rows, owners(62, 30, 2, 5), sensitivity=sensitivity, epsilon=1.0)
    assert release.released_numbers(unit) == numbers
