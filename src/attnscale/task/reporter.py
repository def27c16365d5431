"""What a task tells: figures, tags and files to the loggers; its best loss to checkpoints."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from attnscale.renamed import update_checkpoint
from attnscale.tracking.logger import MLflowLogger


class Reporter(pl.LightningModule):
    """A LightningModule that reports. Only the main process writes.

    Attributes:
        results: Last value of each figure that the run's result holds.
        best_loss: Lowest finite validation loss, or infinity.
    """

    def __init__(self, checkpoint_values: Mapping[str, Any]) -> None:
        """Start without results.

        Args:
            checkpoint_values: What every checkpoint carries under the key ``attnscale``: plain.
        """
        super().__init__()
        self.checkpoint_values = checkpoint_values
        self.results: dict[str, float] = {}
        self.best_loss = math.inf

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

    def publish(self, split: str, figures: Mapping[str, Tensor]) -> None:
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

    def mark_diverged(self, metric: str, step: int) -> None:
        """Note where a figure stopped being finite; the same on every process."""
        raise NotImplementedError

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what is needed to use the checkpoint: plain values only."""
        checkpoint["attnscale"] = {**self.checkpoint_values, "best_loss": self.best_loss}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Bring the names up to date, and take up the best loss so far."""
        update_checkpoint(checkpoint)
        self.best_loss = float(checkpoint["attnscale"]["best_loss"])
