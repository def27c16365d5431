"""The address under which MLflow's UI opens on a sweep: its runs side by side, with their charts.

The UI keeps a view as a tag of the experiment, ``mlflow.sharedViewState.KEY``, and opens it at
``viewStateShareKey=KEY``. Source: the JavaScript of MLflow 3.17 in ``mlflow/server/js/build``,
where it reads a view and makes charts. The tag is JSON with a name, milliseconds since 1970, and
the state as JSON, deflated, in base64. The UI takes no view where the address has a filter or an
order, so these are part of the view. What is left out of the state has the UI's defaults; a chart
must be whole. A column or a chart that no run has is not drawn.
"""

import base64
import contextlib
import json
import time
import urllib.parse
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attnscale.tracking.names import safe_name
from attnscale.tracking.record import Record
from attnscale.tracking.runs import OBJECTIVE
from attnscale.tracking.store import Store, experiment_id, open_client

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

VIEW = "mlflow.sharedViewState."
LOCAL = "http://127.0.0.1:5000"
"""Where ``mlflow ui`` serves unless told otherwise."""

TRAINING = ("train/loss", "val/loss", "grad_norm/total", "grad_norm/q")
"""What is drawn of each run, on a logarithmic axis."""

STATISTICS = ("entropy_norm", "logit_std_row", "live_rows", "logit_max")
"""What is drawn of each attention."""

COLORS = (
    *("#4c78a8", "#f58518", "#e45756", "#72b7b2", "#54a24b"),
    *("#eeca3b", "#b279a2", "#ff9da6", "#9d755d", "#bab0ac"),
)
"""Colours that tell runs apart: tableau10 of Vega, the UI's own may give two runs the same."""

COLUMNS, CARD_HEIGHT = 2, 260
"""Charts in a row, and their height in pixels: four are in sight on a laptop."""


def _column(kind: str, key: str) -> str:
    return f"{kind}.`{key}`"


def _sections(metrics: Iterable[str]) -> dict[str, list[str]]:
    """Return section -> metrics, with the attentions that have been recorded, not single heads."""
    ending = f"/{STATISTICS[0]}"
    names = sorted(name.removesuffix(ending) for name in metrics if name.endswith(ending))
    paths = [name for name in names if not name.rpartition("/")[2].startswith("head")]
    drawn = [f"{path}/{statistic}" for path in paths for statistic in STATISTICS]
    return {"Loss and gradient norm": list(TRAINING), "Attention": drawn}


def _section(name: str) -> dict[str, Any]:
    """Return a group of charts, unfolded."""
    return {
        "uuid": name,
        "name": name,
        "display": True,
        "isReordered": True,
        "deleted": False,
        "isGenerated": False,
        "columns": COLUMNS,
        "cardHeight": CARD_HEIGHT,
    }


def _chart(section: str, metric: str) -> dict[str, Any]:
    """Return the UI's line chart of a metric."""
    return {
        "uuid": metric,
        "type": "LINE",
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "metricKey": metric,
        "displayName": metric,
        "runsCountToCompare": 10,
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "log" if metric in TRAINING else "linear",
        "range": {},
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _state(jobs: str, swept: Sequence[str], metrics: Iterable[str]) -> dict[str, Any]:
    """Return the view of the runs that a filter matches, the best first.

    Sorted by anything but their time runs are a plain list, not folded under the sweep's.
    """
    sections = _sections(metrics)
    # What is swept may be a choice of a section, which its class tells.
    keys = [key for name in swept for key in (name, f"{name}._target_")]
    return {
        "searchFilter": jobs,
        "orderByKey": _column("metrics", OBJECTIVE),
        "orderByAsc": True,
        "selectedColumns": [
            *(_column("params", key) for key in keys),
            _column("metrics", OBJECTIVE),
        ],
        "runsHiddenMode": "SHOW_ALL",
        # Else the UI sorts sections by name.
        "isAccordionReordered": True,
        "compareRunCharts": [_chart(name, m) for name, all_ in sections.items() for m in all_],
        "compareRunSections": [_section(name) for name in sections],
    }


def _tag(name: str, state: dict[str, Any]) -> str:
    """Return a view as the UI saves it."""
    deflated = zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 9)
    now = int(time.time() * 1000)
    view = {"name": name, "createdAt": now, "updatedAt": now}
    return json.dumps({**view, "state": f"deflate;{base64.b64encode(deflated).decode()}"})


def _save(
    client: "MlflowClient", experiment: str, sweep: str, name: str, swept: Sequence[str]
) -> None:
    quoted = sweep.replace("'", "")
    jobs = f"tags.sweep = '{quoted}' and tags.kind = 'run'"
    runs = client.search_runs([experiment], jobs)
    metrics = {metric for run in runs for metric in run.data.metrics}
    client.set_experiment_tag(
        experiment, VIEW + safe_name(sweep), _tag(name, _state(jobs, swept, metrics))
    )


def color_tag(job: int) -> dict[str, str]:
    """Return the tag that gives a job of a sweep its colour in the UI."""
    return {"mlflow.runColor": COLORS[job % len(COLORS)]}


def address(store: Store, experiment: str, sweep: str) -> str:
    """Return the address of a sweep's view on the store's server, or where `mlflow ui` serves.

    Args:
        store: The store.
        experiment: Id of the experiment.
        sweep: Name of the sweep, which is the key of its view.
    """
    values = {"workflowType": "machine_learning", "compareRunsMode": "CHART"}
    query = urllib.parse.urlencode({**values, "viewStateShareKey": safe_name(sweep)})
    server = store.uri.rstrip("/") if store.on_server else LOCAL
    return f"{server}/#/experiments/{experiment}/runs?{query}"


def save_view(
    record: Record, experiment: str, *, sweep: str, described: str, swept: Sequence[str]
) -> str:
    """Save the view of a sweep, with charts of what its runs have recorded so far.

    Args:
        record: The sweep's record.
        experiment: MLflow's experiment.
        sweep: The sweep's name.
        described: What is swept, in words: the view's name in the UI.
        swept: Keys that are swept.

    Returns:
        How to see it: the address, after the command that starts the UI where there is no server.

    Raises:
        MlflowException: If the store does not take it.
    """
    key = experiment_id(record.client, record.store, experiment)
    _save(record.client, key, sweep, described, swept)
    at = address(record.store, key, sweep)
    return at if record.store.on_server else f"{record.store.ui_command()}\n         {at}"


def delete_view(record: Record, experiment: str, sweep: str) -> None:
    """Delete the view of a sweep without runs, if it has one."""
    from mlflow.exceptions import MlflowException

    key = experiment_id(record.client, record.store, experiment)
    with contextlib.suppress(MlflowException):
        record.client.delete_experiment_tag(key, VIEW + safe_name(sweep))


def newest_views(store: Store, number: int) -> dict[str, str]:
    """Return name -> address of the newest sweeps; one recorded without a view gets one."""
    client = open_client(store)
    tags = {e.experiment_id: e.tags for e in client.search_experiments()}
    runs = client.search_runs(
        list(tags),
        "tags.kind = 'sweep'",
        max_results=number,
        order_by=["attributes.start_time DESC"],
    )
    addresses = {}
    for run in runs:
        experiment, sweep = run.info.experiment_id, run.data.tags["sweep"]
        name = run.info.run_name or sweep
        if VIEW + safe_name(sweep) not in tags[experiment]:
            _save(client, experiment, sweep, name, ())
        addresses[name] = address(store, experiment, sweep)
    return addresses
