"""Means over seeds, and the difference between two settings, with their uncertainty.

    mean:      x̄ ± t(n−1) · s/√n
    paired:    d̄ ± t(n−1) · s_d/√n,  d = a − b seed by seed
    unpaired:  ā − b̄ ± t(ν) · √(s_a²/n_a + s_b²/n_b),  ν by Welch and Satterthwaite

with t the quantile of Student's t distribution and s the standard deviation with n − 1 (Student
1908; Welch 1947). The effect is d̄/s_d (d_z, Lakens 2013) where paired, else Hedges' g (Hedges
1981): (ā − b̄) over the pooled deviation, times the factor that removes its bias in small samples.

All figures are in the unit of the values. Runs differ by seed only: the intervals say what another
set of seeds would give, on the same data. A single seed has no interval, and none is made up.
Values that do not vary have a spread of exactly 0: their interval has no width, and a difference
between them p = 1 where it is 0, else p = 0 and an infinite effect.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

MIN_BOOTSTRAP = 4
"""Fewest values of a bootstrap-t interval; with 3 it holds in 80 % of cases where it says 95 %."""

Runs = Mapping[int, float]
"""A figure of one setting: seed -> value."""

Verdict = Literal["lower", "higher", "within noise", "one seed"]


@dataclass(frozen=True)
class Interval:
    """A confidence interval; ``level`` is the share of intervals that hold the truth, in (0, 1)."""

    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Estimate:
    """A mean over ``n`` values.

    Attributes:
        mean: The mean.
        spread: Standard deviation with n − 1, None for one value.
        n: Number of values, at least 1.
        interval: Student's t interval of the mean, None for one value.
    """

    mean: float
    spread: float | None
    n: int
    interval: Interval | None


@dataclass(frozen=True)
class Difference:
    """The difference a − b between two settings or two systems.

    Attributes:
        value: a − b; over the shared seeds only where they are paired.
        interval: Its interval, None with one seed.
        method: How interval and p value were made.
        n_a: Runs of a that were used (test sentences, for a bootstrap).
        n_b: Runs of b that were used.
        left_out: Runs of either side that were not used, because the other lacks their seed.
        p_value: Two-sided, of no difference, for this comparison alone. None with one seed.
        p_adjusted: The same for all comparisons made together (`multiple.compare_all`); equal to
            ``p_value`` for one.
        df: Degrees of freedom of Student's t, None where it was not used.
        effect: The difference in standard deviations, infinite where nothing varies.
        effect_name: Which standardised effect that is.
        lower_is_better: Whether a lower value is the better one.
    """

    value: float
    interval: Interval | None
    method: Literal["paired t", "Welch t", "paired bootstrap", "one seed"]
    n_a: int
    n_b: int
    left_out: int = 0
    p_value: float | None = None
    p_adjusted: float | None = None
    df: float | None = None
    effect: float | None = None
    effect_name: Literal["d_z", "Hedges g"] | None = None
    lower_is_better: bool = True

    @property
    def better(self) -> bool | None:
        """Whether a is better (True) or worse (False) than b; None where that is not known."""
        found = verdict(self)
        if found not in ("lower", "higher"):
            return None
        return (found == "lower") == self.lower_is_better


def estimate(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Estimate a mean.

    Args:
        values: One or more finite values, one per seed. What diverged is counted, not averaged.
        level: Of the interval, in (0, 1).

    Raises:
        ValueError: No value, one that is not finite, or a level out of range.
    """
    _check_level(level)
    x = _finite(values)
    mean, spread = _moments(x)
    if len(x) == 1:
        return Estimate(mean, None, 1, None)
    interval, _ = _student(mean, spread / math.sqrt(len(x)), len(x) - 1, level)
    return Estimate(mean, spread, len(x), interval)


def bootstrap_t(
    values: Sequence[float], level: float = 0.95, *, seed: int, draws: int = 9999
) -> Interval:
    """Return the bootstrap-t interval of a mean (Efron and Tibshirani 1993, section 12.5).

    For few values from a skewed distribution, where Student's interval is too narrow. The quantiles
    of (x̄* − x̄)/(s*/√n) take the place of Student's t. Resamples of one value repeated have no s*
    and are dropped.

    Args:
        values: At least `MIN_BOOTSTRAP` finite values.
        level: Of the interval, in (0, 1).
        seed: Of the resampling.
        draws: Number of resamples, at least 1; thousands for steady ends.

    Raises:
        ValueError: Too few values or draws, a value that is not finite, or a level out of range.
    """
    _check_level(level)
    x = _finite(values)
    n = len(x)
    if n < MIN_BOOTSTRAP:
        raise ValueError(f"{n} values: a bootstrap-t interval needs {MIN_BOOTSTRAP} or more")
    if draws < 1:
        raise ValueError(f"draws={draws}: must be 1 or more")
    mean, spread = _moments(x)
    if spread == 0:
        return Interval(mean, mean, level)
    samples = x[np.random.default_rng(seed).integers(n, size=(draws, n))]  # (draws, n)
    samples = samples[np.ptp(samples, axis=1) > 0]
    if len(samples) == 0:
        raise ValueError(f"draws={draws}: every resample was one value repeated, draw more")
    studentised = (samples.mean(axis=1) - mean) / samples.std(axis=1, ddof=1)
    low, high = np.quantile(studentised, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(mean - high * spread), float(mean - low * spread), level)


def compare(a: Runs, b: Runs, level: float = 0.95, *, lower_is_better: bool = True) -> Difference:
    """Compare two settings.

    The seeds alone decide the method, never the values. Two or more seeds in common: paired, over
    these seeds only (``left_out`` counts the other runs). Else Welch's test over all runs. Where a
    side has a single run: the bare difference of the means.

    Args:
        a: Seed -> finite value of one setting.
        b: The same of the other.
        level: Of the interval, in (0, 1).
        lower_is_better: Whether a lower value is the better one; passed on.

    Raises:
        ValueError: A side without runs, a value that is not finite, or a level out of range.
    """
    _check_level(level)
    x, y = _finite(list(a.values())), _finite(list(b.values()))
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) > 1:
        difference = _paired(np.array([a[seed] - b[seed] for seed in seeds], dtype=float), level)
        left_out = len(x) + len(y) - 2 * len(seeds)
        difference = replace(difference, left_out=left_out)
    elif min(len(x), len(y)) > 1:
        difference = _welch(x, y, level)
    else:
        difference = Difference(
            value=_moments(x)[0] - _moments(y)[0],
            interval=None,
            method="one seed",
            n_a=len(x),
            n_b=len(y),
        )
    return replace(difference, lower_is_better=lower_is_better)


def verdict(difference: Difference) -> Verdict:
    """Say whether a is lower or higher than b: whether the interval excludes 0, and on which side.

    Without an interval there is "one seed" and no finding.
    """
    interval = difference.interval
    if interval is None:
        return "one seed"
    if interval.high < 0:
        return "lower"
    return "higher" if interval.low > 0 else "within noise"


def _paired(d: NDArray[np.float64], level: float) -> Difference:
    value, spread = _moments(d)
    interval, p = _student(value, spread / math.sqrt(len(d)), len(d) - 1, level)
    return Difference(
        value=value,
        interval=interval,
        method="paired t",
        n_a=len(d),
        n_b=len(d),
        p_value=p,
        p_adjusted=p,
        df=len(d) - 1,
        effect=_ratio(value, spread),
        effect_name="d_z",
    )


def _welch(x: NDArray[np.float64], y: NDArray[np.float64], level: float) -> Difference:
    (mean_a, spread_a), (mean_b, spread_b) = _moments(x), _moments(y)
    n_a, n_b = len(x), len(y)
    error = math.hypot(spread_a / math.sqrt(n_a), spread_b / math.sqrt(n_b))
    share = (spread_a / error) ** 2 / n_a if error else n_a / (n_a + n_b)
    df = 1 / (share**2 / (n_a - 1) + (1 - share) ** 2 / (n_b - 1))
    interval, p = _student(mean_a - mean_b, error, df, level)

    free = n_a + n_b - 2
    pooled = math.sqrt(((n_a - 1) * spread_a**2 + (n_b - 1) * spread_b**2) / free)
    unbiased = math.exp(special.gammaln(free / 2) - special.gammaln((free - 1) / 2))
    return Difference(
        value=mean_a - mean_b,
        interval=interval,
        method="Welch t",
        n_a=n_a,
        n_b=n_b,
        p_value=p,
        p_adjusted=p,
        df=df,
        effect=_ratio(mean_a - mean_b, pooled) * unbiased / math.sqrt(free / 2),
        effect_name="Hedges g",
    )


def _student(value: float, error: float, df: float, level: float) -> tuple[Interval, float]:
    """Return the t interval of a value with a standard error, and the p value of 0."""
    if error == 0:
        return Interval(value, value, level), float(value == 0)
    half = float(stats.t.ppf((1 + level) / 2, df)) * error
    p = 2 * float(stats.t.sf(abs(value) / error, df))
    return Interval(value - half, value + half, level), p


def _moments(x: NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and deviation; 0 where all are equal, which rounding of the mean would hide."""
    if np.ptp(x) == 0:
        return float(x[0]), 0.0
    return float(x.mean()), float(x.std(ddof=1))


def _ratio(value: float, spread: float) -> float:
    if spread == 0:
        return math.copysign(math.inf, value) if value else 0.0
    return value / spread


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=float)
    if len(x) == 0:
        raise ValueError("no values: give one or more")
    if not np.isfinite(x).all():
        raise ValueError(f"values {list(values)}: all must be finite; count diverged runs apart")
    return x


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: must be between 0 and 1")
