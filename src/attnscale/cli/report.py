"""What the apps report and curves do, and how a sweep ends: the answer, the table, the page."""

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.checks import check_writable
from attnscale.cli.job import writing
from attnscale.cli.screen import number, say
from attnscale.config.app_schema import CurvesConfig, ReportConfig
from attnscale.config.build import project_root, shortened, shown_path, to_object
from attnscale.config.limits import check_limits
from attnscale.config.section import plain
from attnscale.files import remove_parts, write_bytes, write_text
from attnscale.sweep.orphans import mark_orphans
from attnscale.sweep.state import Launch
from attnscale.tracking.history import History
from attnscale.tracking.record import Record
from attnscale.tracking.store import Store, check_reachable, find_store

if TYPE_CHECKING:
    from attnscale.analysis.settings import Asked
    from attnscale.report.page import Report

MIN_WIDTH = 60
RESULT_FILE = "result.json"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else str(value)


def fitted_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int, named: int
) -> str:
    """Return a table that is not wider than ``width``: columns are dropped from the right.

    The first ``named`` columns, which name the setting, always stay; where they alone are too wide,
    their longest texts are cut.
    """
    texts = [list(columns), *([_cell(value) for value in row] for row in rows)]

    def drawn(n_columns: int, length: int) -> str:
        cut = [[shortened(text, length) for text in row[:n_columns]] for row in texts]
        return tabulate(cut[1:], headers=cut[0], tablefmt="simple", disable_numparse=True)

    whole = max((len(text) for row in texts for text in row), default=1)
    tries = [
        *((n_columns, whole) for n_columns in range(len(columns), named, -1)),
        *((named, length) for length in range(whole, 0, -1)),
    ]
    tables = (drawn(*one) for one in tries)
    narrow = (t for t in tables if max(map(len, t.splitlines()), default=0) <= width)
    return next(narrow, drawn(named, 1))


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
    store: Store, selection: "Asked", folder: Path, *, title: str, runs: Any = None, **options: int
) -> "Report":
    """Write a report and ``result.json`` into a folder."""
    from attnscale.analysis.settings import find_runs
    from attnscale.report.page import make_report

    runs = find_runs(store, selection) if runs is None else runs
    history = History(store, selection.experiment)
    remove_parts(folder)
    report = make_report(runs, history, folder, title=title, **options)
    text = json.dumps(_valid(report.result), indent=1, ensure_ascii=False)
    write_text(folder / RESULT_FILE, text)
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
    """Write the report on the runs that the command line selects.

    Raises:
        ValueError: If there is nothing of that name.
    """
    config = to_object(composed, ReportConfig)
    check_limits(plain(config), ReportConfig, {})
    check_writable("folder", Path(config.folder))
    from attnscale.analysis.settings import Asked, find_runs

    store = find_store(config.tracking.uri, project_root())
    check_reachable(store)
    experiment = config.tracking.experiment
    mark_orphans(store, experiment)
    selection = Asked(config.sweep, tuple(config.runs), config.filter, experiment)
    runs = find_runs(store, selection)
    sweeps = sorted({run.sweep for run in runs if run.sweep})
    title = f"Report: {', '.join(sweeps[:3]) or 'runs'}"
    folder = Path(config.folder) / "report"
    report = write(store, selection, folder, title=title, runs=runs, points=config.points)
    tell(report, say)
    for remark in report.result["remarks"]:
        say(remark)
    if len(sweeps) == 1 and config.filter is None and not config.runs:
        parent = History(store, experiment).parent(sweeps[0])
        if parent is not None:
            attach(Record.attach(store, parent.run_id), report)


def finish(record: Record, folder: Path, launch: Launch) -> str:
    """Write the report at the end of a sweep, print it, keep it; return its first sentence."""
    from attnscale.analysis.settings import Asked

    selection = Asked(launch.name, (), None, launch.experiment)
    title = f"Sweep of {launch.described}"
    report = write(record.store, selection, folder / "report", title=title)
    tell(report, _print)
    attach(record, report)
    return report.answer.sentences[0]


def draw_sweep(composed: DictConfig) -> None:
    """Draw ``metrics`` of the runs of ``sweep`` into ``file``.

    Raises:
        ValueError: If there is no such sweep, or none of its runs has such a metric.
    """
    from attnscale.figures.curves import run_curves
    from attnscale.figures.page import to_png

    config = to_object(composed, CurvesConfig)
    path = Path(config.file)
    check_writable("file", path.parent)
    store = find_store(config.tracking.uri, project_root())
    check_reachable(store)
    history = History(store, config.tracking.experiment)
    runs = history.sweep_runs(config.sweep)
    # The sweep's mark at the end of each name says nothing within one sweep.
    names = {run.run_id: re.sub(r" \([0-9a-f]+\)$", "", run.name) for run in runs}
    curves = {
        metric: {names[run.run_id]: history.curve(run.run_id, metric) for run in runs}
        for metric in config.metrics
    }
    try:
        spec = run_curves(curves, title=f"sweep {runs[0].tags['sweep']}")
    except ValueError as error:
        raise ValueError(f"metrics={config.metrics}: {error}") from error
    with writing("file", config.file):
        write_bytes(path, to_png(spec))
    say(f"Drawn: {shown_path(path)}")
