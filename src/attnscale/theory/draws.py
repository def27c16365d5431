"""Draws of a simulation: from a seed, in chunks, and the mean they give with its error.

    error = standard deviation of one draw / √draws

For a root mean square, √m with m a mean of squares, the error is error(m) / (2√m), by the delta
method.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscale.analysis.estimate import Estimate, Interval, student_interval


@dataclass
class Sums:
    """Sums from which a mean and its error follow, so that draws may come in chunks."""

    draws: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: Tensor) -> None:
        """Add one value per draw; ``values`` has any shape."""
        wide = values.double()
        self.draws += values.numel()
        self.total += wide.sum().item()
        self.squares += wide.square().sum().item()

    def _mean(self) -> tuple[float, float]:
        """Return the mean and its standard error."""
        value = self.total / self.draws
        variance = max(self.squares / self.draws - value**2, 0.0)
        return value, math.sqrt(variance / max(self.draws - 1, 1))

    def _estimate(self, value: float, error: float) -> Estimate:
        interval = student_interval(value, error, max(self.draws - 1, 1))
        return Estimate(value, error * math.sqrt(self.draws), self.draws, interval)

    def mean(self) -> Estimate:
        """Return the mean of what was added."""
        return self._estimate(*self._mean())

    def root(self) -> Estimate:
        """Return the square root of the mean: the root mean square if squares were added."""
        mean, error = self._mean()
        value = math.sqrt(mean)
        return self._estimate(value, error / (2 * value) if value > 0 else 0.0)


def mean_of(values: Tensor) -> Estimate:
    """Return the mean of independent values, one per draw, of any shape."""
    sums = Sums()
    sums.add(values)
    return sums.mean()


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate, its error and interval times a positive, exactly known factor."""
    std = None if estimate.std is None else factor * estimate.std
    interval = Interval(factor * estimate.low, factor * estimate.high)
    return Estimate(factor * estimate.value, std, estimate.n, interval)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from ``seed`` within the block and leave PyTorch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_min(name: str, value: int, minimum: int) -> None:
    """Refuse a value below ``minimum``.

    Raises:
        ValueError: Naming the argument, its value and what is allowed.
    """
    if value < minimum:
        raise ValueError(f"{name}={value}: must be at least {minimum}")
