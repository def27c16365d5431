"""Blocks of points: both ways of writing leave the same store."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attnscale.tracking.points import Point, write_points
from attnscale.tracking.record import FINISHED, Record
from attnscale.tracking.store import Store, find_store, sqlite_path, sqlite_uri

BLOCKS: dict[str, list[list[Point]]] = {
    "curves": [
        [(key, 0.1 * step, 1000 + step, step) for step in range(40) for key in ("a", "b/c")],
        [(key, -0.1 * step, 2000 + step, step) for step in range(40, 70) for key in ("a", "b/c")],
    ],
    "not finite": [[("a", math.nan, 5, 1), ("a", 2.0, 5, 1), ("a", math.nan, 6, 3)]],
    "newest first": [[("a", 1.0, 9, 9), ("a", 2.0, 8, 8)], [("a", 3.0, 7, 7), ("a", 4.0, 6, 6)]],
    "one step, two values": [[("a", 2.0, 5, 1), ("a", 1.0, 5, 1), ("a", 1.5, 5, 1)]],
    "the same twice": [[("a", 2.0, 5, 1), ("a", 2.0, 5, 1), ("a", 3.0, 6, 2)]],
    "written again": [[("a", 2.0, 5, 1), ("a", 3.0, 6, 2)], [("a", 2.0, 5, 1), ("a", 3.0, 6, 2)]],
    "one each": [[("a", 2.0, 5, 1), ("b", 3.0, 6, 2)]],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("blocks")
    return find_store(sqlite_uri(folder / "m.db"), folder)


def contents(store: Store, run_id: str, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(str(sqlite_path(store.uri)))) as connection:
        return connection.execute(
            f"SELECT key, value, timestamp, step, is_nan FROM {table} WHERE run_uuid = ? "
            "ORDER BY key, step, timestamp, value, is_nan",
            (run_id,),
        ).fetchall()


@pytest.mark.parametrize("case", BLOCKS)
def test_both_ways_leave_the_same_store(store: Store, case: str) -> None:
    runs = []
    for database in (None, sqlite_path(store.uri)):
        record = Record.start(store, experiment="blocks", name=case)
        for block in BLOCKS[case]:
            write_points(record.client, database, record.run_id, block)
        record.end(FINISHED)
        runs.append(record.run_id)
    for table in ("metrics", "latest_metrics"):
        by_client, direct = (contents(store, run, table) for run in runs)
        assert direct == by_client
        assert direct


def test_one_point_of_each_metric_goes_through_the_client(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record.start(store, experiment="blocks", name="few")
    sent: list[int] = []
    plain = record.client.log_batch

    def counted(run_id: str, metrics: Any = (), **others: Any) -> Any:
        sent.append(len(metrics))
        return plain(run_id, metrics=metrics, **others)

    monkeypatch.setattr(record.client, "log_batch", counted)
    for step in range(500):
        record.points({"a": 1.0 * step, "b": 2.0 * step}, step, 1000 + step)
    record.flush()
    assert sent == [2]
    assert len(contents(store, record.run_id, "metrics")) == 1000


def test_a_table_that_is_not_as_expected_is_left_to_the_client(
    store: Store, tmp_path: Path
) -> None:
    strange = tmp_path / "strange.db"
    with closing(sqlite3.connect(strange)) as connection:
        connection.execute("CREATE TABLE metrics (run_uuid TEXT)")
    record = Record.start(store, experiment="blocks", name="strange")
    block = BLOCKS["curves"][0]
    write_points(record.client, strange, record.run_id, block)
    assert len(contents(store, record.run_id, "metrics")) == len(block)


def test_a_run_that_was_deleted_takes_nothing(store: Store) -> None:
    from mlflow.exceptions import MlflowException

    record = Record.start(store, experiment="blocks", name="deleted")
    record.client.delete_run(record.run_id)
    with pytest.raises(MlflowException):
        write_points(record.client, sqlite_path(store.uri), record.run_id, BLOCKS["not finite"][0])
    assert contents(store, record.run_id, "metrics") == []
