"""The difference between two settings, with its uncertainty; several of them as one family.

    paired:    d̄ ± t(n−1) · s_d/√n,  d = a − b replicate by replicate
    unpaired:  ā − b̄ ± t(ν) · √(s_a²/n_a + s_b²/n_b),  ν by Welch and Satterthwaite

by SciPy's ``ttest_rel`` and ``ttest_ind`` (Student 1908; Welch 1947). The effect is d̄/s_d (d_z,
Lakens 2013) where paired, else Hedges' g (Hedges 1981): (ā − b̄) over the pooled standard deviation,
times the factor that removes its bias in small samples.

One rule says what a difference is, everywhere:

    equivalent      |difference| < δ by two one-sided t tests at 5 % (Schuirmann 1987): no
                    difference that matters, however significant
    lower, higher   else, if Holm's p of the family is below 5 %
    within noise    else; the smallest difference that would have been found with a power of 80 %
                    is the c · standard error at which noncentral t (ν, c) exceeds Student's
                    quantile of 5 % over the family's size (Cohen 1988) in 80 % of the draws

Of a family of m comparisons p of rank i of m is max over j ≤ i of (m − j + 1) · p_j (Holm 1979), so
that no setting without an effect is called a finding in 95 % of the families. That *all* are
equivalent needs no correction: each must pass its own test. The intervals are those of each
comparison alone; one can exclude 0 where Holm's p of the family is not small enough.

All figures are in the unit of the values. Replicates differ by seed: of the weights, and of the
data where that goes with it (the autoencoder draws its data by it); only where the data stay do
intervals speak of the same data. With a single replicate there is no interval, none is made up.
Values that do not vary have an interval without width, and a difference between them p = 1 where it
is 0, else p = 0 and an infinite effect.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from attnscale.analysis.estimate import Interval, finite_array, mean_and_std

Values = Mapping[Any, float]
"""A figure of one setting: replicate (seed and seed of the data) -> value."""

Verdict = Literal["lower", "higher", "equivalent", "within noise", "one seed"]

LEVEL = 0.95
POWER = 0.8
MIN_SHARED = 0.5
"""Share of the smaller side that must have a partner for a paired test."""


@dataclass(frozen=True)
class Difference:
    """The difference a − b between two settings or two systems.

    Attributes:
        value: a − b; over the shared replicates only where they are paired.
        interval: Its interval, of this comparison alone; None with one replicate.
        method: How interval and p value were made.
        n_a: Replicates of a that were used (test sentences, for a bootstrap).
        n_b: Replicates of b that were used.
        left_out: Replicates of either side that were not used, because the other lacks them.
        p_value: Two-sided, of no difference, for this comparison alone. None with one replicate.
        p_adjusted: The same for all comparisons made together (:func:`as_family`); equal to
            ``p_value`` for one.
        family: How many comparisons with a p value were made together.
        df: Degrees of freedom of Student's t, None where it was not used.
        error: Standard error of the value, None where Student's t was not used.
        effect: The difference in standard deviations, infinite where nothing varies.
        effect_name: Which standardised effect that is.
        lower_is_better: Whether a lower value is the better one.
        margin: δ: a difference below it does not matter. None: every difference does.
        opposed: Whether the difference of the means over all replicates of either side has the
            other sign than the paired one: those that are left out decide.
    """

    value: float
    interval: Interval | None
    method: Literal["paired t", "Welch t", "paired bootstrap", "one seed"]
    n_a: int
    n_b: int
    left_out: int = 0
    p_value: float | None = None
    p_adjusted: float | None = None
    family: int = 1
    df: float | None = None
    error: float | None = None
    effect: float | None = None
    effect_name: Literal["d_z", "Hedges g"] | None = None
    lower_is_better: bool = True
    margin: float | None = None
    opposed: bool = False

    @property
    def better(self) -> bool | None:
        """Whether a is better (True) or worse (False) than b; None where that is not known."""
        side = verdict(self)
        if side not in ("lower", "higher"):
            return None
        return (side == "lower") == self.lower_is_better

    @property
    def detectable(self) -> float | None:
        """The smallest difference that would have been found, alone in its family, or None."""
        if self.error is None or self.df is None:
            return None
        quantile = special.stdtrit(self.df, 1 - (1 - LEVEL) / (2 * self.family))
        # At twice the quantile and 3 the power is above 80 % for every df of 1 or more.
        center = optimize.brentq(
            lambda c: stats.nct.sf(quantile, self.df, c) - POWER, 0, 2 * quantile + 3
        )
        return float(center) * self.error

    def within(self, margin: float) -> float | None:
        """Return the p value of a difference as large as a margin, by two one-sided tests."""
        if self.error is None or self.df is None:
            return None
        if self.error == 0:
            return float(abs(self.value) >= margin)
        return float(special.stdtr(self.df, (abs(self.value) - margin) / self.error))


def verdict(difference: Difference) -> Verdict:
    """Say what a difference is: see the head of this module; "one seed" without an interval."""
    p = difference.p_adjusted
    if difference.interval is None or p is None:
        return "one seed"
    if difference.margin is not None:
        p_of_margin = difference.within(difference.margin)
        if p_of_margin is not None and p_of_margin < 1 - LEVEL:
            return "equivalent"
    if p >= 1 - LEVEL:
        return "within noise"
    return "lower" if difference.value < 0 else "higher"


def verdict_in_words(difference: Difference) -> str:
    """Return "better", "worse", "no difference that matters", "within noise" or "one seed"."""
    if difference.better is None:
        side = verdict(difference)
        return "no difference that matters" if side == "equivalent" else side
    return "better" if difference.better else "worse"


def in_words(difference: Difference) -> str:
    """Return a difference as text, with its interval where there is one."""
    interval = difference.interval
    if interval is None:
        return f"{difference.value:+.3g}"
    return f"{difference.value:+.3g} ({interval.low:.3g} to {interval.high:.3g})"


def compare(a: Values, b: Values, *, margin: float | None = None) -> Difference:
    """Compare two settings.

    The replicates alone decide the method, never the values. Two or more in common, and half of the
    smaller side: paired, over these only (``left_out`` counts the others). Else Welch's test over
    all. Where a side has a single one: the bare difference, of those in common if there are any.

    Args:
        a: Replicate -> finite value of one setting.
        b: The same of the other.
        margin: δ in the unit of the values; passed on.

    Raises:
        ValueError: A side without replicates, or a value that is not finite.
    """
    x, y = finite_array(list(a.values())), finite_array(list(b.values()))
    shared = [key for key in a if key in b]
    left_out = len(x) + len(y) - 2 * len(shared)
    of_all = mean_and_std(x)[0] - mean_and_std(y)[0]
    few = len(shared) < 2 or len(shared) < MIN_SHARED * min(len(x), len(y))
    if few and min(len(x), len(y)) > 1:
        return replace(_welch(x, y), margin=margin)
    if few and not shared:
        difference, left_out = Difference(of_all, None, "one seed", n_a=len(x), n_b=len(y)), 0
    else:
        x, y = (np.array([side[key] for key in shared], dtype=float) for side in (a, b))
        difference = _paired(x, y)
    # Without any left out both are the same number, but for rounding.
    opposed = left_out > 0 and difference.value * of_all < 0
    return replace(difference, left_out=left_out, margin=margin, opposed=opposed)


def as_family(differences: Sequence[Difference]) -> list[Difference]:
    """Return differences with p values that count how many were made together.

    Comparisons without a p value, because a side has one replicate, do not count.
    """
    p_values = [d.p_value for d in differences if d.p_value is not None]
    adjusted = iter(holm(p_values))
    return [
        d if d.p_value is None else replace(d, p_adjusted=next(adjusted), family=len(p_values))
        for d in differences
    ]


def compare_all(
    reference: Values, others: Mapping[str, Values], *, margin: float | None = None
) -> dict[str, Difference]:
    """Compare several settings with one reference, as a family; each is other − reference."""
    family = as_family([compare(other, reference, margin=margin) for other in others.values()])
    return dict(zip(others, family, strict=True))


def more_often(lost_a: int, n_a: int, lost_b: int, n_b: int) -> float:
    """Return the two-sided p value of no difference between two shares (Fisher's exact test).

    Args:
        lost_a: Of a, runs that diverged (or failed).
        n_a: Runs of a.
        lost_b: The same of b.
        n_b: Runs of b.
    """
    return float(stats.fisher_exact([[lost_a, n_a - lost_a], [lost_b, n_b - lost_b]]).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for their number (Holm 1979), in the order given.

    Raises:
        ValueError: A p value outside [0, 1].
    """
    p = np.asarray(p_values, dtype=float)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p values {list(p_values)}: all must be in [0, 1]")
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1)
    return [float(value) for value in adjusted]


def _paired(x: NDArray[np.float64], y: NDArray[np.float64]) -> Difference:
    n = len(x)
    if n == 1:
        return Difference(float(x[0] - y[0]), None, "one seed", n_a=1, n_b=1)
    value, std = mean_and_std(x - y)
    interval, p, _ = _tested(partial(stats.ttest_rel, x, y) if std else None, value)
    return Difference(
        value=value,
        interval=interval,
        method="paired t",
        n_a=n,
        n_b=n,
        p_value=p,
        p_adjusted=p,
        df=n - 1,
        error=std / math.sqrt(n),
        effect=_ratio(value, std),
        effect_name="d_z",
    )


def _welch(x: NDArray[np.float64], y: NDArray[np.float64]) -> Difference:
    (mean_a, std_a), (mean_b, std_b) = mean_and_std(x), mean_and_std(y)
    n_a, n_b = len(x), len(y)
    value, free = mean_a - mean_b, n_a + n_b - 2
    welch = partial(stats.ttest_ind, x, y, equal_var=False) if std_a or std_b else None
    interval, p, df = _tested(welch, value)
    pooled = math.sqrt(((n_a - 1) * std_a**2 + (n_b - 1) * std_b**2) / free)
    unbiased = math.exp(special.gammaln(free / 2) - special.gammaln((free - 1) / 2))
    return Difference(
        value=value,
        interval=interval,
        method="Welch t",
        n_a=n_a,
        n_b=n_b,
        p_value=p,
        p_adjusted=p,
        df=free if df is None else df,
        error=math.sqrt(std_a**2 / n_a + std_b**2 / n_b),
        effect=_ratio(value, pooled) * unbiased / math.sqrt(free / 2),
        effect_name="Hedges g",
    )


def _tested(test: Callable[[], Any] | None, value: float) -> tuple[Interval, float, float | None]:
    """Return interval, p value and df of SciPy's test, or of a value where nothing varies."""
    if test is None:
        return Interval(value, value), float(value == 0), None
    with warnings.catch_warnings():
        # Where one side does not vary: no mistake here.
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        result = test()
    ends = result.confidence_interval(LEVEL)
    return Interval(float(ends.low), float(ends.high)), float(result.pvalue), float(result.df)


def _ratio(value: float, std: float) -> float:
    if std == 0:
        return math.copysign(math.inf, value) if value else 0.0
    return value / std
