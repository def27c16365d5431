"""Training, validation and test in this process."""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from attnscale.callbacks.checkpoint import BestCheckpoint
from attnscale.config.choice_schema import TrainerConfig
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain
from attnscale.config.targets import Targets
from attnscale.experiment.assemble import Parts, assemble
from attnscale.experiment.checkpoints import Checkpoint
from attnscale.experiment.refusals import refusals_named
from attnscale.experiment.result import WORST, Result
from attnscale.experiment.surroundings import allocator, frozen_objects, peak_mib, surroundings
from attnscale.signals import STOP
from attnscale.tracking.record import Record


def _is_trained(checkpoint: Checkpoint, trainer: TrainerConfig) -> bool:
    """Whether a checkpoint leaves nothing to train."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    done = epochs is not None and 0 <= epochs <= checkpoint.epochs
    return done or 0 <= steps <= checkpoint.steps


def _check_steps_left(checkpoint: Checkpoint, trainer: TrainerConfig) -> None:
    """Refuse a checkpoint that leaves nothing to train."""
    if _is_trained(checkpoint, trainer):
        raise ValueError(
            f"checkpoint={checkpoint.path}: has {checkpoint.epochs} epochs and {checkpoint.steps} "
            f"steps, and training ends at trainer.max_epochs={trainer.max_epochs}, "
            f"trainer.max_steps={trainer.max_steps}: raise the limit to train on"
        )


class _Finish(pl.Callback):
    """Lets a run that was broken off after its last step go through the end of training only.

    Lightning skips a training without a step, and with it what callbacks do at its end. So it
    learns of its limits when it has begun.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        """Lift the limits."""
        loop = trainer.fit_loop
        self.limits = loop.max_epochs, loop.epoch_loop.max_steps
        loop.max_epochs = loop.epoch_loop.max_steps = -1

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set them again."""
        trainer.fit_loop.max_epochs, trainer.fit_loop.epoch_loop.max_steps = self.limits
        trainer.should_stop = True


def _check_test(parts: Parts) -> None:
    """Read the test set before training, which would be in vain without it."""
    if parts.trainer.limit_test_batches == 0:
        return
    try:
        parts.data.setup("test")
    except ValueError as error:
        raise ValueError(f"{error}; trainer.limit_test_batches=0 trains without a test") from error


def _fit(parts: Parts, checkpoint: str | None) -> None:
    """Fit; a Ctrl-C comes out as KeyboardInterrupt, not as Lightning's exit."""
    try:
        with frozen_objects(), STOP.deferred():
            parts.trainer.fit(parts.module, datamodule=parts.data, ckpt_path=checkpoint)
    except SystemExit as stop:
        # Lightning ends the program on Ctrl-C; what it was handling is the exception's context.
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise stop.__context__ from None
        raise


def _checkpoints(parts: Parts) -> tuple[str | None, str | None]:
    """Return the paths of the best and the last checkpoint that this run wrote."""
    callbacks: list[Any] = getattr(parts.trainer, "callbacks")  # noqa: B009
    saving = [c for c in callbacks if isinstance(c, ModelCheckpoint)]
    best = [c.best_model_path for c in saving if isinstance(c, BestCheckpoint)]
    last = [c.best_model_path for c in saving if not isinstance(c, BestCheckpoint)]
    paths = [(*written, "")[0] for written in (best, last)]
    # A resumed run may remember the best of a run whose files are gone.
    first, second = (path if Path(path).is_file() else None for path in paths)
    return first, second


def train(config: TrainConfig, record: Record | None, targets: Targets) -> Result:
    """Train, validate and test one model in this process; see `assemble`.

    Returns:
        The result; figures are the same on every process.

    Raises:
        ValueError: If a value is not allowed, naming its key.
    """
    with allocator(config.allocator), surroundings(config.threads):
        return _train(config, record, targets)


def _size_of_data(parts: Parts) -> dict[str, float]:
    """Return what turns steps into epochs and tokens, where there is a training set."""
    loader = getattr(parts.trainer, "train_dataloader")  # noqa: B009
    if loader is None or loader.n_batches < 1:
        return {}
    steps = parts.module.loop.settings.steps_per_epoch(loader.n_batches)
    return {
        "data/steps_per_epoch": float(steps),
        "data/tokens_per_step": float(parts.data.train_tokens()) / steps,
    }


def _train(config: TrainConfig, record: Record | None, targets: Targets) -> Result:
    parts = assemble(config, record, targets)
    with refusals_named(plain(config.trainer)):
        return _trained(config, record, parts)


def _trained(config: TrainConfig, record: Record | None, parts: Parts) -> Result:
    module, trainer = parts.module, parts.trainer
    module.goes_on = config.resume is not None
    fitting = trainer.limit_train_batches != 0
    if fitting and parts.checkpoint is not None:
        if config.resume is None:
            _check_steps_left(parts.checkpoint, config.trainer)
        elif parts.checkpoint.stopped or _is_trained(parts.checkpoint, config.trainer):
            trainer.callbacks.append(_Finish(trainer))  # type: ignore[attr-defined]
    if fitting:
        _check_test(parts)
        _fit(parts, config.checkpoint)
        if record is not None:
            record.flush()
    seconds = time.perf_counter() - module.started
    # Lightning forgets the training batches when it tests.
    size = _size_of_data(parts)
    best, last = _checkpoints(parts)
    if config.resume is not None and last is None:
        # Nothing was left to train.
        last = config.checkpoint
    if not fitting and trainer.limit_val_batches != 0:
        trainer.validate(module, datamodule=parts.data, ckpt_path=config.checkpoint, verbose=False)
    steps = trainer.global_step
    if trainer.limit_test_batches != 0 and (module.diverged is None or best):
        tested = best if fitting else config.checkpoint
        trainer.test(module, datamodule=parts.data, ckpt_path=tested, verbose=False)
    has_best = fitting and math.isfinite(module.best_loss)
    best_loss = {"val/best_loss": module.best_loss} if has_best else {}
    metrics = {**module.results, **best_loss}
    rate = (steps - module.first_step) / seconds if seconds > 0 else 0.0
    memory = peak_mib(gpu=module.device.type == "cuda")
    if record is not None:
        closing = {
            "progress/steps": float(steps),
            "model/parameters": float(sum(p.numel() for p in module.model.parameters())),
            **size,
            "time/steps_per_second": rate,
            "time/train_seconds": seconds,
            **({} if memory is None else {"memory/peak_mib": memory}),
            **best_loss,
        }
        record.points(closing, steps)
    objective = WORST
    if module.diverged is None:
        objective = metrics.get("val/best_loss", metrics.get("train/loss", WORST))
    return Result(
        objective=objective,
        metrics=metrics,
        diverged=None if module.diverged is None else dataclasses.asdict(module.diverged),
        steps=steps,
        steps_per_second=rate,
        seconds=seconds,
        peak_memory_mib=memory,
        best_checkpoint=best,
        last_checkpoint=last,
        folder=config.folder,
        run_id=None if record is None else record.run_id,
    )
