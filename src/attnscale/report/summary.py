"""The table: a row per setting, every cell computed from its runs."""

from typing import Any

from attnscale.analysis.comparison import in_words, verdict_in_words
from attnscale.analysis.estimate import Estimate, estimate
from attnscale.analysis.progress import SHARES, Speed
from attnscale.analysis.settings import Grid, Replicate, Setting, short, short_names
from attnscale.analysis.tuning import arms
from attnscale.report.answer import Answer
from attnscale.tracking.runs import OBJECTIVE, Run

OUTCOMES = ("finished", "diverged", "failed", "killed", "running")
TESTED = {"test/loss": "test loss", "test/bleu": "test BLEU"}
VALIDATED = {"val/explained_variance": "explained variance", "val/accuracy": "accuracy"}
LOSS = "val/loss"


def with_spread(estimate: Estimate | None) -> str | None:
    """Return mean ± standard deviation over seeds as text; no spread for one seed."""
    if estimate is None:
        return None
    if estimate.std is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} ± {estimate.std:.2g}"


def _over_attentions(run: Run, statistic: str) -> float | None:
    """Return the mean over a run's attentions of the last value of a statistic."""
    values = [
        value
        for key, value in run.metrics.items()
        if key.startswith("attention/") and key.endswith(f"/{statistic}") and "/head" not in key
    ]
    return sum(values) / len(values) if values else None


def attention_mean(setting: Setting, statistic: str) -> float | None:
    """Return the mean over runs and attentions of a statistic's last value."""
    values = [
        value
        for run in setting.runs
        if run.outcome == "finished" and (value := _over_attentions(run, statistic)) is not None
    ]
    return sum(values) / len(values) if values else None


def at_best_epoch(setting: Setting, metric: str) -> Estimate | None:
    """Return mean and spread of a validation figure, of the epoch with the lowest loss."""
    values: dict[Replicate, float] = {}
    for run in setting.runs:
        if run.outcome == "finished" and run.curve(LOSS):
            best = min(run.curve(LOSS), key=lambda point: point.value).step
            points = [point.value for point in run.curve(metric) if point.step == best]
            values |= dict.fromkeys((run.replicate,), points[0]) if points else {}
    return estimate(list(values.values())) if values else None


def in_steps(speed: Speed) -> str | None:
    """Return how many times the steps of the reference it takes to a level, as text."""
    missed = [
        f"{n} {who}"
        for n, who in ((speed.missed, "not reached"), (speed.reference_missed, "only here"))
        if n
    ]
    if speed.ratio is None:
        return ", ".join(missed) or None
    low, high = (
        (None, None) if speed.interval is None else (speed.interval.low, speed.interval.high)
    )
    text = f"{speed.ratio:.2f}" if low is None else f"{speed.ratio:.2f} ({low:.2f} to {high:.2f})"
    return ", ".join([text, *missed])


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
        "− sqrt (interval)",
        "verdict",
        *TESTED.values(),
        *VALIDATED.values(),
        *(f"steps ÷ sqrt to {100 * share:g} %" for share in SHARES),
        "diverged",
        "entropy ÷ ln n",
        "logit std",
        "logit std predicted",
        "ms/step",
    ]
    rows = []
    for setting in grid.settings:
        comparison = comparisons.get(id(setting))
        steps = [] if comparison is None else [in_steps(speed) for speed in comparison.speeds]
        speed = setting.estimate("time/steps_per_second")
        rows.append(
            [
                *setting.values.values(),
                _outcome(setting),
                with_spread(setting.estimate(OBJECTIVE)),
                with_spread(setting.estimate(LOSS)),
                None if comparison is None else in_words(comparison.difference),
                None if comparison is None else verdict_in_words(comparison.difference),
                *(with_spread(setting.estimate(metric)) for metric in TESTED),
                *(with_spread(at_best_epoch(setting, metric)) for metric in VALIDATED),
                *(steps or [None] * len(SHARES)),
                f"{setting.count('diverged')} of {len(setting.runs)}",
                attention_mean(setting, "entropy_norm"),
                attention_mean(setting, "logit_std_row"),
                attention_mean(setting, "logit_std_predicted"),
                None if speed is None or not speed.value else 1000 / speed.value,
            ]
        )
    filled = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    return [columns[i] for i in filled], [[row[i] for i in filled] for row in rows]


def tuned(grid: Grid, answer: Answer) -> tuple[list[str], list[list[Any]]] | None:
    """Return columns and rows of the arms at their best, or None where no knob was swept."""
    every = arms(grid.settings)
    if not any(len(arm.settings) > 1 for arm in every):
        return None
    comparisons = {c.setting.label: c for c in answer.at_best}
    columns = [
        "setting at its best",
        "at an end of",
        "best val loss",
        "− sqrt (interval)",
        "verdict",
    ]
    rows = []
    for arm in every:
        best = arm.best()
        if best is None:
            continue
        comparison = comparisons.get(best.label)
        rows.append(
            [
                best.label,
                ", ".join(map(short, arm.ends(best))),
                with_spread(best.estimate(OBJECTIVE)),
                None if comparison is None else in_words(comparison.difference),
                None if comparison is None else verdict_in_words(comparison.difference),
            ]
        )
    return columns, rows


def failures(grid: Grid) -> list[list[Any]]:
    """Return a row for each run that is not finished: setting, seed, state, reason."""
    return [
        [setting.label, run.seed, run.outcome, run.reason, run.run_id]
        for setting in grid.settings
        for run in setting.runs
        if run.outcome != "finished"
    ]
