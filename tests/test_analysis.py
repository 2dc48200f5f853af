"""Data frames and trees made from result files."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import xarray as xr

from fedande_mpi.analysis import open_results, open_tree
from fedande_mpi.celldata import CellData
from fedande_mpi.errors import ResultsError
from fedande_mpi.formatting import format_table
from fedande_mpi.merging import merge
from fedande_mpi.reporting import table, table_rows
from fedande_mpi.results import write_cell
from fedande_mpi.schema import FIELDS
from tests.result_files import discriminative, filled, generative, save_sidecar

# --- pandas ------------------------------------------------------------------------------------------------


def test_the_frame_is_tidy(tmp_path):
    cell = filled(discriminative(), units=[(0, 1), (1, 2)])
    write_cell(tmp_path, cell)
    frame = open_results(tmp_path)
    assert len(frame) == 2 * 3 * 3
    for row in frame.to_dict("records"):
        place = (row["repeat"], row["fold"], row["round"], row["client"])
        for field in FIELDS:
            if field.path.startswith(("/test/", "/train/")):
                stored = cell.arrays[field.path][place]
                np.testing.assert_array_equal(row[field.path.split("/")[-1]], stored)
    assert not frame.duplicated(["repeat", "fold", "round", "client"]).any()
    assert frame["local_steps"].unique().tolist() == [5]
    assert frame["epsilon"].isna().all()
    assert frame["iterations"].dtype == np.dtype("i4")


def test_the_frame_of_several_cells_has_all_settings(tmp_path):
    write_cell(tmp_path, filled(discriminative()))
    write_cell(tmp_path, filled(generative(epsilon=None, scope="centralised", n_clients=5)))
    frame = open_results([tmp_path]).set_index("model")
    assert list(frame.columns[:8]) == [
        "dataset", "n", "method", "scope", "clients", "epsilon", "epsilon_scope", "sensitivity",
    ]  # fmt: skip
    assert frame.loc["A1DE", "clients"].unique().tolist() == [1]
    assert np.isinf(frame.loc["A1DE", "epsilon"]).all()
    assert frame.loc["A1DE", "local_steps"].isna().all()


def test_the_frame_agrees_with_the_table(tmp_path):
    write_cell(tmp_path, filled(discriminative()))
    frame = open_results(tmp_path)
    means = frame[frame["round"] == 2].groupby(["repeat", "fold"])["accuracy"].mean()
    (row,) = table_rows(tmp_path)
    assert means.mean() == pytest.approx(row["accuracy"])
    assert means.std() == pytest.approx(row["accuracy_sd"])


def test_the_frame_of_nothing_complete_is_empty(tmp_path):
    write_cell(tmp_path, CellData.empty(discriminative()))
    frame = open_results(tmp_path)
    assert len(frame) == 0
    assert "accuracy" in frame.columns


@pytest.mark.parametrize(("function", "module"), [(open_results, "pandas"), (open_tree, "h5netcdf")])
def test_a_missing_extra_is_one_clear_line(tmp_path, monkeypatch, function, module):
    path = write_cell(tmp_path, filled(discriminative()))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ResultsError, match=rf"{module} is not installed; pip install 'fedande-mpi\[analysis\]'"
    ):
        function(path)


def test_tables_need_no_extra(tmp_path, monkeypatch):
    for module in ("pandas", "xarray", "h5netcdf"):
        monkeypatch.setitem(sys.modules, module, None)
    write_cell(tmp_path, filled(discriminative()))
    assert format_table(table(tmp_path))


# --- xarray ------------------------------------------------------------------------------------------------


def test_xarray_opens_a_cell_as_a_tree(tmp_path):
    cell = filled(discriminative())
    path = write_cell(tmp_path, cell)
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        assert set(tree.children) == {"test", "train", "communication", "timing", "provenance", "folds"}
        for field in FIELDS:
            found = tree[field.path]
            assert found.dims == field.dims
            assert found.attrs == {"units": field.units, "description": field.description}
            np.testing.assert_array_equal(found.values, cell.arrays[field.path])
            for name in field.dims:
                assert name in found.coords
        assert tree["test/accuracy"].sel(round=2, client=1, repeat=0, fold=0) == pytest.approx(0.7001)
        assert tree.attrs["model"] == "A1DE-w"


def test_xarray_opens_one_group(tmp_path):
    path = write_cell(tmp_path, filled(discriminative()))
    with xr.open_dataset(path, engine="h5netcdf", group="test") as test:
        assert test["accuracy"].dims == ("repeat", "fold", "round", "client")


def test_xarray_opens_a_merged_file(tmp_path):
    write_cell(tmp_path, filled(discriminative()))
    write_cell(tmp_path, filled(generative()))
    merge(tmp_path, tmp_path / "all.h5")
    for tree in (xr.open_datatree(tmp_path / "all.h5", engine="h5netcdf"), open_tree(tmp_path / "all.h5")):
        with tree:
            assert tree["cells/d/test/accuracy"].sizes["round"] == 3
            assert tree["cells/g/test/accuracy"].coords["round"].values.tolist() == [1]


@pytest.mark.parametrize("merged", [False, True])
def test_a_tree_has_the_sidecars_that_exist(tmp_path, merged):
    cell = filled(discriminative())
    weights, predictions = save_sidecar(tmp_path, cell, 0, 1)
    save_sidecar(tmp_path, cell, 0, 2)
    path = write_cell(tmp_path, cell)
    (tmp_path / "d.r0.f2.h5").unlink()
    if merged:
        merge(path, tmp_path / "sub" / "all.h5")
        path = tmp_path / "sub" / "all.h5"
    with open_tree(path) as tree:
        root = tree["cells/d"] if merged else tree
        np.testing.assert_array_equal(root["saved/r0_f1/weights/values"].values, weights.values)
        posterior = root["saved/r0_f1/predictions/posterior"]
        assert posterior.dims == ("client", "test_row", "class")
        np.testing.assert_array_equal(posterior.values, predictions.posterior)
        assert "r0_f2" not in root["saved"].children
        assert root["test/accuracy"].coords["round"].values.tolist() == [0, 1, 2]
    with xr.open_dataset(path, engine="h5netcdf", group="cells/d/test" if merged else "test") as test:
        assert "accuracy" in test


@pytest.mark.parametrize("n", [0, 1])
def test_a_sidecar_opens_as_a_tree(tmp_path, n):
    cell = filled(discriminative())
    save_sidecar(tmp_path, cell, 0, 1, n=n)
    with open_tree(tmp_path / "d.r0.f1.h5") as tree:
        assert tree["weights/parent_sets"].dims == ("parent_set", "parent")
        assert tree["weights/values"].dims == ("model", "weight")


def test_a_damaged_file_is_one_clear_error(tmp_path):
    (tmp_path / "x.h5").write_text("no HDF5")
    with pytest.raises(ResultsError, match="damaged or incomplete"):
        open_tree(tmp_path / "x.h5")
