"""What the app report does, and how every sweep ends: the answer, the table, the page."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.config.build import plain, project_root
from attnscale.sweep.screen import number, say, shown_path
from attnscale.tracking.history import History
from attnscale.tracking.record import Record
from attnscale.tracking.store import Store, find_store

if TYPE_CHECKING:
    from attnscale.report.page import Report

NARROWEST = 60
RESULT_FILE = "result.json"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else str(value)


def fitted_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> str:
    """Return a table that is not wider than ``width``: columns are dropped from the right.

    The first columns, which name the setting, always stay.
    """
    texts = [[_cell(value) for value in row] for row in rows]
    for kept in range(len(columns), 2, -1):
        table = tabulate(
            [row[:kept] for row in texts],
            headers=list(columns[:kept]),
            tablefmt="simple",
            disable_numparse=True,
        )
        if max(map(len, table.splitlines()), default=0) <= width:
            return table
    return table if len(columns) > 2 else tabulate(texts, headers=list(columns))


def _valid(value: Any) -> Any:
    """Return plain values that JSON can hold: what is not finite becomes None."""
    if isinstance(value, dict):
        return {str(key): _valid(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_valid(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write(store: Store, asked: Any, folder: Path, *, title: str, runs: Any = None) -> "Report":
    """Write a report and ``result.json`` into a folder."""
    from attnscale.report.page import make_report
    from attnscale.report.runs import find_runs

    found = find_runs(store, asked) if runs is None else runs
    more = {} if points is None else {"points": points}
    report = make_report(found, History(store, asked.experiment), folder, title=title, **more)
    (folder / RESULT_FILE).write_text(
        json.dumps(_valid(report.result), indent=1, ensure_ascii=False), encoding="utf-8"
    )
    shutil.rmtree(folder / "arrays", ignore_errors=True)
    return report


def tell(report: "Report", out: Callable[[str], None]) -> None:
    """Print the table in the terminal's width, the answer, and where the page is."""
    width = max(NARROWEST, shutil.get_terminal_size((120, 24)).columns)
    out("\n" + fitted_table(report.columns, report.rows, width) + "\n")
    for sentence in report.answer.sentences:
        out(sentence)
    out(f"Report: {shown_path(report.page)}")


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 -- Hydra has put its logging away by then


def attach(record: Record, report: "Report") -> None:
    """Keep the page and its tables with a run."""
    for path in sorted(report.page.parent.iterdir()):
        if path.is_file():
            record.file(path, "report")


def run_report(config: DictConfig) -> None:
    """Write the report that was asked for.

    Raises:
        ValueError: If there is nothing of that name.
    """
    from attnscale.report.runs import Asked, find_runs

    made = plain(config)
    store = find_store(made["tracking"]["uri"], project_root())
    experiment = made["tracking"]["experiment"]
    asked = Asked(made["sweep"], tuple(made["runs"]), made["filter"], experiment)
    runs = find_runs(store, asked)
    sweeps = sorted({run.sweep for run in runs if run.sweep})
    title = f"Report: {', '.join(sweeps[:3]) or 'runs'}"
    if made["points"] < 2:
        raise ValueError(f"points={made['points']}: must be at least 2")
    folder = Path(made["folder"]) / "report"
    report = write(store, asked, folder, title=title, runs=runs, points=made["points"])
    tell(report, say)
    if len(sweeps) == 1 and asked.filter is None and not asked.runs:
        parent = History(store, experiment).parent(sweeps[0])
        if parent is not None:
            attach(Record.attach(store, parent.run_id), report)


def finish(record: Record, folder: Path, experiment: str, described: str) -> str:
    """Write the report at the end of a sweep, print it, keep it; return its first sentence.

    A report that fails is told in one line and breaks nothing: the runs are recorded.
    """
    from attnscale.report.runs import Asked

    try:
        asked = Asked(folder.name, (), None, experiment)
        report = write(record.store, asked, folder / "report", title=f"Sweep of {described}")
        tell(report, _print)
        attach(record, report)
    except Exception as error:
        _print(f"The report could not be written: {type(error).__name__}: {error}")
        return ""
    return report.answer.sentences[0]
