"""The answer in a few sentences, computed: which setting is best, by how much, how sure.

Each arm (settings that differ in the learning rate only, or in another knob of training) is
compared at its best with the arm that has ``sqrt`` and is otherwise equal; all those comparisons
together are one family (Holm p values). What a difference is called stands in
``analysis.comparison``. The setting with the lowest mean is named best, but nobody is where

    the seeds that are compared say otherwise than the means over all runs, or
    a larger share of its seeds was lost than of one that it is compared with.

Where knobs were swept, the comparison at equal values comes second; where nothing else was, their
values are what is compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from attnscale.analysis.comparison import compare
from attnscale.analysis.settings import Grid, Setting
from attnscale.analysis.tuning import Arm, arms
from attnscale.report.comparisons import (
    Comparison,
    compare_arms,
    compare_pair,
    compare_settings,
    partner,
)
from attnscale.report.sentences import (
    comparison_sentence,
    ends_sentences,
    equal_knobs_sentences,
    lost_sentences,
    missing_sentences,
    number,
    others_sentences,
    seeds,
    speed_sentences,
    unclaimed_sentences,
)
from attnscale.tracking.runs import OBJECTIVE

LAST = "val/loss"
"""Its last value is the loss at the end."""


@dataclass(frozen=True)
class Answer:
    """What a report says first.

    Attributes:
        sentences: In words.
        best: The setting that is named best, or None.
        comparisons: Every setting against its reference, knobs equal.
        at_best: Every arm against its reference, each at its best; the same where no knob was
            swept.
        headline: The comparison that the first sentences are about, or None.
    """

    sentences: tuple[str, ...]
    best: Setting | None
    comparisons: tuple[Comparison, ...] = ()
    at_best: tuple[Comparison, ...] = ()
    headline: Comparison | None = None


def _compared(arm: Arm, comparisons: Sequence[Comparison]) -> list[tuple[Setting, float, int]]:
    """Return whom an arm is compared with: the setting, arm − setting, seeds."""
    return [
        *(
            (c.reference, c.difference.value, c.difference.n_a)
            for c in comparisons
            if c.setting in arm.settings
        ),
        *(
            (c.setting, -c.difference.value, c.difference.n_b)
            for c in comparisons
            if c.reference in arm.settings
        ),
    ]


def _objection(
    arm: Arm, lowest: Setting, bests: Sequence[Setting], comparisons: Sequence[Comparison]
) -> str | None:
    """Return why the setting with the lowest mean is not named best, or None.

    Args:
        arm: Its arm.
        lowest: The setting.
        bests: Every arm at its best.
        comparisons: What is compared.
    """
    pairs = [
        (s, d.value, d.n_a)
        for s in bests
        if s.losses.keys() != lowest.losses.keys()
        and (d := compare(lowest.losses, s.losses)).opposed
    ]
    for other, value, n in [*pairs, *_compared(arm, [c for c in comparisons if c.split])]:
        if value > 0:
            return (
                f"{lowest.label} has the lowest mean over all its runs, {number(lowest.mean_loss)} "
                f"against {number(other.mean_loss)} of {other.label}, but not over the {seeds(n)} "
                "that are compared"
            )
    for other, _, _ in _compared(arm, comparisons):
        if lowest.share_lost > other.share_lost:
            return (
                f"{lowest.label} has the lowest mean of the best validation loss, "
                f"{number(lowest.mean_loss)}, over the runs that it finished, but lost "
                f"{lowest.lost} of {lowest.ended}, against {other.lost} of {other.ended} of "
                f"{other.label}"
            )
    return None


def _first(lowest: Setting) -> str:
    """Return the sentence that names the lowest mean, and what it came to at the end."""
    estimate, last = lowest.estimate(OBJECTIVE), lowest.estimate(LAST)
    spread = "" if estimate is None or estimate.std is None else f" ± {estimate.std:.2g}"
    end = "" if last is None else f"; {number(last.value)} at the last epoch"
    return (
        f"Lowest mean of the best validation loss: {lowest.label}, {number(lowest.mean_loss)}"
        f"{spread} ({seeds(len(lowest.losses))}{end})."
    )


def make_answer(grid: Grid) -> Answer:
    """Return the answer for a set of runs, also for one that is empty or half finished."""
    every = arms(grid.settings)
    without_result = [*missing_sentences(grid), *lost_sentences(every)]
    results = [setting for setting in grid.settings if setting.losses]
    if not results:
        first = "No run has finished, so there is nothing to compare yet."
        return Answer((first if grid.settings else "There is no run here.", *without_result), None)
    if len(results) == 1:
        (only,) = results
        text = f"Only {only.label} has results: best validation loss {number(only.mean_loss)} "
        return Answer((f"{text}({seeds(len(only.losses))}).", *without_result), only)
    contenders = [arm for arm in every if arm.candidates]
    if len(contenders) == 1:
        contenders = [Arm(setting.values, (setting,)) for setting in results]
    bests = [best for arm in contenders if (best := arm.best()) is not None]
    order = sorted(range(len(bests)), key=lambda i: bests[i].mean_loss)
    lowest, (arm, rival) = bests[order[0]], (contenders[i] for i in order[:2])

    comparisons = compare_settings(grid)
    swept = bool(contenders[0].knobs)
    at_bests = compare_arms(contenders, grid) if swept else comparisons
    own = [c for c in at_bests if c.setting in arm.settings] or [
        c for c in at_bests if c.reference in arm.settings
    ]
    headline = min(own, key=lambda c: c.difference.value) if own else compare_pair(arm, rival, grid)
    unclaimed = [
        (a, other)
        for a in contenders
        if (other := partner(a, contenders)) is not None
        and not any(c.setting in a.settings for c in at_bests)
    ]
    headlines = [] if headline is None else [headline]
    objection = _objection(arm, lowest, bests, [*at_bests, *headlines])
    best = lowest if objection is None else None
    tuned = [
        a
        for a in every
        if lowest in a.settings
        or any(s in a.settings for c in headlines for s in (c.setting, c.reference))
    ]
    sentences = [
        _first(lowest) if objection is None else f"Nobody is named best: {objection}.",
        *(comparison_sentence(c, best, grid.together) for c in headlines),
        *ends_sentences(tuned),
        *others_sentences(at_bests, headline, grid.together),
        *speed_sentences(at_bests),
        *(equal_knobs_sentences(comparisons, contenders[0].knobs) if swept else ()),
        *unclaimed_sentences([*unclaimed, *([] if headlines else [(arm, rival)])]),
        *without_result,
    ]
    return Answer(tuple(sentences), best, tuple(comparisons), tuple(at_bests), headline)
