"""OpenML, through the ``openml`` package and its cache.

``openml`` costs seconds and 190 MB to import, so it is imported inside functions, and only when a data
set is found nowhere else. What it leaves to the caller is done here: it has no timeout, it is not safe
for several processes, it deletes what a cache holds when a download fails, and it never looks again at
the checksum of a file once cached. A download therefore goes to a directory of its own and moves into
the cache when it is whole.

The types come from the features metadata and the rows from the ARFF file, never from a data frame,
whose dtypes turn nominal numbers into integers and two-valued attributes into booleans.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedande_mpi.arff_source import read_arff
from fedande_mpi.errors import DataError
from fedande_mpi.known import fetch_name
from fedande_mpi.table import Column, Kind, Table, is_number

TIMEOUT = (3.0, 30.0)
"""Seconds to wait for a connection, and for the next bytes of an answer."""

OFFLINE = "FEDANDE_OFFLINE"
"""Set on compute nodes: what the cache does not hold is refused, without a look at the network."""

_ATTEMPTS = 2
_SKIP_PARQUET = "OPENML_SKIP_PARQUET"
_FILES = ("description.xml", "features.xml", "dataset.arff")


def read_openml(dataset_id: int, *, timeout: tuple[float, float] = TIMEOUT) -> Table:
    """Return a data set of OpenML, downloaded unless the cache holds it.

    Parameters
    ----------
    dataset_id : int
        The number on OpenML.
    timeout : tuple of float
        Seconds to connect and seconds between bytes.

    Returns
    -------
    Table
        Columns in OpenML's order, typed by its features metadata; its default target; row identifiers
        and ignored attributes listed in `drop`.

    Raises
    ------
    DataError
        If the server cannot be reached, is too slow, has no such data set, or sends a damaged file.
    """
    with _session(dataset_id, timeout) as openml:
        dataset = _load(openml, dataset_id)
        path, features = Path(dataset.data_file), dataset.features
    table = read_arff(path)
    if len(features) != len(table.columns):
        raise DataError(
            f"OpenML data set {dataset_id}: expected {len(features)} attributes as in its metadata, "
            f"got {len(table.columns)} in {path}; delete that directory and fetch it again"
        )
    columns = tuple(
        _retype(column, features[i].data_type, features[i].nominal_values, dataset_id)
        for i, column in enumerate(table.columns)
    )
    names = {column.name for column in columns}
    ignored = [dataset.row_id_attribute, *(dataset.ignore_attribute or ())]
    return Table(columns, dataset.default_target_attribute, frozenset(_listed(ignored, names)))


def download(dataset_id: int, *, timeout: tuple[float, float] = TIMEOUT) -> Path:
    """Put a data set into the cache, unless it is there whole, and return its ARFF file.

    Raises
    ------
    DataError
        As :func:`read_openml`, or if the cache cannot be written.
    """
    with _session(dataset_id, timeout) as openml:
        return Path(_load(openml, dataset_id).data_file)


def cached(dataset_id: int) -> bool:
    """Whether the cache holds all that :func:`read_openml` needs; nothing is downloaded."""
    with _session(dataset_id, TIMEOUT) as openml:
        return _is_complete(_folder(openml, dataset_id))


def _folder(openml: ModuleType, dataset_id: int) -> Path:
    return Path(openml.config.get_cache_directory()) / "datasets" / str(dataset_id)


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _FILES)


def _load(openml: ModuleType, dataset_id: int) -> Any:
    folder = _folder(openml, dataset_id)
    if _is_complete(folder):
        dataset = _get(openml, dataset_id)
        digest = hashlib.md5(Path(dataset.data_file).read_bytes(), usedforsecurity=False).hexdigest()
        if dataset.md5_checksum in (None, digest):
            return dataset
    _download(openml, dataset_id, folder)
    return _get(openml, dataset_id)


def _get(openml: ModuleType, dataset_id: int) -> Any:
    return openml.datasets.get_dataset(dataset_id, download_data=True, download_features_meta_data=True)


def _download(openml: ModuleType, dataset_id: int, folder: Path) -> None:
    if os.environ.get(OFFLINE):
        raise DataError(
            f"OpenML data set {dataset_id}: expected it whole in the cache ({folder}), and {OFFLINE} forbids the "
            f"network; run `fedande datasets fetch {fetch_name(dataset_id)}` where there is one (OPENML_CACHE_DIR "
            "says where the cache is), or give a directory of ARFF files by --data-dir"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    root = openml.config.get_config_as_dict()["cachedir"]
    # beside the final place, so that a file moves at once or not at all
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
        openml.config.set_root_cache_directory(temporary)
        try:
            _get(openml, dataset_id)
            files = [file for file in _folder(openml, dataset_id).iterdir() if file.is_file()]
        finally:
            openml.config.set_root_cache_directory(root)
        folder.mkdir(exist_ok=True)
        # the rows last: a cache with all three files is whole
        for file in sorted(files, key=lambda file: file.name == "dataset.arff"):
            os.replace(file, folder / file.name)


@contextmanager
def _session(dataset_id: int, timeout: tuple[float, float]) -> Iterator[ModuleType]:
    """Import openml, give it a timeout and one retry, and put back all it changes.

    What goes wrong inside becomes a :class:`DataError` of one line.
    """
    root_logger, silent = logging.getLogger(), logging.NullHandler()
    # without a handler, openml's calls of logging.info would install one for the whole program
    root_logger.addHandler(silent)
    try:
        with _without_parquet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                import openml
                import requests
            except (ImportError, OSError) as error:
                raise DataError(
                    f"OpenML data set {dataset_id}: the openml package cannot be imported ({error}); "
                    "install it, or give a directory of ARFF files by --data-dir"
                ) from None
            before = openml.config.get_config_as_dict()
            openml.config.set_retry_policy("human", _ATTEMPTS)
            try:
                with _default_timeout(requests, timeout):
                    yield openml
            except Exception as error:
                raise _explain(openml, requests, dataset_id, timeout, error) from None
            finally:
                # the configuration may hold the number as text
                openml.config.set_retry_policy(before["retry_policy"], int(before["connection_n_retries"]))
    finally:
        root_logger.removeHandler(silent)


@contextmanager
def _default_timeout(requests: ModuleType, timeout: tuple[float, float]) -> Iterator[None]:
    """Give a timeout to requests without one: openml sets none and offers no way to."""
    send = requests.adapters.HTTPAdapter.send

    def send_in_time(self: Any, request: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = kwargs.get("timeout") or timeout
        return send(self, request, **kwargs)

    requests.adapters.HTTPAdapter.send = send_in_time
    try:
        yield
    finally:
        requests.adapters.HTTPAdapter.send = send


@contextmanager
def _without_parquet() -> Iterator[None]:
    """Keep openml from looking for Parquet files, which carry no declared values."""
    before = os.environ.get(_SKIP_PARQUET)
    os.environ[_SKIP_PARQUET] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SKIP_PARQUET]
        else:
            os.environ[_SKIP_PARQUET] = before


def _explain(
    openml: ModuleType, requests: ModuleType, dataset_id: int, timeout: tuple[float, float], error: Exception
) -> Exception:
    instead = (
        f"run `fedande datasets fetch {fetch_name(dataset_id)}` where there is a network, "
        "or give a directory of ARFF files by --data-dir"
    )
    about = f"OpenML data set {dataset_id}"
    server = openml.config.server
    if isinstance(error, DataError):
        return error
    if isinstance(error, openml.exceptions.OpenMLHashException):
        return DataError(
            f"{about}: the file does not match OpenML's checksum, also when sent again; "
            "try later, or give a directory of ARFF files by --data-dir"
        )
    if isinstance(error, openml.exceptions.OpenMLServerException):
        return DataError(
            f"{about}: the server answers {error.message!r} (code {error.code}); check the number"
        )
    if isinstance(error, requests.exceptions.ReadTimeout):
        return DataError(f"{about}: {server} sent nothing for {timeout[1]:g} s; try later, or {instead}")
    if isinstance(error, requests.exceptions.RequestException):
        return DataError(f"{about}: it is not in the cache and {server} cannot be reached; {instead}")
    if isinstance(error, OSError):
        where = openml.config.get_cache_directory()
        return DataError(f"{about}: the cache {where} cannot be used ({error}); set OPENML_CACHE_DIR")
    text = " ".join(str(error).split())[:200]
    return DataError(
        f"{about}: expected a data set from {server}, got {type(error).__name__}: {text}; {instead}"
    )


def _retype(column: Column, data_type: Kind, declared: list[str] | None, dataset_id: int) -> Column:
    if data_type == "numeric" and not all(map(is_number, column.values)):
        value = next(value for value in column.values if not is_number(value))
        raise DataError(
            f"OpenML data set {dataset_id}: its metadata calls {column.name!r} numeric, got {value!r}; "
            "use a corrected ARFF file instead"
        )
    if data_type != "nominal" or column.kind == "nominal" or not set(column.values) <= set(declared or ()):
        return replace(column, kind=data_type)
    # nominal by the metadata alone: its order of the values, too
    values = tuple(declared or ())
    recode = np.array([*map(values.index, column.values), -1], dtype=np.int32)
    return Column(column.name, "nominal", values, recode[column.codes])


def _listed(entries: list[str | None], names: set[str]) -> Iterator[str]:
    """Yield the columns named by entries that are single names or names with commas between."""
    for entry in entries:
        if entry in names:
            yield entry
        elif entry:
            yield from (name for name in (part.strip() for part in entry.split(",")) if name in names)
