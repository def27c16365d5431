"""The parts of a report: curves, mechanism, what was swept.

Each is a function from the grid of runs to a section, which has its place in ``page.py``; where
there is nothing to show, it returns None or says so. A figure has its rows beside it as a table.

Mechanism is through what the scale works: entropy, live rows, spread of the logits, and the growth
exponent of the scores, the slope over ln d_k of ln(score_std_row / (rms q · rms k · √(1 − c̄))),
everything else equal. It is ½ for untrained weights, whose directions are all alike. Independence
alone does not imply ½, so beside it stands the exponent of the same queries with the keys of other
sequences: what exceeds that is alignment within a sequence, 1 if it is of some keys of a row.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from attnscale.analysis.curves import EARLY_STEPS, growth_exponent, joined, thinned
from attnscale.analysis.estimate import estimate
from attnscale.analysis.rates import rate_rows
from attnscale.analysis.settings import D_K, LR, SCALE, Grid, Setting, is_number, short_names
from attnscale.figures import curves as charts
from attnscale.figures.page import Figure, Section, Table, table_of
from attnscale.tracking.runs import OBJECTIVE

CURVES = {
    "train/loss": ("training loss", True),
    "val/loss": ("validation loss", True),
    "val/accuracy": ("validation accuracy", False),
    "val/explained_variance": ("validation explained variance", False),
    "test/bleu": ("test BLEU", False),
    "train/lr": ("learning rate", True),
}
NORMS = {
    "grad_norm/total": "total",
    "grad_norm/q": "q",
    "grad_norm/k": "k",
    "grad_norm/v": "v",
}
STATISTICS = {
    "entropy_norm": "entropy ÷ ln n",
    "live_rows": "live rows",
    "logit_std_row": "logit std within rows",
}
GROWTH = {"own": "score_std_relative", "of another sequence": "score_std_permuted"}
"""Whose keys -> statistic, in units of √d_k."""
GROWTH_COLUMNS = ("setting", "attention", "keys", "step", "exponent", "low", "high", "points")
MAX_PATHS = 6
MAX_PANEL_POINTS = 100
"""Of a line in a small panel."""


def curve_section(grid: Grid, max_points: int) -> Section:
    """Loss, accuracy, BLEU, rate; the first steps of the gradient norms."""
    figures, tables = [], []
    for metric, (title, log) in CURVES.items():
        rows = [
            row
            for setting in grid.settings
            for row in joined(setting, metric, max_points=max_points)
        ]
        if len({row["step"] for row in rows}) < 2:
            continue
        positive = log and all(row["value"] > 0 for row in rows)
        name = metric.replace("/", "_")
        figures.append(
            Figure(
                name=name,
                spec=charts.curve(rows, title, log=positive),
                caption=f"{title}: mean over seeds, band from the least to the largest. Click a "
                "name to single it out.",
            )
        )
        tables.append(table_of(name, rows, f"Points of {title}"))
    early = [
        {**row, "norm": label}
        for metric, label in NORMS.items()
        for setting in grid.settings
        for row in joined(setting, metric, until=EARLY_STEPS, max_points=max_points)
    ]
    if early:
        figures.append(
            Figure(
                name="gradient_norms",
                spec=charts.small_multiples(early, "norm", "gradient norm", log=True),
                caption=f"Norms of the gradients in the first {EARLY_STEPS} steps: of everything, "
                "and of the q, k and v projections.",
            )
        )
        tables.append(table_of("gradient_norms", early, "Points of the gradient norms"))
    return Section(title="Curves", figures=figures, tables=tables)


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
    """Return points of the statistics: setting, path, statistic, step, value, low, high."""
    limit = min(MAX_PANEL_POINTS, max_points)
    return [
        {**row, "path": path, "statistic": label, "panel": f"{path}: {label}"}
        for path in paths
        for name, label in STATISTICS.items()
        for setting in grid.settings
        for row in joined(setting, f"attention/{path}/{name}", max_points=limit)
    ]


def _others(setting: Setting, key: str) -> str:
    """Return a setting's other values in words."""
    words = (f"{k.rpartition('.')[2]}={v}" for k, v in setting.values.items() if k != key)
    return " ".join(words) or "all"


def growth_rows(grid: Grid, paths: Sequence[str], max_points: int) -> list[dict[str, Any]]:
    """Return the growth exponent over d_k at each sampled step, by the settings' other values.

    Rows of ``GROWTH_COLUMNS``: whose keys, ``low`` and ``high`` None for two sizes, points of the
    fit. Nothing if d_k does not vary.
    """
    if D_K not in grid.keys:
        return []
    groups: dict[str, list[Setting]] = {}
    for setting in grid.settings:
        if is_number(setting.values[D_K]):
            groups.setdefault(_others(setting, D_K), []).append(setting)
    rows = []
    for label, settings in groups.items():
        if len({setting.values[D_K] for setting in settings}) < 2:
            continue
        for path, (keys, statistic) in itertools.product(paths, GROWTH.items()):
            metric = f"attention/{path}/{statistic}"
            tables = [
                (float(setting.values[D_K]), {p.step: p.value for p in run.curve(metric)})
                for setting in settings
                for run in setting.runs
                if run.outcome == "finished"
            ]
            common = set.intersection(*(set(t) for _, t in tables)) if tables else set()
            for step in thinned(common, min(MAX_PANEL_POINTS, max_points)):
                points = [(d, d**0.5 * t[step]) for d, t in tables if t[step] > 0]
                if len({d for d, _ in points}) < 2:
                    continue
                fit = growth_exponent([d for d, _ in points], [v for _, v in points])
                ends = (
                    (None, None) if fit.interval is None else (fit.interval.low, fit.interval.high)
                )
                values = (label, path, keys, step, fit.value, *ends, fit.n)
                rows.append(dict(zip(GROWTH_COLUMNS, values, strict=True)))
    return rows


def growth_ends(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first and the last row of each line of :func:`growth_rows`."""
    lines = itertools.groupby(rows, lambda row: (row["setting"], row["attention"], row["keys"]))
    points = [list(line) for _, line in lines]
    return [row for line in points for row in line[:: max(1, len(line) - 1)]]


def mechanism_section(grid: Grid, max_points: int) -> Section:
    """Entropy, live rows, spread of the logits; growth over d_k."""
    paths = paths_of(grid)[:MAX_PATHS]
    if not paths:
        return Section(
            title="Mechanism",
            text=("These runs recorded no statistics of their attentions.",),
        )
    rows = statistic_rows(grid, paths, max_points)
    figures = [
        Figure(
            name="attention_statistics",
            spec=charts.small_multiples(rows, "panel", "", log=False, columns=3),
            caption="Statistics of the attention in training, mean over heads and seeds.",
        )
    ]
    tables = [table_of("attention_statistics", rows, "Points of the figure")]
    growth = growth_rows(grid, paths, max_points)
    if growth:
        figures.append(
            Figure(
                name="score_growth",
                spec=charts.growth(growth),
                caption="How the spread of the scores, divided by what lengths and inputs explain, "
                "grows with d_k: slope of ln std over ln d_k. ½ is that of untrained weights; 1 "
                "that of some keys of a row aligned, or of a few directions that q and k share. "
                "Dashed: with the keys of another sequence, which keeps the directions that q and "
                "k prefer, and alignment that all sequences share; what is above it is alignment "
                "within a sequence.",
            )
        )
        caption = "Growth exponent at the start and at the end, 95 % interval of the fit"
        tables.append(table_of("score_growth", growth_ends(growth), caption))
    return Section(title="Mechanism", figures=figures, tables=tables)


def loss_rows(grid: Grid, key: str) -> list[dict[str, Any]]:
    """Return loss against a numeric key: ``group`` (the other values), ``x``, mean, low, high."""
    rows = []
    for setting in grid.settings:
        losses = list(setting.losses.values())
        rows.append(
            {
                "group": _others(setting, key),
                "x": float(setting.values[key]),
                "value": estimate(losses).value if losses else None,
                "low": min(losses, default=None),
                "high": max(losses, default=None),
                "diverged": setting.count("diverged"),
            }
        )
    return rows


def swept_section(grid: Grid) -> Section | None:
    """Loss against what was swept: learning-rate curves, heat maps."""
    figures, tables = [], []
    numbers, names = grid.numbers(), short_names(grid.keys)
    for key in numbers:
        rows = loss_rows(grid, key)
        if all(row["value"] is None for row in rows):
            continue
        positive = all(row["value"] > 0 for row in rows if row["value"] is not None)
        name = f"loss_over_{names[key]}".replace("/", "_")
        figures.append(
            Figure(
                name=name,
                spec=charts.against(rows, names[key], log_y=positive),
                caption=f"Best validation loss against {names[key]}; bars from the least to the "
                "largest over seeds. Runs without a result are left out.",
            )
        )
        tables.append(table_of(name, rows, f"Loss over {names[key]}"))
    if len(numbers) == 2:
        cells = []
        for setting in grid.settings:
            estimate = setting.estimate(OBJECTIVE)
            others = [f"{names[k]}={v}" for k, v in setting.values.items() if k not in numbers]
            cells.append(
                {
                    "group": " ".join(others) or "all",
                    "x": float(setting.values[numbers[0]]),
                    "y": float(setting.values[numbers[1]]),
                    "value": None if estimate is None or setting.lost else estimate.value,
                }
            )
        figures.append(
            Figure(
                name="heat_map",
                spec=charts.heat(cells, names[numbers[0]], names[numbers[1]]),
                caption="Best validation loss, mean over seeds; empty where a run was lost.",
            )
        )
    if LR in grid.keys and SCALE in grid.keys:
        columns, rates = rate_rows(grid.runs)
        tables.insert(
            0,
            Table(
                name="learning_rates",
                columns=columns,
                rows=rates,
                caption="Best validation loss by learning rate; sensitivity: mean of the last loss "
                "given away over the rates (Wortsman et al. 2023)",
            ),
        )
    if not figures and not tables:
        return None
    return Section(title="Over what was swept", figures=figures, tables=tables)
