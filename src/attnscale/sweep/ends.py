"""How jobs end that could not say it themselves, and what is then put into the record."""

import json
import signal
from dataclasses import replace
from pathlib import Path

from attnscale.experiment.result import RUN_FILE
from attnscale.sweep.state import LOST, RUNNING, WAITING, Job, Launch, job_file, read_jobs
from attnscale.tracking.record import FAILED, KILLED, Record
from attnscale.tracking.store import Store

SILENT = "ended without a word"


def cause(status: int | None, *, out_of_memory: bool = False) -> str:
    """Return in words why a process ended without a result.

    Args:
        status: Its exit status, negative for a signal, or None if nobody knows.
        out_of_memory: Whether the kernel has killed a process for memory meanwhile.
    """
    if status is None:
        return SILENT
    if status >= 0:
        return f"ended with exit status {status} and no result"
    name = signal.Signals(-status).name
    if name != "SIGKILL":
        return f"ended by signal {-status} ({name})"
    if out_of_memory:
        return f"killed by the kernel for want of memory ({name})"
    return f"killed from outside ({name}), as the kernel does when memory is short"


def end_run(folder: Path, store: Store, status: str, error: str) -> None:
    """End the run that a job left in its folder, so that it does not look alive."""
    file = folder / RUN_FILE
    if file.is_file():
        record = Record.attach(store, json.loads(file.read_text(encoding="utf-8"))["run_id"])
        if record.status() == RUNNING:
            record.tags({"error": error})
            record.end(status)


POOL = "JoblibLauncher"


def end_lost(sweep: Path, store: Store, launch: Launch, *, interrupted: bool) -> list[Job]:
    """Return the jobs of a sweep that has ended; those that did not say how are marked.

    Args:
        sweep: Its folder.
        store: Where its runs are.
        launch: What was launched.
        interrupted: Whether the sweep was; its jobs then were too.
    """
    why = "lost with the pool" if launch.launcher.endswith(POOL) else SILENT
    jobs = []
    for job in read_jobs(sweep):
        known = job
        if job.status == RUNNING and not job.alive:
            known = replace(job, status=KILLED if interrupted else LOST, error=why)
            known.save(job_file(sweep, job.index))
            end_run(Path(job.folder), store, KILLED if interrupted else FAILED, why)
        elif job.status == WAITING:
            known = replace(job, error="not started")
        jobs.append(known)
    if jobs and launch.jobs is not None and not interrupted:
        # A pool takes along what it has not started.
        there = {job.index for job in jobs}
        missing = [index for index in range(launch.jobs) if index not in there]
        if len(jobs) < launch.jobs:
            jobs += [
                Job(index=index, name=f"job {index}", status=LOST, error=why) for index in missing
            ]
    return sorted(jobs, key=lambda job: job.index)
