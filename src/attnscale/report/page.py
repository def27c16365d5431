"""The report: one page that answers what a person asked with a sweep."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscale.analysis.comparison import verdict_in_words
from attnscale.analysis.curves import MAX_POINTS
from attnscale.analysis.settings import Grid, make_grid
from attnscale.bleu import bleu_remarks
from attnscale.figures.page import Section, Table, write_page
from attnscale.report import gallery, provenance, translations
from attnscale.report.answer import Answer, make_answer
from attnscale.report.comparisons import Comparison
from attnscale.report.sections import curve_section, mechanism_section, swept_section
from attnscale.report.summary import failures, progress, summary, tuned
from attnscale.tracking.history import History
from attnscale.tracking.runs import Run

MAX_CURVES = 24
"""Settings that are drawn as curves; of more, the best ones are."""


@dataclass(frozen=True)
class Report:
    """A written report.

    Attributes:
        page: The HTML file.
        answer: The answer.
        columns: The table's headings.
        rows: The table's rows.
        result: What ``result.json`` holds.
    """

    page: Path
    answer: Answer
    columns: list[str]
    rows: list[list[Any]]
    result: dict[str, Any]


def drawn_settings(grid: Grid) -> Grid:
    """Return the grid with the settings that curves are drawn of: all, or the best."""
    if len(grid.settings) <= MAX_CURVES:
        return grid
    best = sorted(grid.settings, key=lambda setting: setting.mean_loss)[:MAX_CURVES]
    return dataclasses.replace(grid, settings=tuple(s for s in grid.settings if s in best))


def _seeds(seed: int, data_seed: int) -> str:
    """Return the seeds of a replicate as text, such as 3, or 3/0 where that of the data differs."""
    return str(seed) if data_seed in (seed, -1) else f"{seed}/{data_seed}"


def _compared(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "setting": c.setting.label,
            "reference": c.reference.label,
            **{k: v for k, v in dataclasses.asdict(c.difference).items() if k != "interval"},
            "low": None if c.difference.interval is None else c.difference.interval.low,
            "high": None if c.difference.interval is None else c.difference.interval.high,
            "verdict": verdict_in_words(c.difference),
            "margin_source": None if c.margin is None else c.margin.source,
            "detectable": c.difference.detectable,
        }
        for c in comparisons
    ]


def _result(grid: Grid, answer: Answer, columns: Sequence[str], rows: Any) -> dict[str, Any]:
    return {
        "answer": list(answer.sentences),
        "best": None if answer.best is None else answer.best.values,
        "comparisons": _compared(answer.comparisons),
        "at_best": _compared(answer.at_best),
        "keys": list(grid.keys),
        "settings": [
            {
                "values": s.values,
                "losses": {_seeds(*replicate): loss for replicate, loss in s.losses.items()},
                "runs": {run.run_id: run.outcome for run in s.runs},
            }
            for s in grid.settings
        ],
        "table": {"columns": list(columns), "rows": [list(row) for row in rows]},
        "warnings": provenance.warnings(grid),
        "confounds": provenance.confounds(grid),
        "missing": list(grid.missing),
    }


def make_report(
    runs: Sequence[Run], history: History, folder: Path, *, title: str, points: int = MAX_POINTS
) -> Report:
    """Write the report of some runs into a folder: page, PNG, CSV.

    Args:
        runs: The runs, in any state; there may be none.
        history: Where their curves are.
        folder: Where to write.
        title: Heading of the page.
        points: Most points of a drawn curve.
    """
    grid = make_grid(runs)
    answer = make_answer(grid)
    columns, rows = summary(grid, answer)
    remarks = bleu_remarks(run.metrics for run in grid.runs)
    drawn = drawn_settings(grid)
    text = f"Curves are drawn of the best {MAX_CURVES} of {len(grid.settings)} settings."
    tables = [
        Table(
            name="settings",
            columns=columns,
            rows=rows,
            caption="A row per setting: mean ± standard deviation over seeds, at the epoch of the "
            "best validation loss but for the last one. − sqrt is the difference of the best at "
            "equal settings, with its own 95 % interval; verdicts go by Holm's p of all "
            "comparisons and by the margin δ, within which arms are equivalent: no difference "
            "that matters. Entropy and logit std are means over attentions at the end",
        )
    ]
    at_best = tuned(grid, answer)
    if at_best is not None:
        tables.append(
            Table(
                name="at_best",
                columns=at_best[0],
                rows=at_best[1],
                caption="Each at the best value of what was tuned, which is the first comparison; "
                "at the end of what was tried the true best may lie outside",
            )
        )
    speeds = progress(answer)
    if speeds is not None:
        tables.append(
            Table(
                name="steps",
                columns=speeds[0],
                rows=speeds[1],
                caption="How many times the steps of its reference a setting needs until half of "
                "what the reference improves by is reached, and so on: geometric mean over pairs "
                "of equal seeds, with a 95 % interval of its own, without a correction for their "
                "number",
            )
        )
    without_result = failures(grid)
    if without_result:
        tables.append(
            Table(
                name="not_finished",
                columns=("setting", "seed", "state", "reason", "run"),
                rows=without_result,
                caption="Runs that have no result",
            )
        )
    arrays = folder / "arrays"
    sections = [
        Section(
            title="Table",
            text=() if drawn is grid else (text,),
            tables=tables,
            notes=[*provenance.confounds(grid), *remarks],
        ),
        curve_section(drawn, points),
        mechanism_section(drawn, points),
        gallery.section(drawn, history, arrays),
        translations.section(answer.at_best, history, arrays),
        swept_section(grid),
        _origin(grid),
    ]
    page = write_page(
        folder,
        title=title,
        lead=[*answer.sentences],
        sections=[section for section in sections if section is not None],
    )
    result = {**_result(grid, answer, columns, rows), "remarks": remarks}
    return Report(page, answer, columns, rows, result)


def _origin(grid: Grid) -> Section:
    facts, values = provenance.table(grid)
    return Section(
        title="Where this comes from",
        text=provenance.warnings(grid) or ("All runs: one commit, one machine, one data set.",),
        tables=(Table(name="provenance", columns=facts, rows=values),),
    )
