"""How fast a setting trains: steps to a share of what its reference improves by.

    level_q = start − q · (start − best of the reference),  q = 50, 90, 99 %

The steps to a level are those of the first crossing, by a straight line between two points of the
validation curve; the curve begins at step 0 with the first training loss, which is the loss of the
untrained model in the same unit. Start, best and level are those of one pair of runs with the same
seeds; the ratio of steps is averaged as a logarithm over the pairs that both get there,

    ratio = exp(mean of ln(steps / steps of the reference)), with Student's t interval,

and who does not get there is counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnscale.analysis.comparison import Values
from attnscale.analysis.estimate import Interval, estimate
from attnscale.tracking.runs import Curve, Run

SHARES = (0.5, 0.9, 0.99)
CURVE = "val/loss"


@dataclass(frozen=True)
class Speed:
    """Steps of one setting over those of its reference to one level.

    Attributes:
        share: Of the reference's improvement, in (0, 1).
        ratio: Steps ÷ steps of the reference, below 1 where the setting is faster; None where no
            pair gets there.
        interval: Of the ratio, None for one pair or none.
        steps: Mean steps of the setting over the pairs that both get there.
        reference_steps: The same of the reference.
        n: Pairs that both get there.
        missed: Pairs where only the setting does not get there.
        reference_missed: Pairs where only the reference does not get there.
    """

    share: float
    ratio: float | None
    interval: Interval | None
    steps: float | None
    reference_steps: float | None
    n: int
    missed: int
    reference_missed: int


def steps_to(curve: Curve, start: float, level: float) -> float | None:
    """Return the steps until a loss is first at or below a level, or None.

    Args:
        curve: Validation loss, in any order.
        start: Loss at step 0.
        level: Loss to reach, below ``start``.
    """
    before, loss = 0, start
    for point in sorted(curve):
        if point.value <= level:
            # Between the two points, where the straight line crosses the level.
            share = (loss - level) / (loss - point.value) if loss > point.value else 1.0
            return before + share * (point.step - before)
        before, loss = point.step, point.value
    return None


def _pair(run: Run, reference: Run, share: float) -> tuple[float | None, float | None] | None:
    """Return both steps to a level, or None where the reference improves on nothing."""
    curve, start = reference.curve(CURVE), reference.start_loss
    best = min((point.value for point in curve), default=math.inf)
    if not math.isfinite(start) or not best < start:
        return None
    level = start - share * (start - best)
    return steps_to(run.curve(CURVE), start, level), steps_to(curve, start, level)


def _paired(runs: Sequence[Run], references: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of finished runs of the same replicate."""
    by_replicate = {run.replicate: run for run in references if run.outcome == "finished"}
    return [
        (run, by_replicate[run.replicate])
        for run in runs
        if run.outcome == "finished" and run.replicate in by_replicate
    ]


def log_steps(
    runs: Sequence[Run], references: Sequence[Run], share: float
) -> tuple[Values, Values, int]:
    """Return ln steps to a level, of a setting and of its reference, by replicate.

    Args:
        runs: Runs of a setting.
        references: Runs of its reference.
        share: Of the reference's improvement.

    Returns:
        Both, and how many of the setting do not get there: they have the steps that they trained
        for, the least that they can need.
    """
    a, b, missed = {}, {}, 0
    for run, reference in _paired(runs, references):
        steps = _pair(run, reference, share)
        if steps is None or not steps[1]:
            continue
        missed += steps[0] is None
        last = max(point.step for point in run.curve(CURVE))
        a[run.replicate], b[run.replicate] = math.log(steps[0] or last), math.log(steps[1])
    return a, b, missed


def speeds(
    runs: Sequence[Run], references: Sequence[Run], shares: Sequence[float] = SHARES
) -> list[Speed]:
    """Compare the steps of two settings to levels of loss, paired by replicate.

    Args:
        runs: Runs of a setting; those that did not finish are left out.
        references: Runs of its reference.
        shares: Of the reference's improvement.

    Returns:
        One record for each share; none without a pair.
    """
    pairs = _paired(runs, references)
    records = []
    for share in shares:
        steps = [both for pair in pairs if (both := _pair(*pair, share)) is not None]
        reached = [(a, b) for a, b in steps if a is not None and b is not None and a > 0 and b > 0]
        logs = estimate([math.log(a / b) for a, b in reached]) if reached else None
        interval = None if logs is None else logs.interval
        records.append(
            Speed(
                share=share,
                ratio=None if logs is None else math.exp(logs.value),
                interval=None
                if interval is None
                else Interval(math.exp(interval.low), math.exp(interval.high), interval.level),
                steps=sum(a for a, _ in reached) / len(reached) if reached else None,
                reference_steps=sum(b for _, b in reached) / len(reached) if reached else None,
                n=len(reached),
                missed=sum(a is None and b is not None for a, b in steps),
                reference_missed=sum(b is None and a is not None for a, b in steps),
            )
        )
    return records if pairs else []
