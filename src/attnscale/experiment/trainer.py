"""Lightning's Trainer, with its callbacks and loggers, from ``trainer`` and ``callbacks``."""

import inspect
import logging
import os
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import pytorch_lightning as pl
from pytorch_lightning.plugins import CheckpointIO
from pytorch_lightning.plugins.environments import LightningEnvironment, SLURMEnvironment
from pytorch_lightning.utilities import rank_zero_only

from attnscale.callbacks.checkpoint import WholeCheckpoints
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain
from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.experiment.processes import RANK_VARIABLES, launched_from_outside
from attnscale.experiment.refusals import REFUSALS, built, check_callback, named_keys, words
from attnscale.model.cross_entropy import bf16_units
from attnscale.tracking.logger import MLflowLogger
from attnscale.tracking.record import Record

log = logging.getLogger(__name__)

OWN_TRAINER_KEYS = (
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "limit_train_batches",
    "overfit_batches",
    "enable_progress_bar",
    "logger",
    "callbacks",
    "plugins",
)
"""Arguments of Lightning's Trainer that this project carries out itself, with the same meaning."""

T = TypeVar("T")


def _callbacks(config: TrainConfig, targets: Targets) -> list[pl.Callback]:
    trainer = config.trainer
    skipped = set()
    if not trainer.enable_progress_bar:
        skipped.add("progress")
    if not trainer.enable_checkpointing or trainer.fast_dev_run:
        skipped |= {"best", "last"}
    if trainer.limit_val_batches == 0:
        skipped.add("best")
    nodes: dict[str, Any] = {
        f"callbacks.{name}": node
        for name, node in config.callbacks.items()
        if node is not None and name not in skipped
    }
    nodes |= _listed(trainer.callbacks, "callbacks")
    callbacks = {key: built(targets, node, pl.Callback, key) for key, node in nodes.items()}
    for key, callback in callbacks.items():
        check_callback(callback, nodes[key], key)
    if any(isinstance(callback, pl.callbacks.ProgressBar) for callback in callbacks.values()):
        # One of Lightning's bars instead of the project's.
        callbacks.pop("callbacks.progress", None)
    return list(callbacks.values())


def _listed(nodes: object, key: str) -> dict[str, object]:
    """Return the nodes of a list in ``trainer``, which may be null, under the key of each."""
    if nodes is not None and not isinstance(nodes, list):
        raise ValueError(f"trainer.{key}={nodes}: must be a list of mappings with _target_")
    return {f"trainer.{key}[{i}]": node for i, node in enumerate(nodes or [])}


def _each(nodes: object, key: str, kind: type[T], targets: Targets) -> list[T]:
    """Build the nodes of a list in ``trainer``, which may be null."""
    return [built(targets, node, kind, name) for name, node in _listed(nodes, key).items()]


def _environment() -> Any:
    outside = launched_from_outside()
    if outside == "torchrun":
        return None
    if outside == "srun":
        return SLURMEnvironment(auto_requeue=False)
    # Left-over variables must not make Lightning wait for processes that nobody starts, nor take
    # this one for another than the first.
    for name in RANK_VARIABLES:
        os.environ.pop(name, None)
    setattr(rank_zero_only, "rank", 0)  # noqa: B010
    return LightningEnvironment()


@cache
def warn_of_slow_bf16(precision: str) -> None:
    """Say, once a process, if this CPU does bf16 by way of fp32."""
    if not bf16_units():
        text = "trainer.precision=%s: this CPU has no units for bf16; 32-true is faster on it"
        log.warning(text, precision)


def make_trainer(
    config: TrainConfig, record: Record | None, targets: Targets = NO_ALLOWANCE
) -> pl.Trainer:
    """Build Lightning's Trainer from the keys of ``trainer``.

    Raises:
        ValueError: If the installed Lightning has no such argument, or refuses its value.
    """
    trainer = config.trainer
    arguments = set(inspect.signature(pl.Trainer.__init__).parameters)
    if unknown := sorted(plain(trainer).keys() - arguments):
        raise ValueError(
            f"trainer.{', trainer.'.join(unknown)}: this Lightning has no such argument"
        )
    keys = {k: v for k, v in plain(trainer).items() if k not in OWN_TRAINER_KEYS}
    if trainer.limit_train_batches == 0:
        keys["limit_train_batches"] = 0
    for name, kind in (("strategy", pl.strategies.Strategy), ("profiler", pl.profilers.Profiler)):
        if isinstance(keys[name], Mapping):
            keys[name] = built(targets, keys[name], kind, f"trainer.{name}")
    loggers: list[Any] = []
    if trainer.logger is True and record is not None:
        loggers = [MLflowLogger(record)]
    elif isinstance(trainer.logger, list):
        loggers = _each(trainer.logger, "logger", pl.loggers.Logger, targets)
    elif trainer.logger not in (True, False, None):
        raise ValueError(f"trainer.logger={trainer.logger}: allowed are true, false or a list")
    # Lightning's plug-ins have no common base; the Trainer refuses what is none.
    plugins: list[Any] = _each(trainer.plugins, "plugins", object, targets)
    if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
        plugins.append(WholeCheckpoints())
    environment = _environment()
    if environment is not None:
        plugins.append(environment)
    callbacks = _callbacks(config, targets)
    if not any(isinstance(callback, pl.callbacks.Checkpoint) for callback in callbacks):
        # Lightning would add one of its own.
        keys["enable_checkpointing"] = False
    bars = any(isinstance(callback, pl.callbacks.ProgressBar) for callback in callbacks)
    keys["enable_progress_bar"] = trainer.enable_progress_bar and bars
    keys["default_root_dir"] = trainer.default_root_dir or config.folder
    try:
        lightning = pl.Trainer(
            **keys,
            logger=loggers or False,
            callbacks=callbacks,
            plugins=plugins,
        )
    except REFUSALS as error:
        raise ValueError(f"{named_keys(words(error), keys)}: {words(error)}") from error
    on_cpu = isinstance(lightning.accelerator, pl.accelerators.CPUAccelerator)
    if on_cpu and lightning.is_global_zero and str(lightning.precision).startswith("bf16"):
        warn_of_slow_bf16(str(lightning.precision))
    # One owner of signals: the process that started the run. Lightning's own handler of SIGTERM
    # enters a collective inside the handler, which can wait for ever. There is no public way;
    # tests/experiment/test_surroundings.py notices when the method moves.
    setattr(lightning._signal_connector, "register_signal_handlers", lambda: None)  # noqa: B010
    return lightning
