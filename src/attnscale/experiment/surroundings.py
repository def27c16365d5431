"""What a run changes of the process that it trains in, and gives back.

Lightning and torch set variables, handlers and modes of the whole process. ``run`` is a library
call: whoever calls it finds the process as it was.
"""

import gc
import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

QUIET_LOGGERS = ("pytorch_lightning", "lightning", "lightning_fabric", "lightning.pytorch")
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
    ".*resuming from a checkpoint that ended before the epoch ended.*",
)
"""Warnings of Lightning that do not apply here."""


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
    levels = {name: logging.getLogger(name).level for name in QUIET_LOGGERS}
    n_threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    flags = cudnn.benchmark, cudnn.deterministic
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        with warnings.catch_warnings(), same_environment():
            for text in QUIET_WARNINGS:
                warnings.filterwarnings("ignore", message=text)
            for name in QUIET_LOGGERS:
                logging.getLogger(name).setLevel(logging.WARNING)
            if threads is not None:
                torch.set_num_threads(threads)
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        cudnn.benchmark, cudnn.deterministic = flags
        torch.set_num_threads(n_threads)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        # Only the main thread may set handlers, and so only there can they have changed.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
