"""A process that has imported what jobs need, and makes each job's process by a fork of itself.

It only imports: no tensor operation, whose threads a fork would lose, no question to CUDA, no store
and no logger. Two pipes come for each job, and become the standard input and output of its process
(``sweep/worker.py``); the news that go back are a line of JSON each: the process's id, and how it
ended. It ends when its launcher is gone, and with it, by their own pipes, its jobs.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
from pathlib import Path

from attnscale.system import quiet_matplotlib

LATE = ("mlflow.store.tracking.sqlalchemy_store", "matplotlib.figure", "scipy.stats")
"""What libraries import when they first need it."""

LAST = "attnscale.experiment.lifecycle"
"""What only a process that trains imports."""

QUIET = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Variables without which OpenBLAS, MLflow and Arrow's allocator start threads when imported."""


def n_threads() -> int:
    """Return how many threads this process has."""
    return len(list(Path("/proc/self/task").iterdir()))


def is_ready() -> bool:
    """Whether this process is fit to be forked as it is: all is imported, and no thread runs."""
    return LAST in sys.modules and all(name in sys.modules for name in LATE) and n_threads() == 1


def _import_all() -> None:
    import attnscale

    for module in pkgutil.walk_packages(attnscale.__path__, "attnscale."):
        if not module.name.endswith(("__main__", "sweep.slurm")):
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    # What is frozen is not looked through, nor so copied, by each fork's garbage collector.
    gc.collect()
    gc.freeze()


def _become_worker(channel: socket.socket, pipes: list[int]) -> None:
    """Make this fork a worker that listens to its own launcher's pipes."""
    from attnscale.sweep.worker import main_and_exit

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    channel.close()
    os.setsid()
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    main_and_exit()


def _tell(channel: socket.socket, **news: int) -> None:
    channel.sendall(json.dumps(news).encode() + b"\n")


def _reap(channel: socket.socket) -> None:
    """Tell of each child that has ended."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if child == 0:
            return
        _tell(channel, ended=child, status=os.waitstatus_to_exitcode(status))


def serve(channel: socket.socket) -> None:
    """Fork a worker for each pair of pipes, until the launcher closes the channel."""
    quiet_matplotlib()
    _import_all()
    threads = n_threads()
    _tell(channel, threads=threads)
    if threads != 1:
        return
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno())
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if woken in ready:
            woken.recv(4096)
            _reap(channel)
        if channel not in ready:
            continue
        message, pipes, _, _ = socket.recv_fds(channel, 1, 2)
        if not message:
            return
        child = os.fork()
        if child == 0:
            selector.close()
            woken.close()
            wake.close()
            _become_worker(channel, pipes)
        for pipe in pipes:
            os.close(pipe)
        _tell(channel, started=child)


def serve_and_exit(channel: socket.socket) -> None:
    """Serve in this process, which does nothing else; a launcher that is gone is no error."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    with contextlib.suppress(ConnectionError):
        serve(channel)
    os._exit(0)


if __name__ == "__main__":
    serve_and_exit(socket.socket(fileno=int(sys.argv[1])))
