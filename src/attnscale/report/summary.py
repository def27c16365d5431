"""The table: a row per setting, every cell computed from its runs."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from attnscale.analysis.comparison import in_words, verdict, verdict_in_words
from attnscale.analysis.curves import late_means
from attnscale.analysis.estimate import Estimate
from attnscale.analysis.progress import SHARES, Speed
from attnscale.analysis.settings import Grid, Setting, short, short_names
from attnscale.analysis.tuning import arms
from attnscale.report.answer import LAST, Answer
from attnscale.report.comparisons import Comparison
from attnscale.tracking.runs import OBJECTIVE, Run

OUTCOMES = ("finished", "diverged", "failed", "killed", "running")
TESTED = {"test/loss": "test loss", "test/bleu": "test BLEU"}
VALIDATED = {"val/explained_variance": "explained variance", "val/accuracy": "accuracy"}


def with_spread(estimate: Estimate | None) -> str | None:
    """Return mean ± standard deviation over seeds as text; no spread for one seed."""
    if estimate is None:
        return None
    if estimate.std is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} ± {estimate.std:.2g}"


def at_the_end(setting: Setting, statistic: str) -> float | str | None:
    """Return where a statistic of attentions ends, as text by kind where there are several."""
    means = late_means(setting, statistic)
    if len(means) < 2:
        return next(iter(means.values()), None)
    return ", ".join(f"{kind} {mean:.3g}" for kind, mean in means.items())


def _at_best_epoch(run: Run, metric: str) -> float | None:
    """Return a run's validation figure of the epoch with the lowest loss."""
    best = min(run.curve(LAST), key=lambda point: point.value, default=None)
    steps = {point.step: point.value for point in run.curve(metric)} if best else {}
    return None if best is None else steps.get(best.step)


def in_steps(speed: Speed) -> str | None:
    """Return how many times the steps of the reference it takes to a level, as text."""
    missed = f"{speed.missed} not reached" if speed.missed else None
    if speed.ratio is None:
        return missed
    interval = speed.interval
    spread = "" if interval is None else f" ({interval.low:.2f} to {interval.high:.2f})"
    return f"{speed.ratio:.2f}{spread}" + (f", {missed}" if missed else "")


def _against_sqrt(comparison: Comparison | None) -> list[str | None]:
    """Return the cells of a comparison: verdict, short enough for a terminal; difference."""
    if comparison is None:
        return [None, None]
    d = comparison.difference
    side = verdict(d)
    return [side if side == "equivalent" else verdict_in_words(d), in_words(d)]


def _filled(
    columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows without the columns that no row fills."""
    filled = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    return [columns[i] for i in filled], [[row[i] for i in filled] for row in rows]


def _outcome(setting: Setting) -> str:
    counts = {outcome: setting.count(outcome) for outcome in OUTCOMES}
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)


def summary(grid: Grid, answer: Answer) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows; columns that no setting fills are left out.

    All figures of quality in a row are of the epoch with the lowest validation loss, but for the
    last loss, which stands beside it.
    """
    comparisons = {id(c.setting): c for c in answer.comparisons}
    columns = [
        *short_names(grid.keys).values(),
        "runs",
        "best val loss",
        "last val loss",
        "verdict",
        "− sqrt (interval)",
        *TESTED.values(),
        *VALIDATED.values(),
        "diverged",
        "entropy ÷ ln n",
        "logit std",
        "logit std predicted",
        "ms/step",
    ]
    rows = []
    for setting in grid.settings:
        speed = setting.estimate("time/steps_per_second")
        rows.append(
            [
                *setting.values.values(),
                _outcome(setting),
                with_spread(setting.estimate(OBJECTIVE)),
                with_spread(setting.estimate(LAST)),
                *_against_sqrt(comparisons.get(id(setting))),
                *(with_spread(setting.estimate(metric)) for metric in TESTED),
                *(
                    with_spread(setting.estimate(partial(_at_best_epoch, metric=metric)))
                    for metric in VALIDATED
                ),
                f"{setting.count('diverged')} of {len(setting.runs)}",
                at_the_end(setting, "entropy_norm"),
                at_the_end(setting, "logit_std_row"),
                at_the_end(setting, "logit_std_predicted"),
                None if speed is None or not speed.value else 1000 / speed.value,
            ]
        )
    return _filled(columns, rows)


def tuned(grid: Grid, answer: Answer) -> tuple[list[str], list[list[Any]]] | None:
    """Return columns and rows of the arms at their best, or None where no knob was swept."""
    every = [arm for arm in arms(grid.settings) if arm.candidates]
    if not any(len(arm.settings) > 1 for arm in every):
        return None
    columns = [
        "setting at its best",
        "at an end of",
        "best val loss",
        "last val loss",
        "verdict",
        "− sqrt (interval)",
    ]
    rows = []
    for arm in every:
        best = arm.best()
        assert best is not None
        comparison = next((c for c in answer.at_best if c.setting in arm.settings), None)
        rows.append(
            [
                best.label,
                ", ".join(map(short, arm.ends(best))),
                with_spread(best.estimate(OBJECTIVE)),
                with_spread(best.estimate(LAST)),
                *_against_sqrt(comparison),
            ]
        )
    return _filled(columns, rows)


def progress(answer: Answer) -> tuple[list[str], list[list[Any]]] | None:
    """Return columns and rows of how fast each gets to shares of what its reference improves by.

    Those at their best come first. None without any curve.
    """
    comparisons = {(c.setting.label, c.reference.label): c for c in answer.comparisons}
    at_best = {(c.setting.label, c.reference.label): c for c in answer.at_best}
    rows = [
        [*labels, *(in_steps(speed) for speed in comparison.speeds)]
        for labels, comparison in {**at_best, **comparisons}.items()
    ]
    rows = [row for row in rows if any(cell is not None for cell in row[2:])]
    shares = (f"steps ÷ reference's to {100 * share:g} %" for share in SHARES)
    return (["setting", "reference", *shares], rows) if rows else None


def failures(grid: Grid) -> list[list[Any]]:
    """Return a row for each run that is not finished: setting, seed, state, reason."""
    return [
        [setting.label, run.seed, run.outcome, run.reason, run.run_id]
        for setting in grid.settings
        for run in setting.runs
        if run.outcome != "finished"
    ]
