"""Apps in processes of their own that need not import their packages again.

Importing torch, Lightning and MLflow takes longer than most commands that are tested. The server is
a fresh interpreter that has only imported; each command is a fork of it, with its own arguments,
environment, folder and streams, and runs its app as ``python -m`` does. What depends on how an
interpreter starts (its threads, its options) needs a real start.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_REQUEST = 1 << 20  # bytes of one command with its environment


def _import_all() -> None:
    """Import what apps import, also late; a fork would lose any thread that this started."""
    import attnscale

    for module in pkgutil.walk_packages(attnscale.__path__, "attnscale."):
        if not module.name.endswith(("__main__", "sweep.slurm")):
            importlib.import_module(module.name)
    for name in ("mlflow.store.tracking.sqlalchemy_store", "matplotlib.figure", "scipy.stats"):
        importlib.import_module(name)
    # What is frozen is not looked through, nor so copied, by each fork's garbage collector.
    gc.collect()
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads after importing"


def _become(command: Mapping[str, object], streams: Sequence[int]) -> None:
    """Make this process one that was started by ``command``, and run its app."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment, arguments = command["environment"], command["arguments"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(command["folder"]))
    more = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[0:1] = [str(Path.cwd()), *more]
    importlib.invalidate_caches()
    random.seed()
    sys.argv = ["-m", *arguments]
    runpy.run_module(str(command["app"]), run_name="__main__", alter_sys=True)


def serve(channel: socket.socket) -> None:
    """Fork for each command that comes; answer with its process id, then its exit status."""
    _import_all()
    while True:
        message, streams, _, _ = socket.recv_fds(channel, MAX_REQUEST, 3)
        if not message:
            return None
        child = os.fork()
        if child == 0:
            channel.close()
            return _become(json.loads(message), streams)
        for stream in streams:
            os.close(stream)
        channel.send(str(child).encode())
        channel.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


@functools.cache
def _server() -> socket.socket:
    """Start the server of this test process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "HYDRA_"))}
    # MLflow and Arrow's allocator start threads when they are imported, which a fork would lose.
    environment |= {
        "OMP_NUM_THREADS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
    }
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        cwd=ROOT,
        env=environment,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait(10)

    atexit.register(end)
    return ours


def run(
    app: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float
) -> "subprocess.CompletedProcess[str]":
    """Run ``python -m app`` in a fork, as ``subprocess.run`` would in a fresh interpreter.

    Args:
        app: Name of the module.
        arguments: What stands after it on the command line.
        folder: Where the command is given.
        environment: Its environment; ``PYTHONPATH`` counts, variables of the interpreter do not.
        timeout: Seconds.

    Raises:
        subprocess.TimeoutExpired: If it takes longer; it is killed then.
    """
    channel = _server()
    command = {
        "app": app,
        "arguments": list(arguments),
        "folder": str(folder),
        "environment": dict(environment),
    }
    with (
        Path(os.devnull).open() as nothing,
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
    ):
        streams = [stream.fileno() for stream in (nothing, output, errors)]
        channel.settimeout(60)  # the first waits for the imports
        socket.send_fds(channel, [json.dumps(command).encode()], streams)
        child = int(channel.recv(32))
        channel.settimeout(timeout)
        try:
            status = int(channel.recv(32))
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            channel.settimeout(10)
            channel.recv(32)
            raise subprocess.TimeoutExpired([app, *arguments], timeout) from None
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read())
    return subprocess.CompletedProcess([app, *arguments], status, *texts)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
