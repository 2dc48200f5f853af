"""The way to OpenML, against a small server on this machine that answers like the real one."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from xml.sax.saxutils import escape

import numpy as np
import pytest

from fedande_mpi.datasets import dataset_status, fetch, load_dataset
from fedande_mpi.errors import DataError
from fedande_mpi.games import tic_tac_toe
from fedande_mpi.openml_source import cached, download, read_openml
from fedande_mpi.table import Table

NS = 'xmlns:oml="http://openml.org/openml"'
ID = 77777

WEATHER = """@RELATION weather
@ATTRIBUTE id STRING
@ATTRIBUTE outlook {sunny,rainy}
@ATTRIBUTE level REAL
@ATTRIBUTE wind {0,1}
@ATTRIBUTE play {no,yes}
@DATA
a,sunny,2,0,no
b,rainy,1,1,yes
c,sunny,1,?,yes
"""

Feature = tuple[str, str, tuple[str, ...]]

FEATURES: tuple[Feature, ...] = (
    ("id", "string", ()),
    ("outlook", "nominal", ("sunny", "rainy")),
    ("level", "nominal", ("2", "1")),  # nominal by the metadata, REAL in the file
    ("wind", "nominal", ("0", "1")),
    ("play", "nominal", ("no", "yes")),
)


@dataclass
class Served:
    """One data set of the server."""

    arff: str = WEATHER
    features: tuple[Feature, ...] = FEATURES
    extra: str = "<oml:default_target_attribute>play</oml:default_target_attribute>" + (
        "<oml:row_id_attribute>id</oml:row_id_attribute>"
    )
    md5: str | None = None

    def description(self, dataset_id: int, base: str) -> str:
        md5 = self.md5 or hashlib.md5(self.arff.encode()).hexdigest()
        return (
            f"<oml:data_set_description {NS}><oml:id>{dataset_id}</oml:id><oml:name>weather</oml:name>"
            "<oml:version>1</oml:version><oml:description>A test.</oml:description>"
            f"<oml:format>ARFF</oml:format>{self.extra}"
            f"<oml:url>{base}/data/v1/download/{dataset_id}/weather.arff</oml:url>"
            f"<oml:parquet_url>{base}/no/such/thing.pq</oml:parquet_url>"
            f"<oml:md5_checksum>{md5}</oml:md5_checksum></oml:data_set_description>"
        )

    def feature_list(self) -> str:
        lines = []
        for index, (name, kind, values) in enumerate(self.features):
            nominal = "".join(f"<oml:nominal_value>{escape(v)}</oml:nominal_value>" for v in values)
            lines.append(
                f"<oml:feature><oml:index>{index}</oml:index><oml:name>{escape(name)}</oml:name>"
                f"<oml:data_type>{kind}</oml:data_type>{nominal}"
                "<oml:number_of_missing_values>0</oml:number_of_missing_values></oml:feature>"
            )
        return f"<oml:data_features {NS}>{''.join(lines)}</oml:data_features>"


@dataclass
class Server:
    """What the server has, what it was asked, and how it behaves."""

    base: str = ""
    datasets: dict[int, Served] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    slow: bool = False
    plain_404: bool = False
    release: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str) -> tuple[int, str]:
        self.requests.append(path)
        if self.slow:
            self.release.wait(10)
        if self.plain_404:
            return 404, "<html><body>Not <b>found</body></html>"
        parts = path.split("?")[0].strip("/").split("/")
        dataset_id = int(next((part for part in parts if part.isdecimal()), 0))
        served = self.datasets.get(dataset_id)
        if served is None:
            error = "<oml:code>111</oml:code><oml:message>Unknown dataset</oml:message>"
            return 412, f"<oml:error {NS}>{error}</oml:error>"
        if "features" in parts:
            return 200, served.feature_list()
        if "download" in parts:
            return 200, served.arff
        return 200, served.description(dataset_id, self.base)


@pytest.fixture
def openml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the package with everything it writes below tmp_path, and no proxy between."""
    for variable in ("OPENML_CACHE_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("OPENML_SKIP_PARQUET", raising=False)
    monkeypatch.delenv("FEDANDE_DATA", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import openml
    monkeypatch.setattr(openml.config, "_root_cache_directory", tmp_path / "cache")
    monkeypatch.setattr(openml._api_calls, "_human_delay", lambda attempt: 0.0)
    return openml


@pytest.fixture
def server(openml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server(datasets={ID: Served()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = state.answer(self.path)
            body = text.encode()
            try:
                self.send_response(code)
                self.send_header("Content-Type", "text/xml; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # the client lost patience
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.base = f"http://127.0.0.1:{http.server_port}"
    monkeypatch.setattr(openml.config, "server", f"{state.base}/api/v1/xml")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        state.release.set()
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture
def offline(openml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point to a port where nobody listens."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    monkeypatch.setattr(openml.config, "server", f"http://127.0.0.1:{http.server_port}/api/v1/xml")
    http.server_close()


def unplug(server: Server) -> None:
    """Let every request fail as if nothing were known any more."""
    server.datasets.clear()
    server.requests.clear()


def folder(openml: ModuleType, dataset_id: int = ID) -> Path:
    return Path(openml.config.get_cache_directory()) / "datasets" / str(dataset_id)


def arff(table: Table) -> tuple[str, tuple[Feature, ...]]:
    head = [f"@attribute '{c.name}' {{{','.join(c.values)}}}" for c in table.columns]
    columns = ([c.values[code] for code in c.codes] for c in table.columns)
    rows = [",".join(row) for row in zip(*columns, strict=True)]
    text = "\n".join(["@relation r", *head, "@data", *rows, ""])
    return text, tuple((c.name, "nominal", c.values) for c in table.columns)


# ---------------------------------------------------------------- what comes back


def test_types_and_roles_come_from_the_metadata(server: Server) -> None:
    table = read_openml(ID)
    assert [(c.name, c.kind, c.values) for c in table.columns[1:]] == [
        ("outlook", "nominal", ("sunny", "rainy")),
        ("level", "nominal", ("2", "1")),
        ("wind", "nominal", ("0", "1")),
        ("play", "nominal", ("no", "yes")),
    ]
    assert table.columns[2].codes.tolist() == [0, 1, 1]
    assert table.target == "play"
    assert table.drop == {"id"}


def test_a_data_set_by_number(server: Server) -> None:
    dataset = load_dataset(f"openml:{ID}")
    assert dataset.name == f"openml-{ID}"
    assert dataset.attribute_names == ("outlook", "level", "wind")
    assert dataset.value_names == (("sunny", "rainy"), ("2", "1"), ("0", "1", "?"))
    assert dataset.class_names == ("no", "yes")
    assert dataset.X.tolist() == [[1, 1, 1], [0, 1, 2], [0, 0, 0]]


def test_target_bins_and_nominal_apply(server: Server) -> None:
    features = (*FEATURES[:2], ("level", "numeric", ()), *FEATURES[3:])
    server.datasets[ID] = Served(features=features)
    with pytest.raises(DataError, match="numeric 'level'"):
        load_dataset(f"openml:{ID}")
    assert list(load_dataset(f"openml:{ID}", bins=2).numeric) == [1]
    assert load_dataset(f"openml:{ID}", nominal=["level"]).value_names[1] == ("1", "2")
    assert load_dataset(f"openml:{ID}", bins=2, target="wind").class_names == ("0", "1")


def test_ignored_attributes_are_dropped(server: Server) -> None:
    extra = "<oml:ignore_attribute>id,wind</oml:ignore_attribute>"
    server.datasets[ID] = Served(extra=extra)
    assert load_dataset(f"openml:{ID}").attribute_names == (
        "outlook",
        "level",
    )  # the class is the last column


def test_metadata_that_calls_a_nominal_column_numeric_wins(server: Server) -> None:
    server.datasets[ID] = Served(features=(*FEATURES[:3], ("wind", "numeric", ()), FEATURES[4]))
    dataset = load_dataset(f"openml:{ID}", bins=2)
    np.testing.assert_array_equal(dataset.numeric[2], [1, np.nan, 0])


def test_metadata_that_cannot_be_right_is_refused(server: Server) -> None:
    server.datasets[ID] = Served(features=(FEATURES[0], ("outlook", "numeric", ()), *FEATURES[2:]))
    with pytest.raises(DataError, match="metadata calls 'outlook' numeric, got 'sunny'"):
        load_dataset(f"openml:{ID}")
    server.datasets[1] = Served(features=FEATURES[:4])
    with pytest.raises(DataError, match="expected 4 attributes as in its metadata, got 5"):
        load_dataset("openml:1")


def test_the_digest_is_that_of_the_generator(server: Server) -> None:
    text, features = arff(tic_tac_toe())
    server.datasets[50] = Served(text, features, "")
    assert load_dataset("openml:50").digest == load_dataset("tic-tac-toe").digest


def test_a_name_stands_for_its_number_and_is_held_to_the_table(server: Server) -> None:
    server.datasets[40975] = Served()
    with pytest.raises(DataError, match=r"car: expected m = 1,728, d = 6, o = 4 .* got m = 3, d = 3, o = 2"):
        load_dataset("car")


def test_splice_loses_its_instance_name(server: Server) -> None:
    text = "@attribute Instance_name {i,j}\n@attribute a {x,y}\n@attribute c {p,q}\n@data\ni,x,p\nj,y,q\n"
    features = (
        ("Instance_name", "nominal", ("i", "j")),
        ("a", "nominal", ("x", "y")),
        ("c", "nominal", ("p", "q")),
    )
    server.datasets[46] = Served(text, features, "")
    assert load_dataset("openml:46").attribute_names == ("a",)


# ---------------------------------------------------------------- the cache


def test_the_cache_answers_when_the_server_does_not(server: Server) -> None:
    first = load_dataset(f"openml:{ID}")
    assert sum("download" in path for path in server.requests) == 1
    unplug(server)
    assert load_dataset(f"openml:{ID}").digest == first.digest
    assert not server.requests


def test_fetch_fills_the_cache(server: Server, openml: ModuleType) -> None:
    assert not cached(ID)
    path = fetch(f"openml:{ID}")
    assert path == folder(openml) / "dataset.arff"
    assert path.read_text() == WEATHER
    assert cached(ID)
    assert not any("thing.pq" in path for path in server.requests)
    assert [p.name for p in folder(openml).parent.iterdir()] == [str(ID)]  # nothing temporary is left


def test_fetch_by_name(server: Server, openml: ModuleType) -> None:
    server.datasets[40975] = Served()
    assert not next(line.cached for line in dataset_status() if line.known.name == "car")
    assert fetch("car") == folder(openml, 40975) / "dataset.arff"
    status = next(line for line in dataset_status() if line.known.name == "car")
    assert status.cached
    assert status.source == "openml:40975"
    with pytest.raises(DataError, match=r"unknown data set 'cart'.*did you mean car"):
        fetch("cart")


def test_a_damaged_cached_file_is_fetched_again(server: Server, openml: ModuleType) -> None:
    path = download(ID)
    path.write_text(WEATHER[:-20])
    assert load_dataset(f"openml:{ID}").n_instances == 3
    assert path.read_text() == WEATHER


def test_a_compute_node_never_touches_the_network(
    server: Server, openml: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDANDE_OFFLINE", "1")
    with pytest.raises(
        DataError, match=r"FEDANDE_OFFLINE forbids the network.*datasets fetch.*OPENML_CACHE_DIR"
    ):
        read_openml(ID)
    assert server.requests == []
    monkeypatch.delenv("FEDANDE_OFFLINE")
    download(ID)  # on the login node
    monkeypatch.setenv("FEDANDE_OFFLINE", "1")
    server.requests.clear()
    assert read_openml(ID).columns
    assert server.requests == []


@pytest.mark.usefixtures("offline")
def test_a_failed_download_leaves_the_cache_as_it_was(openml: ModuleType) -> None:
    # what another program has cached is no ours to delete, and openml would
    mine = folder(openml)
    mine.mkdir(parents=True)
    (mine / "dataset.pq").write_text("someone's")
    (mine / "description.xml").write_text(Served().description(ID, "http://127.0.0.1"))
    with pytest.raises(DataError, match="cannot be reached"):
        download(ID)
    assert sorted(path.name for path in mine.iterdir()) == ["dataset.pq", "description.xml"]
    assert [path.name for path in mine.parent.iterdir()] == [str(ID)]
    with pytest.raises(DataError, match="cannot be reached"):
        download(1)
    assert not folder(openml, 1).exists()


def test_a_cache_that_cannot_be_written(
    server: Server, openml: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(openml.config, "_root_cache_directory", tmp_path / "file")
    with pytest.raises(DataError, match=r"cache .* cannot be used .*; set OPENML_CACHE_DIR"):
        download(ID)


# ---------------------------------------------------------------- what can go wrong


@pytest.mark.usefixtures("offline")
def test_offline_says_what_to_do() -> None:
    with pytest.raises(DataError) as error:
        load_dataset("car")
    message = str(error.value)
    assert "not in the cache" in message
    assert "`fedande datasets fetch car` where there is a network" in message
    assert "--data-dir" in message
    with pytest.raises(DataError, match=f"fetch openml:{ID}"):
        load_dataset(f"openml:{ID}")


def test_a_lost_connection_is_tried_once_again(
    openml: ModuleType, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    import requests

    attempts = []

    def fail(self: object, request: object, **kwargs: object) -> None:
        attempts.append(kwargs["timeout"])
        raise requests.exceptions.ConnectionError("gone")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", fail)
    with pytest.raises(DataError, match="cannot be reached"):
        read_openml(ID, timeout=(1, 2))
    assert attempts == [(1, 2), (1, 2)]


def test_a_slow_server_is_not_waited_for(server: Server) -> None:
    server.slow = True
    with pytest.raises(DataError, match=r"sent nothing for 0.1 s; try later, or run `fedande datasets fetch"):
        read_openml(ID, timeout=(1, 0.1))
    assert len(server.requests) == 1


def test_an_unknown_number(server: Server) -> None:
    with pytest.raises(DataError, match=r"OpenML data set 1: the server answers 'Unknown dataset.*code 111"):
        load_dataset("openml:1")


def test_a_404_page(server: Server) -> None:
    server.plain_404 = True
    with pytest.raises(DataError, match="404") as error:
        load_dataset(f"openml:{ID}")
    assert "\n" not in str(error.value)
    assert len(server.requests) == 2


def test_a_wrong_checksum(server: Server) -> None:
    server.datasets[ID] = Served(md5="0" * 32)
    with pytest.raises(DataError, match="does not match OpenML's checksum, also when sent again"):
        load_dataset(f"openml:{ID}")
    assert sum("download" in path for path in server.requests) == 2
    assert not cached(ID)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "openml", None)
    with pytest.raises(DataError, match=r"openml package cannot be imported .* --data-dir"):
        load_dataset(f"openml:{ID}")


@pytest.mark.parametrize("works", [True, False])
def test_nothing_global_is_left_changed(server: Server, openml: ModuleType, works: bool) -> None:
    import requests

    if not works:
        server.datasets.clear()

    def state() -> tuple[object, ...]:
        return (
            openml.config.get_config_as_dict(),
            dict(os.environ),
            list(logging.getLogger().handlers),
            requests.adapters.HTTPAdapter.send,
            list(warnings.filters),
        )

    before = state()
    if works:
        read_openml(ID)
    else:
        with pytest.raises(DataError):
            read_openml(ID)
    assert state() == before
