"""Runs that look alive and are not: their process was killed, or its machine lost its power."""

from attnscale.tracking.heartbeat import RunningRun, running_runs
from attnscale.tracking.liveness import Process
from attnscale.tracking.record import KILLED, PROCESS_TAG, RUNNING, Record
from attnscale.tracking.store import Store, check_reachable

STALE_SECONDS = 600.0
"""How long a run of another machine may give no sign of life."""


def _may_live(run: RunningRun, store: Store) -> bool:
    process = Process.parse(run.tags.get(PROCESS_TAG, ""))
    alive = None if process is None else process.alive()
    if alive is not None:
        return alive
    try:
        silent = run.silent_seconds(store)
    except (OSError, ValueError):
        # A store that does not tell its time, or a tag that is none.
        return True
    return silent is None or silent < STALE_SECONDS


def mark_orphans(store: Store, experiment: str) -> list[str]:
    """Mark the runs as killed whose process is gone, and return their names.

    One of this machine is known by its process; one of another by its heartbeat, in the store's own
    time. What may be alive is left alone.

    Args:
        store: Where the runs are.
        experiment: MLflow's experiment.
    """
    # Within seconds, without MLflow's minutes of retries.
    check_reachable(store)
    names = []
    for run in running_runs(store, experiment):
        if _may_live(run, store):
            continue
        record = Record.attach(store, run.run_id)
        mark = record.all_tags().get(PROCESS_TAG), record.status()
        if mark != (run.tags.get(PROCESS_TAG), RUNNING):
            # It ended, or went on elsewhere, since it was listed.
            continue
        record.tags({"error": f"ended without a word ({run.tags.get(PROCESS_TAG, 'unknown')})"})
        record.end(KILLED)
        names.append(run.name)
    return names
