"""Which process records a run, and whether it is still there.

A process id alone says little: it is used again, by others after a reboot. With the boot's id and
the time at which the process started, as Linux counts it, it names one process.
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

PID_SPACE = Path("/proc/self/ns/pid")
BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
START_FIELD = 19  # of /proc/PID/stat after the name, proc(5): starttime


def host() -> str:
    """Return the name of what processes can be asked in: the machine, and its space of ids.

    Containers may share the machine's name and boot, and not see each other's processes.
    """
    try:
        space = PID_SPACE.readlink().name.strip("pid:[]")
    except OSError:
        return platform.node()
    return f"{platform.node()}/{space}"


def _boot() -> str:
    try:
        return BOOT_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _start(pid: int) -> str:
    """Return when a process started, in ticks since boot; empty if that cannot be known."""
    try:
        # The name may hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[START_FIELD]


@dataclass(frozen=True)
class Process:
    """A process of some machine.

    Attributes:
        host: Where it runs, as :func:`host` names it.
        boot: Id of its boot, or empty where there is none.
        pid: Process id.
        start: When it started, in ticks since boot, or empty where that cannot be known.
    """

    host: str
    boot: str
    pid: int
    start: str

    @classmethod
    def current(cls) -> "Process":
        """Return this process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Return a process of this machine that lives."""
        return cls(host(), _boot(), pid, _start(pid))

    @classmethod
    def parse(cls, text: str) -> "Process | None":
        """Read what ``str`` wrote; None where it is something else."""
        parts = text.split(" ")
        if len(parts) != 4 or not parts[2].isdigit():
            return None
        name, boot, pid, start = ("" if part == "-" else part for part in parts)
        return cls(name, boot, int(pid), start)

    def __str__(self) -> str:
        """Return host, boot, process id and start in one line."""
        return " ".join(part or "-" for part in (self.host, self.boot, str(self.pid), self.start))

    def alive(self) -> bool | None:
        """Whether it still runs; None if it is another machine's, which cannot be asked."""
        if self.host != host():
            return None
        if self.boot != _boot():
            return False
        if self.boot:
            return self.start != "" and _start(self.pid) == self.start
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True
