"""The parts of a report: curves, mechanism, what was swept.

Each is a function from the grid of runs to a section, which has its place in ``page.py``; where
there is nothing to show, it returns None or says so. A figure has its rows beside it as a table.
"""

from dataclasses import replace

from attnscale.analysis.curves import EARLY_STEPS, joined
from attnscale.analysis.rates import rate_rows
from attnscale.analysis.runs import OBJECTIVE, Run
from attnscale.analysis.settings import D_K, LR, SCALE, Grid, short_names
from attnscale.analysis.tables import table_of
from attnscale.figures import curves as charts
from attnscale.figures import sweeps
from attnscale.figures.page import Figure, Section, Table
from attnscale.report import mechanism

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


def mechanism_section(grid: Grid, max_points: int) -> Section:
    """Entropy, live rows, spread of the logits; growth over d_k."""
    paths = mechanism.paths_of(grid)[: mechanism.MAX_PATHS]
    if not paths:
        return Section(
            title="Mechanism",
            text=("These runs recorded no statistics of their attentions.",),
        )
    rows = mechanism.statistic_rows(grid, paths, max_points)
    for row in rows:
        row["panel"] = f"{row['path']}: {row['statistic']}"
    figures = [
        Figure(
            name="attention_statistics",
            spec=charts.small_multiples(rows, "panel", "", log=False, columns=3),
            caption="Statistics of the attention in training, mean over heads and seeds.",
        )
    ]
    tables = [table_of("attention_statistics", rows, "Points of the figure")]
    growth = mechanism.growth_rows(grid, paths, max_points)
    if growth:
        ends = mechanism.growth_ends(growth)
        figures.append(
            Figure(
                name="score_growth",
                spec=charts.growth(growth),
                caption="How the spread of the scores grows with d_k: slope of ln std over ln d_k.",
            )
        )
        tables.append(
            Table(
                name="score_growth",
                columns=("setting", "attention", "step", "exponent", "low", "high", "points"),
                rows=ends,
                caption="Growth exponent at the start and at the end, 95 % interval of the fit",
            )
        )
    return Section(title="Mechanism", figures=figures, tables=tables)


def runs_with_variant(grid: Grid) -> list[Run]:
    """Return the runs that trained to an end, each with what else its setting varies."""
    runs: list[Run] = []
    for setting in grid.settings:
        others = {k: v for k, v in setting.values.items() if k not in (SCALE, D_K, LR)}
        variant = " ".join(f"{key}={value}" for key, value in others.items())
        runs += [
            replace(run, variant=variant)
            for run in setting.runs
            if run.outcome in ("finished", "diverged")
        ]
    return runs


def swept_section(grid: Grid) -> Section | None:
    """Loss against what was swept: learning-rate curves, heat maps."""
    figures, tables = [], []
    numbers, names = grid.numbers(), short_names(grid.keys)
    for key in numbers:
        rows = mechanism.rate_rows(grid, key)
        if all(row["value"] is None for row in rows):
            continue
        positive = all(row["value"] > 0 for row in rows if row["value"] is not None)
        name = f"loss_over_{names[key]}".replace("/", "_")
        figures.append(
            Figure(
                name=name,
                spec=sweeps.against(rows, names[key], log_y=positive),
                caption=f"Best validation loss against {names[key]}; bars from the least to the "
                "largest over seeds. Diverged runs are left out.",
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
                    "value": None if estimate is None or not setting.sound else estimate.value,
                }
            )
        figures.append(
            Figure(
                name="heat_map",
                spec=sweeps.heat(cells, names[numbers[0]], names[numbers[1]]),
                caption="Best validation loss, mean over seeds; empty where a run diverged.",
            )
        )
    if LR in grid.keys and SCALE in grid.keys:
        columns, rates = rate_rows(runs_with_variant(grid))
        tables.insert(
            0,
            Table(
                name="learning_rates",
                columns=columns,
                rows=rates,
                caption="Loss by learning rate and sensitivity: the mean loss given away over "
                "the rates (Wortsman et al. 2023)",
            ),
        )
    if not figures and not tables:
        return None
    return Section(title="Over what was swept", figures=figures, tables=tables)
