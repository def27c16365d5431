"""A simulated number with its sampling error, and tables of such numbers.

    error = deviation of one draw / √draws         interval = value ± t · error   (95 %)

t is the quantile of Student's t with draws − 1 degrees of freedom; 1.96 from some hundred draws on.
For a root mean square, √m with m a mean of squares, the error is error(m) / (2√m).

Source: any first course in statistics; the last line is the delta method.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor


class Estimate(NamedTuple):
    """A simulated mean.

    Attributes:
        value: The estimate.
        error: Its standard error.
        low: Lower end of the 95 % confidence interval.
        high: Upper end of it.
    """

    value: float
    error: float
    low: float
    high: float


@dataclass
class Moments:
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

    def mean(self) -> Estimate:
        """Return the mean of what was added."""
        value = self.total / self.draws
        variance = max(self.squares / self.draws - value**2, 0.0)
        return _estimate(value, math.sqrt(variance / max(self.draws - 1, 1)), self.draws)

    def root(self) -> Estimate:
        """Return the square root of the mean: the root mean square if squares were added."""
        mean = self.mean()
        value = math.sqrt(mean.value)
        return _estimate(value, mean.error / (2 * value) if value > 0 else 0.0, self.draws)


def _estimate(value: float, error: float, draws: int) -> Estimate:
    half = float(stdtrit(max(draws - 1, 1), 0.975)) * error
    return Estimate(value, error, value - half, value + half)


def mean_of(values: Tensor) -> Estimate:
    """Return the mean of independent values, one per draw, of any shape."""
    moments = Moments()
    moments.add(values)
    return moments.mean()


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate, its error and interval times a positive, exactly known factor."""
    return Estimate(*(factor * x for x in estimate))


def table(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Turn dataclass records into flat rows, one dict per record, for tables and charts.

    An :class:`Estimate` in field ``x`` becomes ``x``, ``x_error``, ``x_low`` and ``x_high``; other
    fields keep their name.
    """
    result = []
    for row in rows:
        flat: dict[str, Any] = {}
        for field in fields(row):
            value = getattr(row, field.name)
            if isinstance(value, Estimate):
                flat[field.name] = value.value
                for part in ("error", "low", "high"):
                    flat[f"{field.name}_{part}"] = getattr(value, part)
            else:
                flat[field.name] = value
        result.append(flat)
    return result


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from ``seed`` within the block and leave PyTorch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_least(name: str, value: int, least: int) -> int:
    """Return ``value`` if it is at least ``least``.

    Raises:
        ValueError: Naming the argument, its value and what is allowed.
    """
    if value < least:
        raise ValueError(f"{name}={value}: must be at least {least}")
    return value
