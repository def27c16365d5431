"""Reading runs back from a small store."""

import math
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from attnscale.tracking.history import History, RecordedSweep
from attnscale.tracking.record import FAILED, FINISHED, KILLED, Record
from attnscale.tracking.store import Store, find_store, sqlite_uri

GROUP = "attnscale"
WANTED = "experiment=claim_width"


def write(
    store: Store,
    tags: Mapping[str, str],
    figures: Mapping[str, float] | None = None,
    *,
    name: str = "run",
    group: str = GROUP,
    status: str | None = FINISHED,
) -> str:
    # Runs are told apart by the millisecond in which they start.
    time.sleep(0.003)
    record = Record.start(store, experiment=group, name=name, tags=tags)
    record.points(figures or {}, 1)
    record.flush()
    if status is not None:
        record.end(status)
    return record.run_id


def write_sweep(
    store: Store, name: str, overrides: str, jobs: int, status: str | None = FINISHED
) -> list[str]:
    # Sweeps of earlier versions do not say how many jobs they had.
    told = {"jobs": str(jobs)} if name == "newest" else {}
    tags = {"kind": "sweep", "sweep": name, "overrides": overrides, **told}
    write(store, tags, status=status)
    # The last job is recorded first, as with jobs that run side by side.
    made = [
        write(store, {"kind": "run", "sweep": name, "job": str(job), "overrides": overrides})
        for job in reversed(range(jobs))
    ]
    return made[::-1]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("history")
    return find_store(sqlite_uri(folder / "m.db"), folder)


@pytest.fixture(scope="module")
def jobs(store: Store) -> dict[str, list[str]]:
    """Write sweeps, oldest first; return the run ids of their jobs."""
    sweeps: list[tuple[str, str, int, str | None]] = [
        ("older", f"{WANTED} seed=0", 2, FINISHED),
        ("newest", f"trainer=smoke {WANTED}", 11, FINISHED),
        ("another", "experiment=claim_width_and_more", 1, FINISHED),
        ("elsewhere", "experiment=claim_entropy", 1, FINISHED),
        ("failed", WANTED, 1, FAILED),
        ("stopped", WANTED, 1, KILLED),
        ("running", WANTED, 1, None),
    ]
    return {
        name: write_sweep(store, name, overrides, count, status)
        for name, overrides, count, status in sweeps
    }


def test_the_sweeps_that_ended_with_an_override(store: Store, jobs: dict[str, list[str]]) -> None:
    history = History(store, GROUP)
    # The newest first; one with failed jobs has ended, one that was killed has not.
    sweeps = history.sweeps_of(WANTED)
    assert [sweep.name for sweep in sweeps] == ["failed", "newest", "older"]
    assert [sweep.overrides for sweep in sweeps][1:] == [
        ("trainer=smoke", WANTED),
        (WANTED, "seed=0"),
    ]
    assert [sweep.jobs for sweep in sweeps] == [0, 11, 0]
    # In the order of its jobs, the tenth after the ninth; the sweep's own run is none of them.
    runs = history.jobs_of(sweeps[1])
    assert [run.run_id for run in runs] == jobs["newest"]
    assert [run.tags["job"] for run in runs] == [str(job) for job in range(11)]
    assert [sweep.name for sweep in history.sweeps_of("seed=0")] == ["older"]


def test_no_sweep_is_no_error(store: Store, jobs: dict[str, list[str]]) -> None:
    history = History(store, GROUP)
    # Overrides are compared as wholes.
    for override in ("experiment=claim", "claim_width", "experiment=claim_width_and", ""):
        assert history.sweeps_of(override) == []
    assert history.jobs_of(RecordedSweep("without jobs", (), 0)) == []
    assert History(store, "never written").sweeps_of(WANTED) == []


def test_the_newest_value_of_each_name(store: Store) -> None:
    group, cost = "timings", "bench/step_ratio"
    for name, kind, figures in (
        ("sqrt", "mode_cost", {cost: 5.0}),
        ("cosine", "mode_cost", {cost: 1.2}),
        ("sqrt", "mode_cost", {cost: 1.0, "other": 7.0}),
        # Newer, but of another kind, or without the metric.
        ("sqrt", "step_time", {cost: 9.0}),
        ("cosine", "mode_cost", {"other": 8.0}),
        ("nap", "mode_cost", {"other": 8.0}),
    ):
        write(store, {"kind": kind}, figures, name=name, group=group)
    history = History(store, group)
    assert history.newest_values("kind", "mode_cost", cost) == {"sqrt": 1.0, "cosine": 1.2}
    assert history.newest_values("kind", "mode_cost", "other") == {
        "sqrt": 7.0,
        "cosine": 8.0,
        "nap": 8.0,
    }
    assert history.newest_values("kind", "step_time", cost) == {"sqrt": 9.0}
    assert history.newest_values("kind", "nothing", cost) == {}
    assert History(store, "never written").newest_values("kind", "mode_cost", cost) == {}


def test_a_store_that_does_not_exist_yet_has_nothing(tmp_path: Path) -> None:
    history = History(find_store(sqlite_uri(tmp_path / "new.db"), tmp_path), GROUP)
    assert history.sweeps_of(WANTED) == []
    assert history.newest_values("kind", "mode_cost", "x") == {}


def test_points_are_read_straight_from_sqlite_as_mlflow_gives_them(store: Store) -> None:
    record = Record.start(store, experiment="points", name="run")
    for step, value in ((20, 0.5), (0, 2.0), (10, math.inf), (10, 1.5), (30, -3.0)):
        record.points(
            {"train/loss": value, "bleu@4": 1.0}, step, timestamp=1_700_000_000_000 + step
        )
    record.end(FINISHED)
    direct, through = History(store, "points"), History(store, "points")
    through.database = None
    read = direct.points(record.run_id, "train/loss")
    assert [(step, at) for step, _, at in read] == [
        (step, 1_700_000_000_000 + step) for step in (0, 10, 10, 20, 30)
    ]
    # An infinity is recorded as NaN.
    assert sum(math.isnan(value) for _, value, _ in read) == 1
    assert str(sorted(map(str, read))) == str(
        sorted(map(str, through.points(record.run_id, "train/loss")))
    )
    for history in (direct, through):
        assert [step for step, _ in history.curve(record.run_id, "bleu@4")] == [0, 10, 20, 30]
        assert history.points(record.run_id, "never") == []


def test_points_of_a_database_that_is_built_differently_come_from_mlflow(
    store: Store, tmp_path: Path
) -> None:
    run_id = write(store, {}, {"loss": 0.25}, group="points")
    history = History(store, "points")
    history.database = tmp_path / "empty.db"
    assert [(step, value) for step, value, _ in history.points(run_id, "loss")] == [(1, 0.25)]


def test_metrics_of_earlier_versions_have_todays_names(store: Store) -> None:
    name = "attention/encoder.0.self/learned_scale"
    head = "attention/encoder.0.self/head1/learned_scale"
    figures = {"attention/encoder.0.self/temperature": 0.25, "gpu/temperature": 61.0}
    figures["attention/encoder.0.self/head1/temperature"] = 0.125
    earlier = write(store, {"kind": "earlier"}, figures, name="earlier", group="renamed")
    today = write(store, {"kind": "today"}, {name: 0.5}, name="today", group="renamed")
    direct, through = History(store, "renamed"), History(store, "renamed")
    through.database = None
    for history in (direct, through):
        assert history.by_id(earlier).metrics == {name: 0.25, head: 0.125, "gpu/temperature": 61.0}
        assert history.by_id(today).metrics == {name: 0.5}
        assert history.curve(earlier, name) == [(1, 0.25)]
        assert history.curve(earlier, head) == [(1, 0.125)]
        assert history.curve(earlier, "gpu/temperature") == [(1, 61.0)]
        assert history.curve(today, name) == [(1, 0.5)]
        assert history.curve(today, head) == []
        assert history.newest_values("kind", "earlier", name) == {"earlier": 0.25}


def test_parameters_of_earlier_versions_have_todays_keys(store: Store) -> None:
    record = Record.start(store, experiment="renamed", name="parameters")
    record.parameters(
        {
            "callbacks": {"temperatures": {"per_head": True}, "progress": None},
            "model": {"temperatures": 3},
        }
    )
    record.end(FINISHED)
    assert History(store, "renamed").by_id(record.run_id).parameters == {
        "callbacks.learned_scales.per_head": "true",
        "callbacks.progress": "null",
        "model.temperatures": "3",
    }
