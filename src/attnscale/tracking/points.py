"""Points of a run on their way into the store, and which of them it has.

MLflow makes several objects of each point, which costs a small model a third of its step. Where the
store is an SQLite file, only the newest point of each metric goes through ``log_batch``, which
checks the run and the names and keeps MLflow's table of latest values; the others go into its
``metrics`` table by one statement. Everywhere else, and whenever the table is not as expected, all
points go through ``log_batch``.
"""

import math
import sqlite3
from contextlib import closing
from pathlib import PurePath
from typing import TYPE_CHECKING

from attnscale.tracking.runs import OBJECTIVE
from attnscale.tracking.store import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

Point = tuple[str, float, int, int]
"""(metric name, value, milliseconds since 1970, optimizer step)."""

MAX_POINTS_PER_CALL = 1000
"""Points that MLflow takes in one call."""

INSERT = (
    "INSERT INTO metrics (run_uuid, key, value, timestamp, step, is_nan) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)


def _place(point: Point) -> tuple[int, int, float]:
    """Return what MLflow orders the points of a metric by; a NaN counts as 0 there."""
    _, value, timestamp, step = point
    return step, timestamp, 0.0 if math.isnan(value) else value


def recorded_places(
    client: "MlflowClient", database: PurePath | None, run_id: str
) -> set[tuple[str, int]]:
    """Return (metric name, step) of each point that a run has."""
    if database is not None:
        with closing(sqlite3.connect(database, timeout=TIMEOUT_SECONDS)) as connection:
            query = "SELECT key, step FROM metrics WHERE run_uuid = ?"
            return {(key, step) for key, step in connection.execute(query, (run_id,))}
    names = client.get_run(run_id).data.metrics
    return {
        (name, point.step) for name in names for point in client.get_metric_history(run_id, name)
    }


def _send(client: "MlflowClient", run_id: str, points: list[Point]) -> None:
    from mlflow.entities import Metric

    # MLflow compares runs by the metric that was recorded first: a loss, not the learning rate.
    points = sorted(points, key=lambda point: (point[0] != OBJECTIVE, "loss" not in point[0]))
    for first in range(0, len(points), MAX_POINTS_PER_CALL):
        metrics = [Metric(*point) for point in points[first : first + MAX_POINTS_PER_CALL]]
        client.log_batch(run_id, metrics=metrics)


def _insert(database: PurePath, run_id: str, points: list[Point]) -> None:
    """Put all points into the table, or none."""
    # In the order of the table's key, which makes a large table's insertion twice as fast.
    rows = [
        (run_id, key, 0.0 if math.isnan(value) else value, timestamp, step, math.isnan(value))
        for key, value, timestamp, step in sorted(points, key=lambda p: (p[0], p[2], p[3]))
    ]
    opened = closing(sqlite3.connect(database, timeout=TIMEOUT_SECONDS))
    with opened as connection, connection:
        connection.executemany(INSERT, rows)


def write_points(
    client: "MlflowClient", database: PurePath | None, run_id: str, points: list[Point]
) -> None:
    """Write points, finite or NaN, to a run; ``database`` is None where it is no SQLite file.

    Raises:
        MlflowException: If the store does not take them; some may have been written, and writing
            them again does no harm.
    """
    newest = {point[0]: point for point in sorted(points, key=_place)}
    if database is None or len(newest) == len(points):
        _send(client, run_id, points)
        return
    last = list(newest.values())
    _send(client, run_id, last)
    sent = {id(point) for point in last}
    rest = [point for point in points if id(point) not in sent]
    try:
        _insert(database, run_id, rest)
    except sqlite3.Error:
        _send(client, run_id, rest)
