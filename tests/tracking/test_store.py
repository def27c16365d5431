import os
import shlex
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

import pytest
import sqlalchemy
from mlflow.exceptions import MlflowException

from attnscale.tracking import store as module
from attnscale.tracking.store import (
    TIMEOUT_SECONDS,
    Store,
    check_reachable,
    experiment_id,
    find_store,
    open_client,
    sqlite_path,
    sqlite_uri,
)
from tests.support.tracking_server import tracking_server

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

Opened = tuple["MlflowClient", Store, Path]

OPEN_AT_ONCE = """
import sys
from pathlib import Path
import mlflow.tracking
from attnscale.tracking.store import experiment_id, find_store, open_client

store = find_store(None, Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(experiment_id(open_client(store), store, "race"))
"""


@pytest.fixture(autouse=True)
def _nothing_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Open a new store in a folder whose name a URL would spell differently."""
    root = tmp_path_factory.mktemp("project") / "my dir #1"
    store = find_store(sqlite_uri(root / "mlruns" / "mlflow.db"), root)
    return open_client(store), store, root


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        (PurePosixPath("/a/mlflow.db"), "sqlite:////a/mlflow.db"),
        (PurePosixPath("/tmp/my dir #1/m.db"), "sqlite:////tmp/my dir #1/m.db"),
        (PurePosixPath("/tmp/ünï/m.db"), "sqlite:////tmp/ünï/m.db"),
        (
            PureWindowsPath(r"C:\Users\me\my runs\mlflow.db"),
            "sqlite:///C:/Users/me/my runs/mlflow.db",
        ),
        (PureWindowsPath(r"d:\m.db"), "sqlite:///d:/m.db"),
    ],
)
def test_the_uri_of_a_database_and_back(path: PurePath, uri: str) -> None:
    assert sqlite_uri(path) == uri
    found = sqlite_path(uri)
    assert found is not None
    assert found.as_posix() == path.as_posix()
    assert isinstance(found, PureWindowsPath) == isinstance(path, PureWindowsPath)


@pytest.mark.parametrize(
    "path",
    [
        PurePosixPath("mlflow.db"),
        PureWindowsPath(r"runs\mlflow.db"),
        PureWindowsPath(r"\runs\mlflow.db"),
        PurePosixPath("/a/what?/m.db"),
    ],
)
def test_refuses_a_path_that_has_no_uri(path: PurePath) -> None:
    with pytest.raises(
        ValueError, match=r"^tracking\.uri: .*absolute and without '\?': "
    ) as caught:
        sqlite_uri(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        (PurePosixPath("/tmp/my dir #1/m.db"), "file:///tmp/my%20dir%20%231/artifacts"),
        (PureWindowsPath(r"C:\my runs\m.db"), "file:///C:/my%20runs/artifacts"),
    ],
)
def test_the_uri_of_the_artifacts(path: PurePath, uri: str) -> None:
    assert find_store(sqlite_uri(path), Path("/elsewhere")).artifacts == uri


@pytest.mark.parametrize(
    "uri",
    ["http://host:5000", "https://host", "postgresql://u:p@host/db", "mysql+pymysql://host/db"],
)
def test_other_stores_have_no_database_file(uri: str) -> None:
    assert sqlite_path(uri) is None


def test_a_relative_uri_is_that_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sqlite_path("sqlite:///runs/m.db") == tmp_path / "runs" / "m.db"
    assert sqlite_path("sqlite+pysqlite:////a/m.db?timeout=3") == Path("/a/m.db")
    store = find_store("sqlite:///runs/m.db", Path("/elsewhere"))
    assert store == Store(
        sqlite_uri(tmp_path / "runs" / "m.db"),
        (tmp_path / "runs" / "artifacts").as_uri(),
        "tracking.uri",
    )


@pytest.mark.parametrize("uri", ["sqlite:///~/m.db", "sqlite:////~/m.db"])
def test_a_tilde_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = Store(sqlite_uri(tmp_path / "m.db"), (tmp_path / "artifacts").as_uri(), "tracking.uri")
    assert find_store(uri, Path("/elsewhere")) == home
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert find_store(None, Path("/elsewhere")).uri == home.uri
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///~no-such-user/m.db")
    with pytest.raises(ValueError, match=r"^MLFLOW_TRACKING_URI=~no-such-user/m\.db: no such home"):
        find_store(None, Path("/elsewhere"))


def test_the_configuration_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured, inherited = "sqlite:////configured/m.db", "sqlite:////inherited/m.db"
    default = Store(
        sqlite_uri(tmp_path / "mlruns" / "mlflow.db"),
        (tmp_path / "mlruns" / "artifacts").as_uri(),
        "default",
    )
    assert find_store(None, tmp_path) == default
    assert find_store("", tmp_path) == default
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert find_store(None, tmp_path) == default
    monkeypatch.setenv("MLFLOW_TRACKING_URI", inherited)
    assert find_store(None, tmp_path) == Store(
        inherited, "file:///inherited/artifacts", "MLFLOW_TRACKING_URI"
    )
    assert find_store(configured, tmp_path) == Store(
        configured, "file:///configured/artifacts", "tracking.uri"
    )


def test_a_server_decides_on_its_artifacts(tmp_path: Path) -> None:
    found = find_store("http://host:5000", tmp_path)
    assert found == Store("http://host:5000", None, "tracking.uri")
    assert found.ui_command() == "http://host:5000"


def test_options_of_a_uri_are_kept_and_not_shown(tmp_path: Path) -> None:
    found = find_store("sqlite:////a/m.db?timeout=5", tmp_path)
    assert found.uri == "sqlite:////a/m.db?timeout=5"
    assert found.ui_command() == "mlflow ui --backend-store-uri sqlite:////a/m.db"


@pytest.mark.parametrize(
    "uri", ["file:///a/mlruns", "file:mlruns", "mlruns", "/a/mlruns", "./mlruns"]
)
@pytest.mark.parametrize("origin", ["tracking.uri", "MLFLOW_TRACKING_URI"])
def test_refuses_a_plain_folder_in_one_line(
    uri: str, origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ValueError, match="no longer writes to a plain folder") as caught:
        find_store(uri if origin == "tracking.uri" else None, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{origin}={uri}: ")
    assert "sqlite:////absolute/path/mlflow.db" in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_a_new_store_is_created_where_the_path_says(opened: Opened) -> None:
    client, store, root = opened
    database = root / "mlruns" / "mlflow.db"
    assert database.is_file()
    assert [folder.name for folder in root.parent.iterdir()] == ["my dir #1"]
    assert client.tracking_uri == f"{store.uri}?timeout={TIMEOUT_SECONDS}"

    run = client.create_run(experiment_id(client, store, "a/b #2"))
    client.log_metric(run.info.run_id, "val/loss", 0.5)
    client.log_text(run.info.run_id, "kept", "note.txt")
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT key, value FROM metrics").fetchall() == [
            ("val/loss", 0.5)
        ]
    (note,) = root.rglob("note.txt")
    assert note.read_text() == "kept"
    assert note.is_relative_to(root / "mlruns" / "artifacts")


def test_a_store_is_in_wal_mode(opened: Opened) -> None:
    _, _, root = opened
    database = root / "mlruns" / "mlflow.db"
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_store_is_readable_while_it_is_written(opened: Opened) -> None:
    client, store, root = opened
    wanted = experiment_id(client, store, "read")
    database = root / "mlruns" / "mlflow.db"
    with (
        closing(sqlite3.connect(database, isolation_level=None)) as writer,
        closing(sqlite3.connect(database, timeout=0)) as reader,
    ):
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("DELETE FROM experiments WHERE name = 'read'")
        rows = reader.execute(
            "SELECT experiment_id FROM experiments WHERE name = 'read'"
        ).fetchall()
        assert [str(row[0]) for row in rows] == [wanted]
        assert experiment_id(client, store, "read") == wanted
        writer.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("kind", "mode"), [("ext4", "wal"), ("nfs", "delete"), ("lustre", "delete")]
)
def test_a_network_file_system_gets_no_wal(
    kind: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_file_system", lambda folder: kind)
    database = tmp_path / "m.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
    module._enable_wal(database)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)


def test_a_store_can_be_opened_again(opened: Opened) -> None:
    client, store, _ = opened
    wanted = experiment_id(client, store, "again")
    assert experiment_id(open_client(store), store, "again") == wanted
    assert experiment_id(client, store, "another") != wanted


def test_refuses_a_deleted_experiment(opened: Opened) -> None:
    client, store, _ = opened
    client.delete_experiment(experiment_id(client, store, "gone"))
    with pytest.raises(ValueError, match=r"^tracking\.experiment=gone: was deleted in this store"):
        experiment_id(client, store, "gone")


def test_an_experiment_that_another_process_just_created_is_taken(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, store, _ = opened
    wanted = experiment_id(client, store, "late")
    look, looks = client.get_experiment_by_name, []

    def blind_at_first(name: str) -> object:
        looks.append(name)
        return look(name) if len(looks) > 1 else None

    monkeypatch.setattr(client, "get_experiment_by_name", blind_at_first)
    assert experiment_id(client, store, "late") == wanted


def test_an_experiment_that_cannot_be_created_says_why(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, store, _ = opened
    experiment_id(client, store, "taken")
    monkeypatch.setattr(client, "get_experiment_by_name", lambda name: None)
    with pytest.raises(MlflowException, match="taken"):
        experiment_id(client, store, "taken")


def test_refuses_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = find_store(sqlite_uri(tmp_path / "file" / "m.db"), tmp_path)
    with pytest.raises(ValueError, match=r"^tracking\.uri: cannot write the run store ") as caught:
        open_client(store)
    assert "\n" not in str(caught.value)
    assert "tracking.uri=sqlite:////FOLDER/mlflow.db moves it" in str(caught.value)


@pytest.mark.parametrize("retries", [None, "1"])
def test_a_store_that_fails_is_asked_once_or_as_often_as_a_person_says(
    retries: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    if retries is not None:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", retries)
    before = dict(os.environ)
    with tracking_server(status=503) as server:
        store = find_store(server.uri, Path("/elsewhere"))
        with pytest.raises(ValueError, match=f"^tracking.uri={server.uri}: the run store fails: "):
            check_reachable(store)
    assert len(server.heard) == 1 + int(retries or 0)
    assert dict(os.environ) == before


def test_an_address_where_nothing_answers_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.AT_ONCE, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(ValueError, match=f"^MLFLOW_TRACKING_URI={uri}: the run store fails: "):
            check_reachable(Store(uri, None, "MLFLOW_TRACKING_URI"))
    assert 1 <= time.monotonic() - started < 10


def test_a_server_that_wants_a_login_says_where_it_goes() -> None:
    with tracking_server("me:secret") as server:
        store = find_store(server.uri, Path("/elsewhere"))
        with pytest.raises(ValueError, match="MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASS"):
            check_reachable(store)


def test_a_database_is_asked_once_and_its_password_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri, asked = "mysql+mysqldb://me:secret@host/db", []

    def refuse(address: str) -> None:
        asked.append(address)
        raise OSError(f"no way to {address}\nmore")

    monkeypatch.setattr(sqlalchemy, "create_engine", refuse)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    store = find_store(None, Path("/elsewhere"))
    assert store.uri == "mysql+mysqldb://me:***@host/db"
    with pytest.raises(ValueError, match=r"^MLFLOW_TRACKING_URI=mysql.* no way to ") as told:
        check_reachable(store)
    assert asked == [uri]
    assert "secret" not in str(told.value)
    assert "\n" not in str(told.value)
    assert told.value.__suppress_context__


@pytest.mark.slow
def test_processes_may_open_a_new_store_at_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_AT_ONCE, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        made = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [(code, errors) for _, errors, code in made] == [(0, "")] * 3
    (only,) = {out for out, _, _ in made}
    assert int(only) > 0
    with closing(sqlite3.connect(tmp_path / "mlruns" / "mlflow.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        names = connection.execute("SELECT name FROM experiments ORDER BY name").fetchall()
    assert names == [("Default",), ("race",)]


@pytest.mark.parametrize(
    "name", ["p%20q", *(pytest.param(n, marks=pytest.mark.slow) for n in ("100%", "it's"))]
)
def test_a_folder_with_a_sign_that_means_something_elsewhere(tmp_path: Path, name: str) -> None:
    store = find_store(None, tmp_path / name)
    client = open_client(store)
    assert experiment_id(client, store, "e")
    assert (tmp_path / name / "mlruns" / "mlflow.db").is_file()
    assert store.uri.partition("?")[0] in shlex.split(store.ui_command())
