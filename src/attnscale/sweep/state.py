"""What a sweep and its jobs tell each other: files in the sweep's folder, and who is running."""

import json
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from attnscale.experiment.result import Result, write_json
from attnscale.tracking.record import Record

SWEEP_FILE, JOB_FILE = "sweep.json", "job.json"


@dataclass(frozen=True)
class Launch:
    """What jobs must know of their sweep, wherever they run.

    Attributes:
        parent: MLflow run id of the sweep.
        name: The sweep's name, that of its folder.
        swept: Keys that it varies.
        allow: A person's own packages.
    """

    parent: str
    name: str
    swept: list[str]
    allow: list[str]

    def save(self, folder: Path) -> None:
        """Leave it in the sweep's folder."""
        write_json(folder / SWEEP_FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "Launch":
        """Read what :meth:`save` wrote."""
        return cls(**json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8")))


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job leaves in its folder.

    Attributes:
        index: Its place in the sweep.
        name: Its readable name.
        status: RUNNING, then FINISHED, FAILED or KILLED; LOST if it never said.
        pid: Its process, if it started.
        error: Why it failed, or None.
        result: What it came to, or None.
    """

    index: int
    name: str
    status: str
    pid: int | None = None
    error: str | None = None
    result: Result | None = None

    def save(self, folder: Path) -> None:
        """Leave it in the job's folder."""
        entries = {key: value for key, value in asdict(self).items() if value is not None}
        file = folder / JOB_FILE
        try:
            write_json(file, entries)
        except OSError:
            if not file.is_file():
                raise
            # The disk is full: over the file before, which has a block of 4 KiB already.
            short = {k: v[:500] if isinstance(v, str) else v for k, v in entries.items()}
            with file.open("r+") as before:
                before.write(json.dumps(short))
                before.truncate()

    @classmethod
    def load(cls, path: Path) -> "Job":
        """Read what :meth:`save` wrote."""
        entries = json.loads(path.read_text(encoding="utf-8"))
        result = entries.pop("result", None)
        return cls(**entries, result=None if result is None else Result(**result))


def read_jobs(folder: Path) -> list[Job]:
    """Return what each job of a sweep folder left behind, in order.

    One that ended without a word is lost.
    """
    files = [f for f in folder.glob(f"*/{JOB_FILE}") if f.parent.name.isdigit()]
    jobs = [Job.load(file) for file in sorted(files, key=lambda f: int(f.parent.name))]
    return [
        replace(job, status="LOST", error="ended without a result")
        if job.status == "RUNNING"
        else job
        for job in jobs
    ]


@dataclass(frozen=True)
class Sweep:
    """The sweep that this process launched.

    Attributes:
        folder: Where its jobs write.
        record: Its parent run.
        described: What is swept, in words.
        experiment: MLflow's experiment.
        report: Whether it ends with a report.
    """

    folder: Path
    record: Record
    described: str
    experiment: str
    report: bool


LAUNCHED: ContextVar[list[Sweep]] = ContextVar("LAUNCHED")
"""Where Hydra's hook leaves what it started, for whoever launched this process."""
