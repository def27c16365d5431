"""Reconstruction error of a set.

    mse = Σ (x̂ − x)² / N,    explained variance = 1 − Σ (x̂ − x)² / Σ (x − x̄)²

over all N components of the set, with x̄ the mean of all of them. Sums are kept in fp64, so that the
figures do not depend on how the set is cut into batches and shared over processes.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric


class ReconstructionError(Metric):
    """Mean squared error and explained variance of a reconstruction."""

    full_state_update = False
    squared_error: Tensor
    total: Tensor
    squares: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        """Create the four sums."""
        super().__init__(**kwargs)
        for name in ("squared_error", "total", "squares", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, prediction: Float[Tensor, "..."], target: Float[Tensor, "..."]) -> None:
        """Add a batch; both tensors have the same shape."""
        wide = target.double()
        self.squared_error += (prediction.double() - wide).square().sum()
        self.total += wide.sum()
        self.squares += wide.square().sum()
        self.count += target.numel()

    def compute(self) -> dict[str, Tensor]:
        """Return ``loss`` (the MSE), ``explained_variance`` and ``count`` (components)."""
        spread = self.squares - self.total.square() / self.count
        return {
            "loss": self.squared_error / self.count,
            "explained_variance": 1 - self.squared_error / spread,
            "count": self.count,
        }
