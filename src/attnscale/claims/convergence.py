"""Judges of speed, convergence and generalisation: the claims about training without the factor.

"Converged" is measured against what a model reaches whose attention does nothing: the arm
``attention.scale=1e-20``, all of whose weights are 1/n.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from attnscale.analysis.comparison import Values, compare
from attnscale.analysis.progress import CURVE, log_steps, speeds, steps_to
from attnscale.analysis.rates import Results
from attnscale.analysis.settings import Replicate, Setting
from attnscale.analysis.tuning import Arm, AtBest, at_best
from attnscale.claims.findings import Cell, Finding, at_end, cells, doubts, family, judgement
from attnscale.claims.judgement import FAILS, HOLDS, OPEN, Judgement, together, verdict_of
from attnscale.tracking.runs import Curve, Point, Run

JUDGED_SHARES = (0.5, 0.9)
"""Shares of the reference's improvement where speed is judged. 99 % is only told: that level is the
reference's own best, which its own runs reach and others' may miss by noise alone."""

STEPS_MARGIN = math.log(1.1)
"""A tenth more or fewer steps is no difference that matters."""

LITTLE = 0.2
"""A run that improves by less than this share of what the reference does has learned nothing."""


def _runs(setting: Setting, values: Values) -> list[Run]:
    """Return the finished runs of a setting that may be compared."""
    return [r for r in setting.runs if r.outcome == "finished" and r.replicate in values]


def _pairs(results: Results, above: int) -> list[tuple[Cell, AtBest]]:
    """Return (cell, none and sqrt at their best), d_k above a size."""
    pairs = [
        (cell, at_best(cell.arms["none"], cell.arms["sqrt"]))
        for cell in cells(results)
        if cell.d_k > above and {"none", "sqrt"} <= cell.arms.keys()
    ]
    return [(cell, pair) for cell, pair in pairs if pair is not None]


def _either_way(cell: Cell, pair: AtBest) -> tuple[bool, bool, tuple[str, ...]]:
    """Return the doubts of a figure that another rate may move either way, unlike the loss."""
    falls, rises, remarks = doubts(cell.arms["none"], cell.arms["sqrt"], pair)
    ends = at_end(cell.arms["none"], pair.a) or at_end(cell.arms["sqrt"], pair.b)
    return falls or ends, rises or ends, remarks


def slower(*, above: int) -> Callable[[Results], Judgement]:
    """Return a judge of "none trains more slowly than sqrt", d_k above a size.

    The statistic is the paired difference of ln steps to 50 and 90 % of sqrt's improvement, at each
    one's best rate. A run that does not get there counts with the steps that it trained for, the
    least that it can need, and is no evidence that the two are alike.
    """

    def judge(results: Results) -> Judgement:
        findings, ratio_texts = [], []
        for cell, pair in _pairs(results, above):
            none, sqrt = _runs(pair.a, pair.values_a), _runs(pair.b, pair.values_b)
            falls, rises, remarks = _either_way(cell, pair)
            for share in JUDGED_SHARES:
                a, b, missed = log_steps(none, sqrt, share)
                if a:
                    difference = compare(a, b, margin=None if missed else STEPS_MARGIN)
                    label = f"{cell.name}, ln steps to {100 * share:g} %, none − sqrt"
                    findings.append(Finding(label, difference, falls, rises, remarks))
            ratio_texts.append(f"{cell.name}: {_in_words(none, sqrt)}")
        says = {"higher": HOLDS, "lower": FAILS, "equivalent": FAILS}
        speed_judgement = judgement(family(findings), says, missing="missing: arms none and sqrt")
        return Judgement(speed_judgement.verdict, "; ".join([speed_judgement.value, *ratio_texts]))

    return judge


def _in_words(none: Sequence[Run], sqrt: Sequence[Run]) -> str:
    texts = []
    for speed in speeds(none, sqrt):
        ratio = "no pair" if speed.ratio is None else f"{speed.ratio:.3g} times sqrt's"
        texts.append(
            f"{ratio} to {100 * speed.share:g} %"
            + (f" ({speed.missed} never get there)" if speed.missed else "")
        )
    return "steps of none " + ", ".join(texts)


def not_at_all(results: Results) -> Judgement:
    """Judge "none does not converge at all", d_k above 64.

    At its best rate a run of none has learned to use attention where its loss is below the best
    mean loss without attention by more than δ. It is open where some run of sqrt has not learned
    it, for then the task does not tell; where none has not, but its best rate is an end of its
    grid, so that another rate might; and where it has, but the arm without attention could be as
    good at a rate outside its grid.
    """
    findings, parts = [], []
    for cell in cells(results):
        if cell.d_k <= 64 or not {"none", "sqrt"} <= cell.arms.keys():
            continue
        none, uniform, sqrt = cell.arms["none"], cell.without_attention, cell.arms["sqrt"].best()
        flat = None if uniform is None else uniform.best()
        margin = None if sqrt is None else cell.margin(sqrt)
        if uniform is None or flat is None or sqrt is None or margin is None:
            lacking = "sqrt" if sqrt is None else "attention.scale=1e-20, a model without attention"
            findings.append(OPEN)
            parts.append(f"{cell.name}: missing: {lacking}")
            continue
        best, border = none.best() or none.settings[0], flat.mean_loss - margin.value
        learned, usual = (
            [run.loss is not None and run.loss < border for run in setting.runs if run.ended]
            for setting in (best, sqrt)
        )
        remarks = [
            f"best rate of {name} ({setting.runs[0].lr:g}) at an end of its grid"
            for name, arm, setting, matters in (
                ("none", none, best, not all(learned) and best.losses),
                ("no attention", uniform, flat, any(learned)),
            )
            if matters and at_end(arm, setting)
        ]
        sure = all(usual) and not remarks
        findings.append(verdict_of(*(not one for one in learned)) if sure else OPEN)
        counts = (
            f"{sum(learned)} of {len(learned)} runs of none and {sum(usual)} of {len(usual)} of "
            f"sqrt below {border:.3g} (without attention {flat.mean_loss:.3g}; δ = "
            f"{margin.value:.2g}, {margin.source})",
            f"mean best loss of none {best.mean_loss:.3g}, of sqrt {sqrt.mean_loss:.3g}",
            _little(none, sqrt.mean_loss),
        )
        parts.append(f"{cell.name}: {', '.join((*counts, *remarks))}")
    if not findings:
        return Judgement(OPEN, "missing: arms none and sqrt at d_k above 64")
    return Judgement(together(findings), "; ".join(parts))


def _little(arm: Arm, best: float) -> str:
    """Count, over all rates of an arm, the runs that diverged and those that learned nothing."""
    runs = [run for setting in arm.settings for run in setting.runs]
    little = sum(
        run.loss is not None
        and math.isfinite(run.start_loss)
        and run.start_loss - run.loss < LITTLE * (run.start_loss - best)
        for run in runs
    )
    diverged = sum(run.outcome == "diverged" for run in runs)
    return (
        f"at all rates {diverged} of {len(runs)} runs diverged and {little} learned less than "
        f"{100 * LITTLE:g} % of what sqrt does"
    )


def generalises(results: Results) -> Judgement:
    """Judge "sqrt generalises better": held-out − training loss, at equal training loss.

    Both runs of a pair are read where their training loss first is as low as the worse of their two
    lowest, so that what trains better is not called generalising. Held out is the validation set,
    which is measured all along; training loss is the mean between two validations.
    """
    findings = []
    for cell, pair in _pairs(results, 0):
        falls, rises, remarks = _either_way(cell, pair)
        none, sqrt = (
            {run.replicate: run for run in _runs(setting, values)}
            for setting, values in ((pair.a, pair.values_a), (pair.b, pair.values_b))
        )
        gaps: dict[Replicate, tuple[float, float]] = {}
        for replicate in sorted(none.keys() & sqrt.keys()):
            a, b = _both_losses(none[replicate]), _both_losses(sqrt[replicate])
            if a is not None and b is not None:
                level = max(min(point.value for point in curves[0]) for curves in (a, b))
                gaps[replicate] = _held_out(*a, level) - level, _held_out(*b, level) - level
        if gaps:
            margin = cell.margin(pair.b)
            of_none, of_sqrt = ({key: gap[i] for key, gap in gaps.items()} for i in (0, 1))
            delta = None if margin is None else margin.value
            difference = compare(of_none, of_sqrt, margin=delta)
            label = f"{cell.name}, held-out − training loss, none − sqrt"
            findings.append(Finding(label, difference, falls, rises, remarks))
    says = {"higher": HOLDS, "lower": FAILS, "equivalent": FAILS}
    return judgement(family(findings), says, missing="missing: curves of none and sqrt")


Curves = tuple[list[Point], Curve]


def _both_losses(run: Run) -> Curves | None:
    """Return the mean training loss between two validations, and the validation loss."""
    held_out, losses = sorted(run.curve(CURVE)), run.curve("train/loss")
    trained = []
    for before, after in pairwise(held_out):
        between = [(x.step, x.value) for x in losses if before.step <= x.step < after.step]
        if between:
            step, loss = np.mean(between, axis=0)
            trained.append(Point(round(step), float(loss), after.seconds))
    return (trained, held_out) if trained else None


def _held_out(trained: list[Point], held_out: Curve, level: float) -> float:
    """Return the validation loss where the training loss first is at a level."""
    step = steps_to(trained, trained[0].value, level)
    steps, values = [point.step for point in held_out], [point.value for point in held_out]
    return float(np.interp(trained[-1].step if step is None else step, steps, values))
