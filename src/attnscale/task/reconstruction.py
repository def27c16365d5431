"""Reconstruction: mean squared error between a sequence and what the model makes of it."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from attnscale.data.gaussian import SequenceBatch
from attnscale.metric import ReconstructionError
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

    def evaluate(self, split: str, block: list[SequenceBatch]) -> None:
        """Add the error of each batch's reconstruction."""
        metric = self.metrics[split].to(self.device)
        for batch in block:
            metric.update(self.model(batch.x), batch.x)
