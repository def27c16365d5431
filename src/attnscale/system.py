"""What differs between systems: the home folder, memory, and the end of processes.

Modules that only Unix has are imported here alone.
"""

import ctypes
import logging
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h."""


def ensure_home() -> None:
    """Give a user without a home folder ``/``, as Docker does; MLflow's import wants one.

    Without one are a user id that has no entry, and a job of cron or HTCondor, if HOME is not set.
    """
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"


def quiet_matplotlib() -> None:
    """Let matplotlib, which libraries import and nothing draws with, not say where it caches."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)


def expand_home(key: str, path: str) -> str:
    """Return a path with the home folder for ``~`` or ``~user``, as a shell would.

    A folder that is really called so is ``./~``.

    Raises:
        ValueError: Naming the key, if there is no such home folder.
    """
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError as error:
        raise ValueError(f"{key}={path}: no such home folder; write the whole path") from error


def end_with_parent() -> None:
    """Let this process get SIGTERM when the one that started it ends, where Linux can: prctl(2).

    To be called between fork and exec.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def forget_peak() -> None:
    """Measure the process's largest memory anew, where Linux can: proc(5), 5 resets VmHWM."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_mib() -> float | None:
    """Return the largest memory of the process in MiB; None where the system does not tell."""
    status = Path("/proc/self/status")
    for line in status.read_text(encoding="utf-8").splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**10
    if resource is None:
        return None
    # getrusage(2): in KiB, but for macOS, where it is in bytes.
    unit = 2**20 if os.uname().sysname == "Darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def end_group(leader: "subprocess.Popen[bytes]", grace: float) -> None:
    """End a process and those of its session: first politely, after ``grace`` seconds for good."""
    leader.terminate()
    with suppress(subprocess.TimeoutExpired):
        leader.wait(grace)
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
    else:
        leader.kill()
    leader.wait()
