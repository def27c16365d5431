"""Signs of life of a run, in the time of the store that all its machines share."""

import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING

from attnscale.tracking.store import Store, open_client, sqlite_path

if TYPE_CHECKING:
    from attnscale.tracking.record import Record

TAG = "heartbeat"
SECONDS = 60.0
TIMEOUT_SECONDS = 10.0

log = logging.getLogger(__name__)


def store_time(store: Store) -> float:
    """Return the store's time, in seconds since 1970.

    That of its server's answers, or of the file system that holds its database; elsewhere this
    machine's.

    Raises:
        OSError: If the store cannot be reached.
    """
    path = sqlite_path(store.uri)
    if path is not None:
        probe = Path(path).with_name(f"{path.name}.clock")
        probe.touch()
        return probe.stat().st_mtime
    if store.uri.startswith(("http://", "https://")):
        address = f"{store.uri.rstrip('/')}/health"
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer:
                date = answer.headers["Date"]
        except urllib.error.HTTPError as error:
            # A server that refuses the question has told the time too.
            with error:
                date = error.headers["Date"]
        if date is None:
            raise OSError(f"{address}: does not tell its time")
        return parsedate_to_datetime(date).timestamp()
    return time.time()


@contextmanager
def heartbeat(record: "Record") -> Iterator[None]:
    """Tag a run with the store's time, again and again, while the block runs."""
    ended = threading.Event()

    def beat() -> None:
        while True:
            # The next one may get through.
            with suppress(Exception):
                record.tags({TAG: f"{store_time(record.store):.0f}"})
            if ended.wait(SECONDS):
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


@dataclass(frozen=True)
class RunningRun:
    """A run that the store has as running.

    Attributes:
        run_id: MLflow's id.
        name: Its readable name.
        tags: Its tags.
    """

    run_id: str
    name: str
    tags: dict[str, str]

    def silent_seconds(self, store: Store) -> float | None:
        """Return how long it gave no sign of life, or None if it never did."""
        last = self.tags.get(TAG)
        return None if last is None else store_time(store) - float(last)


def running_runs(store: Store, experiment: str) -> list[RunningRun]:
    """Return the runs of an experiment that the store has as running."""
    client = open_client(store)
    place = client.get_experiment_by_name(experiment)
    if place is None:
        return []
    runs: list[RunningRun] = []
    token = None
    while True:
        page = client.search_runs(
            [place.experiment_id], "attributes.status = 'RUNNING'", page_token=token
        )
        runs += [
            RunningRun(run.info.run_id, run.info.run_name, dict(run.data.tags)) for run in page
        ]
        token = page.token
        if not token:
            return runs
