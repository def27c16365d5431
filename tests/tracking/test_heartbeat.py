"""Signs of life of a run, in the store's time."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from attnscale.tracking import heartbeat as module
from attnscale.tracking.heartbeat import RunningRun, heartbeat, running_runs, store_time
from attnscale.tracking.record import FINISHED, Record
from attnscale.tracking.store import Store, find_store

DATES = {
    "/health": (200, "Sun, 09 Sep 2001 01:46:40 GMT"),
    "/refuses/health": (401, "Sun, 09 Sep 2001 01:46:41 GMT"),
    "/silent/health": (200, None),
}


class _Clock(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, date = DATES[self.path]
        self.send_response_only(status)
        if date is not None:
            self.send_header("Date", date)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    """Return the address of a server that tells a time of its own."""
    with HTTPServer(("127.0.0.1", 0), _Clock) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def store(empty_store: Path, tmp_path: Path) -> Store:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return find_store(f"sqlite:///{tmp_path}/mlflow.db", tmp_path)


def test_the_time_of_a_server_is_that_of_its_answers(server: str) -> None:
    assert store_time(Store(server, None, "tracking.uri")) == 1e9
    assert store_time(Store(f"{server}/", None, "tracking.uri")) == 1e9
    assert store_time(Store(f"{server}/refuses", None, "tracking.uri")) == 1e9 + 1


def test_a_server_without_a_clock_or_that_is_away_says_so(server: str) -> None:
    with pytest.raises(OSError, match="does not tell its time"):
        store_time(Store(f"{server}/silent", None, "tracking.uri"))
    with pytest.raises(OSError, match="refused"):
        store_time(Store("http://127.0.0.1:9", None, "tracking.uri"))


def test_the_time_of_a_database_is_that_of_its_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = find_store(f"sqlite:///{tmp_path}/m.db", tmp_path)
    touch = Path.touch

    def on_a_slow_clock(path: Path) -> None:
        touch(path)
        os.utime(path, (5e8, 5e8))

    monkeypatch.setattr(Path, "touch", on_a_slow_clock)
    assert store_time(store) == 5e8
    monkeypatch.undo()
    assert store_time(store) == pytest.approx(time.time(), abs=5)


def test_elsewhere_it_is_this_machine_s() -> None:
    store = Store("postgresql://host/db", None, "tracking.uri")
    assert store_time(store) == pytest.approx(time.time(), abs=5)


def test_a_run_is_tagged_again_and_again_while_it_runs_and_though_one_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record.start(store, experiment="e", name="r")
    times, third = iter((100.0, None, 300.4)), threading.Event()

    def tell(store: Store) -> float:
        now = next(times, "end")
        if now == "end":
            third.set()
        if not isinstance(now, float):
            raise OSError("away")
        return now

    monkeypatch.setattr(module, "SECONDS", 0.001)
    monkeypatch.setattr(module, "store_time", tell)
    with heartbeat(record):
        assert third.wait(20)
    (run,) = running_runs(store, "e")
    assert (run.run_id, run.name, run.tags["heartbeat"]) == (record.run_id, "r", "300")
    record.end(FINISHED)
    assert running_runs(store, "e") == running_runs(store, "no such experiment") == []


@pytest.mark.parametrize(("tags", "seconds"), [({}, None), ({"heartbeat": "1000"}, 250.0)])
def test_silence_is_counted_in_the_store_s_time(
    tags: dict[str, str], seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "store_time", lambda store: 1250.0)
    run = RunningRun("id", "name", tags)
    assert run.silent_seconds(Store("http://x", None, "default")) == seconds
