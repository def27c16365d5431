"""How an app is launched: one line for a person's mistake, true statuses, and a summary."""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from attnscale.config.build import register
from attnscale.config.hydra_section import bounded_hydra
from attnscale.experiment.result import RUN_FILE
from attnscale.sweep import state
from attnscale.sweep.job import JOB_FILE, USER_ERRORS, answer, reason, run_job, wants_traceback
from attnscale.sweep.problems import explain
from attnscale.sweep.report import finish
from attnscale.sweep.screen import sweep_table
from attnscale.sweep.slurm import register as register_launcher
from attnscale.tracking.record import FAILED, FINISHED, KILLED

__all__ = ["answer", "launch", "run_job"]

register()
register_launcher()


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like a Ctrl-C."""


def _terminate(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second signal must not interrupt the writing of the record.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _tell(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)  # noqa: T201 -- the last word on the screen


def read_jobs(folder: Path) -> list[dict[str, Any]]:
    """Return what each job of a sweep folder left behind, in order."""
    files = [f for f in folder.glob(f"*/{JOB_FILE}") if f.parent.name.isdigit()]
    jobs = [json.loads(f.read_text()) for f in sorted(files, key=lambda f: int(f.parent.name))]
    for job in jobs:
        if job["status"] == "RUNNING":
            job |= {"status": "LOST", "error": "ended without a result"}
    return jobs


def _end_lost(sweep: state.Sweep, file: Path, status: str) -> None:
    """End the run of a job that ended without a word, so that it does not look alive."""
    if file.is_file():
        run_id = json.loads(file.read_text())["run_id"]
        sweep.record.client.set_terminated(run_id, status)


def _finish_sweep(interrupted: bool, problem: str | None) -> int:
    """End the parent run, print the table, and return the exit status."""
    sweep = state.sweep
    assert sweep is not None
    jobs = read_jobs(sweep.folder)
    if not jobs and problem is not None:
        # Nothing was run: there is nothing to record.
        sweep.record.end(FAILED)
        sweep.record.client.delete_run(sweep.record.run_id)
        return 1
    for job in jobs:
        if job["status"] == "LOST":
            file = sweep.folder / str(job["index"]) / RUN_FILE
            _end_lost(sweep, file, KILLED if interrupted else FAILED)
    bad = [job for job in jobs if job["status"] != "FINISHED"]
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
    print(f"Compare: {sweep.record.store.ui_command()}  (filter: tags.sweep = '{name}')")  # noqa: T201
    print(f"Draw:    python -m src.curves sweep={name}", flush=True)  # noqa: T201
    return 1 if bad or problem else 0


def launch(main: Callable[[], Any]) -> None:
    """Run an app's ``main`` and end the program with its exit status.

    0: all is well; 1: a mistake or a failed job; 130: Ctrl-C; 143: SIGTERM. Set HYDRA_FULL_ERROR=1
    for tracebacks.
    """
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        os.environ["ATTNSCALE_FULL_ERROR"] = "1"
    # Hydra then hands errors over as they are instead of printing them its own way.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    signal.signal(signal.SIGTERM, _terminate)
    problem: str | None = None
    code = 0
    try:
        with bounded_hydra():
            main()
    except KeyboardInterrupt as stop:
        code = 143 if isinstance(stop, Terminated) else 130
        problem = "Stopped."
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        problem = state.problem
    except (HydraException, OmegaConfBaseException) as error:
        problem, code = explain(error), 1
        if wants_traceback():
            traceback.print_exc()
    except Exception as error:
        problem, code = reason(error), 1
        if wants_traceback() or not isinstance(error, USER_ERRORS):
            traceback.print_exc()
    if state.sweep is not None:
        code = max(code, _finish_sweep(code in (130, 143), problem))
    if problem is not None:
        _tell(problem)
    sys.exit(code)
