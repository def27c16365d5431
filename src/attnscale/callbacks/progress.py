"""One progress bar over all optimizer steps, updated twice a second at most."""

import sys
from typing import Any

import pytorch_lightning as pl
from tqdm import tqdm

from attnscale.task.callback import TaskCallback


class Progress(TaskCallback):
    """Shows epoch, steps per second, and the last losses."""

    def __init__(self) -> None:
        """Start without a bar."""
        self.bar: tqdm[Any] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the bar on the main process."""
        if not trainer.is_global_zero:
            return
        self.bar = tqdm(
            total=self.module.total_steps,
            initial=trainer.global_step,
            unit="step",
            mininterval=0.5,
            dynamic_ncols=True,
            leave=False,
            disable=None,
            file=sys.stderr,
        )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Move the bar to the current step."""
        if self.bar is not None:
            self.bar.update(trainer.global_step - self.bar.n)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the last losses."""
        if self.bar is not None:
            results = self.module.results.items()
            losses = {name: f"{value:.4g}" for name, value in results if name.endswith("/loss")}
            self.bar.set_description(f"epoch {trainer.current_epoch + 1}", refresh=False)
            self.bar.set_postfix(losses, refresh=False)

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the bar away."""
        self._close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Take the bar away."""
        self._close()
