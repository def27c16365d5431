"""Through what the scale works: entropy, live rows, spread of the logits; growth of the scores.

growth exponent: slope of ln score_std_row over ln d_k, everything else equal
½ says that q and k are independent, 1 that they are aligned
"""

from collections.abc import Sequence
from typing import Any

from attnscale.analysis.curves import growth_exponent, joined, thinned
from attnscale.analysis.estimate import estimate
from attnscale.analysis.settings import D_K, Grid, Setting, is_number

SHOWN = {
    "entropy_norm": "entropy ÷ ln n",
    "live_rows": "live rows",
    "logit_std_row": "logit std within rows",
}
SCORE = "score_std_row"
MAX_PATHS = 6
MAX_POINTS = 100
"""Of a line in a small panel."""


def paths_of(grid: Grid) -> list[str]:
    """Return the attentions that the runs have statistics of, in order."""
    keys = (key for run in grid.runs for key in run.metrics)
    paths = [
        key.removeprefix("attention/").removesuffix("/logit_std_row")
        for key in keys
        if key.startswith("attention/") and key.endswith("/logit_std_row")
    ]
    return list(dict.fromkeys(path for path in paths if "/head" not in path))


def statistic_rows(grid: Grid, paths: Sequence[str], max_points: int) -> list[dict[str, Any]]:
    """Return points of the shown statistics: setting, path, statistic, step, value, low, high."""
    limit = min(MAX_POINTS, max_points)
    return [
        {**row, "path": path, "statistic": label}
        for path in paths
        for name, label in SHOWN.items()
        for setting in grid.settings
        for row in joined(setting, f"attention/{path}/{name}", max_points=limit)
    ]


def _others(setting: Setting) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in setting.values.items() if key != D_K)


def growth_rows(grid: Grid, paths: Sequence[str], max_points: int) -> list[dict[str, Any]]:
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
    rows = []
    for others, settings in groups.items():
        label = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in others) or "all"
        if len({setting.values[D_K] for setting in settings}) < 2:
            continue
        for path in paths:
            metric = f"attention/{path}/{SCORE}"
            tables = [
                (float(setting.values[D_K]), {p.step: p.value for p in run.curve(metric)})
                for setting in settings
                for run in setting.runs
                if run.outcome == "finished"
            ]
            common = set.intersection(*(set(t) for _, t in tables)) if tables else set()
            for step in thinned(common, min(MAX_POINTS, max_points)):
                points = [(d, t[step]) for d, t in tables if t[step] > 0]
                if len({d for d, _ in points}) < 2:
                    continue
                fit = growth_exponent([d for d, _ in points], [v for _, v in points])
                rows.append(
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
    return rows


def growth_ends(rows: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return the exponents at the first and the last step: group, path, step, exponent, ends."""
    ends = []
    for group, path in dict.fromkeys((row["group"], row["path"]) for row in rows):
        line = [row for row in rows if (row["group"], row["path"]) == (group, path)]
        ends += [
            [group, path, row["step"], row["exponent"], row["low"], row["high"], row["n"]]
            for row in ([line[0], line[-1]] if len(line) > 1 else line)
        ]
    return ends


def rate_rows(grid: Grid, key: str) -> list[dict[str, Any]]:
    """Return loss against a numeric key: ``group`` (the other values), ``x``, mean, low, high."""
    rows = []
    for setting in grid.settings:
        others = [f"{k.rpartition('.')[2]}={v}" for k, v in setting.values.items() if k != key]
        losses = list(setting.losses.values())
        rows.append(
            {
                "group": " ".join(others) or "all",
                "x": float(setting.values[key]),
                "value": estimate(losses).value if losses else None,
                "low": min(losses, default=None),
                "high": max(losses, default=None),
                "diverged": setting.count("diverged"),
            }
        )
    return rows
