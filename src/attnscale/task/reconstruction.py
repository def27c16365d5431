"""Reconstruction: mean squared error between a sequence and what the model makes of it."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from attnscale.data.gaussian import SequenceBatch
from attnscale.metric.reconstruction import ReconstructionError
from attnscale.task.module import TaskModule


class Reconstruction(TaskModule):
    """Trains an autoencoder on the mean squared error of all components."""

    def __init__(self, **parts: Any) -> None:
        """Take the parts of a :class:`TaskModule`, and add the metrics."""
        super().__init__(**parts)
        self.metrics = {"val": ReconstructionError(), "test": ReconstructionError()}

    def loss(self, batch: SequenceBatch) -> Tensor:
        """Return the batch's mean squared error, weighted by this process's share of it."""
        x = batch.x
        prediction = self.model(x)
        if batch.loss_weight == 1.0:
            return functional.mse_loss(prediction, x)
        # A process may have no sequence at all; the mean over none would be NaN.
        return functional.mse_loss(prediction, x, reduction="sum") * (
            batch.loss_weight / max(1, x.numel())
        )

    def _evaluate(self, split: str, block: list[SequenceBatch]) -> None:
        metric = self.metrics[split].to(self.device)
        for batch in block:
            metric.update(self.model(batch.x), batch.x)

    def validation_step(self, block: list[SequenceBatch], index: int) -> None:
        """Add a block to the validation figures."""
        self._evaluate("val", block)

    def test_step(self, block: list[SequenceBatch], index: int) -> None:
        """Add a block to the test figures."""
        self._evaluate("test", block)

    def _finish(self, split: str) -> None:
        figures = self.metrics[split].compute()
        self.publish(split, figures)
        self.metrics[split].reset()

    def on_validation_epoch_end(self) -> None:
        """Report the validation figures."""
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        """Report the test figures."""
        self._finish("test")
