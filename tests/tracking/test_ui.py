import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from mlflow.utils.validation import MAX_EXPERIMENT_TAG_VAL_LENGTH

from attnscale.tracking.record import Record
from attnscale.tracking.store import Store, experiment_id, find_store, sqlite_uri
from attnscale.tracking.ui import VIEW, address, color_tag, delete_view, newest_views, save_view

EXPERIMENT, SWEEP = "e", "2026-01-01_00-00-00_a1b2"
AT = f"runs?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey={SWEEP}"


@pytest.fixture
def parent(tmp_path: Path, empty_store: Path) -> Record:
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty_store.read_bytes())
    store = find_store(sqlite_uri(path), tmp_path)
    tags = {"kind": "sweep", "sweep": SWEEP}
    return Record.start(store, experiment=EXPERIMENT, name="sweep scale", tags=tags)


def job(parent: Record, *paths: str) -> None:
    tags = {"kind": "run", "sweep": SWEEP}
    record = Record.start(parent.store, experiment=EXPERIMENT, name="a job", tags=tags)
    figures = {f"attention/{path}/entropy_norm": 1.0 for path in paths}
    record.points({"train/lr": 0.1, "train/loss": 1.0, "val/best_loss": 1.0, **figures}, 0)
    record.end("FINISHED")


def view(record: Record) -> dict[str, Any]:
    """Return the saved view, read as the UI reads it, with its state."""
    key = experiment_id(record.client, record.store, EXPERIMENT)
    text = record.client.get_experiment(key).tags[VIEW + SWEEP]
    assert len(text) < MAX_EXPERIMENT_TAG_VAL_LENGTH
    saved: dict[str, Any] = json.loads(text)
    coded = saved["state"].removeprefix("deflate;")
    return {**saved, "state": json.loads(zlib.decompress(base64.b64decode(coded)))}


def save(record: Record) -> str:
    swept = ["attention.scale", "optimizer"]
    return save_view(record, EXPERIMENT, sweep=SWEEP, described="scale=sqrt,none", swept=swept)


def test_a_view_has_the_jobs_what_is_swept_and_charts(parent: Record) -> None:
    command, at = save(parent).split("\n")
    assert command == parent.store.ui_command()
    key = experiment_id(parent.client, parent.store, EXPERIMENT)
    assert at.strip() == f"http://127.0.0.1:5000/#/experiments/{key}/{AT}"
    saved = view(parent)
    assert saved["name"] == "scale=sqrt,none"
    state = saved["state"]
    assert state["searchFilter"] == f"tags.sweep = '{SWEEP}' and tags.kind = 'run'"
    columns = {f"params.`{key}`" for key in ("attention.scale", "optimizer._target_")}
    assert columns < set(state["selectedColumns"])
    charts = [chart["metricKey"] for chart in state["compareRunCharts"]]
    assert charts == ["train/loss", "val/loss", "grad_norm/total", "grad_norm/q"]


def test_attentions_have_charts_once_they_are_recorded(parent: Record) -> None:
    save(parent)
    paths = [f"{side}.{i}.{kind}" for i in range(12) for side, kind in (("e", "self"), ("d", "x"))]
    job(parent, *paths, "e.0.self/head0")
    save(parent)
    state = view(parent)["state"]
    charts = {chart["metricKey"]: chart for chart in state["compareRunCharts"]}
    assert all(f"attention/{path}/logit_std_row" in charts for path in paths)
    assert not any("head0" in name for name in charts)
    sections = {section["uuid"] for section in state["compareRunSections"]}
    assert {chart["metricSectionId"] for chart in charts.values()} == sections


def test_a_server_has_the_address() -> None:
    store = Store("http://host:5000/", None, "tracking.uri")
    assert address(store, "7", SWEEP) == f"http://host:5000/#/experiments/7/{AT}"


def test_a_sweep_without_runs_leaves_no_view(parent: Record) -> None:
    save(parent)
    for _ in range(2):
        delete_view(parent, EXPERIMENT, SWEEP)
    key = experiment_id(parent.client, parent.store, EXPERIMENT)
    assert VIEW + SWEEP not in parent.client.get_experiment(key).tags


def test_the_newest_sweeps_have_views_old_ones_too(parent: Record) -> None:
    Record.start(
        parent.store,
        experiment="another",
        name="newer",
        tags={"kind": "sweep", "sweep": "b"},
    )
    job(parent)
    assert list(newest_views(parent.store, 1)) == ["newer"]
    addresses = newest_views(parent.store, 5)
    assert list(addresses) == ["newer", "sweep scale"]
    assert addresses["sweep scale"].endswith(AT)
    assert view(parent)["state"]["searchFilter"].startswith(f"tags.sweep = '{SWEEP}'")
    save(parent)
    newest_views(parent.store, 5)
    assert view(parent)["name"] == "scale=sqrt,none"


def test_jobs_have_colours_of_their_own() -> None:
    assert len({color_tag(job)["mlflow.runColor"] for job in range(10)}) == 10


def test_the_best_loss_is_the_first_metric(parent: Record) -> None:
    job(parent)
    (run,) = parent.client.search_runs(
        [experiment_id(parent.client, parent.store, EXPERIMENT)], "tags.kind = 'run'"
    )
    assert list(run.data.metrics)[:2] == ["val/best_loss", "train/loss"]
