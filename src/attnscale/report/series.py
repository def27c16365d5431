"""Curves of settings: each metric over steps, joined over seeds on one grid.

    at each step of a thinned grid: mean, least and largest over the seeds that have a point there

Values that are not finite are left out. The axes are optimizer steps, epochs, tokens and seconds;
tokens and epochs follow from what a run recorded of its data, seconds from the points' times.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from attnscale.report.runs import Run, finite
from attnscale.report.settings import Setting
from attnscale.tracking.history import History

MOST_POINTS = 300
EARLY_STEPS = 100
STEPS_PER_EPOCH, TOKENS_PER_STEP = "data/steps_per_epoch", "data/tokens_per_step"


class Point(NamedTuple):
    """A point of one run's curve; seconds since the curve's first point."""

    step: int
    value: float
    seconds: float


Curve = list[Point]


class Curves:
    """Reads curves once each, thinned."""

    def __init__(self, history: History, most: int = MOST_POINTS) -> None:
        """Read from a store.

        Args:
            history: The store.
            most: Points of a drawn curve.
        """
        self.history, self.most = history, most
        self.read: dict[tuple[str, str], Curve] = {}

    def of(self, run: Run, metric: str) -> Curve:
        """Return a run's whole curve of a metric; empty if it has none."""
        key = (run.run_id, metric)
        if key not in self.read:
            points = [] if metric not in run.recorded else self.history.points(run.run_id, metric)
            start = points[0][2] if points else 0
            self.read[key] = [
                Point(step, value, (at - start) / 1000)
                for step, value, at in points
                if finite(value)
            ]
        return self.read[key]


def grid_of(curves: Sequence[Curve], most: int = MOST_POINTS) -> list[int]:
    """Return at most ``most`` steps that the curves have, the first and the last among them."""
    return thinned({point.step for curve in curves for point in curve}, most)


def thinned(found: Collection[int], most: int) -> list[int]:
    """Return at most ``most`` of some steps in order, the first and the last among them."""
    steps = sorted(found)
    if len(steps) <= most:
        return steps
    stride = math.ceil((len(steps) - 1) / (most - 1))
    kept = steps[::stride]
    return kept if kept[-1] == steps[-1] else [*kept, steps[-1]]


def rows_of(
    setting: Setting,
    metric: str,
    curves: Curves,
    *,
    until: int | None = None,
    most: int | None = None,
) -> list[dict[str, object]]:
    """Return the points of a setting for one metric.

    Args:
        setting: Runs that differ in their seed.
        metric: Metric's name.
        curves: Where to read.
        until: Leave out later steps.
        most: Most points, if that is fewer than ``curves`` allows.

    Returns:
        Rows with ``setting``, ``step``, ``epoch``, ``tokens``, ``seconds`` (None where not known),
        ``value`` (mean over seeds), ``low``, ``high``, ``n``.
    """
    runs = [run for run in setting.runs if run.state in ("finished", "running", "diverged")]
    found = [curves.of(run, metric) for run in runs]
    found = [[point for point in curve if until is None or point.step <= until] for curve in found]
    limit = curves.most if most is None else min(most, curves.most)
    steps = grid_of([curve for curve in found if curve], limit)
    tables = [{point.step: point for point in curve} for curve in found if curve]
    first = runs[0] if runs else None
    per_epoch = None if first is None else first.metrics.get(STEPS_PER_EPOCH)
    per_step = None if first is None else first.metrics.get(TOKENS_PER_STEP)
    label = setting.label
    made: list[dict[str, object]] = []
    for step in steps:
        here = [table[step] for table in tables if step in table]
        values = [point.value for point in here]
        made.append(
            {
                "setting": label,
                "step": step,
                "epoch": None if not per_epoch else step / per_epoch,
                "tokens": None if not per_step else step * per_step,
                "seconds": sum(point.seconds for point in here) / len(here),
                "value": sum(values) / len(values),
                "low": min(values),
                "high": max(values),
                "n": len(values),
            }
        )
    return made


def reach(curve: Curve, target: float) -> Point | None:
    """Return the first point at or below a target, or None."""
    return next((point for point in curve if point.value <= target), None)
