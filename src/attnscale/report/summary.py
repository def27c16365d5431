"""The table: a row per setting, every cell computed from its runs."""

from typing import Any

from attnscale.report.answer import Answer, Comparison
from attnscale.report.runs import OBJECTIVE, Run
from attnscale.report.series import Curves, reach
from attnscale.report.settings import Grid, Setting, short_names
from attnscale.report.statistics import Estimate, verdict

MEASURES = {
    "test/loss": "test loss",
    "val/explained_variance": "explained variance",
    "val/accuracy": "accuracy",
    "test/bleu": "test BLEU",
}


def mean_of(estimate: Estimate | None) -> float | None:
    """Return an estimate's mean."""
    return None if estimate is None else estimate.mean


def with_spread(estimate: Estimate | None) -> str | None:
    """Return mean ± standard deviation over seeds as text; no spread for one seed."""
    if estimate is None:
        return None
    if estimate.spread is None:
        return f"{estimate.mean:.4g}"
    return f"{estimate.mean:.4g} ± {estimate.spread:.2g}"


def _over_attentions(run: Run, statistic: str) -> float | None:
    """Return the mean over a run's attentions of the last value of a statistic."""
    found = [
        value
        for key, value in run.metrics.items()
        if key.startswith("attention/") and key.endswith(f"/{statistic}") and "/head" not in key
    ]
    return sum(found) / len(found) if found else None


def attention_mean(setting: Setting, statistic: str) -> float | None:
    """Return the mean over runs and attentions of a statistic's last value."""
    found = [
        value
        for run in setting.runs
        if run.state == "finished" and (value := _over_attentions(run, statistic)) is not None
    ]
    return sum(found) / len(found) if found else None


def common_loss(grid: Grid) -> float | None:
    """Return the loss that every run of every sound setting reaches: the worst of their best."""
    sound = [setting for setting in grid.settings if setting.sound]
    return max(loss for s in sound for loss in s.losses.values()) if len(sound) > 1 else None


def _reached(setting: Setting, curves: Curves, target: float | None) -> tuple[Any, Any]:
    """Return mean steps and seconds to a loss, None where a run does not get there."""
    if target is None:
        return None, None
    points = [
        reach(curves.of(run, "val/loss"), target) for run in setting.runs if run.state == "finished"
    ]
    hit = [point for point in points if point is not None]
    if not hit or len(hit) < len(points):
        return None, None
    return (
        round(sum(point.step for point in hit) / len(hit)),
        sum(point.seconds for point in hit) / len(hit),
    )


def _outcome(setting: Setting) -> str:
    states = ("finished", "diverged", "failed", "killed", "running")
    parts = [f"{setting.count(state)} {state}" for state in states if setting.count(state)]
    return ", ".join(parts)


def _difference(comparison: Comparison | None) -> tuple[str | None, str | None]:
    if comparison is None:
        return None, None
    d = comparison.difference
    if d.interval is None:
        return f"{d.value:+.3g}", "one seed"
    text = f"{d.value:+.3g} ({d.interval.low:.3g} to {d.interval.high:.3g})"
    found = verdict(d)
    word = found if found == "within noise" else "better" if d.better else "worse"
    return text, word


def summary(grid: Grid, answer: Answer, curves: Curves) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows; columns that no setting fills are left out."""
    target = common_loss(grid)
    compared = {id(c.setting): c for c in answer.comparisons}
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
        steps, seconds = _reached(setting, curves, target)
        difference, word = _difference(compared.get(id(setting)))
        speed = mean_of(setting.estimate("time/steps_per_second"))
        rows.append(
            [
                *setting.values.values(),
                _outcome(setting),
                with_spread(setting.estimate(OBJECTIVE)),
                difference,
                word,
                *(with_spread(setting.estimate(metric)) for metric in MEASURES),
                steps,
                seconds,
                f"{setting.count('diverged')} of {len(setting.runs)}",
                attention_mean(setting, "entropy_norm"),
                attention_mean(setting, "logit_std_row"),
                attention_mean(setting, "logit_std_predicted"),
                None if not speed else 1000 / speed,
            ]
        )
    filled = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    return [columns[i] for i in filled], [[row[i] for i in filled] for row in rows]


def failures(grid: Grid) -> list[list[Any]]:
    """Return a row for each run that is not finished: setting, seed, state, reason."""
    return [
        [setting.label, run.seed, run.state, run.reason, run.run_id]
        for setting in grid.settings
        for run in setting.runs
        if run.state != "finished"
    ]
