"""A store that fails, as on a full disk, is told in one line."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from attnscale.tracking.record import Record
from attnscale.tracking.store import find_store
from tests.support.full_disk import largest_file


@pytest.fixture
def uri(tmp_path: Path, empty_store: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.parametrize("new", [True, False], ids=["new store", "store"])
def test_a_store_on_a_full_disk_is_one_line(uri: str, tmp_path: Path, new: bool) -> None:
    if new:
        (tmp_path / "mlflow.db").unlink()
    store = find_store(uri, tmp_path)
    with (
        largest_file(4096),
        pytest.raises(ValueError, match=r"the run store fails: .*sqlite3") as e,
    ):
        Record.start(store, experiment="e", name="r")
    assert str(e.value).startswith(f"tracking.uri={uri}: ")
    assert "MiB free on its disk" in str(e.value)
    assert "\n" not in str(e.value)


def test_what_went_wrong_is_told_and_not_that_the_store_fails_too(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = Record.start(find_store(uri, tmp_path), experiment="e", name="r")

    def fail(*_: Any, **__: Any) -> None:
        raise MlflowException("disk I/O error\n[SQL: …]")

    monkeypatch.setattr(record.client, "log_batch", fail)
    monkeypatch.setattr(record.client, "set_terminated", fail)
    with pytest.raises(RuntimeError, match="broken"), record.ending():
        raise RuntimeError("broken")
    assert [line.getMessage() for line in caplog.records] == 2 * [
        f"The store does not take the end of run {record.run_id}: disk I/O error"
    ]


def test_a_store_that_fails_within_a_run_is_one_line(uri: str, tmp_path: Path) -> None:
    record = Record.start(find_store(uri, tmp_path), experiment="e", name="r")
    with (
        pytest.raises(ValueError, match=r"^tracking\.uri=\S+: the run store fails: disk I/O"),
        record.ending(),
    ):
        raise MlflowException("disk I/O error\n[SQL: …]")
    run = record.client.get_run(record.run_id)
    assert (run.info.status, run.data.tags["error"][:11]) == ("FAILED", "ValueError:")
