"""From a plain configuration to data, model, task and trainer."""

import inspect
import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import nn

from attnscale import __version__
from attnscale.attention import check_options, resolve_scale
from attnscale.config.build import build
from attnscale.experiment.checkpoints import load_checkpoint, take_vocabularies
from attnscale.experiment.processes import launched_from_outside, processes_wanted
from attnscale.model.layers import AttentionSettings
from attnscale.task.stepping import SteppedModule, Stepping
from attnscale.tracking.logger import MLflowLogger
from attnscale.tracking.record import Record

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

QUIET_LOGGERS = ("pytorch_lightning", "lightning", "lightning_fabric", "lightning.pytorch")


@dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    data: pl.LightningDataModule
    module: SteppedModule
    trainer: pl.Trainer


def attention_settings(config: Mapping[str, Any]) -> AttentionSettings:
    """Return the settings for a model: the chosen mode with its own options only.

    Raises:
        ValueError: If the scale mode or one of its options is not allowed.
    """
    attention = config["attention"]
    mode = resolve_scale(attention["scale"])
    options = check_options(mode, attention["options"].get(mode.name, {}))
    return AttentionSettings(attention["scale"], attention["backend"], options)


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


def make_data(config: Mapping[str, Any]) -> Any:
    """Build the data module, and tell it how batches are counted."""
    data = build(config["data"])
    trainer = config["trainer"]
    block = config["task"]["block"]
    if block < 1:
        raise ValueError(f"task.block={block}: must be at least 1")
    data.block = 1 if batches_counted(config) else block
    data.limit_train = trainer["limit_train_batches"]
    data.overfit = trainer["overfit_batches"]
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


def make_model(config: Mapping[str, Any], arguments: Mapping[str, Any]) -> nn.Module:
    """Build the model; ``arguments`` are what it must know of the data."""
    made = build(config["model"], attention=attention_settings(config), **arguments)
    assert isinstance(made, nn.Module)
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


def make_task(
    config: Mapping[str, Any], model: nn.Module, record: Mapping[str, Any]
) -> SteppedModule:
    """Build the LightningModule."""
    trainer, optimizer = config["trainer"], config["optimizer"]
    stepping = Stepping(
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
        stepping=stepping,
        record=record,
    )
    assert isinstance(made, SteppedModule)
    return made


def _callbacks(config: Mapping[str, Any]) -> list[pl.Callback]:
    trainer = config["trainer"]
    wanted = {name: node for name, node in config["callbacks"].items() if node is not None}
    validated = trainer["limit_val_batches"] != 0
    skipped = set()
    if not trainer["enable_progress_bar"]:
        skipped.add("progress")
    if not trainer["enable_checkpointing"] or trainer["fast_dev_run"]:
        skipped |= {"best", "last"}
    if not validated:
        skipped.add("best")
    own = [build(node) for name, node in wanted.items() if name not in skipped]
    return own + [build(node) for node in trainer["callbacks"] or []]


def _environment() -> Any:
    outside = launched_from_outside()
    if outside == "torchrun":
        return None
    if outside == "srun":
        return SLURMEnvironment(auto_requeue=False)
    # Left-over variables of a cluster must not make Lightning wait for processes that nobody
    # starts.
    return LightningEnvironment()


def make_trainer(config: Mapping[str, Any], record: Record | None) -> pl.Trainer:
    """Build Lightning's Trainer from the keys of ``trainer``.

    Raises:
        ValueError: If Lightning refuses an argument.
    """
    trainer = config["trainer"]
    keys = {k: v for k, v in trainer.items() if k not in OWN_TRAINER_KEYS}
    if trainer["limit_train_batches"] == 0:
        keys["limit_train_batches"] = 0
    loggers: list[Any] = []
    if trainer["logger"] is True and record is not None:
        loggers = [MLflowLogger(record)]
    elif isinstance(trainer["logger"], list):
        loggers = [build(node) for node in trainer["logger"]]
    elif trainer["logger"] not in (True, False, None):
        raise ValueError(f"trainer.logger={trainer['logger']}: allowed are true, false or a list")
    plugins = [build(node) for node in trainer["plugins"] or []]
    environment = _environment()
    if environment is not None:
        plugins.append(environment)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    callbacks = _callbacks(config)
    try:
        made = pl.Trainer(
            **keys,
            logger=loggers or False,
            callbacks=callbacks,
            enable_progress_bar=False,
            plugins=plugins or None,
        )
    except (MisconfigurationException, ValueError, TypeError) as error:
        text = " ".join(str(error).split())
        named = [key for key in keys if f"{key}=" in text or f"`{key}`" in text]
        if not named and text.startswith("Precision"):
            named = ["precision"]
        given = ", ".join(f"trainer.{key}={keys[key]}" for key in named) or "trainer"
        raise ValueError(f"{given}: {text}") from error
    # One owner of signals: the process that started the run. Lightning's own handler of SIGTERM
    # enters a collective inside the handler, which can wait for ever.
    setattr(made._signal_connector, "register_signal_handlers", lambda: None)  # noqa: B010
    return made


def quiet_warnings() -> None:
    """Leave out warnings of Lightning that do not apply here."""
    for text in (
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
    ):
        warnings.filterwarnings("ignore", message=text)


def check_trainer_keys(config: Mapping[str, Any]) -> None:
    """Check that every key of ``trainer`` is an argument of the installed Lightning.

    Raises:
        ValueError: Naming the keys that it does not have.
    """
    known = set(inspect.signature(pl.Trainer.__init__).parameters)
    unknown = sorted(set(config["trainer"]) - known)
    if unknown:
        raise ValueError(
            f"trainer.{', trainer.'.join(unknown)}: this Lightning has no such argument"
        )


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
    if config["checkpoint"] is not None:
        take_vocabularies(data, load_checkpoint(config["checkpoint"]))
    trainer = make_trainer(config, record)
    check_lengths(config)
    model = make_model(config, data.model_arguments())
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
    }
    return Parts(data, make_task(config, model, keep), trainer)
