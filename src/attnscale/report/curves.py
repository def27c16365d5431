"""Figures of whole curves: loss over learning rates, deviation over widths, loss over steps.

    sensitivity = E[min(ℓ(η), ℓ₀)] − ℓ*,  log η uniform over the rates that were swept

with ℓ the final loss, ℓ₀ the loss at initialisation and ℓ* the least loss (Wortsman et al. 2023,
arXiv:2309.14322). The expectation is an integral over log η by the trapezoid rule, so that an
uneven grid does not favour the rates where it is dense.

    growth exponent a:  log std = a · log d + c, by least squares
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import integrate, stats

from attnscale.report.statistics import Interval


@dataclass(frozen=True)
class Exponent:
    """The slope of a line through ``n`` points in log-log scale.

    Attributes:
        value: The slope, without unit.
        interval: Student's t interval with n − 2 degrees of freedom, None for two points.
        n: Number of points.
    """

    value: float
    interval: Interval | None
    n: int


def lr_sensitivity(
    losses_by_rate: Mapping[float, float | None], loss_at_init: float
) -> float | None:
    """Say how much loss is given away, on average, by not knowing the best learning rate.

    It depends on the range of the rates: compare settings over the same rates only.

    Args:
        losses_by_rate: Learning rate -> final loss. None, an infinity or NaN: diverged, which
            counts as ``loss_at_init``, as does any loss above that.
        loss_at_init: Loss before the first step, in the same unit.

    Returns:
        The sensitivity in the unit of the loss, 0 or more; None where no rate got below
        ``loss_at_init``, for then there is no optimum to depart from.

    Raises:
        ValueError: Fewer than two rates, one that is not positive and finite, or a
            ``loss_at_init`` that is not finite.
    """
    rates = sorted(losses_by_rate)
    if len(rates) < 2 or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(f"learning rates {rates}: give two or more, positive and finite")
    if not math.isfinite(loss_at_init):
        raise ValueError(f"loss_at_init={loss_at_init}: must be finite")
    final = [losses_by_rate[rate] for rate in rates]
    losses = np.array(
        [loss_at_init if x is None or not math.isfinite(x) else min(x, loss_at_init) for x in final]
    )
    best = float(losses.min())
    if best == loss_at_init:
        return None
    log_rates = np.log(rates)
    area = float(integrate.trapezoid(losses - best, log_rates))
    return area / float(log_rates[-1] - log_rates[0])


def growth_exponent(d: Sequence[float], std: Sequence[float], level: float = 0.95) -> Exponent:
    """Fit the power with which a deviation grows with a width.

    Args:
        d: Widths, positive, two or more different ones. A width may come up once per seed.
        std: The deviation at each, positive, in any unit.
        level: Of the interval, in (0, 1). It takes the points as independent.

    Raises:
        ValueError: Lengths that differ, fewer than two different widths, a width or a deviation
            that is not positive and finite, or a level out of range.
    """
    if len(d) != len(std) or len(set(d)) < 2:
        raise ValueError(
            f"d={list(d)} with {len(std)} deviations: give one for each, at two widths or more"
        )
    if not all(0 < value < math.inf for value in (*d, *std)):
        raise ValueError(f"d={list(d)}, std={list(std)}: all must be positive and finite")
    if not 0 < level < 1:
        raise ValueError(f"level={level}: must be between 0 and 1")
    n = len(d)
    fit = stats.linregress(np.log(d), np.log(std))
    slope = float(fit.slope)
    if n < 3:
        return Exponent(slope, None, n)
    # linregress has no error where nothing varies.
    error = float(fit.stderr) if len(set(std)) > 1 else 0.0
    half = float(stats.t.ppf((1 + level) / 2, n - 2)) * error
    return Exponent(slope, Interval(slope - half, slope + half, level), n)


def steps_to(curve: Iterable[tuple[int, float]], target: float) -> int | None:
    """Return the first step at which a curve is at or below a target, None if it never is.

    Args:
        curve: (step, value) in any order; NaN is never below.
        target: In the unit of the values.
    """
    return min((step for step, value in curve if value <= target), default=None)
