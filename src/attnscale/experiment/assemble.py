"""From a plain configuration to data, model, task and trainer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn

from attnscale import __version__
from attnscale.attention import check_options, resolve_scale
from attnscale.config.build import build
from attnscale.data.module import DataModule
from attnscale.data.statistics import statistics
from attnscale.experiment.checkpoints import load_checkpoint
from attnscale.experiment.processes import processes_wanted
from attnscale.experiment.trainer import check_trainer_keys, make_trainer, quiet_warnings
from attnscale.model.layers import AttentionSettings
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


def attention_settings(
    config: Mapping[str, Any], statistics: Mapping[str, float]
) -> AttentionSettings:
    """Return the settings for a model: the chosen mode with its own options only.

    Args:
        config: The plain configuration.
        statistics: What the mode wants to know of the data.

    Raises:
        ValueError: If the scale mode or one of its options is not allowed.
    """
    attention = config["attention"]
    mode = resolve_scale(attention["scale"])
    options = check_options(mode, attention["options"].get(mode.name, {}))
    return AttentionSettings(attention["scale"], attention["backend"], options, statistics)


def batches_counted(config: Mapping[str, Any]) -> bool:
    """Whether an option makes Lightning itself count batches, so that blocks must be of one."""
    trainer = config["trainer"]
    return bool(
        trainer["val_check_interval"] not in (None, 1.0)
        or trainer["check_val_every_n_epoch"] is None
        or trainer["fast_dev_run"]
        or trainer["profiler"]
        or trainer["barebones"]
        or any(
            isinstance(node, Mapping) and node.get("every_n_train_steps")
            for node in config["callbacks"].values()
        )
    )


def make_data(config: Mapping[str, Any]) -> DataModule:
    """Build the data module, and tell it how batches are counted."""
    data: DataModule = build(config["data"])
    trainer, block = config["trainer"], config["task"]["block"]
    if block < 1:
        raise ValueError(f"task.block={block}: must be at least 1")
    data.count_batches(
        block=1 if batches_counted(config) else block,
        limit_train=trainer["limit_train_batches"],
        overfit=trainer["overfit_batches"],
    )
    return data


def check_lengths(config: Mapping[str, Any]) -> None:
    """Check that the longest sentence of the data fits the model's positions.

    Raises:
        ValueError: Naming both keys.
    """
    longest, positions = config["data"].get("max_length"), config["model"].get("max_length")
    if longest is not None and positions is not None and longest + 1 > positions:
        raise ValueError(
            f"model.max_length={positions}: a sentence of {longest + 1} tokens is too long; "
            f"raise it, or lower data.max_length={longest}"
        )


def wanted_statistics(config: Mapping[str, Any], data: Any) -> dict[str, float]:
    """Return what the scale mode wants to know of the training data; nothing for most modes."""
    wanted = resolve_scale(config["attention"]["scale"]).statistic
    return dict(statistics(data, () if wanted is None else (wanted,)))


def make_model(
    config: Mapping[str, Any],
    arguments: Mapping[str, Any],
    statistics: Mapping[str, float] | None = None,
) -> nn.Module:
    """Build the model.

    Args:
        config: The plain configuration.
        arguments: What the model must know of the data.
        statistics: What the scale mode must know of the data.
    """
    settings = attention_settings(config, statistics or {})
    made = build(config["model"], attention=settings, **arguments)
    assert isinstance(made, nn.Module)
    reparametrise(made, config["attention"]["sigma_reparam"])
    return made


def _optimizer_maker(config: Mapping[str, Any]) -> Any:
    node = {k: v for k, v in config["optimizer"].items() if k not in ("schedule", "warmup_steps")}
    lr = node["lr"]
    if not (math.isfinite(lr) and lr >= 0):
        raise ValueError(f"optimizer.lr={lr}: must be finite and at least 0")
    if node["fused"] is None:
        # With scaled gradients a fused optimizer unscales by itself, after the norms were measured.
        node["fused"] = config["trainer"]["precision"] not in ("16-mixed", "16", 16)
    return lambda groups: build(node, params=groups)


def make_task(config: Mapping[str, Any], model: nn.Module, record: Mapping[str, Any]) -> TaskModule:
    """Build the LightningModule."""
    trainer, optimizer = config["trainer"], config["optimizer"]
    settings = StepSettings(
        accumulate=trainer["accumulate_grad_batches"],
        clip_value=trainer["gradient_clip_val"],
        clip_algorithm=trainer["gradient_clip_algorithm"],
        max_steps=trainer["max_steps"],
        max_epochs=trainer["max_epochs"],
        schedule=optimizer["schedule"],
        warmup=optimizer["warmup_steps"],
    )
    node = {k: v for k, v in config["task"].items() if k not in ("block", "max_epochs")}
    made = build(
        node,
        model=model,
        make_optimizer=_optimizer_maker(config),
        settings=settings,
        record=record,
    )
    assert isinstance(made, TaskModule)
    return made


def make_clip(config: Mapping[str, Any], model: nn.Module) -> list[pl.Callback]:
    """Build what shrinks W_q and W_k after a step, if it is wanted.

    Raises:
        ValueError: If a value is not allowed, or something else sets the norms of the weights.
    """
    attention = config["attention"]
    if attention["qk_clip"] is None:
        return []
    if attention["sigma_reparam"] != "none":
        raise ValueError(
            f"attention.qk_clip={attention['qk_clip']}: cannot be used together with "
            f"attention.sigma_reparam={attention['sigma_reparam']}, which sets the norms anew"
        )
    return [QKClip(model, threshold=attention["qk_clip"], alpha=attention["qk_clip_alpha"])]


def assemble(config: Mapping[str, Any], record: Record | None) -> Parts:
    """Build everything for one run, model weights seeded by ``seed``.

    Raises:
        ValueError: If a value is not allowed, naming its key.
    """
    quiet_warnings()
    check_trainer_keys(config)
    pl.seed_everything(config["seed"], workers=True, verbose=False)
    if config["threads"] is not None:
        if config["threads"] < 1:
            raise ValueError(f"threads={config['threads']}: must be at least 1, or null")
        torch.set_num_threads(config["threads"])
    data = make_data(config)
    measured: dict[str, float] | None = None
    if config["checkpoint"] is not None:
        state = load_checkpoint(config["checkpoint"])
        data.take_record(state["attnscale"].get("data", {}))
        measured = state["attnscale"].get("statistics")
    trainer = make_trainer(config, record)
    check_lengths(config)
    arguments = data.model_arguments()
    if measured is None:
        measured = wanted_statistics(config, data)
    model = make_model(config, arguments, measured)
    if trainer.world_size != processes_wanted(config["trainer"]):
        raise ValueError(
            f"trainer.devices={config['trainer']['devices']}: wants "
            f"{processes_wanted(config['trainer'])} processes, {trainer.world_size} were started"
        )
    keep = {
        "config": dict(config),
        "version": __version__,
        "run_id": record.run_id if record else "",
        "data": data.record(),
        "statistics": measured,
    }
    task = make_task(config, model, keep)
    trainer.callbacks.extend(make_clip(config, model))  # type: ignore[attr-defined]
    return Parts(data, task, trainer)
