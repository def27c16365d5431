"""The LightningModule of all tasks: a training loop of its own, and what a task reports.

Lightning's loop costs about as much as a step of a small model. A training batch of Lightning is
therefore a *block* of batches, each of which gets its own forward pass, backward pass and optimizer
step in :class:`~attnscale.task.loop.StepLoop`. Gradients and steps go through Lightning (precision,
DDP, ``on_before_optimizer_step``), so the curves are those of one batch at a time. Lightning leaves
accumulation and clipping to modules that step by themselves; the loop does them, under Lightning's
own option names.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torchmetrics import Metric

from attnscale.data.module import DataModule
from attnscale.renames import update_checkpoint
from attnscale.signals import STOP
from attnscale.task.backward import make_backward
from attnscale.task.continuation import random_states, rewind, set_random_state
from attnscale.task.groups import adjust, parameter_groups
from attnscale.task.loop import Diverged, StepLoop
from attnscale.task.settings import StepSettings, make_schedule
from attnscale.tracking.logger import MLflowLogger

log = logging.getLogger(__name__)


class TaskModule(pl.LightningModule):
    """Trains a model on blocks of batches; a task gives :meth:`loss`, metrics and :meth:`evaluate`.

    Attributes:
        model: The network.
        loop: What a step is, and how far training is.
        metrics: "val" and "test" to the figures of that split.
        results: Last value of each figure that the run's result holds.
        best_loss: Lowest finite validation loss, or infinity.
        first_step: Where training started; not 0 if it resumed.
        started: When, in seconds of ``time.perf_counter``.
        goes_on: Whether a run that was broken off goes on, as that run.
        in_epoch: Whether an epoch has begun and not ended.
        random_states: Of each process, to be set before training goes on.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        make_optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        settings: StepSettings,
        checkpoint_values: Mapping[str, Any],
    ) -> None:
        """Keep the parts.

        Args:
            model: The network.
            make_optimizer: Parameter groups to optimizer.
            settings: Accumulation, clipping, schedule and end.
            checkpoint_values: What every checkpoint carries under the key ``attnscale``: plain.
        """
        super().__init__()
        self.automatic_optimization = False
        self.model, self.make_optimizer = model, make_optimizer
        self.checkpoint_values = checkpoint_values
        self.loop = StepLoop(model, settings)
        self.metrics: dict[str, Metric] = {}
        self.results: dict[str, float] = {}
        self.best_loss = math.inf
        self.first_step, self.started = 0, time.perf_counter()
        self.goes_on = False
        self.in_epoch = False
        self.random_states: list[dict[str, Any]] = []

    def loss(self, batch: Any) -> Tensor:
        """Return this process's loss of a batch, a scalar.

        Its mean over processes, and over the batches that a step accumulates, is the loss.
        """
        raise NotImplementedError

    def evaluate(self, split: str, block: list[Any]) -> None:
        """Add a block of batches to the figures of a split."""
        raise NotImplementedError

    def real_queries(self, side: str, batch: Any) -> Tensor | None:
        """Return which queries of a side are no padding, (batch, query); None for all.

        Args:
            side: "source" or "target", where an attention's queries come from.
            batch: The batch that went through it.
        """
        return None

    @property
    def data(self) -> DataModule:
        """Return the dataset of the run."""
        return cast(DataModule, getattr(self.trainer, "datamodule"))  # noqa: B009

    @property
    def n_batches(self) -> int:
        """Return the training batches of an epoch."""
        loader: Any = self.trainer.train_dataloader
        return int((self.data.train_dataloader() if loader is None else loader).n_batches)

    @property
    def total_steps(self) -> int | None:
        """Return the optimizer steps of the whole run, or None if it has no end."""
        return self.loop.settings.total_steps(self.n_batches)

    @property
    def diverged(self) -> Diverged | None:
        """Return where a figure stopped being finite, or None."""
        return self.loop.diverged

    def mark_diverged(self, metric: str, step: int) -> None:
        """Note where a figure stopped being finite, and end training; on every process."""
        self.loop.mark_diverged(metric, step)
        self.trainer.should_stop = self.trainer.should_stop or self.loop.stopped

    def on_train_start(self) -> None:
        """Note when and where training starts; later than step 0 if it resumes."""
        self.first_step, self.started = self.global_step, time.perf_counter()
        if self.trainer.world_size == 1:
            self.loop.after_step = STOP.answer
        if len(self.random_states) == self.trainer.world_size:
            set_random_state(self.random_states[self.global_rank], self.device)

    def on_train_epoch_start(self) -> None:
        """Start counting the epoch's batches."""
        self.loop.batches_done = 0
        self.in_epoch = True

    def on_train_epoch_end(self) -> None:
        """Note that the epoch is whole."""
        self.in_epoch = False

    def training_step(self, block: list[Any], index: int) -> None:
        """Train on each batch of a block in turn."""
        self.loop.steps_done = self.global_step
        self.loop.run(
            block,
            loss=self.loss,
            backward=make_backward(self.trainer, self),
            optimizer=cast(torch.optim.Optimizer, self.optimizers()),
            schedule=cast(LRScheduler | None, self.lr_schedulers()),
            n_batches=self.n_batches,
        )
        self._answer_signals()

    def _answer_signals(self) -> None:
        """End training if a signal came, to any process of the run."""
        number = STOP.number or 0
        if self.trainer.world_size > 1:
            own = torch.tensor(number, device=self.device)
            torch.distributed.all_reduce(own, torch.distributed.ReduceOp.MAX)
            number = int(own)
        if number:
            STOP.answer(number)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the loop see and clip the gradients: a gradient scaler has unscaled them by now."""
        self.loop.before_optimizer_step()

    def configure_optimizers(self) -> Any:
        """Make the optimizer and, unless the rate is constant, its schedule."""
        settings, optimizer = self.loop.settings, self.make_optimizer(parameter_groups(self.model))
        if adjust(optimizer) and settings.clip_value:
            log.warning(
                "trainer.gradient_clip_val=%g: the control's identity with sqrt no longer holds, "
                "its W_q has larger gradients",
                settings.clip_value,
            )
        factor = make_schedule(settings.schedule, warmup=settings.warmup, total=self.total_steps)
        return optimizer if factor is None else ([optimizer], [LambdaLR(optimizer, factor)])

    # --- evaluation ---

    def validation_step(self, block: list[Any], index: int) -> None:
        """Add a block to the validation figures."""
        if self.trainer.state.fn == "fit":
            self._answer_signals()
        self.evaluate("val", block)

    def test_step(self, block: list[Any], index: int) -> None:
        """Add a block to the test figures."""
        self.evaluate("test", block)

    def on_validation_epoch_end(self) -> None:
        """Publish the validation figures."""
        self.publish("val")

    def on_test_epoch_end(self) -> None:
        """Publish the test figures."""
        self.publish("test")

    def publish(self, split: str, more: Mapping[str, float] | None = None) -> None:
        """Publish a split's figures and start anew; the loss decides which checkpoint is best.

        Args:
            split: "val" or "test".
            more: Figures beside those of the split's metric, the same on every process.
        """
        metric = self.metrics.get(split)
        if metric is None:
            return
        figures = {**metric.compute(), **(more or {})}
        metric.reset()
        values = {f"{split}/{name}": float(value) for name, value in figures.items()}
        self.results.update(values)
        self.write(values, self.global_step)
        loss = values[f"{split}/loss"]
        if split == "val":
            self.log("val/loss", loss, logger=False, sync_dist=self.trainer.world_size > 1)
            if not math.isfinite(loss):
                self.mark_diverged("val/loss", self.global_step)
            self.best_loss = min(self.best_loss, loss) if math.isfinite(loss) else self.best_loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what is needed to use the checkpoint: plain values only."""
        checkpoint["attnscale"] = {
            **self.checkpoint_values,
            "best_loss": self.best_loss,
            "results": self.results,
            "diverged": None if self.diverged is None else dataclasses.asdict(self.diverged),
            "batches_done": self.loop.batches_done if self.in_epoch else None,
            "stopped": self.trainer.should_stop,
            "random_states": random_states(self.device, self.trainer.world_size),
            "points": [logger.record.pending() for logger in self._runs()],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Bring the names up to date, and take up where training was."""
        update_checkpoint(checkpoint)
        carried = checkpoint["attnscale"]
        self.best_loss = float(carried["best_loss"])
        if self.trainer.state.fn != "fit":
            return
        self.random_states = carried.get("random_states", [])
        done = carried.get("batches_done")
        if done:
            rewind(checkpoint["loops"], done, self.data.block)
            self.data.batches_done = self.loop.batches_done = done
            self.in_epoch = True
        if not self.goes_on:
            return
        self.results = dict(carried["results"])
        if carried["diverged"] is not None:
            self.loop.diverged = Diverged(**carried["diverged"])
        for logger, points in zip(self._runs(), carried["points"], strict=False):
            logger.record.take(points)

    # --- reporting: only the main process writes ---

    def write(self, figures: Mapping[str, float], step: int, timestamp: int | None = None) -> None:
        """Hand figures to every logger.

        Args:
            figures: Metric name to value.
            step: Optimizer steps done when the figures were taken.
            timestamp: Milliseconds since 1970, or None for now; loggers of others take none.
        """
        if not self.trainer.is_global_zero:
            return
        for logger in self.trainer.loggers:
            if isinstance(logger, MLflowLogger):
                logger.log_metrics(figures, step, timestamp)
            else:
                logger.log_metrics(dict(figures), step)

    def _runs(self) -> list[MLflowLogger]:
        if not self.trainer.is_global_zero:
            return []
        return [logger for logger in self.trainer.loggers if isinstance(logger, MLflowLogger)]

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run, where it is recorded in MLflow."""
        for logger in self._runs():
            logger.record.tags(tags)

    def artifacts(self, folder: Path, name: str) -> None:
        """Store a copy of each file of a folder with the run, where it is recorded in MLflow.

        Args:
            folder: Where the files are.
            name: Folder among the run's artifacts.
        """
        for logger in self._runs():
            for path in sorted(folder.iterdir()):
                logger.record.file(path, name)
