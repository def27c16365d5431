"""Reading runs back: which runs a sweep has, and the curve of a metric."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscale.tracking.names import safe_name
from attnscale.tracking.store import Store, open_client

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

PAGE = 200


@dataclass(frozen=True)
class RecordedRun:
    """A run as the store has it.

    Attributes:
        run_id: MLflow's id.
        name: The run's readable name.
        status: FINISHED, FAILED, KILLED or RUNNING.
        tags: Tag name to text.
        parameters: Parameter name to text.
        metrics: Metric name to its last value.
    """

    run_id: str
    name: str
    status: str
    tags: dict[str, str]
    parameters: dict[str, str]
    metrics: dict[str, float]


def _plain(run: "Run") -> RecordedRun:
    return RecordedRun(
        run.info.run_id,
        run.info.run_name or run.info.run_id,
        run.info.status,
        dict(run.data.tags),
        dict(run.data.params),
        dict(run.data.metrics),
    )


def _search(
    client: "MlflowClient", experiment: str, query: str, most: int | None = None
) -> list[RecordedRun]:
    found = client.get_experiment_by_name(experiment)
    if found is None:
        raise ValueError(f"tracking.experiment={experiment}: no such experiment in this store")
    runs: list[RecordedRun] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            [found.experiment_id],
            query,
            max_results=min(PAGE, most or PAGE),
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        runs += [_plain(run) for run in page]
        token = page.token
        if not token or (most is not None and len(runs) >= most):
            return runs


class History:
    """The runs of one experiment in a store."""

    def __init__(self, store: Store, experiment: str) -> None:
        """Open the store."""
        self.client, self.experiment = open_client(store), experiment

    def sweep_runs(self, sweep: str) -> list[RecordedRun]:
        """Return the job runs of a sweep, in job order.

        Args:
            sweep: The sweep's name, which is its folder's name, or "latest".

        Raises:
            ValueError: If there is no such sweep.
        """
        if sweep == "latest":
            newest = _search(self.client, self.experiment, "tags.kind = 'sweep'", most=1)
            if not newest:
                raise ValueError("sweep=latest: no sweep was recorded in this store yet")
            sweep = newest[0].tags["sweep"]
        quoted = sweep.replace("'", "")
        runs = _search(
            self.client, self.experiment, f"tags.sweep = '{quoted}' and tags.kind = 'run'"
        )
        if not runs:
            raise ValueError(f"sweep={sweep}: no runs of a sweep of that name in this store")
        return sorted(runs, key=lambda run: int(run.tags.get("job", "0")))

    def newest_of(self, override: str) -> list[RecordedRun]:
        """Return the runs of the newest finished sweep that was started with an override.

        Nothing if there is no such sweep, or no such experiment in the store.

        Args:
            override: One override of the command line, such as ``experiment=NAME``.
        """
        if self.client.get_experiment_by_name(self.experiment) is None:
            return []
        sweeps = _search(
            self.client, self.experiment, "tags.kind = 'sweep' and attributes.status = 'FINISHED'"
        )
        for sweep in sweeps:
            if override in sweep.tags.get("overrides", "").split():
                return self.sweep_runs(sweep.tags["sweep"])
        return []

    def newest_values(self, tag: str, text: str, metric: str) -> dict[str, float]:
        """Return run name -> value of a metric, from the newest run of each name with a tag."""
        if self.client.get_experiment_by_name(self.experiment) is None:
            return {}
        made: dict[str, float] = {}
        for run in _search(self.client, self.experiment, f"tags.{tag} = '{text}'"):
            if metric in run.metrics:
                made.setdefault(run.name, run.metrics[metric])
        return made

    def curve(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        """Return (optimizer step, value) of every point of a metric, by step."""
        points = self.client.get_metric_history(run_id, safe_name(metric))
        return sorted((point.step, point.value) for point in points)
