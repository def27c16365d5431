"""How an app is launched: one line for a person's mistake, true statuses, and a summary."""

import difflib
import io
import json
import logging
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

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
from attnscale.experiment.result import RUN_FILE
from attnscale.experiment.surroundings import same_environment
from attnscale.sweep.overrides import allowed, in_words
from attnscale.sweep.state import LAUNCHED, Launch, Sweep, read_jobs
from attnscale.tracking.address import without_secrets
from attnscale.tracking.record import FAILED, FINISHED, KILLED, Record
from attnscale.tracking.ui import delete_view, save_view

__all__ = ["answer", "launch", "run_job"]

HYDRA_VARIABLE = "HYDRA_FULL_ERROR"

register()


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like a Ctrl-C."""


def _terminate(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second signal must not interrupt the writing of the record.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _end_lost(sweep: Sweep, index: int, status: str) -> None:
    """End the run of a job that ended without a word, so that it does not look alive."""
    file = sweep.folder / str(index) / RUN_FILE
    if file.is_file():
        run_id = json.loads(file.read_text(encoding="utf-8"))["run_id"]
        Record.attach(sweep.record.store, run_id).end(status)


def _finish_sweep(sweep: Sweep, interrupted: bool, problem: str | None) -> int:
    """End the parent run, print the table, and return the exit status."""
    jobs = read_jobs(sweep.folder)
    if not jobs and problem is not None:
        # Nothing was run: there is nothing to record.
        sweep.record.end(FAILED)
        delete_view(sweep.record, sweep.experiment, sweep.folder.name)
        sweep.record.delete()
        return 1
    for job in jobs:
        if job.status == "LOST":
            _end_lost(sweep, job.index, KILLED if interrupted else FAILED)
    bad = [job for job in jobs if job.status != "FINISHED"]
    status = KILLED if interrupted else FAILED if bad or problem else FINISHED
    ended = f"{len(jobs) - len(bad)} of {len(jobs)} started jobs finished"
    note = f"Sweeps {sweep.described}. {status}, {time.strftime('%F %T')}: {ended}."
    sweep.record.tags({"mlflow.note.content": note})
    table = sweep_table(jobs)
    sweep.record.text(table + "\n", "summary.txt")
    print(f"\n{table}\n\n{ended}; status {status}.", flush=True)  # noqa: T201
    if sweep.report and jobs and not interrupted:
        first = finish(sweep.record, sweep.folder, sweep.experiment, sweep.described)
        sweep.record.tags({"mlflow.note.content": f"{note} {first}".strip()})
    sweep.record.end(status)
    name = sweep.folder.name
    swept = Launch.load(sweep.folder).swept
    view = save_view(
        sweep.record, sweep.experiment, sweep=name, described=sweep.described, swept=swept
    )
    print(f"Compare: {view}")  # noqa: T201
    print(f"Draw:    python -m src.curves sweep={name}", flush=True)  # noqa: T201
    return 1 if bad or problem else 0


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
        return (143 if isinstance(stop, Terminated) else 130), "Stopped."
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

    0: all is well; 1: a mistake or a failed job; 130: Ctrl-C; 143: SIGTERM. Set HYDRA_FULL_ERROR=1
    for tracebacks.
    """
    sweeps: list[Sweep] = []
    steady_streams()
    LAUNCHED.set(sweeps)
    with same_environment():
        # Hydra hands errors over as they are then, instead of printing them its own way. What the
        # person asked for is in another variable, where jobs see it.
        os.environ[TRACEBACK_VARIABLE] = os.environ.get(HYDRA_VARIABLE, "0")
        os.environ[HYDRA_VARIABLE] = "1"
        signal.signal(signal.SIGTERM, _terminate)
        for stream in (sys.stdout, sys.stderr):
            # A terminal that lacks a sign, of Windows or without a locale, shows another.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        # It is imported by a library and draws nothing: where it may cache says nothing to anybody.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        code, problem = _outcome(main)
        for sweep in sweeps:
            code = max(code, _finish_sweep(sweep, code in (130, 143), problem))
    if problem is not None:
        sys.stdout.flush()
        print(without_secrets(problem), file=sys.stderr, flush=True)  # noqa: T201 -- the last word on the screen
    sys.exit(code)
