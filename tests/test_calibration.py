"""What a plan's seconds are scaled by."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fedande_mpi import calibration, jobs
from fedande_mpi.config import Experiment
from fedande_mpi.planning import estimated_seconds
from fedande_mpi.rehearsal import warm_up
from tests.small_data import make, make_unit, owners


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"scope": "local"},
        {"method": "generative", "combine": "joint"},
        {"method": "generative", "epsilon": 1.0},
        {"method": "hybrid", "epsilon": 1.0, "save": ("weights", "predictions")},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())) or "federated",
)
def test_a_piece_of_work_in_the_shape_of_a_cell_is_measured(keys, monkeypatch):
    monkeypatch.setattr(calibration, "_SECONDS", 0.01)
    unit = make_unit(make(1, m=60, d=9), owners(1, 60, 4, 15), n=2, **keys)
    warm_up([(unit.cell, False)])
    factor = calibration.calibrate(unit)
    assert factor is not None
    assert math.isfinite(factor)
    assert factor > 0


def test_the_piece_has_the_rows_per_client_and_arities_of_the_cell_and_is_small():
    unit = make_unit(make(1, m=60, d=9), owners(1, 60, 4, 15), n=2)
    sample = calibration._sample(unit, 200, 6, 10)
    assert sample.arity.tolist() == unit.arity[:8].tolist()
    assert sample.n_rows.max() <= unit.n_rows.max() + 1
    assert sample.n_rows.sum() == 200
    assert calibration._sample(unit, 10**9, 6, 10).n_rows.sum() == 5_000
    assert (sample.arity > sample.X).all()
    assert np.unique(sample.y).size == unit.n_classes


def test_the_piece_stays_small_where_attributes_have_a_thousand_values(monkeypatch):
    planned = []

    def noted(unit):
        planned.append(estimated_seconds(unit))
        return 1.0

    monkeypatch.setattr(calibration.jit, "is_cached", lambda *functions: True)
    monkeypatch.setattr(calibration, "_seconds", noted)
    unit = make_unit(make(1, m=60, d=9), owners(1, 60, 4, 15), n=3)
    unit = dataclasses.replace(unit, arity=np.full(9, 1000))
    assert calibration.calibrate(unit) == pytest.approx(1 / planned[-1])
    assert max(planned) <= 2 * calibration._SECONDS


def test_without_compiled_code_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(calibration.jit, "is_cached", lambda *functions: False)
    monkeypatch.setattr(calibration, "run_unit", lambda *arguments: 1 // 0)
    assert calibration.calibrate(make_unit(make(1), owners(1, 40, 3, 10))) is None


@pytest.mark.parametrize(
    ("factor", "words"), [(None, "there is no compiled code yet"), (3.0, "3.00 x the built-in")]
)
def test_a_plan_says_what_its_seconds_are_scaled_by(factor, words, monkeypatch):
    experiment = Experiment.from_mapping({"datasets": "synthetic:m=400000,d=20,o=4", "n": 1, "repeats": 1})

    def seconds(value):
        monkeypatch.setattr(jobs, "calibrate", lambda unit: value)
        text = jobs.plan_text(experiment, 1)
        (line,) = [line for line in text.splitlines() if "units (folds)" in line]
        return float(line.split("about ")[1].split()[0].replace(",", "")), line

    plain, _ = seconds(1.0)
    scaled, line = seconds(factor)
    assert words in line
    assert scaled == pytest.approx(plain * (factor or 1.0), rel=0.05)
