"""How an app is launched: one line for a person's mistake, true statuses, and a summary."""

import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from attnscale.cli.job import (
    TRACEBACK_VARIABLE,
    USER_ERRORS,
    answer,
    reason,
    run_job,
    wants_traceback,
)
from attnscale.cli.report import finish
from attnscale.cli.screen import sweep_table
from attnscale.cli.streams import steady_streams
from attnscale.config.build import register
from attnscale.config.hydra_section import bounded_hydra, cannot_write
from attnscale.experiment.surroundings import same_environment
from attnscale.signals import end_on_signals, stopped_status
from attnscale.sweep.ends import end_lost
from attnscale.sweep.going_on import command
from attnscale.sweep.mistakes import explain
from attnscale.sweep.overrides import allowed
from attnscale.sweep.state import LAUNCHED, Job, Sweep
from attnscale.system import quiet_matplotlib
from attnscale.tracking.address import without_secrets
from attnscale.tracking.record import FAILED, FINISHED, KILLED
from attnscale.tracking.ui import delete_view, save_view

__all__ = ["answer", "launch", "run_job"]

HYDRA_VARIABLE = "HYDRA_FULL_ERROR"
STOPPED = 128
"""What a shell adds to the number of the signal that ended a program."""

register()


def _end_of(jobs: Sequence[Job], total: int | None, interrupted: bool) -> tuple[str, str]:
    """Return a sweep's status, and how many jobs finished in words."""
    finished = [job for job in jobs if job.status == FINISHED]
    count = max(total or 0, len(jobs))
    status = KILLED if interrupted else FINISHED if len(finished) == count else FAILED
    return status, f"{len(finished)} of {count} jobs finished"


def _finish_sweep(sweep: Sweep, interrupted: bool, problem: str | None) -> int:
    """End the parent run, print the table, and return the exit status."""
    launch, record = sweep.launch, sweep.record
    status, jobs = (KILLED if interrupted else FAILED), []
    try:
        jobs = end_lost(sweep.folder, record.store, launch, interrupted=interrupted)
        if not jobs and problem is not None:
            return 1
        status, ended = _end_of(jobs, launch.jobs, interrupted)
        status = FAILED if problem and status == FINISHED else status
        note = f"Sweeps {launch.described}. {status}, {time.strftime('%F %T')}: {ended}."
        record.tags({"mlflow.note.content": note})
        table = sweep_table(jobs)
        record.text(table + "\n", "summary.txt")
        print(f"\n{table}\n\n{ended}; status {status}.", flush=True)  # noqa: T201
        if sweep.report and jobs and not interrupted:
            try:
                first = finish(record, sweep.folder, launch)
                record.tags({"mlflow.note.content": f"{note} {first}".strip()})
            except Exception as error:
                status = FAILED
                words = " ".join(str(error).split())
                print(f"The report could not be written: {type(error).__name__}: {words}")  # noqa: T201
        view = save_view(
            record,
            launch.experiment,
            sweep=launch.name,
            described=launch.described,
            swept=launch.swept,
        )
        print(f"Compare: {view}")  # noqa: T201
        print(f"Draw:    python -m src.curves sweep={launch.name}", flush=True)  # noqa: T201
        if status != FINISHED:
            print(f"Go on:   {command(launch, sweep.folder)}", flush=True)  # noqa: T201
    except KeyboardInterrupt:
        status = KILLED
        raise
    finally:
        # Whatever happens, the record ends.
        sweep.held.close()
        try:
            replace(launch, status=status).save(sweep.folder)
        finally:
            record.end(status)
        if not jobs and problem is not None:
            # Nothing was run: there is nothing to record.
            delete_view(record, launch.experiment, launch.name)
            record.delete()
    return int(status != FINISHED)


def _outcome(main: Callable[[], object]) -> tuple[int, str | None]:
    """Return the exit status of an app's ``main``, and what to tell the person who asked."""
    try:
        with bounded_hydra(allowed(sys.argv[1:])):
            main()
    except KeyboardInterrupt as stop:
        return stopped_status(stop), "Stopped."
    except SystemExit as stop:
        if isinstance(stop.code, str):
            return 1, stop.code
        return stop.code or 0, None
    except (HydraException, OmegaConfBaseException) as error:
        if wants_traceback():
            print(without_secrets(traceback.format_exc()), file=sys.stderr)  # noqa: T201
        return 1, explain(error)
    except Exception as error:
        # Of Hydra's own folder: an app ends with its errors itself.
        words = cannot_write(error)
        if wants_traceback() or not (words or isinstance(error, USER_ERRORS)):
            traceback.print_exc()
        return 1, words or reason(error)
    return 0, None


def launch(main: Callable[[], object]) -> None:
    """Run an app's ``main`` and end the program with its exit status.

    0: all is well; 1: a mistake or a failed job; 128 and the signal's number: ended by it, 130 for
    Ctrl-C, 143 for SIGTERM. Set HYDRA_FULL_ERROR=1 for tracebacks.
    """
    sweeps: list[Sweep] = []
    steady_streams()
    LAUNCHED.set(sweeps)
    with same_environment():
        # Hydra hands errors over as they are then, instead of printing them its own way. What the
        # person asked for is in another variable, where jobs see it.
        os.environ[TRACEBACK_VARIABLE] = os.environ.get(HYDRA_VARIABLE, "0")
        os.environ[HYDRA_VARIABLE] = "1"
        end_on_signals()
        for stream in (sys.stdout, sys.stderr):
            # A terminal that lacks a sign, of Windows or without a locale, shows another.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        quiet_matplotlib()
        code, problem = _outcome(main)
        for sweep in sweeps:
            try:
                code = max(code, _finish_sweep(sweep, code > STOPPED, problem))
            except KeyboardInterrupt as stop:
                code, problem = stopped_status(stop), "Stopped."
    if problem is not None:
        sys.stdout.flush()
        print(without_secrets(problem), file=sys.stderr, flush=True)  # noqa: T201 -- the last word on the screen
    sys.exit(code)
