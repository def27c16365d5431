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
from contextlib import ExitStack, contextmanager

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
def torch_threads(n: int | None) -> Iterator[None]:
    """Compute with ``n`` threads inside the block; with torch's own choice if None.

    Raises:
        ValueError: If there would be none.
    """
    if n is not None and n < 1:
        raise ValueError(f"threads={n}: must be at least 1, or null")
    before = torch.get_num_threads()
    try:
        if n is not None:
            torch.set_num_threads(n)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what Lightning says and warns of that does not apply here."""
    loggers = [logging.getLogger(name) for name in QUIET_LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for text in QUIET_WARNINGS:
            warnings.filterwarnings("ignore", message=text)
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def _same_handlers() -> Iterator[None]:
    """Give the handlers of signals back; only the main thread may set any."""
    signals = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in signals]
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in zip(signals, handlers, strict=True):
                signal.signal(number, handler)


@contextmanager
def _same_modes() -> Iterator[None]:
    """Give back what ``trainer.deterministic`` and ``trainer.benchmark`` set."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    flags = cudnn.benchmark, cudnn.deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        cudnn.benchmark, cudnn.deterministic = flags


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
    """Train inside the block, and leave the process as it was."""
    with ExitStack() as stack:
        stack.enter_context(same_environment())
        stack.enter_context(_same_handlers())
        stack.enter_context(_same_modes())
        stack.enter_context(torch_threads(threads))
        stack.enter_context(quiet())
        yield
