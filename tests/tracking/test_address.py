import os

import pytest

from attnscale.tracking.address import public, whole, without_secrets

USER, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})


def mlflow_variables() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name.startswith("MLFLOW_")}


@pytest.mark.parametrize(
    ("uri", "shown", "login"),
    [
        ("http://host:5000", "http://host:5000", {}),
        ("http://me:secret@host:5000/a", "http://host:5000/a", {USER: "me", PASSWORD: "secret"}),
        ("https://me:a%40b%2Fc@host", "https://host", {USER: "me", PASSWORD: "a@b/c"}),
        ("https://me:a@b/c?d@host", "https://host", {USER: "me", PASSWORD: "a@b/c?d"}),
        ("https://me@host", "https://host", {USER: "me"}),
    ],
)
def test_the_login_of_a_server_goes_into_the_environment(
    uri: str, shown: str, login: dict[str, str]
) -> None:
    assert public(uri) == shown
    assert mlflow_variables() == login
    assert whole(shown) == shown


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://me:secret@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("mysql+pymysql://me:a@b/c?d@host/db", "mysql+pymysql://me:***@host/db"),
        ("postgresql://host/db?user=me&password=secret", "postgresql://host/db?***"),
        ("mssql+pyodbc:///?odbc_connect=PWD%3Dsecret", "mssql+pyodbc:///?***"),
        ("me:secret@host:5000", "me:***@host:5000"),
    ],
)
def test_a_hidden_address_is_whole_only_with_what_hid_it(uri: str, shown: str) -> None:
    assert public(uri) == shown
    assert public(shown) == shown
    assert whole(shown) == uri
    os.environ["MLFLOW_TRACKING_URI"] = "postgresql://me:other@elsewhere/db"
    with pytest.raises(ValueError, match=r"^tracking\.uri=.*: passwords are not recorded") as told:
        whole(shown)
    assert shown in str(told.value)
    assert "other" not in str(told.value)


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://me@host/db",
        "postgresql://host:5432/db",
        "sqlite:////a/me:b@c.db?timeout=3",
        "databricks://profile",
        "mlruns",
    ],
)
def test_an_address_without_a_secret_stays(uri: str) -> None:
    assert public(uri) == whole(uri) == uri
    assert mlflow_variables() == {}


@pytest.mark.parametrize("origin", ["tracking.uri", "MLFLOW_TRACKING_URI"])
def test_a_server_has_no_query(origin: str) -> None:
    with pytest.raises(ValueError, match="MLFLOW_TRACKING_TOKEN") as told:
        public("http://host/a?token=secret", origin)
    assert str(told.value).startswith(f"{origin}=http://host/a?***: ")
    assert "secret" not in str(told.value)


def test_what_others_say_of_an_address_is_told_without_secrets() -> None:
    text = "at 'http://me:a@b@host/x', postgresql://h/d?password=p: no; is it so? a@b"
    assert without_secrets(text) == (
        "at 'http://***@host/x', postgresql://h/d?***: no; is it so? a@b"
    )
