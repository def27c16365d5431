"""Addresses of run stores, without what only their owner may know.

An address is printed, recorded with each run, and kept in checkpoints. A login in it goes into this
process's environment, where MLflow and the processes that this one starts find it: a server's into
MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, a database's whole address into
MLFLOW_TRACKING_URI.
"""

import os
import re
from urllib.parse import unquote

VARIABLE = "MLFLOW_TRACKING_URI"
SERVER = ("http://", "https://")
HIDDEN = "***"


def _hidden(uri: str) -> str:
    """Return a database's address without its password and options, of which one may be another.

    ``postgresql://me:secret@host/db?sslpassword=x`` becomes ``postgresql://me:***@host/db?***``;
    the address of a file stays as it is.
    """
    if uri.startswith("sqlite") and "://" in uri:
        return uri
    login, at, rest = uri.rpartition("@")
    place, options, _ = rest.partition("?")
    return re.sub(r":(?!//).*", f":{HIDDEN}", login) + at + place + (options and f"?{HIDDEN}")


def public(uri: str, origin: str = "tracking.uri") -> str:
    """Return an address that may be shown; what it leaves out goes into the environment.

    ``http://me:secret@host:5000`` becomes ``http://host:5000``.

    Args:
        uri: MLflow's tracking URI.
        origin: The key or variable that gave it, for the message.

    Raises:
        ValueError: If a server's address has a query, which MLflow would send as part of a path.
    """
    if not uri.startswith(SERVER):
        if _hidden(uri) != uri:
            os.environ[VARIABLE] = uri
        return _hidden(uri)
    scheme, _, rest = uri.partition("://")
    login, _, place = rest.rpartition("@")
    shown, query, _ = f"{scheme}://{place}".partition("?")
    if query:
        raise ValueError(
            f"{origin}={shown}?{HIDDEN}: a server's address ends before the '?'; "
            "MLFLOW_TRACKING_TOKEN holds a token"
        )
    user, _, password = login.partition(":")
    for name, text in (("USERNAME", user), ("PASSWORD", password)):
        if text:
            os.environ[f"MLFLOW_TRACKING_{name}"] = unquote(text)
    return shown


def whole(uri: str) -> str:
    """Return the address to connect to: with what :func:`public` took out of it.

    Raises:
        ValueError: If the environment does not have it.
    """
    if HIDDEN not in uri:
        return uri
    known = os.environ.get(VARIABLE, "")
    if HIDDEN in known or _hidden(known) != uri:
        raise ValueError(
            f"tracking.uri={uri}: passwords are not recorded; give the whole address again, "
            f"as tracking.uri or in {VARIABLE}"
        )
    return known


def without_secrets(text: str) -> str:
    """Return a text in which no address has a login or a query; for what others say of one."""
    text = re.sub(r"://[^\s'\"]*@", f"://{HIDDEN}@", text)
    return re.sub(r"(://[^\s'\"?]*\?)[^\s'\"]*[^\s'\":;,]", rf"\1{HIDDEN}", text)
