"""The difference between two settings, with its uncertainty; several of them as one family.

    paired:    d̄ ± t(n−1) · s_d/√n,  d = a − b seed by seed
    unpaired:  ā − b̄ ± t(ν) · √(s_a²/n_a + s_b²/n_b),  ν by Welch and Satterthwaite

by SciPy's ``ttest_rel`` and ``ttest_ind`` (Student 1908; Welch 1947). The effect is d̄/s_d (d_z,
Lakens 2013) where paired, else Hedges' g (Hedges 1981): (ā − b̄) over the pooled standard deviation,
times the factor that removes its bias in small samples.

Of a family of m comparisons

    interval of each:       level 1 − (1 − level)/m              (Bonferroni)
    p of rank i of m:       max over j ≤ i of (m − j + 1) · p_j  (Holm 1979)

so that all m intervals hold the truth together at ``level`` or more, and no setting without an
effect is called a finding in that share of families. An interval can include 0 where Holm's p is
below 1 − level: Holm rejects more, and has no intervals. The verdict goes by the interval.

All figures are in the unit of the values. Runs differ by seed only: the intervals say what another
set of seeds would give, on the same data. With a single seed there is no interval, and none is made
up. Values that do not vary have an interval without width, and a difference between them p = 1
where it is 0, else p = 0 and an infinite effect.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from attnscale.analysis.estimate import Interval, finite_array, mean_and_std

Values = Mapping[int, float]
"""A figure of one setting: seed -> value."""

Verdict = Literal["lower", "higher", "within noise", "one seed"]


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
        p_adjusted: The same for all comparisons made together (:func:`compare_family`); equal to
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
        side = verdict(self)
        if side not in ("lower", "higher"):
            return None
        return (side == "lower") == self.lower_is_better


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


def verdict_in_words(difference: Difference) -> str:
    """Return "better", "worse", "within noise" or "one seed"."""
    if difference.better is None:
        return verdict(difference)
    return "better" if difference.better else "worse"


def in_words(difference: Difference) -> str:
    """Return a difference as text, with its interval where there is one."""
    interval = difference.interval
    if interval is None:
        return f"{difference.value:+.3g}"
    return f"{difference.value:+.3g} ({interval.low:.3g} to {interval.high:.3g})"


def compare(a: Values, b: Values, level: float = 0.95) -> Difference:
    """Compare two settings.

    The seeds alone decide the method, never the values. Two or more seeds in common: paired, over
    these seeds only (``left_out`` counts the other runs). Else Welch's test over all runs. Where a
    side has a single run: the bare difference of the means.

    Args:
        a: Seed -> finite value of one setting.
        b: The same of the other.
        level: Of the interval, in (0, 1).

    Raises:
        ValueError: A side without runs, a value that is not finite, or a level out of range.
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level}: must be between 0 and 1")
    x, y = finite_array(list(a.values())), finite_array(list(b.values()))
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) > 1:
        shared = np.array([[side[seed] for seed in seeds] for side in (a, b)], dtype=float)
        difference = _paired(shared[0], shared[1], level)
        return replace(difference, left_out=len(x) + len(y) - 2 * len(seeds))
    if min(len(x), len(y)) > 1:
        return _welch(x, y, level)
    value = mean_and_std(x)[0] - mean_and_std(y)[0]
    return Difference(value, None, "one seed", n_a=len(x), n_b=len(y))


def compare_family(pairs: Sequence[tuple[Values, Values]], level: float = 0.95) -> list[Difference]:
    """Compare each a with its b, all as one family.

    Comparisons without a p value, because a side has one seed, do not count in m.

    Args:
        pairs: (a, b) of every comparison that was made, for the level counts them.
        level: Of all intervals together, in (0, 1).

    Raises:
        ValueError: As :func:`compare`.
    """
    p_values = [p for a, b in pairs if (p := compare(a, b, level).p_value) is not None]
    corrected = 1 - (1 - level) / max(1, len(p_values))
    adjusted = iter(holm(p_values))
    differences = [compare(a, b, corrected) for a, b in pairs]
    return [d if d.p_value is None else replace(d, p_adjusted=next(adjusted)) for d in differences]


def compare_all(
    reference: Values, others: Mapping[str, Values], level: float = 0.95
) -> dict[str, Difference]:
    """Compare several settings with one reference, as a family; each is other − reference."""
    family = compare_family([(values, reference) for values in others.values()], level)
    return dict(zip(others, family, strict=True))


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


def _paired(x: NDArray[np.float64], y: NDArray[np.float64], level: float) -> Difference:
    value, std = mean_and_std(x - y)
    n = len(x)
    test = _quiet(stats.ttest_rel, x, y) if std else None
    interval, p = _tested(test, value, level)
    return Difference(
        value=value,
        interval=interval,
        method="paired t",
        n_a=n,
        n_b=n,
        p_value=p,
        p_adjusted=p,
        df=n - 1,
        effect=_ratio(value, std),
        effect_name="d_z",
    )


def _welch(x: NDArray[np.float64], y: NDArray[np.float64], level: float) -> Difference:
    (mean_a, std_a), (mean_b, std_b) = mean_and_std(x), mean_and_std(y)
    n_a, n_b = len(x), len(y)
    value, free = mean_a - mean_b, n_a + n_b - 2
    test = _quiet(stats.ttest_ind, x, y, equal_var=False) if std_a or std_b else None
    interval, p = _tested(test, value, level)
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
        df=free if test is None else float(test.df),
        effect=_ratio(value, pooled) * unbiased / math.sqrt(free / 2),
        effect_name="Hedges g",
    )


def _quiet(test: Callable[..., Any], *values: NDArray[np.float64], **options: Any) -> Any:
    """Call SciPy's test; it warns where one side does not vary, which is no mistake here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        return test(*values, **options)


def _tested(test: Any, value: float, level: float) -> tuple[Interval, float]:
    """Return interval and p value of SciPy's test, or of a value where nothing varies."""
    if test is None:
        return Interval(value, value, level), float(value == 0)
    ends = test.confidence_interval(level)
    return Interval(float(ends.low), float(ends.high), level), float(test.pvalue)


def _ratio(value: float, std: float) -> float:
    if std == 0:
        return math.copysign(math.inf, value) if value else 0.0
    return value / std
