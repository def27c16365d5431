"""The training loop that all tasks share: several optimizer steps per Lightning batch.

Lightning's loop costs about as much as a step of a small model. A training batch of Lightning is
therefore a *block* of batches, each of which gets its own forward pass, backward pass and optimizer
step. Everything goes through Lightning's hooks (precision, DDP, ``on_before_optimizer_step``), so
the curves are those of one batch at a time. Lightning leaves accumulation and clipping to modules
that step by themselves; they are done here, with Lightning's own option names.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.strategies import ParallelStrategy
from torch import Tensor, nn

from attnscale.renamed import update_checkpoint
from attnscale.task.direct import DirectPath
from attnscale.task.groups import adjust, parameter_groups
from attnscale.task.observing import StepObserver, watched
from attnscale.task.qk_clip import QKClip
from attnscale.task.schedule import make_schedule
from attnscale.tracking.logger import MLflowLogger

CLIP_ALGORITHMS = ("norm", "value")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """How gradients become steps.

    Attributes:
        accumulate: Batches per optimizer step.
        clip_value: Largest gradient norm or value, or None.
        clip_algorithm: "norm" (of all parameters together) or "value" (of each component).
        max_steps: Optimizer steps after which training ends, −1 for no such end.
        max_epochs: Epochs after which training ends, or None or −1 for no such end.
        schedule: Name of the learning-rate schedule.
        warmup: Optimizer steps of warm-up.
    """

    accumulate: int
    clip_value: float | None
    clip_algorithm: str | None
    max_steps: int
    max_epochs: int | None
    schedule: str
    warmup: int

    def __post_init__(self) -> None:
        """Check the values against what is allowed."""
        if self.accumulate < 1:
            raise ValueError(
                f"trainer.accumulate_grad_batches={self.accumulate}: must be at least 1"
            )
        if self.clip_value is not None and self.clip_value < 0:
            raise ValueError(f"trainer.gradient_clip_val={self.clip_value}: must be at least 0")
        if self.clip_algorithm not in (None, *CLIP_ALGORITHMS):
            raise ValueError(
                f"trainer.gradient_clip_algorithm={self.clip_algorithm}: "
                f"allowed are {', '.join(CLIP_ALGORITHMS)}"
            )

    def total_steps(self, n_batches: int) -> int | None:
        """Return the optimizer steps of the whole run, or None if it has no end."""
        ends = [self.max_steps] if self.max_steps >= 0 else []
        if self.max_epochs is not None and self.max_epochs >= 0:
            ends.append(self.max_epochs * math.ceil(n_batches / self.accumulate))
        return min(ends) if ends else None


@dataclass(frozen=True)
class Diverged:
    """Where a figure stopped being finite."""

    metric: str
    step: int


class SteppedModule(pl.LightningModule):
    """A LightningModule that trains on blocks of batches.

    A task gives :meth:`loss` and the evaluation; everything about steps is here.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        make_optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        stepping: Stepping,
        record: Mapping[str, Any],
        qk_clip: QKClip | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            model: The network.
            make_optimizer: Parameter groups to optimizer.
            stepping: Accumulation, clipping, schedule and end.
            record: Plain values that every checkpoint carries under the key ``attnscale``.
            qk_clip: What shrinks W_q and W_k after a step, or None.
        """
        super().__init__()
        self.automatic_optimization = False
        self.model, self.stepping = model, stepping
        self.make_optimizer, self.record = make_optimizer, record
        self.observers: list[StepObserver] = [] if qk_clip is None else [qk_clip]
        self.stop_when_diverged = True
        self.steps_done = 0  # Lightning's count takes a sum over its loops at each look.
        self.step_loss = torch.zeros(())
        self.results: dict[str, float] = {}
        self.best_loss = math.inf
        self.diverged: Diverged | None = None
        self.batches_done = 0
        self.first_step = 0
        self.started = time.perf_counter()
        self.direct: DirectPath | None = None

    def loss(self, batch: Any) -> Tensor:
        """Return this process's loss of a batch: a scalar whose mean over processes is the loss."""
        raise NotImplementedError

    def real_queries(self, path: str, batch: Any) -> Tensor | None:
        """Return which queries of an attention are no padding, (batch, query); None for all.

        Args:
            path: The attention's path in the model.
            batch: The batch that went through it.
        """
        return None

    def picture_batch(self, count: int) -> Any:
        """Return a batch of ``count`` fixed validation examples to look at, or None."""
        return None

    def picture_context(self) -> AbstractContextManager[Any]:
        """Return the number formats of a forward pass outside training."""
        return self.trainer.precision_plugin.forward_context()

    def labels(self, path: str, batch: Any, count: int) -> tuple[list[list[str]], list[list[str]]]:
        """Return the tokens of the queries and of the keys of the first ``count`` examples."""
        raise NotImplementedError

    # --- training ---

    def on_train_start(self) -> None:
        """Note when and where training starts; later than step 0 if it resumes."""
        self.first_step = self.global_step
        self.started = time.perf_counter()
        direct = DirectPath.possible(self.trainer, self)
        self.direct = DirectPath(self.trainer, self) if direct else None

    def on_train_epoch_start(self) -> None:
        """Start counting the epoch's batches."""
        self.batches_done = 0

    def _sync(self, *, wanted: bool) -> AbstractContextManager[Any]:
        strategy = self.trainer.strategy
        if wanted or not isinstance(strategy, ParallelStrategy):
            return nullcontext()
        return cast(AbstractContextManager[Any], strategy.block_backward_sync())

    def _no_autocast(self) -> AbstractContextManager[Any]:
        """A backward pass uses the types of its forward pass, and must not be narrowed again."""
        kind = self.device.type
        return (
            torch.autocast(kind, enabled=False)
            if torch.is_autocast_enabled(kind)
            else nullcontext()
        )

    def training_step(self, block: list[Any], index: int) -> None:
        """Train on each batch of a block in turn."""
        optimizer = cast(LightningOptimizer, self.optimizers())
        scheduler = cast(torch.optim.lr_scheduler.LRScheduler | None, self.lr_schedulers())
        direct = self.direct
        accumulate, max_steps = self.stepping.accumulate, self.stepping.max_steps
        n_batches = cast(Any, self.trainer.train_dataloader).n_batches
        self.steps_done = self.global_step
        for batch in block:
            if 0 <= max_steps <= self.global_step or self._stopped():
                return
            position = self.batches_done % accumulate
            group = min(accumulate, n_batches - (self.batches_done - position))
            last = position == group - 1
            if position == 0:
                optimizer.zero_grad()
            with watched(self, self.model, self.observers, batch):
                loss = self.loss(batch)
            if group > 1:
                loss = loss / group
            with self._sync(wanted=last), self._no_autocast():
                if direct is not None:
                    direct.backward(loss)
                else:
                    self.manual_backward(loss)
            self.step_loss = loss.detach() if position == 0 else self.step_loss + loss.detach()
            self.batches_done += 1
            if last:
                if direct is not None:
                    direct.step(optimizer)
                else:
                    optimizer.step()
                self.steps_done += 1
                for observer in self.observers:
                    observer.after_step(self)
                if scheduler is not None:
                    scheduler.step()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip, after callbacks have seen the gradients; then show them to the observers."""
        limit = self.stepping.clip_value
        if limit and self.stepping.clip_algorithm == "value":
            torch.nn.utils.clip_grad_value_(self.model.parameters(), limit)
        elif limit:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        for observer in self.observers:
            observer.before_step(self)

    def configure_optimizers(self) -> Any:
        """Make the optimizer and, unless the rate is constant, its schedule."""
        optimizer = self.make_optimizer(parameter_groups(self.model))
        if adjust(optimizer) and self.stepping.clip_value:
            log.warning(
                "trainer.gradient_clip_val=%g: the control's identity with sqrt no longer holds, "
                "its W_q has larger gradients",
                self.stepping.clip_value,
            )
        loader = self.trainer.train_dataloader or self.trainer.datamodule.train_dataloader()  # type: ignore[attr-defined]
        total = self.stepping.total_steps(loader.n_batches)
        factor = make_schedule(self.stepping.schedule, warmup=self.stepping.warmup, total=total)
        if factor is None:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, factor)]

    # --- figures ---

    def write(self, figures: Mapping[str, float], step: int, timestamp: int | None = None) -> None:
        """Hand figures to every logger; only the main process records.

        Args:
            figures: Metric name to value.
            step: Optimizer steps done when the figures were taken.
            timestamp: Milliseconds since 1970, or None for now.
        """
        if not self.trainer.is_global_zero:
            return
        for logger in self.trainer.loggers:
            if isinstance(logger, MLflowLogger):
                logger.log_metrics(figures, step, timestamp)
            else:
                logger.log_metrics(dict(figures), step)

    def mark_diverged(self, metric: str, step: int) -> None:
        """Note where a figure stopped being finite, and end training; on every process."""
        if self.diverged is None:
            self.diverged = Diverged(metric, step)
            self.trainer.should_stop = self.trainer.should_stop or self.stop_when_diverged

    def _stopped(self) -> bool:
        return self.diverged is not None and self.stop_when_diverged

    def report(self, split: str, figures: Mapping[str, Tensor]) -> None:
        """Publish a split's figures; the loss decides which checkpoint is best.

        Args:
            split: "val" or "test".
            figures: Name to scalar, the same on every process; "loss" must be among them.
        """
        values = {f"{split}/{name}": float(value) for name, value in figures.items()}
        self.results.update(values)
        self.write(values, self.global_step)
        loss = values[f"{split}/loss"]
        if split == "val":
            self.log("val/loss", loss, logger=False, sync_dist=self.trainer.world_size > 1)
            if not math.isfinite(loss):
                self.mark_diverged("val/loss", self.global_step)
            self.best_loss = min(self.best_loss, loss) if math.isfinite(loss) else self.best_loss

    # --- checkpoints ---

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what is needed to use the checkpoint: plain values only."""
        checkpoint["attnscale"] = {**self.record, "best_loss": self.best_loss}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Bring the names up to date, and take up the best loss so far."""
        update_checkpoint(checkpoint)
        self.best_loss = float(checkpoint["attnscale"]["best_loss"])
