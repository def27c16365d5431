import os
import sys
from pathlib import Path

import pytest

from attnscale.cli import ui
from attnscale.tracking.record import Record
from attnscale.tracking.store import Store, find_store, sqlite_uri


class Replaced(Exception):  # noqa: N818
    """What ``os.execv`` is here: nothing comes after it."""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    calls: list[list[str]] = []

    def execv(program: str, words: list[str]) -> None:
        calls.append(words)
        raise Replaced

    monkeypatch.setattr(os, "execv", execv)
    return calls


def test_the_newest_sweeps_come_first_then_the_ui(
    tmp_path: Path,
    empty_store: Path,
    commands: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "my runs.db"
    path.write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri(path))
    store = find_store(None, tmp_path)
    for i in range(ui.NEWEST + 1):
        tags = {"kind": "sweep", "sweep": f"s{i}"}
        Record.start(store, experiment="e", name=f"sweep {i}", tags=tags)
    with pytest.raises(Replaced):
        ui.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == [f"sweep {i}" for i in range(ui.NEWEST, 0, -1)]
    assert lines[1].endswith(f"viewStateShareKey=s{ui.NEWEST}")
    expected = ["-m", "mlflow", "ui", "--backend-store-uri", sqlite_uri(path)]
    assert commands == [[sys.executable, *expected]]


def test_a_server_has_its_ui(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host")
    monkeypatch.setattr(ui, "newest_views", lambda store, number: _views(store))
    ui.main()
    assert capsys.readouterr().out == "a sweep\n    http://host/#/\n"
    assert commands == []


def _views(store: Store) -> dict[str, str]:
    return {"a sweep": f"{store.uri}/#/"}


def test_a_store_that_cannot_be_read_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mlruns")
    with pytest.raises(SystemExit, match=r"^MLFLOW_TRACKING_URI=mlruns: MLflow no longer writes"):
        ui.main()
