"""What the app sweeps does: the newest sweeps, how far they are, and how to go on."""

from collections import Counter
from pathlib import Path

from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.cli.screen import say
from attnscale.config.app_schema import SweepsConfig
from attnscale.config.build import project_root, shown_path, to_object
from attnscale.sweep.going_on import command, in_use
from attnscale.sweep.orphans import mark_orphans
from attnscale.sweep.state import RUNNING, SWEEP_FILE, Launch, read_jobs
from attnscale.tracking.history import History
from attnscale.tracking.record import FAILED, FINISHED
from attnscale.tracking.runs import Run
from attnscale.tracking.store import find_store


def _row(run: Run) -> tuple[list[object], str | None]:
    """Return the row of a sweep, and the command that goes on with it if it can."""
    folder = Path(run.tags.get("folder", ""))
    if not (folder / SWEEP_FILE).is_file():
        # On another machine, or of an earlier version.
        cells: list[object] = ["", "", "", "", "", f"{folder} (not here)"]
        return [run.tags["sweep"], run.outcome, *cells], None
    launch, jobs = Launch.load(folder), read_jobs(folder)
    counts = Counter(job.status for job in jobs)
    # What its launcher did not live to say.
    running = sum(job.alive for job in jobs if job.status == RUNNING)
    total = max(launch.jobs or 0, len(jobs))
    failed, done = counts[FAILED], counts[FINISHED]
    left = total - done - failed - running
    counted: list[object] = [total, done, failed, running, left, shown_path(folder)]
    unfinished = done < total and not in_use(folder)
    return [launch.name, run.outcome, *counted], command(launch, folder) if unfinished else None


def list_sweeps(composed: DictConfig) -> None:
    """Print the newest sweeps; those whose process is gone are marked first.

    Raises:
        ValueError: If ``newest`` is below 1, or the store has no such experiment.
    """
    config = to_object(composed, SweepsConfig)
    if config.newest < 1:
        raise ValueError(f"newest={config.newest}: must be at least 1")
    store = find_store(config.tracking.uri, project_root())
    for name in mark_orphans(store, config.tracking.experiment):
        say(f"Ended without a word, now marked: {name}")
    sweeps = History(store, config.tracking.experiment).sweeps(config.newest)
    rows = [_row(run) for run in sweeps]
    headers = ["sweep", "status", "jobs", "done", "failed", "running", "left", "folder"]
    say(tabulate([row for row, _ in rows], headers=headers, tablefmt="simple"))
    commands = [command for _, command in rows if command is not None]
    if commands:
        say("\nGo on:\n" + "\n".join(f"  {command}" for command in commands))
