"""A mean with its uncertainty: over seeds, or over the draws of a simulation.

    mean       x̄ ± t(n−1) · s/√n        s: standard deviation with n − 1; s/√n: the standard error

with t the quantile of Student's t distribution (Student 1908); 1.96 from some hundred values on.
Figures are in the unit of the values. A single value has no interval, and none is made up; values
that do not vary have a standard deviation of exactly 0 and an interval without width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats


@dataclass(frozen=True)
class Interval:
    """A confidence interval; ``level`` is the share of intervals that hold the truth, in (0, 1)."""

    low: float
    high: float
    level: float = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over ``n`` values.

    Attributes:
        value: The mean.
        std: Standard deviation of the values with n − 1, None for one value.
        n: Number of values, at least 1.
        interval: Student's t interval of the mean, None for one value.
    """

    value: float
    std: float | None
    n: int
    interval: Interval | None

    @property
    def error(self) -> float:
        """The standard error, infinite for one value."""
        return math.inf if self.std is None else self.std / math.sqrt(self.n)

    @property
    def low(self) -> float:
        """Lower end of the interval, −∞ for one value."""
        return -math.inf if self.interval is None else self.interval.low

    @property
    def high(self) -> float:
        """Upper end of the interval, ∞ for one value."""
        return math.inf if self.interval is None else self.interval.high


def between(estimate: Estimate, digits: str = ".3g") -> str:
    """Return an estimate with its interval, as text."""
    value, low, high = (format(x, digits) for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low} to {high})"


def student_interval(value: float, error: float, df: float) -> Interval:
    """Return Student's 95 % interval of a value with a standard error."""
    half = float(stats.t.ppf((1 + Interval.level) / 2, df)) * error
    return Interval(value - half, value + half)


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate a mean, with its 95 % interval.

    Args:
        values: One or more finite values, one per seed. What diverged is counted, not averaged.

    Raises:
        ValueError: No value, or one that is not finite.
    """
    x = finite_array(values)
    mean, std = mean_and_std(x)
    if len(x) == 1:
        return Estimate(mean, None, 1, None)
    interval = student_interval(mean, std / math.sqrt(len(x)), len(x) - 1)
    return Estimate(mean, std, len(x), interval)


def mean_and_std(x: NDArray[np.float64]) -> tuple[float, float]:
    """Return both; std 0 where all are equal, which rounding of the mean would hide."""
    if np.ptp(x) == 0:
        return float(x[0]), 0.0
    return float(x.mean()), float(x.std(ddof=1))


def finite_array(values: Sequence[float]) -> NDArray[np.float64]:
    """Return values as an array.

    Raises:
        ValueError: If there is none, or one that is not finite.
    """
    x = np.asarray(values, dtype=float)
    if len(x) == 0:
        raise ValueError("no values: give one or more")
    if not np.isfinite(x).all():
        raise ValueError(f"values {list(values)}: all must be finite; count diverged runs apart")
    return x
