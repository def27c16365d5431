"""Runs that look alive and are not: their process was killed, or its machine lost its power."""

from attnscale.tracking.heartbeat import running_runs
from attnscale.tracking.liveness import Process
from attnscale.tracking.record import KILLED, PROCESS_TAG, Record
from attnscale.tracking.store import Store

STALE_SECONDS = 600.0
"""How long a run of another machine may give no sign of life."""


def mark_orphans(store: Store, experiment: str) -> list[str]:
    """Mark the runs as killed whose process is gone, and return their names.

    One of this machine is known by its process; one of another by its heartbeat, in the store's own
    time. What may be alive is left alone.

    Args:
        store: Where the runs are.
        experiment: MLflow's experiment.
    """
    names = []
    for run in running_runs(store, experiment):
        process = Process.parse(run.tags.get(PROCESS_TAG, ""))
        alive = None if process is None else process.alive()
        if alive is None:
            silent = run.silent_seconds(store)
            alive = silent is None or silent < STALE_SECONDS
        if alive:
            continue
        record = Record.attach(store, run.run_id)
        record.tags({"error": f"ended without a word ({run.tags.get(PROCESS_TAG, 'unknown')})"})
        record.end(KILLED)
        names.append(run.name)
    return names
