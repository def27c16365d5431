"""From a configuration to data, model, task and trainer."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn

from attnscale import __version__
from attnscale.attention import BACKENDS, MultiHeadAttention, ScaleFactory, choose_scale
from attnscale.checks import check_choice
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain
from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.data.module import DataModule, data_statistics
from attnscale.experiment.checkpoints import Checkpoint, load_checkpoint
from attnscale.experiment.processes import processes_wanted
from attnscale.experiment.trainer import make_trainer
from attnscale.model.sigma_reparam import reparametrise
from attnscale.task.module import TaskModule
from attnscale.task.qk_clip import QKClip
from attnscale.task.settings import StepSettings
from attnscale.tracking.record import Record


@dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    data: DataModule
    module: TaskModule
    trainer: pl.Trainer
    checkpoint: Checkpoint | None


def scale_factory(config: TrainConfig) -> ScaleFactory:
    """Return what makes the model's scales, but for the data's statistics.

    Raises:
        ValueError: If the scale mode or one of its options is not allowed.
    """
    scale, options = config.attention.scale, config.attention.options
    return choose_scale(scale, options.get(scale, {}) if isinstance(scale, str) else {})


def measured_scale(config: TrainConfig, data: DataModule) -> ScaleFactory:
    """Return what makes the model's scales, with what the mode wants to know of the data."""
    scale = scale_factory(config)
    return replace(scale, statistics=data_statistics(data, tuple(scale.kind.statistics.values())))


def _counts_batches(config: TrainConfig) -> bool:
    """Whether an option makes Lightning itself count batches, so that blocks must be of one."""
    trainer = config.trainer
    return bool(
        trainer.val_check_interval not in (None, 1.0)
        or trainer.check_val_every_n_epoch is None
        or trainer.fast_dev_run
        or trainer.profiler
        or trainer.barebones
        or any(node and node.get("every_n_train_steps") for node in config.callbacks.values())
    )


def make_data(config: TrainConfig, targets: Targets = NO_ALLOWANCE) -> DataModule:
    """Build the data module, and tell it how batches are counted."""
    data = targets.build(config.data, DataModule, "data")
    block = config.task.block
    if block < 1:
        raise ValueError(f"task.block={block}: must be at least 1")
    data.count_batches(
        block=1 if _counts_batches(config) else block,
        limit_train=config.trainer.limit_train_batches,
        overfit=config.trainer.overfit_batches,
    )
    return data


def _check_lengths(config: TrainConfig) -> None:
    """Check that the longest sentence of the data fits the model's positions."""
    length, positions = config.data.get("max_length"), config.model.get("max_length")
    if length is not None and positions is not None and length + 1 > positions:
        raise ValueError(
            f"model.max_length={positions}: a sentence of {length + 1} tokens is too long; "
            f"raise it, or lower data.max_length={length}"
        )


def make_model(
    config: TrainConfig,
    scale: ScaleFactory,
    arguments: Mapping[str, Any],
    targets: Targets = NO_ALLOWANCE,
) -> nn.Module:
    """Build the model; ``arguments`` are what it must know of the data."""
    backend = check_choice("attention.backend", config.attention.backend, BACKENDS)
    attention = partial(MultiHeadAttention, scale=scale, backend=backend)
    model = targets.build(config.model, nn.Module, "model", attention=attention, **arguments)
    reparametrise(model, config.attention.sigma_reparam)
    return model


def _optimizer_maker(
    config: TrainConfig, targets: Targets
) -> Callable[[object], torch.optim.Optimizer]:
    lr = config.optimizer.lr
    if not (math.isfinite(lr) and lr >= 0):
        raise ValueError(f"optimizer.lr={lr}: must be finite and at least 0")
    node = config.optimizer.without("schedule", "warmup_steps")
    if config.optimizer.fused is None:
        # With scaled gradients a fused optimizer unscales by itself, after the norms were measured.
        node["fused"] = config.trainer.precision not in ("16-mixed", "16", 16)
    return lambda groups: targets.build(node, torch.optim.Optimizer, "optimizer", params=groups)


def _make_task(
    config: TrainConfig, model: nn.Module, checkpoint_values: Mapping[str, Any], targets: Targets
) -> TaskModule:
    trainer, optimizer = config.trainer, config.optimizer
    settings = StepSettings(
        accumulate=trainer.accumulate_grad_batches,
        clip_value=trainer.gradient_clip_val,
        clip_algorithm=trainer.gradient_clip_algorithm,
        max_steps=trainer.max_steps,
        max_epochs=trainer.max_epochs,
        schedule=optimizer.schedule,
        warmup=optimizer.warmup_steps,
    )
    return targets.build(
        config.task.without("block", "max_epochs", "margin"),
        TaskModule,
        "task",
        model=model,
        make_optimizer=_optimizer_maker(config, targets),
        settings=settings,
        checkpoint_values=checkpoint_values,
    )


def _make_clip(config: TrainConfig, model: nn.Module) -> list[pl.Callback]:
    """Build what shrinks W_q and W_k after a step, if it is wanted."""
    attention = config.attention
    if attention.qk_clip is None:
        return []
    if attention.sigma_reparam != "none":
        raise ValueError(
            f"attention.qk_clip={attention.qk_clip}: cannot be used together with "
            f"attention.sigma_reparam={attention.sigma_reparam}, which sets the norms anew"
        )
    return [QKClip(model, threshold=attention.qk_clip, alpha=attention.qk_clip_alpha)]


def assemble(config: TrainConfig, record: Record | None, targets: Targets = NO_ALLOWANCE) -> Parts:
    """Build everything for one run, model weights seeded by ``seed``.

    Args:
        config: The configuration.
        record: Where points go, or None on the processes that do not record.
        targets: Which classes the configuration may name.

    Raises:
        ValueError: If a value is not allowed, naming its key.
    """
    values = plain(config)
    targets.check(values)
    pl.seed_everything(config.seed, workers=True, verbose=False)
    data = make_data(config, targets)
    scale = scale_factory(config)
    checkpoint = None
    if config.checkpoint is not None:
        checkpoint = load_checkpoint(config.checkpoint, targets)
        data.take_checkpoint_values(checkpoint.data)
    trainer = make_trainer(config, record, targets)
    _check_lengths(config)
    arguments = data.model_arguments()
    if checkpoint is None or checkpoint.statistics is None:
        scale = measured_scale(config, data)
    else:
        scale = replace(scale, statistics=checkpoint.statistics)
    model = make_model(config, scale, arguments, targets)
    n_processes = processes_wanted(config.trainer)
    if trainer.world_size != n_processes:
        raise ValueError(
            f"trainer.devices={config.trainer.devices}: wants {n_processes} processes, "
            f"{trainer.world_size} were started"
        )
    carried = {
        "config": values,
        "version": __version__,
        "run_id": record.run_id if record else "",
        "data": data.checkpoint_values(),
        "statistics": dict(scale.statistics),
    }
    task = _make_task(config, model, carried, targets)
    trainer.callbacks.extend(_make_clip(config, model))  # type: ignore[attr-defined]
    return Parts(data, task, trainer, checkpoint)
