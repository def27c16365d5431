"""Where runs are recorded: one store per project, created once, readable while it is written.

Creating MLflow's tables is a race between processes that meet a new database, so it happens under a
lock. SQLite is put into write-ahead mode and given a time-out, so that jobs that run side by side
wait for each other instead of failing.
"""

import logging
import os
import shlex
import shutil
import sqlite3
import urllib.parse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath, PureWindowsPath
from typing import TYPE_CHECKING

from filelock import FileLock

from attnscale.system import expand_home
from attnscale.tracking.address import SERVER, public, whole, without_secrets

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

TIMEOUT_SECONDS = 60
AT_ONCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "14",
    "PGCONNECT_TIMEOUT": "14",
}
"""Variables with which a store that does not answer is told within seconds, not minutes."""

NETWORK_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "gpfs",
    "beegfs",
    "fuse.sshfs",
    "9p",
}


@dataclass(frozen=True)
class Store:
    """A place for runs.

    Attributes:
        uri: MLflow's tracking URI as it may be shown; see :mod:`attnscale.tracking.address`.
        artifacts: URI of the folder for artifacts, or None where the server decides.
        origin: What decided: "tracking.uri", "MLFLOW_TRACKING_URI" or "default".
    """

    uri: str
    artifacts: str | None
    origin: str

    @property
    def on_server(self) -> bool:
        """Whether a server has it, and so the UI."""
        return self.uri.startswith(SERVER)

    def ui_command(self) -> str:
        """Return the shell command that starts MLflow's UI on this store, or its server's URI."""
        if self.on_server:
            return self.uri
        return f"mlflow ui --backend-store-uri {shlex.quote(self.uri.partition('?')[0])}"


def _unquotes(name: str) -> bool:
    """Whether the installed SQLAlchemy unquotes ``%25`` in a path; looked up only if it matters."""
    if "%" not in name:
        return False
    from sqlalchemy.engine import make_url

    return make_url("sqlite:////%25").database == "/%"


def sqlite_uri(path: PurePath) -> str:
    r"""Return the URI of an SQLite file, given by its absolute path of either system.

    ``/a b/#1/m.db`` becomes ``sqlite:////a b/#1/m.db``, ``C:\a\m.db`` becomes
    ``sqlite:///C:/a/m.db``: slashes are forward ones and a fragment means nothing. ``%`` is quoted
    where SQLAlchemy unquotes it, from 2.1 on. A ``?`` cannot be said.

    Raises:
        ValueError: If the path is relative or holds a question mark.
    """
    if not path.is_absolute() or "?" in str(path):
        raise ValueError(
            f"tracking.uri: the database path must be absolute and without '?': {path}"
        )
    name = path.as_posix()
    return f"sqlite:///{name.replace('%', '%25') if _unquotes(name) else name}"


def sqlite_path(uri: str, origin: str = "tracking.uri") -> PurePath | None:
    """Return the database path of an SQLite URI, or None for another kind of store.

    ``~`` is the home folder, after three slashes or four.

    Raises:
        ValueError: Naming ``origin``, if there is no such home folder.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme.partition("+")[0] != "sqlite":
        return None
    name = rest.partition("?")[0].removeprefix("/")
    name = urllib.parse.unquote(name) if _unquotes(name) else name
    if len(name) > 1 and name[1] == ":":
        return PureWindowsPath(name)
    name = name.removeprefix("/") if name.startswith("/~") else name
    return Path(expand_home(origin, name)).absolute()


def find_store(configured: str | None, root: Path) -> Store:
    """Return the store: ``tracking.uri``, else MLFLOW_TRACKING_URI, else the project's.

    A login in the address goes into the environment.

    Args:
        configured: ``tracking.uri`` of the configuration.
        root: Folder of the project, with ``mlruns/`` below it.

    Raises:
        ValueError: For a file store, which current MLflow refuses, with the way out; and for an
            address whose password is not known.
    """
    inherited = os.environ.get("MLFLOW_TRACKING_URI")
    if configured:
        uri, origin = configured, "tracking.uri"
    elif inherited:
        uri, origin = inherited, "MLFLOW_TRACKING_URI"
    else:
        uri, origin = sqlite_uri(root / "mlruns" / "mlflow.db"), "default"
    uri = public(uri, origin)
    whole(uri)
    if "://" not in uri or uri.startswith("file:"):
        raise ValueError(
            f"{origin}={uri}: MLflow no longer writes to a plain folder; use a database such as "
            f"sqlite:////absolute/path/mlflow.db, or a server's http:// address"
        )
    path = sqlite_path(uri, origin)
    if path is None:
        return Store(uri, None, origin)
    options = uri.partition("?")[2]
    return Store(
        sqlite_uri(path) + (f"?{options}" if options else ""),
        (path.parent / "artifacts").as_uri(),
        origin,
    )


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds a folder, as /proc/mounts names it."""
    best, kind = "", ""
    mounts = Path("/proc/mounts")
    for line in mounts.read_text(encoding="utf-8").splitlines() if mounts.exists() else []:
        _, point, name = line.split()[:3]
        point = point.encode().decode("unicode_escape")
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, name
    return kind


def _enable_wal(path: Path) -> None:
    if _file_system(path.parent) in NETWORK_FILE_SYSTEMS:
        return
    with closing(sqlite3.connect(path, timeout=TIMEOUT_SECONDS)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


@contextmanager
def store_errors(store: Store) -> Iterator[None]:
    """Tell in one line what MLflow, or SQLAlchemy below it, says of a store that fails.

    Raises:
        ValueError: Instead of theirs.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        first = str(error).splitlines()[0]
        path = sqlite_path(store.uri)
        if path is not None and Path(path).parent.exists():
            first += f" ({shutil.disk_usage(Path(path).parent).free >> 20} MiB free on its disk)"
        raise ValueError(f"{store.origin}={store.uri}: the run store fails: {first}") from error


def open_client(store: Store) -> "MlflowClient":
    """Open the store, and create it if it is new.

    Raises:
        ValueError: If the database or its folder cannot be written.
    """
    path = sqlite_path(store.uri)
    if path is None:
        return _client(whole(store.uri))
    database = Path(path)
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{database}.lock"), store_errors(store):
            new = not database.exists()
            client = _client(
                f"{store.uri}{'&' if '?' in store.uri else '?'}timeout={TIMEOUT_SECONDS}"
            )
            client.search_experiments(max_results=1)
            if new:
                _enable_wal(database)
    except OSError as error:
        raise ValueError(
            f"{store.origin}: cannot write the run store {database}: {error.strerror}; "
            "tracking.uri=sqlite:////FOLDER/mlflow.db moves it"
        ) from error
    return client


def _client(uri: str) -> "MlflowClient":
    from mlflow.tracking import MlflowClient

    # MLflow sets its own levels when it is imported.
    for name in ("mlflow", "mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(uri)


def check_reachable(store: Store) -> None:
    """Check that a store elsewhere answers within seconds, without MLflow's minutes of retries.

    Variables that are set already stay as they are; see :data:`AT_ONCE`.

    Raises:
        ValueError: If it does not answer or refuses, naming the key and the address.
    """
    if sqlite_path(store.uri) is not None:
        return
    from mlflow.store.db.db_types import DATABASE_ENGINES
    from sqlalchemy import create_engine

    uri = whole(store.uri)
    own = dict(os.environ)
    os.environ.update(AT_ONCE | own)
    try:
        if uri.partition(":")[0].partition("+")[0] in DATABASE_ENGINES:
            create_engine(uri).connect().close()
        _client(uri).search_experiments(max_results=1)
    except Exception as error:
        first = without_secrets(str(error).replace(uri, store.uri)).splitlines()[0]
        if "error code 401" in first:
            first += "; MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD hold a login"
        # Without the cause, which may name the whole address.
        raise ValueError(f"{store.origin}={store.uri}: the run store fails: {first}") from None
    finally:
        for name in AT_ONCE.keys() - own:
            del os.environ[name]


def experiment_id(client: "MlflowClient", store: Store, name: str) -> str:
    """Return the id of an MLflow experiment, creating it if needed; safe against a race.

    Raises:
        ValueError: If an experiment of that name was deleted.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        location = None
        if store.artifacts is not None:
            location = f"{store.artifacts}/{urllib.parse.quote(name, safe='')}"
        try:
            return client.create_experiment(name, artifact_location=location)
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise ValueError(
            f"tracking.experiment={name}: was deleted in this store; restore it or rename"
        )
    return str(experiment.experiment_id)
