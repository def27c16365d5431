"""One run in MLflow: created before anything can fail, ended with its true status."""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscale.tracking.names import parameters, safe_name
from attnscale.tracking.points import Point, write_points
from attnscale.tracking.store import Store, experiment_id, open_client, sqlite_path

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

FINISHED, FAILED, KILLED = "FINISHED", "FAILED", "KILLED"
POINTS_PER_WRITE = 4000
SECONDS_PER_WRITE = 10.0
MAX_TAG_LENGTH = 5000

log = logging.getLogger(__name__)


class Record:
    """A run in MLflow. Points are written many at once; :meth:`end` writes what is left."""

    def __init__(self, client: "MlflowClient", store: Store, run_id: str) -> None:
        """Take up a run that exists."""
        self.client, self.store, self.run_id = client, store, run_id
        self._database = sqlite_path(store.uri)
        self._points: list[Point] = []
        self._names: dict[str, str] = {}
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
        tags: Mapping[str, str] | None = None,
    ) -> "Record":
        """Create a run.

        Args:
            store: Where.
            experiment: MLflow's name for a group of runs.
            name: The run's readable name.
            parent: Run id of the sweep that this run belongs to.
            tags: Tag name to text.

        Raises:
            ValueError: If the store cannot be written.
        """
        from mlflow.exceptions import MlflowException

        fixed = {"mlflow.parentRunId": parent} if parent else {}
        try:
            client = open_client(store)
            run = client.create_run(
                experiment_id(client, store, experiment),
                run_name=name,
                tags={**_tag_texts(tags or {}), **fixed},
            )
        except MlflowException as error:
            first = str(error).splitlines()[0]
            raise ValueError(f"{store.origin}={store.uri}: the run store fails: {first}") from error
        return cls(client, store, run.info.run_id)

    @classmethod
    def attach(cls, store: Store, run_id: str) -> "Record":
        """Open a run that another process created."""
        return cls(open_client(store), store, run_id)

    def artifact_folder(self) -> str:
        """Return where the run's artifacts are."""
        return str(self.client.get_run(self.run_id).info.artifact_uri)

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
            name = self._names.get(key)
            if name is None:
                name = self._names[key] = safe_name(key)
            self._points.append((name, value if math.isfinite(value) else math.nan, at, step))
        if time.monotonic() < self._not_before:
            return
        if time.monotonic() - self._written > SECONDS_PER_WRITE:
            self.flush()
        elif len(self._points) >= POINTS_PER_WRITE:
            self.flush(at_least=POINTS_PER_WRITE)

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
                log.warning("The run store does not take points now, keeping them: %s", error)
                if patient:
                    time.sleep(10)

    def _write(self, at_least: int) -> None:
        while len(self._points) >= at_least:
            points = self._points[:POINTS_PER_WRITE]
            write_points(self.client, self._database, self.run_id, points)
            del self._points[: len(points)]
        self._written = time.monotonic()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End the run with the block: FINISHED, FAILED with its error, or KILLED on Ctrl-C."""
        status = FAILED
        try:
            yield
            status = FINISHED
        except KeyboardInterrupt:
            status = KILLED
            raise
        except BaseException as error:
            self.tags({"error": f"{type(error).__name__}: {error}"})
            raise
        finally:
            self.end(status)

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
