"""How far training is, told twice a second at most: to a person, or to whoever shows many runs."""

import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytorch_lightning as pl
from tqdm import tqdm

from attnscale.task.callback import TaskCallback

LISTENER: ContextVar[Callable[..., None] | None] = ContextVar("LISTENER", default=None)
"""Who hears of progress in this process: ``epoch``, ``epochs``, ``losses``, ``rate`` in steps per
second and ``seconds_left``, each or None."""

SECONDS = 0.5


class Progress(TaskCallback):
    """Shows epoch, steps per second, and the last losses."""

    def __init__(self) -> None:
        """Start without a bar."""
        self.bar: tqdm[Any] | None = None
        self.reported_at = 0.0

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
        listener = LISTENER.get()
        if listener is not None and time.monotonic() - self.reported_at > SECONDS:
            self.reported_at = time.monotonic()
            listener(**self._figures(trainer))

    def _figures(self, trainer: pl.Trainer) -> dict[str, Any]:
        module = self.module
        seconds = time.perf_counter() - module.started
        rate = (trainer.global_step - module.first_step) / seconds
        total = module.total_steps
        return {
            "epoch": trainer.current_epoch + 1,
            "epochs": trainer.max_epochs if (trainer.max_epochs or 0) > 0 else None,
            "losses": self._losses(),
            "rate": rate,
            "seconds_left": (total - trainer.global_step) / rate if total and rate else None,
        }

    def _losses(self) -> dict[str, float]:
        return {n: value for n, value in self.module.results.items() if n.endswith("/loss")}

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the last losses."""
        if self.bar is not None:
            losses = {name: f"{value:.4g}" for name, value in self._losses().items()}
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
