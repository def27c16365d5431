"""What this machine has for jobs: cores, memory, devices. A container may have less of it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
GROUP_FILE = Path("/proc/self/cgroup")
MEMORY_FILE = Path("/proc/meminfo")
CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"


def _groups(kind: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and those above it.

    Args:
        kind: The controller, which has a tree of its own where there is no common one.
    """
    for line in _lines(GROUP_FILE):
        _, controllers, name = line.split(":", 2)
        if controllers and kind not in controllers.split(","):
            continue
        root = CGROUPS / controllers if controllers else CGROUPS
        folder = root / name.lstrip("/")
        yield from (f for f in (folder, *folder.parents) if f.is_relative_to(root) and f.is_dir())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").split()[0]
    except (OSError, IndexError):
        return None
    return int(text) if text.lstrip("-").isdigit() else None


def _quota() -> float | None:
    """Return how many cores a control group allows, or None for all."""
    shares = []
    for folder in _groups("cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            of_v1 = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            quota, period = (str(value or "max") for value in of_v1)
        if quota.isdigit() and period.isdigit():
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def cores() -> int:
    """Return how many cores this process may use: by affinity, and by its group's quota."""
    allowed = getattr(os, "sched_getaffinity", None)
    count = len(allowed(0)) if allowed else os.cpu_count() or 1
    quota = _quota()
    return max(1, count if quota is None else min(count, int(quota)))


def free_mib() -> float | None:
    """Return the memory that new processes can have, in MiB, or None where that is not told."""
    lines = (line.split() for line in _lines(MEMORY_FILE))
    free = [int(words[1]) / 1024 for words in lines if words[0] == "MemAvailable:"]
    for folder in _groups("memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is None or used is None:
            continue
        # What is only cached is given back.
        stats = dict(line.split() for line in _lines(folder / "memory.stat"))
        used -= int(stats.get("total_inactive_file") or stats.get("inactive_file") or 0)
        free.append((limit - used) / 2**20)
    return min(free, default=None)


def oom_kills() -> int:
    """Return how many processes of this group the kernel has killed for memory."""
    counts = [0]
    for folder in _groups("memory"):
        lines = _lines(folder / "memory.events")
        counts += [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return max(counts)


def gpus() -> list[str]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them.

    Where the variable is set, its numbers or UUIDs; else those of ``nvidia-smi``, which does not
    start CUDA in this process.
    """
    visible = os.environ.get(CUDA_VARIABLE)
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # As CUDA reads it: what follows a device that is not there does not count.
        return names[: next((i for i, n in enumerate(names) if n in ("", "-1")), len(names))]
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False)
    return listing.stdout.split() if listing.returncode == 0 else []
