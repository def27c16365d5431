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
        """Return the batch's mean squared error, times its weight."""
        x = batch.x
        prediction = self.model(x)
        # A process may have no sequence at all; the mean over none would be NaN.
        error = functional.mse_loss(prediction, x) if len(x) else prediction.sum()
        return error if batch.loss_weight == 1.0 else error * batch.loss_weight

    def evaluate(self, split: str, block: list[SequenceBatch]) -> None:
        """Add the error of each batch's reconstruction."""
        metric = self.metrics[split].to(self.device)
        for batch in block:
            metric.update(self.model(batch.x), batch.x)
