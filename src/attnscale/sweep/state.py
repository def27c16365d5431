"""What a sweep and its jobs tell each other: files in the sweep's folder, and who is running.

``sweep.json`` is what was launched, ``jobs/N.json`` what became of job N, wherever it wrote. Jobs
are known by these files and not by the names of their folders.
"""

import json
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from attnscale.experiment.result import Result, write_json
from attnscale.tracking.liveness import Process
from attnscale.tracking.record import Record

SWEEP_FILE, JOB_FILE, JOBS = "sweep.json", "job.json", "jobs"
WAITING, RUNNING, LOST = "WAITING", "RUNNING", "LOST"
"""Of a job: it has not started, it runs, it ended without a word. The others are those of a run."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What jobs must know of their sweep, wherever they run.

    Attributes:
        parent: MLflow run id of the sweep.
        name: The sweep's name.
        swept: Keys that it varies.
        allow: A person's own packages.
        store: URI of the store, without a login.
        experiment: MLflow's experiment.
        described: What is swept, in words.
        overrides: The overrides of the launch.
        settings: Its overrides of Hydra's own settings that belong to the sweep.
        process: Who launched it, as :class:`~attnscale.tracking.liveness.Process` writes it.
        status: RUNNING, then FINISHED, FAILED or KILLED.
        jobs: How many jobs it has, or None where that is not known before.
        code: Commit and whether the checkout had changes, of the newest launch.
        launcher: ``_target_`` of Hydra's launcher.
    """

    parent: str
    name: str
    swept: list[str]
    allow: list[str]
    store: str = ""
    experiment: str = ""
    described: str = ""
    overrides: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    process: str = ""
    status: str = RUNNING
    jobs: int | None = None
    code: dict[str, str] = field(default_factory=dict)
    launcher: str = ""

    def save(self, folder: Path) -> None:
        """Leave it in the sweep's folder."""
        write_json(folder / SWEEP_FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "Launch":
        """Read what :meth:`save` wrote."""
        return cls(**json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8")))


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is known of a job, or of a single run.

    Attributes:
        index: Its place in the sweep.
        name: Its readable name.
        status: WAITING, RUNNING, then FINISHED, FAILED, KILLED or LOST.
        folder: Where it writes.
        overrides: Its overrides.
        identity: What tells it from other jobs of any sweep; see ``experiment/identity.py``.
        data: Fingerprint of the files that it trains on, or empty.
        threads: Torch's threads of each of its processes, or None if it chose.
        process: Who runs it, as :class:`~attnscale.tracking.liveness.Process` writes it.
        error: Why it failed, or None.
        result: What it came to, or None.
    """

    index: int
    name: str
    status: str
    folder: str = ""
    overrides: list[str] = field(default_factory=list)
    identity: str = ""
    data: str = ""
    threads: int | None = None
    process: str = ""
    error: str | None = None
    result: Result | None = None

    def save(self, path: Path) -> None:
        """Leave it in a file."""
        entries = {key: value for key, value in asdict(self).items() if value is not None}
        try:
            write_json(path, entries)
        except OSError:
            if not path.is_file():
                raise
            # The disk is full: over the file before, which has a block of 4 KiB already.
            short = {k: v[:500] if isinstance(v, str) else v for k, v in entries.items()}
            with path.open("r+") as before:
                before.write(json.dumps(short))
                before.truncate()

    @classmethod
    def load(cls, path: Path) -> "Job":
        """Read what :meth:`save` wrote."""
        entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        result = entries.pop("result", None)
        return cls(**entries, result=None if result is None else Result(**result))

    @property
    def alive(self) -> bool:
        """Whether its process runs, as far as can be seen from here."""
        process = Process.parse(self.process)
        return self.status == RUNNING and process is not None and process.alive() is not False


def job_file(sweep: Path, index: int) -> Path:
    """Return where a job's state lies in the sweep's folder."""
    return sweep / JOBS / f"{index}.json"


def read_jobs(sweep: Path) -> list[Job]:
    """Return what is known of each job of a sweep, in order."""
    files = sorted((sweep / JOBS).glob("*.json"), key=lambda file: int(file.stem))
    return [Job.load(file) for file in files]


@dataclass(frozen=True)
class Sweep:
    """The sweep that this process launched.

    Attributes:
        folder: Where its jobs write.
        record: Its parent run.
        launch: What jobs know of it.
        report: Whether it ends with a report.
        lock: Keeps others out of the folder.
        held: What goes on until the sweep has ended: its heartbeat.
    """

    folder: Path
    record: Record
    launch: Launch
    report: bool
    lock: FileLock
    held: ExitStack


LAUNCHED: ContextVar[list[Sweep]] = ContextVar("LAUNCHED")
"""Where Hydra's hook leaves what it started, for whoever launched this process."""
