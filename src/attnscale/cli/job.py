"""One job: the bridge from a composed configuration to :func:`attnscale.experiment.run`."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from attnscale.cli.resume import resumed_config, run_config
from attnscale.cli.screen import log, run_table, say
from attnscale.config.build import project_root, to_object
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain
from attnscale.config.targets import Targets
from attnscale.experiment import Result
from attnscale.experiment.consistency import check_settings
from attnscale.experiment.demand import threads_for
from attnscale.experiment.result import WORST, default_name
from attnscale.files import FULL, remove_parts
from attnscale.sweep.going_on import take_lock
from attnscale.sweep.machine import cores
from attnscale.sweep.orphans import mark_orphans
from attnscale.sweep.overrides import allowed, check, describe
from attnscale.sweep.state import JOB_FILE, RUNNING, Job, Launch, job_file
from attnscale.tracking.liveness import Process
from attnscale.tracking.record import FAILED, FINISHED, KILLED
from attnscale.tracking.store import find_store
from attnscale.tracking.ui import color_tag

GRACE_SECONDS = 90.0
"""How long a run that goes on waits for the process that was broken off."""

TRACEBACK_VARIABLE = "ATTNSCALE_FULL_ERROR"
USER_ERRORS = (ValueError, OSError)
"""Errors whose message is meant for the person who gave the command."""
ELSEWHERE = "hydra.run.dir=PATH, a sweep with hydra.sweep.dir=PATH"


def wants_traceback() -> bool:
    """Whether tracebacks were asked for, with HYDRA_FULL_ERROR=1 as everywhere in Hydra."""
    return os.environ.get(TRACEBACK_VARIABLE) == "1"


def reason(error: BaseException) -> str:
    """Return an error in one line; the type is named where the message alone would not do."""
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return f"sys.exit({'' if error.code is None else error.code}) was called"
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        way = f"; write elsewhere with {ELSEWHERE}" if error.errno in FULL else ""
        return f"{place}{error.strerror}{way}"
    text = " ".join(str(error).split())
    return (
        text
        if isinstance(error, (*USER_ERRORS, SystemExit)) and text
        else f"{type(error).__name__}: {text}"
    )


@contextmanager
def writing(key: str, path: str | Path) -> Iterator[None]:
    """Name the key of a file that cannot be written; end quietly where its reader is gone."""
    try:
        yield
    except BrokenPipeError:
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        raise ValueError(f"{key}={path}: cannot be written: {error.strerror}") from error


def end_with(error: BaseException) -> NoReturn:
    """End the program with status 1 and the error as its last word."""
    log.error("Traceback", exc_info=error, extra={"file_only": True})
    if wants_traceback() or not isinstance(error, USER_ERRORS):
        traceback.print_exception(error)
    sys.exit(reason(error))


def answer(work: Callable[[DictConfig], None], config: DictConfig) -> None:
    """Do an app's work, and end with one line where the person who asked is mistaken."""
    try:
        work(config)
    except Exception as error:
        end_with(error)


def job_tags(sweep: Launch | None) -> dict[str, str]:
    """Return what a job's record says of its launch."""
    hydra = HydraConfig.get()
    tags = {"overrides": " ".join(hydra.overrides.task), "kind": "run"}
    if sweep is None:
        return tags
    return {**tags, "sweep": sweep.name, "job": str(hydra.job.num), **color_tag(hydra.job.num)}


def _targets(sweep: Launch | None) -> Targets:
    """Return the bounds of the command line; a sweep's jobs may run where nobody typed one."""
    return Targets(allowed(sys.argv[1:]) if sweep is None else tuple(sweep.allow))


def _run(composed: DictConfig, sweep: Launch | None, name: str) -> Result:
    overrides = list(HydraConfig.get().overrides.task)
    targets = _targets(sweep)
    config = to_object(composed, TrainConfig, targets)
    if sweep is None and config.resume is not None:
        config = run_config(config, overrides, targets)
    elif config.checkpoint is not None:
        config = resumed_config(config, overrides, targets)
    if sweep is None:
        # A job of a sweep is checked where it is recorded, and the others go on.
        check(overrides, config)
        check_settings(config)
    targets.check(plain(config))
    if sweep is None:
        name = f"{default_name(config)} ({_mark(Path(config.folder))})"
        store = find_store(config.tracking.uri, project_root())
        say(f"Recording to {store.uri} ({store.origin})")
        say(f"See it with: {store.ui_command()}")
        mark_orphans(store, config.tracking.experiment)
    config.tracking.run_name = config.tracking.run_name or name
    if config.threads is None:
        config.threads = threads_for(config.model, cores())
    # Seconds of importing, which a mistake above should not wait for.
    from attnscale.experiment import run
    from attnscale.experiment.surroundings import forget_peak

    forget_peak()
    parent = None if sweep is None else sweep.parent
    return run(config, parent=parent, tags=job_tags(sweep), allow=targets.allow)


def _mark(folder: Path) -> str:
    """Return what makes the names of a launch its own: the end of its folder's name."""
    return folder.name.rpartition("_")[2]


def _show(result: Result, ui: str) -> None:
    say("\n" + run_table(result, ui))


def run_job(
    config: DictConfig,
    *,
    work: Callable[[DictConfig, Launch | None, str], Result] = _run,
    show: Callable[[Result, str], None] = _show,
) -> float:
    """Run one job and return its objective: for training the best validation loss.

    A failing job of a sweep is recorded with its reason and returns the worst finite number, so
    that the others run. A single run ends the program with status 1.

    Args:
        config: The composed configuration.
        work: (configuration, the sweep or None, the run's name) -> result.
        show: (result, command that opens the UI) -> None: the last words of a single run.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    sweep, file = None, folder / JOB_FILE
    job = Job(index=0, name="run", status=RUNNING, folder=str(folder))
    if hydra.mode == RunMode.MULTIRUN:
        root, index = Path(hydra.sweep.dir), hydra.job.num
        sweep, file = Launch.load(root), job_file(root, index)
        overrides = list(hydra.overrides.task)
        name = f"{describe(overrides, sweep.swept) or 'job'} ({_mark(folder.parent)})"
        # A launcher that plans has left word of it.
        job = replace(
            Job.load(file) if file.is_file() else Job(index=index, name=name, status=RUNNING),
            name=name,
            status=RUNNING,
            folder=str(folder),
            overrides=overrides,
        )
        say(f"Job {index}: {name}")
    job = replace(job, process=str(Process.current()), error=None)
    if sweep is None and file.is_file() and config.get("resume") is None:
        end_with(
            ValueError(
                f"hydra.run.dir={folder}: holds a run; choose another folder, or go on with it by "
                f"resume={folder}"
            )
        )
    # A job that lost its launcher may still be saving.
    patience = 0.0 if config.get("resume") is None else GRACE_SECONDS
    with take_lock(folder, f"folder={folder}", seconds=patience):
        if config.get("resume") is not None:
            # The process before may have been killed while it wrote.
            remove_parts(folder, *(inner for inner in folder.rglob("*") if inner.is_dir()))
        job.save(file)
        try:
            result = work(config, sweep, job.name)
        except KeyboardInterrupt as stop:
            replace(job, status=KILLED, error=f"stopped by {stop}".strip()).save(file)
            raise
        except (Exception, SystemExit) as error:
            text = reason(error)
            replace(job, status=FAILED, error=text).save(file)
            if sweep is not None:
                log.error("Traceback", exc_info=error, extra={"file_only": True})
                log.error("Job %s failed: %s", job.index, text)
                if wants_traceback():
                    traceback.print_exception(error)
                return WORST
            end_with(error)
        replace(job, status=FINISHED, result=result).save(file)
    if sweep is None:
        store = find_store(config.tracking.uri, project_root())
        show(result, store.ui_command())
    return result.objective
