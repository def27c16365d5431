"""Through what the scale works: entropy, live rows, spread of the logits; growth of the scores.

growth exponent: slope of ln score_std_row over ln d_k, everything else equal
½ says that q and k are independent, 1 that they are aligned
"""

from collections.abc import Sequence
from typing import Any

from attnscale.report.curves import growth_exponent
from attnscale.report.series import Curves, rows_of, thinned
from attnscale.report.settings import D_K, Grid, Setting, is_number
from attnscale.report.statistics import estimate

SHOWN = {
    "entropy_norm": "entropy ÷ ln n",
    "live_rows": "live rows",
    "logit_std_row": "logit std within rows",
}
SCORE = "score_std_row"
MOST_PATHS = 6
MOST_POINTS = 100
"""Of a line in a small panel."""


def paths_of(grid: Grid) -> list[str]:
    """Return the attentions that the runs have statistics of, in order."""
    found: dict[str, None] = {}
    for setting in grid.settings:
        for run in setting.runs:
            for key in run.metrics:
                if key.startswith("attention/") and key.endswith("/logit_std_row"):
                    path = key.removeprefix("attention/").removesuffix("/logit_std_row")
                    if "/head" not in path:
                        found[path] = None
    return list(found)


def statistic_rows(grid: Grid, curves: Curves, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return points of the shown statistics: setting, path, statistic, step, value, low, high."""
    made: list[dict[str, Any]] = []
    for path in paths:
        for name, label in SHOWN.items():
            for setting in grid.settings:
                made += [
                    {**row, "path": path, "statistic": label}
                    for row in rows_of(
                        setting, f"attention/{path}/{name}", curves, most=MOST_POINTS
                    )
                ]
    return made


def _others(setting: Setting) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in setting.values.items() if key != D_K)


def growth_rows(grid: Grid, curves: Curves, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the growth exponent over d_k at each sampled step, by the settings' other values.

    Rows with ``group``, ``path``, ``step``, ``exponent``, ``low``, ``high`` (None for two sizes)
    and ``n`` (points of the fit). Nothing if d_k does not vary.
    """
    if D_K not in grid.keys:
        return []
    groups: dict[tuple[tuple[str, str], ...], list[Setting]] = {}
    for setting in grid.settings:
        if is_number(setting.values[D_K]):
            groups.setdefault(_others(setting), []).append(setting)
    made = []
    for others, settings in groups.items():
        label = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in others) or "all"
        if len({setting.values[D_K] for setting in settings}) < 2:
            continue
        for path in paths:
            tables = [
                (float(setting.values[D_K]), {p.step: p.value for p in curves.of(run, metric)})
                for setting in settings
                for run in setting.runs
                if run.state == "finished"
                for metric in (f"attention/{path}/{SCORE}",)
            ]
            common = set.intersection(*(set(t) for _, t in tables)) if tables else set()
            for step in thinned(common, min(MOST_POINTS, curves.most)):
                points = [(d, t[step]) for d, t in tables if t[step] > 0]
                if len({d for d, _ in points}) < 2:
                    continue
                fit = growth_exponent([d for d, _ in points], [v for _, v in points])
                made.append(
                    {
                        "group": label,
                        "path": path,
                        "step": step,
                        "exponent": fit.value,
                        "low": None if fit.interval is None else fit.interval.low,
                        "high": None if fit.interval is None else fit.interval.high,
                        "n": fit.n,
                    }
                )
    return made


def growth_ends(rows: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return the exponents at the first and the last step: group, path, step, exponent, ends."""
    made = []
    for group, path in dict.fromkeys((row["group"], row["path"]) for row in rows):
        mine = [row for row in rows if (row["group"], row["path"]) == (group, path)]
        made += [
            [group, path, row["step"], row["exponent"], row["low"], row["high"], row["n"]]
            for row in ([mine[0], mine[-1]] if len(mine) > 1 else mine)
        ]
    return made


def rate_rows(grid: Grid, key: str) -> list[dict[str, Any]]:
    """Return loss against a numeric key: ``group`` (the other values), ``x``, mean, low, high."""
    made = []
    for setting in grid.settings:
        others = [f"{k.rpartition('.')[2]}={v}" for k, v in setting.values.items() if k != key]
        losses = list(setting.losses.values())
        found = estimate(losses) if losses else None
        made.append(
            {
                "group": " ".join(others) or "all",
                "x": float(setting.values[key]),
                "value": None if found is None else found.mean,
                "low": min(losses) if losses else None,
                "high": max(losses) if losses else None,
                "diverged": setting.count("diverged"),
            }
        )
    return made
