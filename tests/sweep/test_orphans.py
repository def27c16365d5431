"""Runs whose process is gone are marked, and no others."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attnscale.sweep import orphans
from attnscale.sweep.orphans import mark_orphans
from attnscale.tracking import heartbeat
from attnscale.tracking.liveness import Process
from attnscale.tracking.record import FINISHED, KILLED, PROCESS_TAG, RUNNING, Record
from attnscale.tracking.store import Store, find_store

HERE = Process.current()
DEAD = replace(HERE, start="1")
ELSEWHERE = replace(HERE, host="elsewhere")
NOW = 10_000.0


@pytest.fixture
def store(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setattr(heartbeat, "store_time", lambda store: NOW)
    return find_store(f"sqlite:///{tmp_path}/mlflow.db", tmp_path)


def run_of(store: Store, process: Process | str, **tags: str) -> Record:
    record = Record.start(store, experiment="e", name="r")
    record.tags({PROCESS_TAG: str(process), **tags})
    return record


@pytest.mark.skipif(not HERE.boot, reason="a dead process is known by its boot and start")
@pytest.mark.parametrize(
    ("process", "tags", "marked"),
    [
        (DEAD, {}, True),
        (DEAD, {"heartbeat": "9999"}, True),
        (replace(HERE, boot="before"), {}, True),
        (HERE, {}, False),
        (HERE, {"heartbeat": "1"}, False),
        (ELSEWHERE, {"heartbeat": "9399"}, True),
        (ELSEWHERE, {"heartbeat": "9401"}, False),
        (ELSEWHERE, {"heartbeat": "a word"}, False),
        (ELSEWHERE, {}, False),
        ("of an earlier version", {}, False),
    ],
)
def test_a_run_is_marked_whose_process_is_gone(
    process: Process | str, tags: dict[str, str], marked: bool, store: Store
) -> None:
    record = run_of(store, process, **tags)
    assert mark_orphans(store, "e") == (["r"] if marked else [])
    assert record.status() == (KILLED if marked else RUNNING)
    reason = f"ended without a word ({process})" if marked else None
    assert record.all_tags().get("error") == reason


def test_only_runs_of_the_experiment_are_looked_at(store: Store) -> None:
    record = run_of(store, DEAD)
    assert mark_orphans(store, "another") == []
    assert record.status() == RUNNING


def test_a_run_that_ended_while_it_was_looked_at_keeps_its_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run_of(store, DEAD)
    listed = heartbeat.running_runs(store, "e")
    monkeypatch.setattr(orphans, "running_runs", lambda store, experiment: listed)
    record.end(FINISHED)
    assert mark_orphans(store, "e") == []
    assert record.status() == FINISHED
    assert "error" not in record.all_tags()


def test_a_run_that_went_on_while_it_was_looked_at_is_left_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run_of(store, DEAD)
    listed = heartbeat.running_runs(store, "e")
    monkeypatch.setattr(orphans, "running_runs", lambda store, experiment: listed)
    Record.reopen(store, record.run_id)
    assert mark_orphans(store, "e") == []
    assert record.all_tags()[PROCESS_TAG].split(" ")[2] == str(os.getpid())


def test_a_store_that_does_not_tell_its_time_marks_nobody(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(store: Store) -> float:
        raise OSError("away")

    monkeypatch.setattr(heartbeat, "store_time", away)
    run_of(store, ELSEWHERE, heartbeat="1")
    assert mark_orphans(store, "e") == []
