"""Starting processes for jobs, and hearing of them: by the fork server, or fresh interpreters."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnscale.sweep.server import QUIET, is_ready, serve_and_exit

CAN_FORK = sys.platform == "linux" and hasattr(os, "fork")
"""Where a process that imported these libraries can be forked; on macOS it cannot."""

ONE_JOB = "from attnscale.sweep.worker import main_and_exit; main_and_exit()"
"""Not ``-m``: a module that is run so is another than the one that the job's classes are of."""


class Worker:
    """A process with a job.

    Attributes:
        pid: Its process id.
        news: End of the pipe that its news come through, to be waited for.
    """

    def __init__(self, pid: int, lifeline: int, news: int) -> None:
        """Keep the launcher's ends of the two pipes."""
        self.pid, self.news = pid, news
        self._lifeline = lifeline
        self._rest = b""

    def hand_over(self, request: bytes) -> None:
        """Send the job; one that died already is noticed by its end."""
        sent = 0
        with contextlib.suppress(BrokenPipeError):
            while sent < len(request):
                sent += os.write(self._lifeline, request[sent:])

    def read(self) -> list[dict[str, Any]] | None:
        """Return the news that have come, or None if there will be none."""
        chunk = os.read(self.news, 65536)
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def close(self) -> None:
        """Close the pipes, and end what the job left behind in its group."""
        os.close(self._lifeline)
        os.close(self.news)
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Return the variables of an interpreter that finds this package."""
    package = str(Path(__file__).resolve().parents[2])
    paths = (package, os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _interpreter(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    """Start the server in a fresh interpreter."""
    return subprocess.Popen(
        [sys.executable, "-m", "attnscale.sweep.server", str(theirs.fileno())],
        env={**_environment(), **QUIET},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        # A Ctrl-C at the terminal reaches the launcher only.
        start_new_session=True,
    )


class ForkServer:
    """Makes workers by forks of one interpreter that has imported everything."""

    def __init__(self) -> None:
        """Start the server; it imports while this process goes on, which may have imported all."""
        self._channel, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            # What waits in them would be written by a fork too, into its news.
            stream.flush()
        self._process = None if is_ready() else _interpreter(theirs)
        self._pid = os.fork() if self._process is None else self._process.pid
        if self._pid == 0:
            self._channel.close()
            serve_and_exit(theirs)
        theirs.close()
        self._rest = b""
        self._ended: dict[int, int] = {}

    def _news(self, seconds: float | None = None) -> dict[str, int]:
        """Return the next piece of news.

        Raises:
            ConnectionError: If the server is gone.
            TimeoutError: If nothing comes in time.
        """
        self._channel.settimeout(seconds)
        while b"\n" not in self._rest:
            chunk = self._channel.recv(4096)
            if not chunk:
                raise ConnectionResetError("the process that starts jobs has ended")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        news: dict[str, int] = json.loads(line)
        if "ended" in news:
            self._ended[news["ended"]] = news["status"]
        return news

    def ready(self) -> bool:
        """Wait until it has imported, and return whether it can be forked."""
        try:
            threads = self._news()["threads"]
        except ConnectionError:
            return False
        if threads != 1:
            print(f"Jobs start slowly: importing left {threads} threads behind")  # noqa: T201
        return threads == 1

    def start(self) -> Worker:
        """Fork a worker.

        Raises:
            ConnectionError: If the server is gone.
        """
        with _pipes() as (theirs, (lifeline, news)):
            socket.send_fds(self._channel, [b"x"], theirs)
            while True:
                answer = self._news()
                if "started" in answer:
                    return Worker(answer["started"], lifeline, news)

    def wait(self, worker: Worker, seconds: float) -> int | None:
        """Return the exit status of a worker that has closed its pipe, or None if it stays out."""
        try:
            while worker.pid not in self._ended:
                self._news(seconds)
        except OSError:
            return None
        return self._ended.pop(worker.pid)

    def close(self) -> None:
        """End the server."""
        self._channel.close()
        if self._process is None:
            os.waitpid(self._pid, 0)
        else:
            self._process.wait()


class FreshInterpreters:
    """Starts a new interpreter for each worker; seconds of importing for each."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> Worker:
        """Start a worker."""
        with _pipes() as (theirs, (lifeline, news)):
            process = subprocess.Popen(
                [sys.executable, "-c", ONE_JOB],
                env=_environment(),
                stdin=theirs[0],
                stdout=theirs[1],
                start_new_session=True,
            )
        self._processes[process.pid] = process
        return Worker(process.pid, lifeline, news)

    def wait(self, worker: Worker, seconds: float) -> int | None:
        """Return the exit status of a worker that has closed its pipe, or None if it stays out."""
        process = self._processes.get(worker.pid)
        try:
            return None if process is None else process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Do nothing: each process ends by itself."""


@contextlib.contextmanager
def _pipes() -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Give a worker's ends of two pipes, closed afterwards, and the launcher's ends."""
    source, lifeline = os.pipe()
    news, sink = os.pipe()
    try:
        yield (source, sink), (lifeline, news)
    finally:
        os.close(source)
        os.close(sink)
