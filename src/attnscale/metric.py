"""Validation and test figures: sums that do not depend on batch size, order or processes.

    mse = Σ (x̂ − x)² / N,    explained variance = 1 − Σ (x̂ − x)² / Σ (x − x̄)²

over all N components of a set, with x̄ the mean of all of them;

    loss = Σ −ln p(token) / tokens,  perplexity = exp(loss),  accuracy = correct tokens / tokens

over the target tokens of a set, END included, padding never, without label smoothing. Sums are kept
in fp64, so that the figures do not depend on how the set is cut into batches and shared over
processes.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric


class Sums(Metric):
    """A metric whose states are sums in fp64."""

    full_state_update = False
    sums: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        """Create the sums."""
        super().__init__()
        for name in self.sums:
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")


class ReconstructionError(Sums):
    """Mean squared error and explained variance of a reconstruction."""

    sums = ("squared_error", "total", "squares", "count")
    squared_error: Tensor
    total: Tensor
    squares: Tensor
    count: Tensor

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


class TokenFigures(Sums):
    """Loss, perplexity and accuracy per target token."""

    sums = ("nll", "correct", "count")
    nll: Tensor
    correct: Tensor
    count: Tensor

    def update(self, nll: Tensor, correct: Tensor, count: int) -> None:
        """Add a batch: summed negative log-likelihood, correct tokens, tokens."""
        self.nll += nll.double()
        self.correct += correct.double()
        self.count += count

    def compute(self) -> dict[str, Tensor]:
        """Return ``loss`` (nats per token), ``perplexity``, ``accuracy`` and ``count`` (tokens)."""
        loss = self.nll / self.count
        return {
            "loss": loss,
            "perplexity": loss.exp(),
            "accuracy": self.correct / self.count,
            "count": self.count,
        }


class LossByLength(Metric):
    """The loss per target token, for sentences of each class of lengths by itself."""

    full_state_update = False
    nll: Tensor
    count: Tensor

    def __init__(self, edges: Sequence[int]) -> None:
        """Create the sums.

        Args:
            edges: Longest sentence of each class but the last, in tokens, ascending.
        """
        super().__init__()
        self.edges = torch.tensor(edges)
        for name in ("nll", "count"):
            zeros = torch.zeros(len(edges) + 1, dtype=torch.float64)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, nll: Float[Tensor, " token"], lengths: Int[Tensor, " token"]) -> None:
        """Add a batch: −ln p of each token, and the tokens of its sentence, without marks."""
        classes = torch.bucketize(lengths, self.edges.to(lengths.device))
        self.nll.index_add_(0, classes, nll.double())
        self.count.index_add_(0, classes, torch.ones_like(nll, dtype=torch.float64))

    def compute(self) -> dict[str, float]:
        """Return ``loss_length_1_9``, ``loss_length_10_up`` and so on; no class without tokens."""
        first = [1, *(int(edge) + 1 for edge in self.edges)]
        last = [*map(int, self.edges), "up"]
        losses = zip(first, last, (self.nll / self.count).tolist(), strict=True)
        return {f"loss_length_{a}_{b}": loss for a, b, loss in losses if not math.isnan(loss)}
