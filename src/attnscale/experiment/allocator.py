"""Memory that stays with the process.

glibc gives large blocks back to the system as soon as they are free, and the next step asks for
them
again: page by page, zeroed by the kernel. A fifth of a small Transformer's step goes there. With
``allocator=keep`` freed memory is kept for the next step. Nothing but this process is changed, and
:func:`give_back` undoes it.
"""

import ctypes
import logging
import platform

ALLOCATORS = ("keep", "system")
# Names and defaults of glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
DEFAULT_THRESHOLD = 128 * 1024
KEEP_BYTES = 1 << 30

log = logging.getLogger(__name__)


def _set(options: dict[int, int]) -> bool:
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return all(libc.mallopt(option, value) == 1 for option, value in options.items())


def set_allocator(choice: str) -> bool:
    """Set how this process treats freed memory; return whether anything was changed.

    Args:
        choice: "keep" or "system" (glibc's defaults).

    Raises:
        ValueError: For another choice.
    """
    if choice not in ALLOCATORS:
        raise ValueError(f"allocator={choice}: allowed are {', '.join(ALLOCATORS)}")
    if choice == "system":
        return False
    return _set({MMAP_THRESHOLD: KEEP_BYTES, TRIM_THRESHOLD: KEEP_BYTES, TOP_PAD: 64 << 20})


def give_back() -> None:
    """Set glibc's defaults again, and give free memory back to the system."""
    if _set({MMAP_THRESHOLD: DEFAULT_THRESHOLD, TRIM_THRESHOLD: DEFAULT_THRESHOLD, TOP_PAD: 0}):
        ctypes.CDLL(None).malloc_trim(0)
