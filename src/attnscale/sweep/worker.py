"""A process that runs one job, and ends when its launcher is gone.

Standard input is a pipe from the launcher: first the job, pickled, then nothing until the launcher
closes it or ends, which ends the job too. Standard output is a pipe to the launcher: a line of JSON
for each piece of news. What the job itself prints goes into a file.
"""

import json
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from hydra.core.singleton import Singleton
from hydra.core.utils import JobStatus, run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig

from attnscale.signals import end_on_signals, interrupt, stopped_status
from attnscale.system import quiet_matplotlib

GRACE_SECONDS = 60.0
"""How long a job may take to save and record its end once its launcher is gone."""

OUTPUT_FILE = "output.log"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A job as its launcher hands it over.

    Attributes:
        task: The app's function of a configuration.
        config: The job's whole configuration, ``hydra`` included.
        context: What Hydra's own launchers share with their jobs.
        state: Hydra's singletons.
        arguments: Command line of the launch.
        path: Where Python looks for modules.
        environment: The process's variables.
        output: File for what the job prints.
    """

    task: Callable[[DictConfig], Any]
    config: DictConfig
    context: HydraContext
    state: Any
    arguments: list[str]
    path: list[str]
    environment: dict[str, str]
    output: Path

    def dumps(self) -> bytes:
        """Return it as bytes with their number before them; ``__main__`` goes by value."""
        import cloudpickle

        content: bytes = cloudpickle.dumps(self)
        return len(content).to_bytes(8, "big") + content


def _request(source: BinaryIO) -> Request:
    request = pickle.loads(source.read(int.from_bytes(source.read(8), "big")))
    assert isinstance(request, Request)
    return request


def _end_with(source: BinaryIO) -> None:
    """Wait until the launcher is gone, then end this process: as a signal would, then for good."""
    source.read(1)
    interrupt(signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _own_streams() -> tuple[BinaryIO, TextIO]:
    """Return the pipes to the launcher, out of the way of whoever uses the standard streams."""
    source, news = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", buffering=1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return source, news


def _redirect(path: Path) -> None:
    """Let standard output and error be a file, for libraries written in C too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(output, number)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)  # type: ignore[union-attr]


def _run(request: Request, tell: Callable[..., None]) -> int:
    """Run the job as Hydra would here, and return the process's exit status."""
    from attnscale.callbacks.progress import LISTENER

    setup_globals()
    Singleton.set_state(request.state)
    LISTENER.set(lambda **figures: tell(progress=figures))  # noqa: PLW0108 -- one figure of many
    result = run_job(
        task_function=request.task,
        config=request.config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
        hydra_context=request.context,
    )
    if result.status == JobStatus.COMPLETED:
        value = result.return_value
        tell(value=value if isinstance(value, int | float) else None)
        return 0
    error = result._return_value
    tell(error=f"{type(error).__name__}: {error}")
    return 1


def main() -> int:
    """Run the job that comes through standard input; return the exit status."""
    source, news = _own_streams()
    quiet_matplotlib()
    request = _request(source)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv, sys.path[:] = request.arguments, request.path
    _redirect(request.output)
    random.seed()
    end_on_signals()
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
    lock = threading.Lock()

    def tell(**content: Any) -> None:
        # A launcher that is gone is noticed by its other pipe.
        with lock:
            try:
                news.write(json.dumps(content) + "\n")
            except (OSError, ValueError):
                return

    try:
        status = _run(request, tell)
    except KeyboardInterrupt as stop:
        return stopped_status(stop)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        tell(error=f"sys.exit({stop.code if stop.code is not None else ''}) was called")
        return code or 1
    return status


def main_and_exit() -> None:
    """Run :func:`main` and end this process, without what it inherited for its end."""
    import logging
    import traceback

    try:
        status = main()
    except BaseException:
        traceback.print_exc()
        status = 1
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
