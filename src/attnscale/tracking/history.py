"""Reading runs back: which runs a sweep has, and the curve of a metric."""

import math
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnscale.renames import KEYS, METRICS, earlier_metrics, renamed
from attnscale.tracking.names import safe_name
from attnscale.tracking.runs import Run, StoredCurves
from attnscale.tracking.store import TIMEOUT_SECONDS, Store, open_client, sqlite_path

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun

PAGE = 200


@dataclass(frozen=True)
class RecordedSweep:
    """A sweep that ended.

    Attributes:
        name: Its name, which its jobs have as a tag.
        overrides: What it was started with.
        jobs: How many it had, 0 if that was not recorded.
    """

    name: str
    overrides: tuple[str, ...]
    jobs: int


class History:
    """The runs of one experiment in a store."""

    def __init__(self, store: Store, experiment: str) -> None:
        """Open the store."""
        # Its bars would run over a page of results.
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        self.client, self.experiment = open_client(store), experiment
        self.database = sqlite_path(store.uri)

    def _run(self, run: "MlflowRun") -> Run:
        return Run.stored(
            run_id=run.info.run_id,
            name=run.info.run_name or run.info.run_id,
            status=run.info.status,
            tags=dict(run.data.tags),
            parameters={renamed(key, KEYS): text for key, text in run.data.params.items()},
            metrics={renamed(name, METRICS): value for name, value in run.data.metrics.items()},
            curves=StoredCurves(partial(self.points, run.info.run_id)),
        )

    def _search(self, query: str, limit: int | None = None) -> list[Run]:
        experiment = self.client.get_experiment_by_name(self.experiment)
        if experiment is None:
            raise ValueError(
                f"tracking.experiment={self.experiment}: no such experiment in this store"
            )
        runs: list[Run] = []
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [experiment.experiment_id],
                query,
                max_results=min(PAGE, limit or PAGE),
                order_by=["attributes.start_time DESC"],
                page_token=token,
            )
            runs += [self._run(run) for run in page]
            token = page.token
            if not token or (limit is not None and len(runs) >= limit):
                return runs

    def sweeps(self, limit: int) -> list[Run]:
        """Return the parent runs of the newest sweeps, the newest first."""
        return self._search("tags.kind = 'sweep'", limit=limit)[:limit]

    def sweep_runs(self, sweep: str) -> list[Run]:
        """Return the job runs of a sweep, in job order.

        Args:
            sweep: The sweep's name, which is its folder's name, or "latest".

        Raises:
            ValueError: If there is no such sweep.
        """
        if sweep == "latest":
            newest = self._search("tags.kind = 'sweep'", limit=1)
            if not newest:
                raise ValueError("sweep=latest: no sweep was recorded in this store yet")
            sweep = newest[0].tags["sweep"]
        runs = self._jobs(sweep)
        if not runs:
            raise ValueError(f"sweep={sweep}: no runs of a sweep of that name in this store")
        return runs

    def _jobs(self, sweep: str) -> list[Run]:
        """Return the job runs of a sweep, in job order; of a job that was done again the newest."""
        quoted = sweep.replace("'", "")
        runs = self._search(f"tags.sweep = '{quoted}' and tags.kind = 'run'")
        newest = {run.tags.get("job", run.run_id): run for run in reversed(runs)}
        return sorted(newest.values(), key=lambda run: int(run.tags.get("job", "0")))

    def sweeps_of(self, override: str) -> list[RecordedSweep]:
        """Return the sweeps that were started with an override and ended, the newest first.

        A sweep with a failed job has failed; it has results all the same. What was killed has not
        ended.

        Args:
            override: One override of the command line, such as ``experiment=NAME``.
        """
        if self.client.get_experiment_by_name(self.experiment) is None:
            return []
        parents = self._search("tags.kind = 'sweep'")
        sweeps = [
            RecordedSweep(
                parent.tags["sweep"],
                tuple(parent.tags.get("overrides", "").split()),
                int(parent.tags.get("jobs", "0")),
            )
            for parent in parents
            if parent.status in ("FINISHED", "FAILED")
        ]
        return [sweep for sweep in sweeps if override in sweep.overrides]

    def jobs_of(self, sweep: RecordedSweep) -> list[Run]:
        """Return the job runs of a sweep, in job order; none if it has recorded none."""
        return self._jobs(sweep.name)

    def newest_values(self, tag: str, text: str, metric: str) -> dict[str, float]:
        """Return run name -> value of a metric, from the newest run of each name with a tag."""
        if self.client.get_experiment_by_name(self.experiment) is None:
            return {}
        newest: dict[str, float] = {}
        for run in self._search(f"tags.{tag} = '{text}'"):
            if metric in run.metrics:
                newest.setdefault(run.name, run.metrics[metric])
        return newest

    def matching(self, query: str) -> list[Run]:
        """Return the job runs of the experiment that an MLflow filter matches, oldest first.

        Raises:
            ValueError: If there is no such experiment, or MLflow does not take the filter.
        """
        from mlflow.exceptions import MlflowException

        whole = f"tags.kind = 'run' and ({query})" if " or " in query.lower() else query
        whole = whole or "tags.kind = 'run'"
        try:
            runs = self._search(whole)
        except MlflowException as error:
            raise ValueError(f"filter={query}: {str(error).splitlines()[0]}") from error
        return [run for run in reversed(runs) if run.tags.get("kind") == "run"]

    def by_id(self, run_id: str) -> Run:
        """Return one run.

        Raises:
            ValueError: If the store has no such run.
        """
        from mlflow.exceptions import MlflowException

        try:
            return self._run(self.client.get_run(run_id))
        except MlflowException as error:
            raise ValueError(f"runs: no run {run_id} in this store") from error

    def parent(self, sweep: str) -> Run | None:
        """Return the parent run of a sweep, or None."""
        quoted = sweep.replace("'", "")
        sweeps = self._search(f"tags.sweep = '{quoted}' and tags.kind = 'sweep'", limit=1)
        return sweeps[0] if sweeps else None

    def points(self, run_id: str, metric: str) -> list[tuple[int, float, int]]:
        """Return (optimizer step, value, milliseconds since 1970) of a metric's points, by step."""
        for name in map(safe_name, [metric, *earlier_metrics(metric)]):
            points = self._read(run_id, name)
            if points is None:
                history = self.client.get_metric_history(run_id, name)
                points = sorted((point.step, point.value, point.timestamp) for point in history)
            if points:
                return points
        return []

    def _read(self, run_id: str, name: str) -> list[tuple[int, float, int]] | None:
        """Return a metric's points straight from an SQLite file; None if that is not possible.

        MLflow makes objects of each point several times over, which takes minutes for a report of
        hundreds of runs.
        """
        if self.database is None:
            return None
        try:
            opened = closing(sqlite3.connect(self.database, timeout=TIMEOUT_SECONDS))
            with opened as connection:
                rows = connection.execute(
                    "SELECT step, CASE WHEN is_nan THEN NULL ELSE value END, timestamp "
                    "FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step, timestamp",
                    (run_id, name),
                ).fetchall()
        except sqlite3.Error:
            return None
        return [(step, math.nan if value is None else value, at) for step, value, at in rows]

    def artifact(self, run_id: str, path: str, folder: Path) -> Path | None:
        """Return a local copy of an artifact in a folder, or None if the run has none of a path."""
        from mlflow.exceptions import MlflowException

        if path not in self.artifacts(run_id, path.rpartition("/")[0]):
            return None
        try:
            place = folder / run_id
            place.mkdir(parents=True, exist_ok=True)
            return Path(self.client.download_artifacts(run_id, path, str(place)))
        except (MlflowException, OSError):
            return None

    def artifacts(self, run_id: str, folder: str) -> list[str]:
        """Return the paths of a run's artifacts in a folder, in order."""
        from mlflow.exceptions import MlflowException

        try:
            items = self.client.list_artifacts(run_id, folder or None)
            return sorted(item.path for item in items)
        except (MlflowException, OSError):
            return []

    def curve(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        """Return (optimizer step, value) of every point of a metric, by step."""
        return [(step, value) for step, value, _ in self.points(run_id, metric)]
