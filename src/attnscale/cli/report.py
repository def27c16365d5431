"""What the app report does, and how every sweep ends: the answer, the table, the page."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.cli.screen import number, say
from attnscale.config.app_schema import ReportConfig
from attnscale.config.build import project_root, shown_path, to_object
from attnscale.tracking.history import History
from attnscale.tracking.record import Record
from attnscale.tracking.store import Store, find_store

if TYPE_CHECKING:
    from attnscale.report.page import Report

MIN_WIDTH = 60
RESULT_FILE = "result.json"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else str(value)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def fitted_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int, named: int
) -> str:
    """Return a table that is not wider than ``width``: columns are dropped from the right.

    The first ``named`` columns, which name the setting, always stay; where they alone are too wide,
    their longest texts are cut.
    """
    texts = [list(columns), *([_cell(value) for value in row] for row in rows)]

    def drawn(n_columns: int, length: int) -> str:
        cut = [[_cut(text, length) for text in row[:n_columns]] for row in texts]
        return tabulate(cut[1:], headers=cut[0], tablefmt="simple", disable_numparse=True)

    whole = max((len(text) for row in texts for text in row), default=1)
    tries = [
        *((n_columns, whole) for n_columns in range(len(columns), named, -1)),
        *((named, length) for length in range(whole, 0, -1)),
    ]
    tables = (drawn(*one) for one in tries)
    table = next((t for t in tables if max(map(len, t.splitlines()), default=0) <= width), None)
    return drawn(named, 1) if table is None else table


def _valid(value: Any) -> Any:
    """Return plain values that JSON can hold: what is not finite becomes None."""
    if isinstance(value, dict):
        return {str(key): _valid(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_valid(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write(
    store: Store,
    asked: Any,
    folder: Path,
    *,
    title: str,
    runs: Any = None,
    points: int | None = None,
) -> "Report":
    """Write a report and ``result.json`` into a folder."""
    from attnscale.analysis.settings import find_runs
    from attnscale.report.page import make_report

    runs = find_runs(store, asked) if runs is None else runs
    more = {} if points is None else {"points": points}
    report = make_report(runs, History(store, asked.experiment), folder, title=title, **more)
    (folder / RESULT_FILE).write_text(
        json.dumps(_valid(report.result), indent=1, ensure_ascii=False), encoding="utf-8"
    )
    shutil.rmtree(folder / "arrays", ignore_errors=True)
    return report


def tell(report: "Report", out: Callable[[str], None]) -> None:
    """Print the table in the terminal's width, the answer, and where the page is."""
    width = max(MIN_WIDTH, shutil.get_terminal_size((120, 24)).columns)
    named = len(report.result["keys"])
    out("\n" + fitted_table(report.columns, report.rows, width, named) + "\n")
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


def run_report(composed: DictConfig) -> None:
    """Write the report that was asked for.

    Raises:
        ValueError: If there is nothing of that name.
    """
    from attnscale.analysis.settings import Asked, find_runs

    config = to_object(composed, ReportConfig)
    store = find_store(config.tracking.uri, project_root())
    experiment = config.tracking.experiment
    asked = Asked(config.sweep, tuple(config.runs), config.filter, experiment)
    runs = find_runs(store, asked)
    sweeps = sorted({run.sweep for run in runs if run.sweep})
    title = f"Report: {', '.join(sweeps[:3]) or 'runs'}"
    if config.points < 2:
        raise ValueError(f"points={config.points}: must be at least 2")
    folder = Path(config.folder) / "report"
    report = write(store, asked, folder, title=title, runs=runs, points=config.points)
    tell(report, say)
    if len(sweeps) == 1 and asked.filter is None and not asked.runs:
        parent = History(store, experiment).parent(sweeps[0])
        if parent is not None:
            attach(Record.attach(store, parent.run_id), report)


def finish(record: Record, folder: Path, experiment: str, described: str) -> str:
    """Write the report at the end of a sweep, print it, keep it; return its first sentence.

    A report that fails is told in one line and breaks nothing: the runs are recorded.
    """
    from attnscale.analysis.settings import Asked

    try:
        asked = Asked(folder.name, (), None, experiment)
        report = write(record.store, asked, folder / "report", title=f"Sweep of {described}")
        tell(report, _print)
        attach(record, report)
    except Exception as error:
        words = " ".join(str(error).split())
        _print(f"The report could not be written: {type(error).__name__}: {words}")
        return ""
    return report.answer.sentences[0]
