"""One run in MLflow: created before anything can fail, ended with its true status."""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscale.tracking.liveness import Process
from attnscale.tracking.names import parameters, safe_name
from attnscale.tracking.points import Point, recorded_places, write_points
from attnscale.tracking.store import (
    Store,
    check_reachable,
    experiment_id,
    open_client,
    sqlite_path,
    store_errors,
)

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
PROCESS_TAG = "process"
POINTS_PER_WRITE = 4000
SECONDS_PER_WRITE = 10.0
MAX_TAG_LENGTH = 5000

log = logging.getLogger(__name__)


class Record:
    """A run in MLflow. Points are written many at once; :meth:`end` writes what is left."""

    def __init__(self, client: "MlflowClient", store: Store, run_id: str) -> None:
        """Take up a run that exists."""
        self.client, self.store, self.run_id = client, store, run_id
        self._points: list[Point] = []
        self._texts: list[str] = []
        self._recorded: set[tuple[str, int]] = set()
        self._written = time.monotonic()
        self._not_before = 0.0

    @classmethod
    def start(
        cls,
        store: Store,
        *,
        experiment: str,
        name: str,
        parent: str | None = None,
        tags: Mapping[str, Any] | None = None,
    ) -> "Record":
        """Create a run.

        Args:
            store: Where.
            experiment: MLflow's name for a group of runs.
            name: The run's readable name.
            parent: Run id of the sweep that this run belongs to.
            tags: Tag name to text or to what JSON can hold.

        Raises:
            ValueError: If the store cannot be written.
        """
        fixed = {"mlflow.parentRunId": parent} if parent else {}
        if parent is None:
            # A job's store answered when its sweep began, and may be away for a minute now.
            check_reachable(store)
        with store_errors(store):
            client = open_client(store)
            run = client.create_run(
                experiment_id(client, store, experiment),
                run_name=name,
                tags={**_tag_texts(tags or {}), **fixed, PROCESS_TAG: str(Process.current())},
            )
        return cls(client, store, run.info.run_id)

    @classmethod
    def attach(cls, store: Store, run_id: str) -> "Record":
        """Open a run that another process created."""
        return cls(open_client(store), store, run_id)

    @classmethod
    def reopen(cls, store: Store, run_id: str) -> "Record":
        """Take up a run that was broken off; points that it has already are not written again."""
        record = cls.attach(store, run_id)
        record.client.update_run(run_id, status=RUNNING)
        record.client.set_tag(run_id, PROCESS_TAG, str(Process.current()))
        if "error" in record.all_tags():
            record.client.delete_tag(run_id, "error")
        record._recorded = recorded_places(record.client, sqlite_path(store.uri), run_id)
        return record

    def status(self) -> str:
        """Return RUNNING, FINISHED, FAILED or KILLED, as the store has it."""
        return str(self.client.get_run(self.run_id).info.status)

    def all_tags(self) -> dict[str, str]:
        """Return the tags, as the store has them."""
        return dict(self.client.get_run(self.run_id).data.tags)

    def parameters(self, config: Mapping[str, Any]) -> None:
        """Record every resolved value of a configuration."""
        from mlflow.entities import Param

        params = [Param(key, value) for key, value in parameters(config).items()]
        self.client.log_batch(self.run_id, params=params)

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        from mlflow.entities import RunTag

        entities = [RunTag(key, value) for key, value in _tag_texts(tags).items()]
        self.client.log_batch(self.run_id, tags=entities)

    def text(self, content: str, file: str) -> None:
        """Store a text as an artifact."""
        self.client.log_text(self.run_id, content, file)

    def file(self, path: Path, folder: str | None = None) -> None:
        """Store a copy of a file as an artifact."""
        self.client.log_artifact(self.run_id, str(path), folder)

    def points(self, figures: Mapping[str, float], step: int, timestamp: int | None = None) -> None:
        """Keep a point of each figure, and write if there are many.

        A figure that is not finite is kept as NaN: MLflow would store infinity as 1.8e308, which
        then wins every comparison.

        Args:
            figures: Metric name to value.
            step: Optimizer steps done.
            timestamp: Milliseconds since 1970, or None for now.
        """
        at = int(time.time() * 1000) if timestamp is None else timestamp
        for key, value in figures.items():
            finite, name = value if math.isfinite(value) else math.nan, safe_name(key)
            if (name, step) not in self._recorded:
                self._points.append((name, finite, at, step))
        if time.monotonic() < self._not_before:
            return
        if time.monotonic() - self._written > SECONDS_PER_WRITE:
            self.flush()
        elif len(self._points) >= POINTS_PER_WRITE:
            self.flush(at_least=POINTS_PER_WRITE)

    def pending(self) -> str:
        """Return the points that are kept and not yet written, as JSON; each is turned once."""
        self._texts += [json.dumps(point) for point in self._points[len(self._texts) :]]
        return f"[{','.join(self._texts)}]"

    def take(self, pending: str) -> None:
        """Keep points that :meth:`pending` gave, but for those that the run has."""
        for name, value, timestamp, step in json.loads(pending):
            if (name, step) not in self._recorded:
                self._points.append((name, value, timestamp, step))
                self._recorded.add((name, step))

    def flush(self, *, patient: bool = False, at_least: int = 1) -> None:
        """Write the kept points. If the store cannot be reached they are kept for the next time.

        Args:
            patient: Try for up to a minute, then raise.
            at_least: Keep a remainder of fewer points than this: writing a few costs as much as
                writing many.

        Raises:
            MlflowException: If ``patient`` and the store stays out of reach.
        """
        from mlflow.exceptions import MlflowException

        for left in range(6 if patient else 1, 0, -1):
            try:
                self._write(at_least)
                return
            except (MlflowException, OSError) as error:
                self._not_before = time.monotonic() + SECONDS_PER_WRITE
                if patient and left == 1:
                    raise
                first = str(error).splitlines()[0]
                log.warning("The run store does not take points now, keeping them: %s", first)
                if patient:
                    time.sleep(10)

    def _write(self, at_least: int) -> None:
        database = sqlite_path(self.store.uri)
        while len(self._points) >= at_least:
            points = self._points[:POINTS_PER_WRITE]
            write_points(self.client, database, self.run_id, points)
            del self._points[: len(points)], self._texts[: len(points)]
        self._written = time.monotonic()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End the run with the block: FINISHED, FAILED with its error, or KILLED on Ctrl-C.

        Where the store fails then, what went wrong in the block is told, not that.

        Raises:
            ValueError: If the store does not take the run's end.
        """
        try:
            with store_errors(self.store):
                yield
        except BaseException as error:
            killed = isinstance(error, KeyboardInterrupt)
            why = f"stopped by {error}" if killed else f"{type(error).__name__}: {error}"
            with self._attempt():
                self.tags({"error": why})
            with self._attempt():
                self.end(KILLED if killed else FAILED)
            raise
        with store_errors(self.store):
            self.end(FINISHED)

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            first = str(error).splitlines()[0]
            log.warning("The store does not take the end of run %s: %s", self.run_id, first)

    def delete(self) -> None:
        """Take the run out of the record."""
        self.client.delete_run(self.run_id)

    def end(self, status: str) -> None:
        """Write what is left and end the run as FINISHED, FAILED or KILLED."""
        try:
            self.flush(patient=True)
        finally:
            self.client.set_terminated(self.run_id, status)


def _tag_texts(tags: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for key, value in tags.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        texts[key if key.startswith("mlflow.") else safe_name(key)] = text[:MAX_TAG_LENGTH]
    return texts
