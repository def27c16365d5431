"""Memory that stays with the process while a run trains, and how much it took.

glibc gives large blocks back to the system as soon as they are free, and the next step asks for
them again: page by page, zeroed by the kernel. A fifth of a small Transformer's step goes there.
With ``allocator=keep`` freed memory is kept for the next step.
"""

import contextlib
import ctypes
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

import torch

ALLOCATORS = ("keep", "system")
# Names and defaults of glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
DEFAULT_THRESHOLD = 128 * 1024
KEEP_BYTES = 1 << 30


def _set(options: dict[int, int]) -> bool:
    libc = ctypes.CDLL(None)
    return all(libc.mallopt(option, value) == 1 for option, value in options.items())


def _tuned() -> bool:
    """Whether somebody set these options: glibc does not tell them, so none could be restored."""
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name in os.environ for name in names)


@contextlib.contextmanager
def allocator(choice: str) -> Iterator[None]:
    """Set how this process treats freed memory inside the block; afterwards it is given back.

    Args:
        choice: "keep" or "system", which leaves glibc alone, as do variables that set its options.

    Raises:
        ValueError: For another choice.
    """
    if choice not in ALLOCATORS:
        raise ValueError(f"allocator={choice}: allowed are {', '.join(ALLOCATORS)}")
    if choice == "system" or platform.libc_ver()[0] != "glibc" or _tuned():
        yield
        return
    _set({MMAP_THRESHOLD: KEEP_BYTES, TRIM_THRESHOLD: KEEP_BYTES, TOP_PAD: 64 << 20})
    try:
        yield
    finally:
        if _set({MMAP_THRESHOLD: DEFAULT_THRESHOLD, TRIM_THRESHOLD: DEFAULT_THRESHOLD, TOP_PAD: 0}):
            ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> None:
    """Measure the largest memory anew, so that a job does not report that of an earlier one.

    For whoever owns the process: anybody else who watches its peak loses it too.
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        # proc(5): 5 resets VmHWM. Without it a peak is that of the process.
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib(*, gpu: bool) -> float:
    """Return the largest memory of the process, or on a GPU what was allocated there, in MiB."""
    if gpu:
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
