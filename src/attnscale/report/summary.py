"""The table: a row per setting, every cell computed from its runs."""

from typing import Any

from attnscale.analysis.comparison import in_words, verdict_in_words
from attnscale.analysis.curves import reach
from attnscale.analysis.estimate import Estimate
from attnscale.analysis.settings import Grid, Setting, short_names
from attnscale.report.answer import Answer
from attnscale.tracking.runs import OBJECTIVE, Run

OUTCOMES = ("finished", "diverged", "failed", "killed", "running")
MEASURES = {
    "test/loss": "test loss",
    "val/explained_variance": "explained variance",
    "val/accuracy": "accuracy",
    "test/bleu": "test BLEU",
}


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


def common_loss(grid: Grid) -> float | None:
    """Return the loss that every run of every sound setting reaches: the worst of their best."""
    sound = [setting for setting in grid.settings if setting.sound]
    return max(loss for s in sound for loss in s.losses.values()) if len(sound) > 1 else None


def _reached(setting: Setting, target: float | None) -> tuple[Any, Any]:
    """Return mean steps and seconds to a loss, None where a run does not get there."""
    if target is None:
        return None, None
    finished = [run for run in setting.runs if run.outcome == "finished"]
    points = [p for run in finished if (p := reach(run.curve("val/loss"), target)) is not None]
    if not points or len(points) < len(finished):
        return None, None
    return (
        round(sum(point.step for point in points) / len(points)),
        sum(point.seconds for point in points) / len(points),
    )


def _outcome(setting: Setting) -> str:
    counts = {outcome: setting.count(outcome) for outcome in OUTCOMES}
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)


def summary(grid: Grid, answer: Answer) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows; columns that no setting fills are left out."""
    target = common_loss(grid)
    differences = {id(c.setting): c.difference for c in answer.comparisons}
    columns = [
        *short_names(grid.keys).values(),
        "runs",
        "best val loss",
        "− sqrt (interval)",
        "verdict",
        *MEASURES.values(),
        "steps to common loss",
        "seconds to common loss",
        "diverged",
        "entropy ÷ ln n",
        "logit std",
        "logit std predicted",
        "ms/step",
    ]
    rows = []
    for setting in grid.settings:
        steps, seconds = _reached(setting, target)
        difference = differences.get(id(setting))
        speed = setting.estimate("time/steps_per_second")
        rows.append(
            [
                *setting.values.values(),
                _outcome(setting),
                with_spread(setting.estimate(OBJECTIVE)),
                None if difference is None else in_words(difference),
                None if difference is None else verdict_in_words(difference),
                *(with_spread(setting.estimate(metric)) for metric in MEASURES),
                steps,
                seconds,
                f"{setting.count('diverged')} of {len(setting.runs)}",
                attention_mean(setting, "entropy_norm"),
                attention_mean(setting, "logit_std_row"),
                attention_mean(setting, "logit_std_predicted"),
                None if speed is None or not speed.value else 1000 / speed.value,
            ]
        )
    filled = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    return [columns[i] for i in filled], [[row[i] for i in filled] for row in rows]


def failures(grid: Grid) -> list[list[Any]]:
    """Return a row for each run that is not finished: setting, seed, state, reason."""
    return [
        [setting.label, run.seed, run.outcome, run.reason, run.run_id]
        for setting in grid.settings
        for run in setting.runs
        if run.outcome != "finished"
    ]
