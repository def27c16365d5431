"""The report of hundreds of runs: soon enough, and small enough to mail."""

import itertools
import math
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from attnscale.analysis.settings import Asked, find_runs
from attnscale.report.page import make_report
from attnscale.tracking.history import History
from attnscale.tracking.store import Store, experiment_id, find_store, open_client, sqlite_uri

GROUP, SWEEP = "attnscale", "large"
SCALES = ("sqrt", "none", "cosine", "softcap", "qknorm")
SIZES, RATES, SEEDS = (16, 32, 64, 128), ("0.001", "0.01"), range(5)
POINTS, EVERY = 1000, 10
PATHS = ("encoder.0.self", "decoder.0.self", "decoder.0.cross")
STATISTICS = (
    "entropy_norm",
    "live_rows",
    "logit_std_row",
    "score_std_row",
    "logit_std_predicted",
    "weight_max",
)
PLAIN = (
    *("train/loss", "val/loss", "val/best_loss", "val/accuracy", "test/loss", "train/lr"),
    *("grad_norm/total", "grad_norm/q", "grad_norm/k", "grad_norm/v"),
    *("time/steps_per_second", "progress/steps"),
)
METRICS = (*PLAIN, *(f"attention/{path}/{name}" for path in PATHS for name in STATISTICS))
MOST_SECONDS, MOST_BYTES = 60, 15e6
LATEST = "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid)"
HISTORY = "INSERT INTO metrics (key, value, timestamp, step, is_nan, run_uuid)"


class Planted:
    """A run's numbers: smooth curves that end where the setting and the seed say."""

    def __init__(self, index: int, scale: str, size: int, rate: str, seed: int) -> None:
        self.id = f"{index:032x}"
        self.parameters = {
            "attention.scale": scale,
            "model.d_k": str(size),
            "model.n_layers": "1",
            "optimizer.lr": rate,
            "seed": str(seed),
        }
        self.end = 0.3 + 0.05 * SCALES.index(scale) + 0.1 * RATES.index(rate) + 0.003 * seed
        self.growth = math.pow(size, 0.5 if scale == "sqrt" else 1.0)

    def value(self, metric: str, point: int) -> float:
        if metric == "progress/steps":
            return float(point * EVERY)
        if metric.endswith("score_std_row"):
            return self.growth
        wave = 0.01 * math.sin(0.7 * point + len(metric))
        return self.end + math.exp(-point / 150) + wave + 0.02


def planted() -> list[Planted]:
    cells = itertools.product(SCALES, SIZES, RATES, SEEDS)
    return [Planted(index, *cell) for index, cell in enumerate(cells)]


def _rows(runs: list[Planted], start: int) -> Iterator[tuple[object, ...]]:
    # In the order of the table's key, which is much faster to insert.
    for metric in sorted(METRICS):
        for point in range(POINTS):
            at = start + 1000 * point
            for run in runs:
                yield metric, run.value(metric, point), at, point * EVERY, 0, run.id


def _fill(database: Path, experiment: str, runs: list[Planted]) -> None:
    start, last = 1_700_000_000_000, POINTS - 1
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        secondary = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE tbl_name = 'metrics' AND sql LIKE '%INDEX%'"
        ).fetchall()
        for name, _ in secondary:
            connection.execute(f"DROP INDEX {name}")
        connection.executemany(
            "INSERT INTO runs (run_uuid, name, source_type, user_id, status, start_time, end_time, "
            "lifecycle_stage, artifact_uri, experiment_id) "
            "VALUES (?, ?, 'UNKNOWN', 'unknown', 'FINISHED', ?, ?, 'active', ?, ?)",
            [
                (
                    run.id,
                    f"run {index}",
                    start + index,
                    start + 1000 * POINTS,
                    (database.parent / "artifacts" / run.id).as_uri(),
                    int(experiment),
                )
                for index, run in enumerate(runs)
            ],
        )
        connection.executemany(
            "INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)",
            [(key, text, run.id) for run in runs for key, text in run.parameters.items()],
        )
        connection.executemany(
            "INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)",
            [
                (key, text, run.id)
                for index, run in enumerate(runs)
                for key, text in (("kind", "run"), ("sweep", SWEEP), ("job", str(index)))
            ],
        )
        connection.executemany(f"{HISTORY} VALUES (?, ?, ?, ?, ?, ?)", _rows(runs, start))
        connection.executemany(
            f"{LATEST} VALUES (?, ?, ?, ?, 0, ?)",
            [
                (m, run.value(m, last), start + 1000 * last, last * EVERY, run.id)
                for run in runs
                for m in METRICS
            ],
        )
        for _, sql in secondary:
            connection.execute(sql)
        connection.commit()
        connection.execute("PRAGMA journal_mode=WAL")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = tmp_path_factory.mktemp("scale") / "made.db"
    database = made.with_name("mlflow.db")
    new = find_store(sqlite_uri(made), made.parent)
    group = experiment_id(open_client(new), new, GROUP)
    with closing(sqlite3.connect(made)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    # A copy, which no client holds open: filling it turns its journal off.
    shutil.copy(made, database)
    store = find_store(sqlite_uri(database), database.parent)
    began = time.perf_counter()
    _fill(database, group, planted())
    print(f"filled in {time.perf_counter() - began:.0f} s, {database.stat().st_size / 1e6:.0f} MB")  # noqa: T201
    return store


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_hundred_runs_of_a_thousand_points(store: Store, tmp_path: Path) -> None:
    assert len(METRICS) == 30
    began = time.perf_counter()
    runs = find_runs(store, Asked(SWEEP, (), None, GROUP))
    report = make_report(runs, History(store, GROUP), tmp_path / "report", title="Large")
    seconds, size = time.perf_counter() - began, report.page.stat().st_size
    files = sorted((f.stat().st_size, f.name) for f in report.page.parent.iterdir())
    print(f"{len(runs)} runs: {seconds:.1f} s, page {size / 1e6:.1f} MB; largest {files[-4:]}")  # noqa: T201
    assert len(runs) == 200
    assert len(report.rows) == 40
    assert report.answer.best is not None
    assert report.answer.best.values["attention.scale"] == "sqrt"
    assert report.answer.best.values["optimizer.lr"] == "0.001"
    for figure in ("train_loss", "gradient_norms", "attention_statistics", "score_growth"):
        assert (report.page.parent / f"{figure}.png").read_bytes()[:4] == b"\x89PNG", figure
    assert seconds < MOST_SECONDS
    assert size < MOST_BYTES
