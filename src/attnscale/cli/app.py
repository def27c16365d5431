"""How an app is launched: one line for a person's mistake, true statuses, and a summary."""

import difflib
import io
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

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
from attnscale.sweep.overrides import allowed, in_words
from attnscale.sweep.state import LAUNCHED, Job, Sweep
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
            except KeyboardInterrupt:
                status = KILLED
                raise
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
    finally:
        # Whatever happens, the record ends.
        sweep.held.close()
        replace(launch, status=status).save(sweep.folder)
        record.end(status)
        if not jobs and problem is not None:
            # Nothing was run: there is nothing to record.
            delete_view(record, launch.experiment, launch.name)
            record.delete()
    return int(status != FINISHED)


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _of_a_key(error: BaseException) -> str | None:
    """Return an error that OmegaConf has with a key in a line, or None if it is none."""
    for cause in _chain(error):
        if not isinstance(cause, OmegaConfBaseException) or not cause.full_key:
            continue
        key = cause.full_key
        if isinstance(cause, ConfigKeyError | ConfigAttributeError):
            return f"{key}: no such key{_known(cause)}"
        return f"{key}: {str(cause.msg or cause).splitlines()[0]}"
    return None


def explain(error: BaseException) -> str:
    """Return an error of Hydra's or OmegaConf's in a line: the key, the value, what is allowed."""
    if words := _of_a_key(error):
        return words
    if isinstance(error, OverrideParseException):
        return in_words(error)
    if "'hydra/launcher/submitit_slurm'" in str(error):
        return "hydra/launcher=slurm: not installed; pip install 'attnscale[slurm]'"
    missing = re.search(r"Could not find '([^']+)/([^'/]+)'", str(error))
    if missing:
        listed = str(error).partition("Available options in")[2].partition("Config search path")[0]
        names = ", ".join(line.strip() for line in listed.splitlines()[1:] if line.strip())
        return f"{missing[1]}={missing[2]}: no such choice. Allowed: {names}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:1] + [line for line in lines[1:] if not line.startswith("full_key")])


def _known(error: OmegaConfBaseException) -> str:
    parent = error.parent_node
    if not isinstance(parent, DictConfig):
        return ""
    names = [str(name) for name in parent if not str(name).startswith("_")]
    near = difflib.get_close_matches(str(error.key).lower(), names, n=1)
    hint = f". Did you mean {near[0]!r}?" if near else "."
    if not names or str(error.full_key).startswith("tags."):
        return f"; +{error.full_key}=… adds it"
    return f"{hint} Allowed: {', '.join(names)}"


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
        # It is imported by a library and draws nothing: where it may cache says nothing to anybody.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
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
