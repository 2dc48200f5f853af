"""Cells and sidecars in memory and on disk, merging and validation."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from fedande_mpi import storage
from fedande_mpi.ande import n_cells
from fedande_mpi.celldata import CellData, CellInfo
from fedande_mpi.errors import ResultsError
from fedande_mpi.merging import find_files, merge, read_cells
from fedande_mpi.results import check_writable, open_cell, read_cell, write_cell
from fedande_mpi.schema import ATTRIBUTES, DIMENSIONS, FIELDS, SIDECAR_FIELDS, schema_text
from fedande_mpi.settings import EXECUTION_KEYS, cell_settings, differing_keys
from fedande_mpi.sidecar import Predictions, Weights, read_sidecar, unpack_weights, write_sidecar
from fedande_mpi.validation import validate
from tests.result_files import ROWS, filled, info, save_sidecar, unit_values

# --- in memory ---------------------------------------------------------------------------------------------


def test_an_empty_cell_has_every_field_in_its_shape():
    cell = CellData.empty(info())
    sizes = {"repeat": 2, "fold": 3, "round": 3, "client": 3, "row": ROWS}
    for field in FIELDS:
        assert cell.arrays[field.path].shape == tuple(sizes[name] for name in field.dims)


def test_a_centralised_cell_has_one_client():
    assert CellData.empty(info(scope="centralised", n_clients=5)).arrays["/test/accuracy"].shape[-1] == 1


def test_missing_lists_what_is_not_complete():
    cell = filled(info(), units=[(0, 1), (1, 2)])
    assert cell.missing() == [(0, 0), (0, 2), (1, 0), (1, 1)]
    assert cell.missing(1) == [(0, 0), (0, 2)]
    assert cell.missing(2, [2]) == [(0, 2)]
    assert cell.complete_units() == [(0, 1), (1, 2)]


def test_record_changes_nothing_when_a_value_does_not_fit():
    cell = CellData.empty(info())
    values = unit_values(cell.info, 0, 0) | {"/test/cll": np.zeros((3, 4))}
    with pytest.raises(ResultsError, match=r"/test/cll expects shape \(3, 3\), got \(3, 4\)"):
        cell.record(0, 0, values)
    assert not cell.is_complete(0, 0)
    assert np.isnan(cell.arrays["/test/accuracy"]).all()


@pytest.mark.parametrize("path", ["/test/acuracy", "/complete"])
def test_record_refuses_a_path_that_is_no_field_to_record(path):
    with pytest.raises(ResultsError, match="not a field to record"):
        CellData.empty(info()).record(0, 0, {path: 1})


def test_record_refuses_a_type_that_does_not_fit():
    with pytest.raises(ResultsError, match="iterations expects i4, got float64"):
        CellData.empty(info()).record(0, 0, {"/train/iterations": np.zeros((3, 3))})


def test_record_refuses_folds_that_changed_since_the_repeat_began():
    cell = filled(info(), units=[(0, 0)])
    values = unit_values(cell.info, 0, 1) | {"/folds/test_fold": np.zeros(ROWS, dtype="i4")}
    with pytest.raises(ResultsError, match="folds of repeat 0"):
        cell.record(0, 1, values)


# --- on disk -----------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    cell = filled(info(), units=[(0, 0), (1, 2)])
    path = write_cell(tmp_path, cell)
    back = read_cell(path)
    assert path.name == f"{cell.info.name}.h5"
    assert back.info == cell.info
    assert back.created == cell.created
    for name, content in cell.arrays.items():
        assert back.arrays[name].dtype == content.dtype, name
        np.testing.assert_array_equal(back.arrays[name], content, err_msg=name)


@pytest.mark.parametrize("epsilon", [None, 0.5, float("inf")])
def test_epsilon_survives_the_file(tmp_path, epsilon):
    path = write_cell(tmp_path, CellData.empty(info(method="generative", epsilon=epsilon)))
    assert read_cell(path).info.epsilon == epsilon


def test_every_dataset_has_units_description_and_scales(tmp_path):
    path = write_cell(tmp_path, filled(info()))
    names = [f.path.lstrip("/") for f in FIELDS] + [d.name for d in DIMENSIONS]
    with h5py.File(path) as file:
        seen = []
        file.visititems(lambda name, item: seen.append(name) if isinstance(item, h5py.Dataset) else None)
        assert sorted(seen) == sorted(names)
        for name in names:
            assert file[name].attrs["units"]
            assert file[name].attrs["description"]
        for field in FIELDS:
            assert [dim[0].name for dim in file[field.path].dims] == [f"/{name}" for name in field.dims]
            if field.is_text:
                assert h5py.check_string_dtype(file[field.path].dtype).encoding == "utf-8"
            else:
                assert file[field.path].fillvalue == pytest.approx(field.fill, nan_ok=True)
        assert file["round"][...].tolist() == [0, 1, 2]
        assert list(file.attrs) == [a.name for a in ATTRIBUTES]


def test_a_file_has_the_same_bytes_whatever_order_its_units_came_in(tmp_path):
    units = [(r, f) for r in range(2) for f in range(3)]
    one = filled(info(), units)
    other = filled(info(), units[::-1])
    other.created = one.created
    first = write_cell(tmp_path / "a", one).read_bytes()
    assert write_cell(tmp_path / "b", other).read_bytes() == first


def test_large_datasets_are_compressed(tmp_path):
    path = write_cell(tmp_path, CellData.empty(info(n_rows=20_000)))
    with h5py.File(path) as file:
        assert file["folds/owner"].compression == "gzip"
        assert file["folds/owner"].chunks == (1, 1, 20_000)
        assert file["test/accuracy"].compression is None
    assert path.stat().st_size < 120_000


def test_an_absent_file_gives_an_empty_cell(tmp_path):
    assert open_cell(tmp_path / "nowhere", info()).complete_units() == []


def test_a_file_is_continued(tmp_path):
    cell = filled(info(), units=[(0, 0)])
    write_cell(tmp_path, cell)
    again = open_cell(tmp_path, info())
    again.record(0, 1, unit_values(again.info, 0, 1))
    write_cell(tmp_path, again)
    back = read_cell(tmp_path / f"{cell.info.name}.h5")
    assert back.complete_units() == [(0, 0), (0, 1)]
    assert back.created == cell.created


def test_more_repeats_extend_a_file(tmp_path):
    write_cell(tmp_path, filled(info(), units=[(1, 2)]))
    cell = open_cell(tmp_path, info(n_repeats=4, config="repeats = 4\n"))
    assert cell.arrays["/test/accuracy"].shape[0] == 4
    assert cell.complete_units() == [(1, 2)]
    np.testing.assert_array_equal(
        cell.arrays["/test/accuracy"][1, 2], unit_values(info(), 1, 2)["/test/accuracy"]
    )
    assert cell.info.config == "repeats = 4\n"


def test_fewer_repeats_keep_a_file(tmp_path):
    write_cell(tmp_path, filled(info(), units=[(0, 0), (1, 2)]))
    cell = open_cell(tmp_path, info(n_repeats=1, config="repeats = 1\n"))
    assert cell.complete_units() == [(0, 0), (1, 2)]
    assert cell.missing(1) == [(0, 1), (0, 2)]
    assert cell.info.config == info().config


def test_overwrite_begins_anew_but_keeps_the_file_until_a_write(tmp_path):
    path = write_cell(tmp_path, filled(info(), units=[(0, 0)]))
    cell = open_cell(tmp_path, info(), overwrite=True)
    assert cell.complete_units() == []
    assert read_cell(path).complete_units() == [(0, 0)]


def test_a_field_that_an_older_file_lacks_is_its_fill_value(tmp_path):
    path = write_cell(tmp_path, filled(info()))
    with h5py.File(path, "r+") as file:
        del file["test/brier"]
    assert np.isnan(read_cell(path).arrays["/test/brier"]).all()


# --- refusals ----------------------------------------------------------------------------------------------


def test_another_configuration_is_refused_with_the_differing_keys(tmp_path):
    write_cell(tmp_path, filled(info()))
    other = info(
        config_sha256="f" * 64,
        settings=info().settings | {"seed": 2, "local_steps": 7},
    )
    with pytest.raises(ResultsError) as caught:
        open_cell(tmp_path, other)
    message = str(caught.value)
    assert "local_steps (5 in the file, 7 asked for), seed (1 in the file, 2 asked for);" in message
    assert "--overwrite" in message
    assert f"{other.name}.h5" in message


def test_a_changed_data_set_is_refused(tmp_path):
    write_cell(tmp_path, filled(info()))
    with pytest.raises(ResultsError, match="differs in dataset_sha256"):
        open_cell(tmp_path, info(dataset_sha256="e" * 64))


def test_a_configuration_edited_in_the_file_is_refused(tmp_path):
    path = write_cell(tmp_path, filled(info()))
    with h5py.File(path, "r+") as file:
        file.attrs["config"] = file.attrs["config"].replace("seed = 1", "seed = 9")
    with pytest.raises(ResultsError, match=r"seed \(9 in the file, 1 asked for\)"):
        open_cell(tmp_path, info())


def test_a_digest_is_named_when_nothing_else_differs(tmp_path):
    write_cell(tmp_path, filled(info()))
    with pytest.raises(ResultsError, match="differs in config_sha256"):
        open_cell(tmp_path, info(config_sha256="f" * 64))


def test_a_newer_format_is_refused_by_name(tmp_path):
    path = write_cell(tmp_path, filled(info()))
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = 2
    with pytest.raises(ResultsError, match="fedande-results version 2, this program reads up to 1"):
        open_cell(tmp_path, info())


def test_a_foreign_file_is_refused(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(ResultsError, match=r"other\.h5: expected format 'fedande-results', found None"):
        read_cell(tmp_path / "other.h5")


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.95])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = write_cell(tmp_path, filled(info()))
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(ResultsError, match=r"damaged or incomplete.*move it away"):
        open_cell(tmp_path, info())


@pytest.mark.parametrize("name", ["complete", "round"])
def test_a_file_without_what_every_file_has_is_refused(tmp_path, name):
    path = write_cell(tmp_path, filled(info()))
    with h5py.File(path, "r+") as file:
        del file[name]
    with pytest.raises(ResultsError, match="damaged or incomplete"):
        read_cell(path)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(ResultsError, match=r"gone\.h5: expected a result file, found none"):
        read_cell(tmp_path / "gone.h5")


# --- whole writes ------------------------------------------------------------------------------------------


def test_nothing_but_the_file_is_left(tmp_path):
    path = write_cell(tmp_path, filled(info()))
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_names_host_process_and_job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    name = storage.temporary_path(Path("x/cell.h5")).name
    assert name.startswith(".cell.")
    assert name.endswith(f".{os.getpid()}.4711.tmp")
    monkeypatch.delenv("SLURM_JOB_ID")
    assert storage.temporary_path(Path("x/cell.h5")).name.endswith(f".{os.getpid()}.0.tmp")


def test_the_order_is_write_sync_replace_sync(tmp_path, monkeypatch):
    calls = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(handle):
        calls.append("directory" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        real_sync(handle)

    def replace(source, target):
        calls.append("replace")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    write_cell(tmp_path, filled(info()))
    assert calls == ["file", "replace", "directory"]


@pytest.mark.parametrize("write", [lambda d: write_cell(d, filled(info())), check_writable])
def test_a_directory_below_a_file_is_refused(tmp_path, write):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ResultsError, match=r"file.*a file is in the way.*choose another directory"):
        write(tmp_path / "file" / "results")


def test_a_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ResultsError, match="a file is in the way"):
        check_writable(tmp_path / "file")


def test_check_writable_makes_the_directory_and_leaves_nothing(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    path = write_cell(tmp_path, filled(info(), units=[(0, 0)]))
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultsError, match=rf"{path.name}.*No space left.*free some space"):
        write_cell(tmp_path, filled(info()))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_size_limit_ends_in_one_error_and_a_clean_exit(tmp_path):
    path = write_cell(tmp_path, filled(info(), units=[(0, 0)]))
    before = path.read_bytes()
    program = (
        "import resource, signal, sys\n"
        "from tests.result_files import filled, info\n"
        "from fedande_mpi.results import write_cell\n"
        "from fedande_mpi.errors import ResultsError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "try:\n"
        "    write_cell(sys.argv[1], filled(info()))\n"
        "except ResultsError as error:\n"
        "    print(error)\n"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert done.stdout.count("\n") == 1
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = write_cell(tmp_path, filled(info(), units=[(0, 0)]))
    before = path.read_bytes()

    def interrupt(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_cell(tmp_path, filled(info()))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path):
    program = (
        "import itertools, sys\n"
        "from fedande_mpi.results import open_cell, write_cell\n"
        "from tests.result_files import info, unit_values\n"
        "cell = open_cell(sys.argv[1], info(n_rows=20000))\n"
        "for unit in itertools.cycle([(r, f) for r in range(2) for f in range(3)]):\n"
        "    cell.record(*unit, unit_values(cell.info, *unit))\n"
        "    write_cell(sys.argv[1], cell)\n"
        "    print('written', flush=True)\n"
    )
    root = Path(__file__).resolve().parent.parent
    rng = np.random.default_rng(1)
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], cwd=root, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout.readline() == "written\n"
        time.sleep(rng.uniform(0, 0.05))
        writer.kill()
        writer.wait()
        writer.stdout.close()
        assert validate(tmp_path / f"{info().name}.h5") == []
    open_cell(tmp_path, info(n_rows=20_000))
    storage.remove_leftovers(tmp_path / f"{info().name}.h5")  # as whoever claims the cell next
    assert [path.name for path in tmp_path.iterdir()] == [f"{info().name}.h5"]


def test_a_lock_on_the_file_stops_neither_reader_nor_writer(tmp_path):
    path = write_cell(tmp_path, filled(info(), units=[(0, 0)]))
    with open(path, "rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert read_cell(path).complete_units() == [(0, 0)]
        write_cell(tmp_path, filled(info(), units=[(0, 0), (0, 1)]))
    assert len(read_cell(path).complete_units()) == 2


def test_a_file_that_is_open_with_a_lock_in_the_same_process_is_read(tmp_path):
    path = write_cell(tmp_path, filled(info()))
    for locking in (True, False):
        with h5py.File(path, locking=locking):
            assert len(read_cell(path).complete_units()) == 6


def test_a_lock_stops_no_reader_even_where_hdf5_is_told_to_lock(tmp_path):
    path = write_cell(tmp_path, filled(info()))
    program = "import sys; from fedande_mpi.results import read_cell; read_cell(sys.argv[1])"
    with open(path, "rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            env=os.environ | {"HDF5_USE_FILE_LOCKING": "TRUE"}, check=True, timeout=60,
        )  # fmt: skip


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(ResultsError, match="Is a directory"):
        read_cell(tmp_path)


# --- sidecars ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2])
def test_weights_come_apart_in_the_documented_layout(n):
    arity, parents, n_classes = np.array([2, 3, 4, 2]), np.array([1, 2][:n], dtype=int), 5
    flat = np.arange(n_cells(parents, arity) * n_classes, dtype=float)
    blocks = unpack_weights(flat, parents, arity, n_classes)
    position = 0

    def take(target):
        nonlocal position
        np.testing.assert_array_equal(target, flat[position : position + n_classes])
        position += n_classes

    take(blocks["prior"])
    states = int(np.prod(arity[parents]))
    if n:
        for state in range(states):
            take(blocks["parents"][:, state])
    for state in range(states):
        for j in sorted(set(range(4)) - set(parents.tolist())):
            for value in range(arity[j]):
                take(blocks[f"child{j}"][:, state, value])
    assert position == flat.size
    assert ("parents" in blocks) == (n > 0)
    assert all(np.shares_memory(block, flat) for block in blocks.values())


def test_weights_of_another_size_are_refused():
    with pytest.raises(ResultsError, match=r"parent set \(1,\): expected shape \(\d+,\), got \(7,\)"):
        unpack_weights(np.zeros(7), np.array([1]), np.array([2, 3]), 2)


@pytest.mark.parametrize("n", [0, 1])
def test_a_sidecar_is_read_as_written(tmp_path, n):
    cell = filled(info())
    weights, predictions = save_sidecar(tmp_path, cell, 0, 1, n=n)
    back_weights, back_predictions = read_sidecar(tmp_path / f"{cell.info.name}.r0.f1.h5")
    for name in Weights.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(back_weights, name), getattr(weights, name))
    for name in Predictions.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(back_predictions, name), getattr(predictions, name))


def test_a_sidecar_has_units_description_and_scales(tmp_path):
    cell = filled(info())
    save_sidecar(tmp_path, cell, 0, 1)
    with h5py.File(tmp_path / f"{cell.info.name}.r0.f1.h5") as file:
        for field in SIDECAR_FIELDS:
            assert file[field.path].attrs["units"] == field.units
            assert file[field.path].attrs["description"] == field.description
            assert [dim[0].name for dim in file[field.path].dims] == [f"/{name}" for name in field.dims]


def test_a_sidecar_may_hold_one_of_the_two(tmp_path):
    cell = filled(info())
    only = Predictions(np.zeros((3, 2, 2)), np.arange(2), np.zeros(2, dtype=int))
    path = write_sidecar(tmp_path, cell, 0, 0, predictions=only)
    assert read_sidecar(path)[0] is None


def test_contradicting_sizes_are_refused(tmp_path):
    wrong = Predictions(np.zeros((3, 2, 2)), np.arange(3), np.zeros(2, dtype=int))
    with pytest.raises(ResultsError, match="/predictions/row has 3 along test_row, expected 2"):
        write_sidecar(tmp_path, filled(info()), 0, 0, predictions=wrong)
    wrong_weights = Weights(np.zeros((1, 9)), np.array([0, 8]), np.array([[0]]), np.array([2, 2]))
    with pytest.raises(ResultsError, match="/weights/offsets expects 2 numbers from 0 to 9"):
        write_sidecar(tmp_path, filled(info()), 0, 0, weights=wrong_weights)


def test_a_cell_links_to_its_sidecars_and_moves_with_them(tmp_path):
    cell = filled(info())
    weights, _ = save_sidecar(tmp_path / "a", cell, 0, 1)
    path = write_cell(tmp_path / "a", cell)
    (tmp_path / "a").rename(tmp_path / "b")
    path = tmp_path / "b" / path.name
    with h5py.File(path) as file:
        assert file["saved"].get("r0_f1", getlink=True).filename == f"{cell.info.name}.r0.f1.h5"
        np.testing.assert_array_equal(file["saved/r0_f1/weights/values"][...], weights.values)
    assert read_cell(path).saved == {(0, 1): tmp_path / "b" / f"{cell.info.name}.r0.f1.h5"}


def test_links_survive_a_resume(tmp_path):
    cell = filled(info(), units=[(0, 0)])
    save_sidecar(tmp_path, cell, 0, 0)
    write_cell(tmp_path, cell)
    again = open_cell(tmp_path, info())
    again.record(0, 1, unit_values(info(), 0, 1))
    save_sidecar(tmp_path, again, 0, 1)
    path = write_cell(tmp_path, again)
    with h5py.File(path) as file:
        assert sorted(file["saved"]) == ["r0_f0", "r0_f1"]


# --- many files --------------------------------------------------------------------------------------------


def test_files_are_found_in_directories_and_patterns_without_sidecars(tmp_path):
    cell = filled(info())
    save_sidecar(tmp_path / "run", cell, 0, 0)
    path = write_cell(tmp_path / "run", cell)
    (tmp_path / "run" / "notes.txt").write_text("x")
    for given in (tmp_path, str(tmp_path / "run"), path, tmp_path / "run" / "*.h5", [path, tmp_path]):
        assert find_files(given) == [path]
    assert find_files(sorted((tmp_path / "run").glob("*.h5"))) == [path]


@pytest.mark.parametrize("name", ["gone", "gone*.h5", "empty"])
def test_a_path_without_results_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResultsError, match="found none; check the path"):
        find_files(tmp_path / name)
    with pytest.raises(ResultsError, match="give at least one path"):
        find_files([])


def test_a_merged_file_holds_every_cell_whole(tmp_path):
    one, two = filled(info()), filled(info(name="other", n=2, model="A2DE-w", config_sha256="b" * 64))
    write_cell(tmp_path / "run", one)
    write_cell(tmp_path / "run", two)
    assert merge(tmp_path / "run", tmp_path / "all.h5") == 2
    cells = {cell.info.name: cell for cell in read_cells(tmp_path / "all.h5")}
    for cell in (one, two):
        assert cells[cell.info.name].info == cell.info
        for name, content in cell.arrays.items():
            np.testing.assert_array_equal(cells[cell.info.name].arrays[name], content)
    assert validate(tmp_path / "all.h5") == []
    with pytest.raises(ResultsError, match="expected one cell, found 2"):
        read_cell(tmp_path / "all.h5")


def test_a_merged_file_with_one_cell_is_read_as_a_cell(tmp_path):
    cell = filled(info())
    merge(write_cell(tmp_path, cell), tmp_path / "all.h5")
    assert read_cell(tmp_path / "all.h5").info == cell.info


def test_a_merged_file_can_be_merged_again_over_itself(tmp_path):
    write_cell(tmp_path, filled(info()))
    merge(tmp_path, tmp_path / "all.h5")
    write_cell(tmp_path, filled(info(name="other", config_sha256="b" * 64)))
    assert merge(tmp_path, tmp_path / "all.h5") == 2


def test_parts_of_a_cell_become_one(tmp_path):
    write_cell(tmp_path / "a", filled(info(), units=[(0, 0), (0, 1)]))
    write_cell(tmp_path / "b", filled(info(n_repeats=3), units=[(0, 1), (2, 2)]))
    merge(tmp_path, tmp_path / "all.h5")
    cell = read_cell(tmp_path / "all.h5")
    assert cell.complete_units() == [(0, 0), (0, 1), (2, 2)]
    np.testing.assert_array_equal(
        cell.arrays["/folds/owner"][2, 2], unit_values(info(), 2, 2)["/folds/owner"]
    )


def test_parts_that_contradict_each_other_are_refused(tmp_path):
    write_cell(tmp_path / "a", filled(info()))
    other = filled(info())
    other.arrays["/timing/unit"] += 1.0
    other.arrays["/test/accuracy"][1, 1, 2, 0] = 0.125
    write_cell(tmp_path / "b", other)
    with pytest.raises(
        ResultsError, match="/test/accuracy of repeat 1, fold 1 is not what another file says"
    ):
        read_cells(tmp_path)


def test_parts_with_other_folds_are_refused(tmp_path):
    write_cell(tmp_path / "a", filled(info(), units=[(0, 0)]))
    other = filled(info(), units=[(0, 1)])
    other.arrays["/folds/test_fold"][0] = np.roll(other.arrays["/folds/test_fold"][0], 1)
    write_cell(tmp_path / "b", other)
    with pytest.raises(ResultsError, match="folds of repeat 0"):
        read_cells(tmp_path)


def test_two_cells_with_one_name_are_not_merged(tmp_path):
    write_cell(tmp_path / "a", filled(info()))
    write_cell(tmp_path / "b", filled(info(config_sha256="b" * 64)))
    with pytest.raises(ResultsError, match="two different cells have this name"):
        merge(tmp_path, tmp_path / "all.h5")


def test_links_of_a_merged_file_are_relative_to_it(tmp_path):
    cell = filled(info())
    weights, _ = save_sidecar(tmp_path / "run", cell, 0, 1)
    write_cell(tmp_path / "run", cell)
    merge(tmp_path / "run", tmp_path / "merged" / "all.h5")
    with h5py.File(tmp_path / "merged" / "all.h5") as file:
        linked = file[f"cells/{cell.info.name}/saved/r0_f1/weights/values"]
        np.testing.assert_array_equal(linked[...], weights.values)


# --- validation --------------------------------------------------------------------------------------------


def test_a_written_file_is_valid(tmp_path):
    assert validate(write_cell(tmp_path, filled(info(), units=[(0, 0)]))) == []


def spoil_type(file):
    scales = [file["repeat"], file["fold"], file["round"], file["client"]]
    del file["test/accuracy"]
    dataset = file.create_dataset("test/accuracy", data=np.zeros((2, 3, 3, 3), dtype="f4"))
    for axis, scale in enumerate(scales):
        dataset.dims[axis].attach_scale(scale)
    dataset.attrs["units"] = "1"
    dataset.attrs["description"] = "x"


def spoil_owner(file):
    file["folds/owner"][0, 0, :] = 0


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda f: f.attrs.__delitem__("model"), "attribute model is missing"),
        (lambda f: f.attrs.__setitem__("n", "one"), "attribute n is no int"),
        (lambda f: f.__delitem__("row"), "dimension scale row is missing"),
        (lambda f: f.__delitem__("test/brier"), "dataset /test/brier is missing"),
        (spoil_type, "/test/accuracy: expected type f8, found float32"),
        (lambda f: f["test/cll"].attrs.__setitem__("units", "bit"), "/test/cll: expected units 'nat'"),
        (lambda f: f["test/cll"].attrs.__delitem__("description"), "/test/cll: has no description"),
        (
            lambda f: f["test/cll"].dims[3].detach_scale(f["client"]),
            "dimension 3 is not attached to the scale client",
        ),
        (
            lambda f: f["test/accuracy"].__setitem__((0, 0, 1, 1), 1.5),
            "repeat 0, fold 0: /test/accuracy is outside 0 to 1",
        ),
        (lambda f: f["test/accuracy"].__setitem__((0, 0), np.nan), "fold 0: no round was evaluated"),
        (spoil_owner, "repeat 0, fold 0: /folds/owner holds out other rows than /folds/test_fold"),
        (lambda f: f["folds/owner"].__setitem__((0, 0, 0), 3), "names a client that does not exist"),
    ],
)  # fmt: skip
def test_validate_says_what_is_wrong(tmp_path, spoil, problem):
    path = write_cell(tmp_path, filled(info()))
    with h5py.File(path, "r+") as file:
        spoil(file)
    problems = validate(path)
    assert any(problem in line for line in problems), problems


def test_validate_reports_a_file_that_is_none(tmp_path):
    (tmp_path / "x.h5").write_text("no HDF5")
    assert "damaged or incomplete" in validate(tmp_path / "x.h5")[0]


def test_validate_lets_unknown_datasets_pass(tmp_path):
    path = write_cell(tmp_path, filled(info()))
    with h5py.File(path, "r+") as file:
        file["later/field"] = 1
    assert validate(path) == []


# --- settings and schema -----------------------------------------------------------------------------------


def test_settings_are_the_same_from_toml_and_from_the_program():
    toml = {"datasets": ["x"], "clients": [5], "seed": 1, "repeats": 5, "nominal": ["a"]}
    toml |= {"discriminative": {"rounds": 10}, "generative": {"epsilon": 1.0}}
    settings = cell_settings(toml, "discriminative")
    assert settings == {"clients": 5, "dataset": "x", "nominal": ("a",), "rounds": 10, "seed": 1}
    given = {"clients": 5, "rounds": 10, "seed": 1.0, "nominal": ["a"], "target": None}
    assert differing_keys(settings, cell_settings(given, "discriminative")) == []


def test_the_keys_that_change_no_result_are_those_of_the_configuration():
    from fedande_mpi.cell import Common
    from fedande_mpi.keys import keys, never

    unchanging = {name for name, key in keys(Common).items() if key.metadata["changes"] is never}
    assert unchanging | {"name"} == EXECUTION_KEYS


def test_schema_text_names_everything():
    text = schema_text()
    for known in (*ATTRIBUTES, *DIMENSIONS):
        assert known.name in text
    for field in (*FIELDS, *SIDECAR_FIELDS):
        assert field.path in text
        assert field.description in text


def test_versions_are_json():
    assert json.loads(unit_values(info(), 0, 0)["/provenance/versions"])["python"]


def test_cells_with_equal_information_are_equal():
    assert info() == dataclasses.replace(info(), settings={})
    assert isinstance(info(), CellInfo)
