"""From a configuration to data, model, task and trainer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn

from attnscale import __version__
from attnscale.attention import BACKENDS, MultiHeadAttention, ScaleFactory
from attnscale.checks import check_choice
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain
from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.data.module import DataModule, data_statistics
from attnscale.experiment.checkpoints import Checkpoint, load_checkpoint
from attnscale.experiment.consistency import check_settings, scale_factory, step_settings
from attnscale.experiment.processes import processes_wanted
from attnscale.experiment.refusals import built, counts_batches
from attnscale.experiment.trainer import make_trainer
from attnscale.model.sigma_reparam import reparametrise
from attnscale.task.module import TaskModule
from attnscale.task.qk_clip import QKClip
from attnscale.tracking.record import Record


@dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    data: DataModule
    module: TaskModule
    trainer: pl.Trainer
    checkpoint: Checkpoint | None


def measured_scale(config: TrainConfig, data: DataModule) -> ScaleFactory:
    """Return what makes the model's scales, with what the mode wants to know of the data."""
    scale = scale_factory(config)
    return replace(scale, statistics=data_statistics(data, tuple(scale.kind.statistics.values())))


def _batches_count(config: TrainConfig, callbacks: Sequence[pl.Callback]) -> bool:
    """Whether Lightning itself or a callback counts batches, so that blocks must be of one."""
    trainer = config.trainer
    return bool(
        trainer.val_check_interval not in (None, 1.0)
        or trainer.check_val_every_n_epoch is None
        or trainer.min_steps
        or trainer.fast_dev_run
        or trainer.profiler
        or trainer.barebones
        or any(counts_batches(callback) for callback in callbacks)
    )


def make_data(
    config: TrainConfig, targets: Targets = NO_ALLOWANCE, callbacks: Sequence[pl.Callback] = ()
) -> DataModule:
    """Build the data module, and tell it how batches are counted, by ``callbacks`` too."""
    data = targets.build(config.data, DataModule, "data")
    block = config.task.block
    data.count_batches(
        block=1 if _batches_count(config, callbacks) else block,
        accumulate=config.trainer.accumulate_grad_batches,
        limit_train=config.trainer.limit_train_batches,
        overfit=config.trainer.overfit_batches,
    )
    return data


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
    if config.trainer.sync_batchnorm and not any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()
    ):
        raise ValueError("trainer.sync_batchnorm=True: has no effect, the model has no BatchNorm")
    return model


def _optimizer_maker(
    config: TrainConfig, targets: Targets
) -> Callable[[object], torch.optim.Optimizer]:
    node = config.optimizer.without("schedule", "warmup_steps")
    if config.optimizer.fused is None:
        # With scaled gradients a fused optimizer unscales by itself, after the norms were measured.
        node["fused"] = config.trainer.precision not in ("16-mixed", "16", 16)
    return lambda groups: built(targets, node, torch.optim.Optimizer, "optimizer", params=groups)


def _make_task(
    config: TrainConfig, model: nn.Module, checkpoint_values: Mapping[str, Any], targets: Targets
) -> TaskModule:
    return targets.build(
        config.task.without("block", "max_epochs", "margin"),
        TaskModule,
        "task",
        model=model,
        make_optimizer=_optimizer_maker(config, targets),
        settings=step_settings(config),
        checkpoint_values=checkpoint_values,
    )


def _make_clip(config: TrainConfig, model: nn.Module) -> list[pl.Callback]:
    """Build what shrinks W_q and W_k after a step, if it is wanted."""
    attention = config.attention
    if attention.qk_clip is None:
        return []
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
    check_settings(config)
    pl.seed_everything(config.seed, workers=True, verbose=False)
    trainer = make_trainer(config, record, targets)
    callbacks: list[pl.Callback] = getattr(trainer, "callbacks")  # noqa: B009
    data = make_data(config, targets, callbacks)
    scale = scale_factory(config)
    checkpoint = None
    if config.checkpoint is not None:
        checkpoint = load_checkpoint(config.checkpoint, targets)
        data.take_checkpoint_values(checkpoint.data)
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
    callbacks.extend(_make_clip(config, model))
    return Parts(data, task, trainer, checkpoint)
