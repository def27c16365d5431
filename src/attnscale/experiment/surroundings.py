"""What a run changes of the process that it trains in, and gives back.

Lightning and torch set variables, handlers and modes of the whole process. ``run`` is a library
call: whoever calls it finds the process as it was.
"""

import ctypes
import gc
import logging
import os
import platform
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed

from attnscale import system
from attnscale.checks import check_choice

QUIET_LOGGERS = ("pytorch_lightning", "lightning", "lightning_fabric", "lightning.pytorch")
TOLD_LOGGERS = ("pytorch_lightning.callbacks", "pytorch_lightning.profilers")
"""What a person asked for by name, and what has no other way to tell: a profiler's table."""
QUIET_WARNINGS = (
    ".*does not have many workers.*",
    ".*is smaller than the logging interval.*",
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*GPU available but not used.*",
    ".*`srun` command is available on your system but is not used.*",
    ".*isinstance\\(treespec, LeafSpec\\).*",
    ".*`optimizer.step\\(\\)` before `lr_scheduler.step\\(\\)`.*",
    ".*that has no `state_dict`.*",
    ".*callbacks used to create the checkpoint need to be provided.*",
    ".*Using ModelCheckpoint with manual optimization.*",
    ".*It is recommended to use `self.log\\('val/loss', ..., sync_dist=True\\)`.*",
    ".*resuming from a checkpoint that ended before the epoch ended.*",
)
"""Warnings of Lightning that do not apply here."""

ALLOCATORS = ("keep", "system")
# Names and defaults of glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
DEFAULT_THRESHOLD = 128 * 1024
KEEP_BYTES = 1 << 30


@contextmanager
def same_environment() -> Iterator[None]:
    """Give the variables of the process back as they were; Lightning's seeding sets some."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Keep what is there already out of the garbage collector's way.

    The libraries' hundred thousands of objects live as long as the process: looking through them
    again and again took a tenth of a small model's step. What a caller froze itself stays frozen.
    """
    own = gc.get_freeze_count() == 0
    if own:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if own:
            gc.unfreeze()


def _alone_in_a_group() -> bool:
    """Whether this process is the only one of a group, which ``trainer.strategy=ddp`` makes."""
    group = torch.distributed
    return group.is_available() and group.is_initialized() and group.get_world_size() == 1


@contextmanager
def surroundings(threads: int | None) -> Iterator[None]:
    """Train inside the block, without what Lightning says that does not apply here.

    Args:
        threads: Torch's threads inside the block; None leaves torch's own choice.

    Raises:
        ValueError: If there would be no thread.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}: must be at least 1, or null")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    quiet = dict.fromkeys(QUIET_LOGGERS, logging.WARNING)
    own = quiet | dict.fromkeys(TOLD_LOGGERS, logging.INFO)
    levels = {name: logging.getLogger(name).level for name in own}
    n_threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    flags = cudnn.benchmark, cudnn.deterministic
    deterministic = torch.are_deterministic_algorithms_enabled()
    had_group = _alone_in_a_group()
    try:
        with warnings.catch_warnings(), same_environment():
            for text in QUIET_WARNINGS:
                warnings.filterwarnings("ignore", message=text)
            for name, level in own.items():
                logging.getLogger(name).setLevel(level)
            if threads is not None:
                torch.set_num_threads(threads)
            yield
    finally:
        if _alone_in_a_group() and not had_group:
            # With it Lightning evaluates the next run of this process in another mode.
            torch.distributed.destroy_process_group()
        torch.use_deterministic_algorithms(deterministic)
        cudnn.benchmark, cudnn.deterministic = flags
        torch.set_num_threads(n_threads)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        # Only the main thread may set handlers, and so only there can they have changed.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _set(options: dict[int, int]) -> bool:
    libc = ctypes.CDLL(None)
    return all(libc.mallopt(option, value) == 1 for option, value in options.items())


def _tuned() -> bool:
    """Whether somebody set these options: glibc does not tell them, so none could be restored."""
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name in os.environ for name in names)


@contextmanager
def allocator(choice: str | None) -> Iterator[None]:
    """Set how this process treats freed memory inside the block; afterwards it is given back.

    glibc gives large blocks back to the system as soon as they are free, and the next step asks for
    them again: page by page, zeroed by the kernel. A fifth of a small Transformer's step goes
    there. With ``allocator=keep`` freed memory is kept for the next step.

    Args:
        choice: "keep" or "system", which leaves glibc alone, as do variables that set its options.

    Raises:
        ValueError: For another choice.
    """
    check_choice("allocator", choice, ALLOCATORS)
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
    system.forget_peak()


def peak_mib(*, gpu: bool) -> float | None:
    """Return the largest memory of the process, or on a GPU what was allocated there, in MiB."""
    return torch.cuda.max_memory_allocated() / 2**20 if gpu else system.peak_mib()
