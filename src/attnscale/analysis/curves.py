"""Curves: points over steps, joined over seeds, thinned; where one gets to; how a figure grows.

    joined             at each step of a thinned grid: mean, least and largest over the seeds that
                       have a point there
    growth exponent a  log std = a · log d + c, by least squares

The axes are optimizer steps, epochs, tokens and seconds; tokens and epochs follow from what a run
recorded of its data, seconds from the points' times.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from attnscale.analysis.estimate import Interval, student_interval
from attnscale.analysis.settings import Setting
from attnscale.tracking.runs import Curve, Point

MAX_POINTS = 300
EARLY_STEPS = 100
STEPS_PER_EPOCH, TOKENS_PER_STEP = "data/steps_per_epoch", "data/tokens_per_step"


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


def thinned(steps: Collection[int], max_points: int = MAX_POINTS) -> list[int]:
    """Return at most ``max_points`` of some steps in order, the first and the last among them."""
    ordered = sorted(steps)
    if len(ordered) <= max_points:
        return ordered
    stride = math.ceil((len(ordered) - 1) / (max_points - 1))
    regular = ordered[::stride]
    return regular if regular[-1] == ordered[-1] else [*regular, ordered[-1]]


def joined(
    setting: Setting, metric: str, *, until: int | None = None, max_points: int = MAX_POINTS
) -> list[dict[str, Any]]:
    """Return the points of a setting for one metric, joined over its seeds.

    Args:
        setting: Runs that differ in their seed.
        metric: Metric's name.
        until: Leave out later steps.
        max_points: How many are returned at most.

    Returns:
        Rows with ``setting``, ``step``, ``epoch``, ``tokens``, ``seconds`` (None where not known),
        ``value`` (mean over seeds), ``low``, ``high``, ``n``.
    """
    runs = [run for run in setting.runs if run.outcome in ("finished", "running", "diverged")]
    tables = [
        {p.step: p for p in run.curve(metric) if until is None or p.step <= until} for run in runs
    ]
    first = runs[0].metrics if runs else {}
    per_epoch, per_step = first.get(STEPS_PER_EPOCH), first.get(TOKENS_PER_STEP)
    label = setting.label
    rows: list[dict[str, Any]] = []
    for step in thinned({step for table in tables for step in table}, max_points):
        points = [table[step] for table in tables if step in table]
        values = [point.value for point in points]
        rows.append(
            {
                "setting": label,
                "step": step,
                "epoch": None if not per_epoch else step / per_epoch,
                "tokens": None if not per_step else step * per_step,
                "seconds": sum(point.seconds for point in points) / len(points),
                "value": sum(values) / len(values),
                "low": min(values),
                "high": max(values),
                "n": len(values),
            }
        )
    return rows


def reach(curve: Curve, target: float) -> Point | None:
    """Return the first point at or below a target, or None; points may be in any order."""
    return min((point for point in curve if point.value <= target), default=None)


def growth_exponent(d: Sequence[float], std: Sequence[float]) -> Exponent:
    """Fit the power with which a standard deviation grows with a width.

    Its 95 % interval takes the points as independent.

    Args:
        d: Widths, positive, two or more different ones. A width may come up once per seed.
        std: The standard deviation at each, positive, in any unit.

    Raises:
        ValueError: Lengths that differ, fewer than two different widths, or a width or a standard
            deviation that is not positive and finite.
    """
    if len(d) != len(std) or len(set(d)) < 2:
        raise ValueError(
            f"d={list(d)} with {len(std)} deviations: give one for each, at two widths or more"
        )
    if not all(0 < value < math.inf for value in (*d, *std)):
        raise ValueError(f"d={list(d)}, std={list(std)}: all must be positive and finite")
    n = len(d)
    fit = stats.linregress(np.log(d), np.log(std))
    slope = float(fit.slope)
    if n < 3:
        return Exponent(slope, None, n)
    # linregress has no error where nothing varies.
    error = float(fit.stderr) if len(set(std)) > 1 else 0.0
    return Exponent(slope, student_interval(slope, error, n - 2), n)
