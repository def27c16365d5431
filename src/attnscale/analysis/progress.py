"""How fast a setting trains: steps to a share of what its reference improves by.

    level_q = start − q · (start − best of the reference),  q = 50, 90, 99 %

The steps to a level are those of the first crossing, by a straight line between two points of the
validation curve; both curves begin at step 0 with the reference's first training loss, which is the
loss of the untrained model in the same unit. Start, best and level are those of one pair of runs
with the same seeds; the ratio of steps is averaged as a logarithm over the pairs that get there
(first over the pairs of one replicate, where runs repeat it),

    ratio = exp(mean of ln(steps / steps of the reference)), with Student's t interval,

and who does not get there is counted. The reference always does.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

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
        ratio: Steps ÷ steps of the reference, below 1 where the setting is faster; None where the
            setting never gets there.
        interval: Of the ratio, None for one replicate or none.
        steps: Mean steps of the setting over the replicates that get there.
        reference_steps: The same of the reference.
        n: Replicates that get there.
        missed: Replicates of which a run does not get there.
    """

    share: float
    ratio: float | None
    interval: Interval | None
    steps: float | None
    reference_steps: float | None
    n: int
    missed: int


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


def _pair(run: Run, reference: Run, share: float) -> tuple[float | None, float] | None:
    """Return both steps to a level, or None where the reference improves on nothing."""
    curve, start = reference.curve(CURVE), reference.start_loss
    best = min((point.value for point in curve), default=math.inf)
    if not math.isfinite(start) or not best < start:
        return None
    level = start - share * (start - best)
    reference_steps = steps_to(curve, start, level)
    # The reference's own best is below the level; at step 0 there is no ratio.
    return (steps_to(run.curve(CURVE), start, level), reference_steps) if reference_steps else None


def _paired(runs: Sequence[Run], references: Sequence[Run]) -> list[list[tuple[Run, Run]]]:
    """Return the pairs of finished runs of each replicate that both have."""
    pairs: dict[tuple[int, int], list[tuple[Run, Run]]] = {}
    for run, reference in itertools.product(runs, references):
        both = (run.outcome, reference.outcome, run.replicate)
        if both == ("finished", "finished", reference.replicate):
            pairs.setdefault(run.replicate, []).append((run, reference))
    return list(pairs.values())


def log_steps(
    runs: Sequence[Run], references: Sequence[Run], share: float
) -> tuple[Values, Values, int]:
    """Return ln steps to a level, of a setting and of its reference, by replicate.

    Args:
        runs: Runs of a setting.
        references: Runs of its reference.
        share: Of the reference's improvement.

    Returns:
        Both, each averaged over what repeats a replicate, and how many replicates of the setting
        do not get there: they have the steps that they trained for, the least that they can need.
    """
    a, b, missed = {}, {}, 0
    for pairs in _paired(runs, references):
        steps = [(run, both) for run, ref in pairs if (both := _pair(run, ref, share)) is not None]
        if not steps:
            continue
        replicate = pairs[0][0].replicate
        missed += any(own is None for _, (own, _) in steps)
        last = max(point.step for run, _ in steps for point in run.curve(CURVE))
        a[replicate] = fmean(math.log(own or last) for _, (own, _) in steps)
        b[replicate] = fmean(math.log(other) for _, (_, other) in steps if other)
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
    replicates = _paired(runs, references)
    records = []
    for share in shares:
        reached, logs, missed = [], [], 0
        for pairs in replicates:
            steps = [both for pair in pairs if (both := _pair(*pair, share)) is not None]
            there = [(a, b) for a, b in steps if a]
            missed += len(there) < len(steps)
            if there and len(there) == len(steps):
                reached.append(tuple(fmean(side) for side in zip(*there, strict=True)))
                logs.append(fmean(math.log(a / b) for a, b in there))
        ratio = estimate(logs) if logs else None
        interval = None if ratio is None else ratio.interval
        records.append(
            Speed(
                share=share,
                ratio=None if ratio is None else math.exp(ratio.value),
                interval=None
                if interval is None
                else Interval(math.exp(interval.low), math.exp(interval.high), interval.level),
                steps=fmean(a for a, _ in reached) if reached else None,
                reference_steps=fmean(b for _, b in reached) if reached else None,
                n=len(reached),
                missed=missed,
            )
        )
    return records if replicates else []
